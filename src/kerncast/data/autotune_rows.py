"""What Inductor timed in one autotune, as measurements of the families that have such kernels.

The autotunes come from hooks in a running compile (`kerncast.torch`) or from the logs that Inductor writes itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kerncast.core.device import Device
from kerncast.core.op import Family
from kerncast.data import schema
from kerncast.library.families.gemm_inductor_cpp import gemm_inductor_cpp
from kerncast.library.families.gemm_triton import triton
from kerncast.library.families.inductor_choices import flex_attention_triton
from kerncast.library.families.torch_products import triton_config

FAILED = "Inductor could not run it, and does not say why"
# Operators whose C++ kernel takes packed weights, as those of gemm/inductor_cpp do.
PACKED = ("packed_linear", "linear_unary", "mm", "addmm")


def choice_rows(
    op: str,
    choices: Sequence[Mapping[str, Any]],
    family: Family,
    problem: Mapping[str, Any],
    device: Device | None,
    left_out: Counter[str],
) -> Iterator[dict[str, Any]]:
    """A row for each choice of an autotune that the family has; `order` is its place. The others are counted by reason.

    A choice is as `families.torch_products.Described` has it, with `ms`, the milliseconds, or None if it did not run.
    """
    # Rules about the hardware are not asked of families whose configs may fail: what ran is a fact.
    bindings = family.bindings(problem, None if family.can_fail else device)
    library = _library(op, choices)
    seen = set()
    for order, choice in enumerate(choices):
        config = _config(family, choice, order == library)
        if isinstance(config, str):
            left_out[config] += 1
            continue
        broken = family.config.validate(config, bindings)
        label = _label(choice)
        chosen = repr(sorted(config.items()))
        if broken or label is None or chosen in seen:
            left_out[str(broken[0]) if broken else "not timed" if label is None else "a config that occurs twice"] += 1
            continue
        seen.add(chosen)
        yield {
            **{f"problem.{name}": value for name, value in problem.items()},
            **{f"config.{name}": config.get(name) for name in family.config.parameters},
            "order": order,
            **label,
        }


def _library(op: str, choices: Sequence[Mapping[str, Any]]) -> int | None:
    """Which choice is the library's: the one named as the operator, else the first; a second one would share its config."""
    externs = [order for order, choice in enumerate(choices) if choice.get("kind") == "extern"]
    named = [order for order in externs if choices[order].get("name") == op]
    return next(iter(named or externs), None)


def _config(family: Family, choice: Mapping[str, Any], is_library: bool) -> dict[str, Any] | str:
    """The config of a choice; a text says why there is none."""
    kind = choice.get("kind")
    if kind == "extern":
        return dict(family.library) if is_library and family.library else "a second library kernel"
    if family is gemm_inductor_cpp and kind == "default" and choice.get("template") == "CppGemmTemplate":
        return {"kind": "default"}
    if family is gemm_inductor_cpp and kind == "tile" and isinstance(choice.get("config"), dict):
        return dict(choice["config"])
    if kind == "triton" and isinstance(choice.get("params"), dict):
        template, params = str(choice.get("template")), choice["params"]
        if family is triton:
            return triton_config(template, params) or f"template {template} with parameters that {family.id} lacks"
        if family is flex_attention_triton and template == "triton::flex_attention":
            return {name: params.get(name) for name in family.config.parameters}
    return f"{kind} is no kernel of {family.id}"


def _label(choice: Mapping[str, Any]) -> dict[str, Any] | None:
    """`status` and `time_ns`; None: it was not timed."""
    if "ms" not in choice:
        return None
    ms = choice["ms"]
    if ms is None:
        return {"status": str(schema.Status.LAUNCH_ERROR), "time_ns": None, "error": FAILED}
    return {"status": str(schema.Status.OK), "time_ns": float(ms) * 1e6, "error": None}
