"""What torch.compile's max-autotune timed: the logs that Inductor writes, and its autotunes as measurements.

`logs` reads what it prints and the files that it writes on request; hooks in a running compile (`kerncast.torch`) give the
same. A row is a choice that was timed, of `gemm/triton` on a GPU and of `gemm/inductor_cpp` on a CPU. What a log says of other
ops and other kernels is left out and counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from kerncast.core import dtypes
from kerncast.core.device import Device
from kerncast.core.io.foreign import JSON, load_json
from kerncast.core.op import Family
from kerncast.core.parameters import Value
from kerncast.data import schema
from kerncast.data.formats import Head, Imported, Importer, ImportOptions, measured_on
from kerncast.data.formats.inductor.logs import (
    CPP,
    Autotune,
    is_choice_line,
    is_list,
    is_text_log,
    read_choice_lines,
    read_list,
    read_text,
)
from kerncast.data.skipping import LINE
from kerncast.errors import BadFile, InvalidValue, NotFound
from kerncast.library import devices
from kerncast.library.families.gemm_inductor_cpp import gemm_inductor_cpp
from kerncast.library.families.gemm_triton import flex_attention_triton, triton
from kerncast.library.families.torch_products import Described, gemm_problem, triton_config, worded

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


RULES = {**gemm_inductor_cpp.problem.parameters, **triton.problem.parameters}


def settings(given: Mapping[str, str], names: Sequence[str]) -> dict[str, Value]:
    """The values of `constants`, checked; only some `names` apply to a format."""
    found: dict[str, Value] = {}
    for name, text in given.items():
        if name not in names:
            raise NotFound.named("parameter for `constants`", name, names)
        value = dtypes.named(text) or text if name == "dtype" else worded(text.capitalize() if name == "tf32" else text)
        if RULES[name].index(value) is None:
            raise InvalidValue(f"`constants` {name} must be {RULES[name].describe()}, got '{text}'")
        found[name] = value
    return found


SETTABLE = ("dtype", "layout", "tf32", "threads")
LONGEST_REASON = 200
UNKNOWN_LAYOUT = (
    "the log says neither dtypes nor strides: add `constants` dtype=fp16 and `constants` layout=rrr (or what they were)"
)
# oneDNN's linear may hold an activation, which a log does not show.
HIDDEN = ("linear_unary",)
TENSORS_SHOWN = 8


class InductorLogs(Importer):
    """Logs of max-autotune."""

    name = "inductor"
    doc = (
        "what torch.compile's max-autotune timed: its output (AUTOTUNE …), autotuning_result_json_list.txt, "
        "TORCHINDUCTOR_MM_LOGGING_FILE; `constants` dtype, layout, tf32, threads"
    )

    def recognises(self, head: Head) -> bool:
        first = head.text.lstrip().partition("\n")[0]
        listed = head.text.lstrip().startswith("[") and '"kernel_type"' in head.text and '"time"' in head.text
        return is_text_log(head.text) or is_choice_line(first) or listed

    def read(self, path: Path, options: ImportOptions) -> Iterator[Imported]:
        if options.mapping is not None:
            raise InvalidValue("a log of Inductor names its own parameters: `mapping` does not apply to it")
        found = _Sorted(settings(options.values, SETTABLE), options)
        for autotune in _autotunes(JSON.read(path), options):
            found.add(autotune)
        yield from found.tables()


def _autotunes(data: bytes, options: ImportOptions) -> Iterator[Autotune]:
    text = data.decode("utf-8", "replace").removeprefix("\ufeff")
    beginning = text.lstrip()
    if is_choice_line(beginning.partition("\n")[0]):
        yield from read_choice_lines(text, options.skips)
        return
    if beginning.startswith("["):
        try:
            document = load_json(text)
        except ValueError:
            document = None  # a log whose first line begins with a bracket
        if is_list(document):
            yield from read_list(document, options.skips)
            return
    if not is_text_log(text):
        raise BadFile(
            "this is no log of max-autotune: there is no line `AUTOTUNE mm(64x128, 128x256)`, no line of "
            "autotuning_result_json_list.txt and no list of TORCHINDUCTOR_MM_LOGGING_FILE in it"
        )
    yield from read_text(text, options.skips)


@dataclass
class _Sorted:
    """Rows by family and device, and what was left out, while a log is read."""

    fixed: Mapping[str, Any]
    options: ImportOptions
    rows: dict[tuple[str, str], list[dict[str, Any]]] = field(default_factory=dict)
    known: dict[str, Device] = field(default_factory=dict)
    left_out: Counter[str] = field(default_factory=Counter)
    autotunes: int = 0
    cut: int = 0

    def add(self, autotune: Autotune) -> None:
        """Keep the rows of an autotune, or count why there are none."""
        self.autotunes += 1
        count = len(autotune.choices)
        if not count:  # the log was cut before the first one, and what it lacks need not be given
            self.left_out["an autotune without choices, where the log is cut"] += 1
            return
        listed = sum(choice.ms is not None for choice in autotune.choices)
        self.cut += autotune.total is not None and autotune.total > listed
        device = self._device(autotune)
        family = _family(autotune, device)
        problem = self._problem(autotune, family)
        if isinstance(problem, str):
            self.left_out[problem[:LONGEST_REASON]] += count
            return
        left_out: Counter[str] = Counter()
        choices = [choice.described for choice in autotune.choices]
        kept = choice_rows(autotune.op, choices, family, problem, device, left_out)
        target = self.rows.setdefault((family.id, device.name), [])
        self.known[device.name] = device
        # Logs list choices by their time, not in the order in which they ran.
        target += [{LINE: autotune.choices[row.pop("order")].line, **row} for row in kept]
        self.left_out.update({reason[:LONGEST_REASON]: number for reason, number in left_out.items()})

    def _device(self, autotune: Autotune) -> Device:
        told = devices.named(autotune.device) if autotune.device else None
        if told is not None:
            return measured_on(told, self.options)
        if self.options.device is None:
            raise InvalidValue("the log does not say which device it is of: add `device` NAME (see `kerncast list device`)")
        return devices.get(self.options.device)

    def _problem(self, autotune: Autotune, family: Family) -> dict[str, Any] | str:
        """The problem of gemm that was timed; a text says why there is none."""
        on_cpu = family is gemm_inductor_cpp
        if autotune.op in HIDDEN:
            return f"{autotune.op}, whose activation a log does not show"
        if on_cpu and autotune.op not in PACKED:
            return f"{autotune.op} on a CPU"
        said = self._listed(autotune) if autotune.problem is not None else self._operands(autotune)
        if isinstance(said, str):
            return said
        said |= self._environment(autotune, family, said)
        broken = family.problem.validate(said)
        return str(broken[0]) if broken else said

    def _listed(self, autotune: Autotune) -> dict[str, Any] | str:
        lacking = [name for name in ("dtype", "layout") if name not in self.fixed]
        if lacking:
            raise InvalidValue(UNKNOWN_LAYOUT)
        bias = {"bias": True} if autotune.op == "addmm" else {}
        return {**(autotune.problem or {}), "dtype": self.fixed["dtype"], "layout": self.fixed["layout"], **bias}

    def _operands(self, autotune: Autotune) -> dict[str, Any] | str:
        inputs = [dict(item) for item in autotune.inputs[:TENSORS_SHOWN]]
        if autotune.op not in ("mm", "addmm", "bmm", "baddbmm", "packed_linear"):
            return f"{autotune.op} is not a product that gemm has"
        if any("stride" not in item or "dtype" not in item for item in inputs):
            if not {"dtype", "layout"} <= set(self.fixed):
                raise InvalidValue(UNKNOWN_LAYOUT)
            _fill(autotune.op, inputs, str(self.fixed["dtype"]), str(self.fixed["layout"]))
        output = _output(autotune.op, inputs)
        return gemm_problem(autotune.op, inputs, output) if output else "sizes or strides are not known numbers"

    def _environment(self, autotune: Autotune, family: Family, problem: Mapping[str, Any]) -> dict[str, Any]:
        if family is gemm_inductor_cpp:
            return {"threads": self.fixed["threads"]} if "threads" in self.fixed else {}
        told = [choice.said.get("params", {}).get("ALLOW_TF32") for choice in autotune.choices]
        own = next((value for value in told if isinstance(value, bool)), self.fixed.get("tf32", False))
        return {"tf32": problem["dtype"] == "fp32" and own}

    def tables(self) -> Iterator[Imported]:
        """The rows by family and device; notes come with the first."""
        notes = self._notes()
        if not any(self.rows.values()) and self.left_out:
            raise BadFile(f"none of its {self.autotunes:,} autotunes can be used: {self._reasons()}")
        for (family_id, device), rows in self.rows.items():
            family = gemm_inductor_cpp if family_id == gemm_inductor_cpp.id else triton
            if rows:
                yield Imported(family, pl.DataFrame(rows, infer_schema_length=None), self.known[device], tuple(notes))
                notes = []

    def _reasons(self) -> str:
        return "; ".join(f"{count:,} × {reason}" for reason, count in self.left_out.most_common())

    def _notes(self) -> list[str]:
        found = [f"{self.autotunes:,} autotunes"]
        if self.cut:
            found.append(
                f"{self.cut:,} autotunes list only their fastest choices, so a model learns nothing of the others: "
                "TORCHINDUCTOR_AUTOTUNE_NUM_CHOICES_DISPLAYED=all prints all of them (torch 2.13)"
            )
        if any(family == gemm_inductor_cpp.id for family, _ in self.rows) and "threads" not in self.fixed:
            found.append("a log does not say how many threads torch had: read as 1; `constants` threads=… says another number")
        if self.left_out:
            found.append(f"left out {sum(self.left_out.values()):,} choices: {self._reasons()}")
        return found


def _family(autotune: Autotune, device: Device) -> Family:
    """Where the kernels of an autotune belong: those of Triton to GPUs, those in C++ to CPUs, others to where they ran."""
    names = [str(choice.said.get("name")) for choice in autotune.choices]
    if any(choice.said.get("kind") == "triton" or name.startswith("triton_") for choice, name in
           zip(autotune.choices, names, strict=True)):  # fmt: skip
        on_cpu = False
    else:
        on_cpu = any(name.startswith(CPP) for name in names) or autotune.op == "packed_linear" or device.kind == "cpu"
    if on_cpu != (device.kind == "cpu"):
        kind = "a CPU" if on_cpu else "a GPU"
        raise InvalidValue(
            f"line {autotune.line}: these kernels ran on {kind}, and {device.name} is none: `device` must name it; "
            "import a log of both in two parts"
        )
    return gemm_inductor_cpp if on_cpu else triton


def _fill(op: str, inputs: Sequence[Described], dtype: str, layout: str) -> None:
    """Give operands that a log shows by size alone the dtype and the storage order that the caller says."""
    letters = {"mm": layout[:2], "bmm": layout[:2]}.get(op, f"r{layout[:2]}")
    for place, item in enumerate(inputs):
        size = item["size"]
        item.setdefault("dtype", dtype)
        if "stride" in item or not size or not all(isinstance(number, int) for number in size):
            continue
        by_rows = place >= len(letters) or letters[place] == "r"
        last = [size[-1], 1] if by_rows else [1, size[-2]] if len(size) > 1 else [1]
        item["stride"] = ([size[-1] * size[-2]] if len(size) == 3 else []) + (last if len(size) > 1 else [1])
        if op == "addmm" and place == 0 and len(size) == 2:
            item["stride"] = [0, 1]  # Inductor spreads a bias over the rows


def _output(op: str, inputs: Sequence[Described]) -> Described:
    """The result, which Inductor stores by rows."""
    at = {"addmm": (1, 2), "baddbmm": (1, 2), "packed_linear": (0, 2)}.get(op, (0, 1))
    if len(inputs) <= max(at):
        return {}
    x, w = (inputs[place].get("size") or [] for place in at)
    if len(x) < 2 or len(w) != len(x) or not all(isinstance(number, int) for number in (*x, *w)):
        return {}
    m, n = x[-2], w[-2] if op == "packed_linear" else w[-1]
    size = [*x[:-2], m, n]
    return {"size": size, "stride": [*([m * n] if len(size) == 3 else []), n, 1], "dtype": inputs[at[0]].get("dtype")}
