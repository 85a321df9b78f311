"""Choosing among Triton templates before their code is rendered: the model ranks what Inductor would render and time.

`prune` is for products (`InductorChoices._finalize_template_configs`), `prune_flex` for flex attention
(`InductorChoices.get_flex_attention_fwd_configs`). Neither imports torch, changes what it is given, raises, or returns nothing:
where the model has no answer, everything that Inductor offered is kept. `exhaustively` asks Inductor for the configs that it
offers only on request; ranking them takes a fraction of a second, rendering and timing them would take minutes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, TypeVar

import numpy as np
import polars as pl

from kerncast.core.arrays import Flags
from kerncast.core.device import Device
from kerncast.core.io.terminal import assignments, known
from kerncast.core.op import Config, Family, Problem
from kerncast.data import schema
from kerncast.errors import KerncastError
from kerncast.library.families.gemm_triton import ATEN, config_of
from kerncast.library.families.torch_products import gemm_problem
from kerncast.torch.chooser import Abstain, Chooser, in_range
from kerncast.torch.describing import describe_choice, describe_inputs, describe_tensor
from kerncast.torch.reporting import Decision

T = TypeVar("T")
SEARCH_SPACES = ("max_autotune_gemm_search_space", "max_autotune_flex_search_space")
LONGEST_REASON = 300
# Inductor asks for ATen's kernels apart where there is a bias: nothing was to be decided.
NOTHING_OFFERED = "no template is offered"


@dataclass(frozen=True)
class _Ranked:
    """Candidates by their places: those that can be ranked, best first, with times; and those that cannot be."""

    order: tuple[int, ...]
    time_ns: Mapping[int, float]
    unknown: tuple[int, ...]


# -- products ------------------------------------------------------------------------------------------


def prune(
    chooser: Chooser, choices: Sequence[Any], kernel_inputs: Any, op_name: str, more: Sequence[Any] = (),
    device: Device | None = None,
) -> tuple[list[Any], Decision]:  # fmt: skip
    """The choices to render, in Inductor's order, and what to report. Never empty unless `choices` is.

    `choices` are the `KernelTemplateChoice`s that Inductor would render. `more` may be chosen, too, but only if the model
    ranks them first: if it abstains, they are forgotten. What the model cannot rank (a template that it never measured) is
    kept beside its choice, so that Inductor can time it. `device` is what kernels are chosen for; None: the model's own.
    """
    began = time.perf_counter()
    problem: dict[str, Any] | None = None
    try:
        if all(_is_aten(item) for item in choices):
            raise Abstain(NOTHING_OFFERED)
        problem = _product(choices, kernel_inputs, op_name)
        asked = in_range(chooser.model, problem)
        every = [*choices, *_others(more, choices)]
        configs = [config_of(str(item.template.uid), _arguments(item)) for item in every]
        ranked = _rank(chooser, asked, configs, device)
        kept, reason = _top(chooser, ranked, configs)
        kept |= {place for place in ranked.unknown if place < len(choices)}
        if not any(_renders(every[place], kernel_inputs) for place in sorted(kept)):  # ATen comes first
            raise Abstain("Inductor cannot render what the model chose")
        best = next(place for place in ranked.order if place in kept)
        words = [_words(every[place], configs[place]) for place in sorted(kept)]
        decision = _decision(chooser, op_name, asked, ranked, words, configs[best], best, reason, began)
        return [every[place] for place in sorted(kept)], decision
    except Exception as error:  # whatever Inductor's objects are, a compilation must go on
        return list(choices), _abstention(chooser, op_name, problem, len(choices), error, began)


def settle(
    chooser: Chooser, rendered: Sequence[Any], op_name: str, device: Device | None = None
) -> tuple[list[Any], Decision] | None:
    """The same for rendered choices (`ChoiceCaller`s), all of which Inductor would time; None: not all of them are known.

    Inductor asks for ATen's kernels and for Triton's apart where there is a bias. Only here are they seen together.
    """
    sources = [getattr(item, "annotations", {}).get("ktc") for item in rendered]
    tiles = [item for item in sources if item is not None and not _is_aten(item)]
    if None in sources or not tiles:
        return None
    kept, decision = prune(chooser, sources, tiles[0].inputs, op_name, device=device)
    return [item for item, source in zip(rendered, sources, strict=True) if source in kept], decision


def _is_aten(choice: Any) -> bool:
    return str(choice.template.uid).startswith(f"{ATEN}::")


def widened(handler: Any, kernel_inputs: Any, templates: Sequence[Any], op_name: str, overrides: Any = None) -> list[Any]:
    """The `KernelTemplateChoice`s of Inductor's exhaustive search space; empty if it cannot be asked."""

    def drained() -> list[Any]:
        own = [item for item in templates if not str(item.uid).startswith(f"{ATEN}::")]
        given = overrides or {}
        return [choice for item in own for choice in handler.get_ktc(kernel_inputs, item, op_name, given.get(item.uid, {}))]

    try:
        return exhaustively(drained)
    except Exception:  # a heuristic that this template, device or version does not have
        return []


def exhaustively(offered: Callable[[], list[T]]) -> list[T]:
    """What a function of Inductor offers while its search spaces are exhaustive."""
    settings = import_module("torch._inductor.config")
    with settings.patch({name: "EXHAUSTIVE" for name in SEARCH_SPACES if hasattr(settings, name)}):
        return list(offered())


def _product(choices: Sequence[Any], kernel_inputs: Any, op_name: str) -> dict[str, Any]:
    """The problem of gemm that Inductor's inputs are; TF32 is an argument of the templates."""
    output = describe_tensor(kernel_inputs.output_layout(flexible=False))
    said = gemm_problem(op_name, describe_inputs(kernel_inputs.nodes()), output, [describe_choice(item) for item in choices])
    if isinstance(said, str):
        raise Abstain(said)
    tf32 = any(bool({**_arguments(item), **item.extra_kwargs}.get("ALLOW_TF32")) for item in choices)
    scalars = getattr(kernel_inputs, "_scalars", None) or {}
    if any(value != 1 for value in scalars.values()):
        raise Abstain("the product or what is added to it is scaled")
    return {**said, "tf32": tf32 and said["dtype"] == "fp32"}


def _arguments(choice: Any) -> dict[str, Any]:
    return dict(choice.params.to_kwargs())


def _others(more: Sequence[Any], choices: Sequence[Any]) -> list[Any]:
    """Those of `more` that are not among the choices; asked for in another way, the same configs are new objects."""
    taken = {_identity(item) for item in choices}
    found: list[Any] = []
    for item in more:
        if _identity(item) not in taken:
            taken.add(_identity(item))
            found.append(item)
    return found


def _identity(choice: Any) -> tuple[str, str]:
    return str(choice.template.uid), repr(sorted(_arguments(choice).items()))


def _renders(choice: Any, kernel_inputs: Any) -> bool:
    """A template may refuse its arguments when it is rendered. If nothing else is left, that would end the compilation."""
    if _is_aten(choice):
        return True
    # A copy: the layout of the original is not decided yet.
    layout = kernel_inputs.output_layout(flexible=False)
    return type(choice)(choice.template, choice.params, choice.extra_kwargs, layout, choice.inputs).choice is not None


# -- flex attention ------------------------------------------------------------------------------------


def prune_flex(
    chooser: Chooser, configs: Sequence[Any], problem: Mapping[str, Any] | str, blocks: tuple[int, int],
    more: Sequence[Any] = (), device: Device | None = None,
) -> tuple[list[Any], Decision]:  # fmt: skip
    """The forward configs of flex attention to render. `problem` and `blocks` are what `flex_asked` found, `more` as above.

    A text instead of a problem says why there is none. A tile must divide the block of the mask, `blocks`: (queries, keys).
    """
    began = time.perf_counter()
    op = chooser.model.family.op.name
    try:
        if isinstance(problem, str):
            raise Abstain(problem)
        asked = in_range(chooser.model, problem)
        every = [*configs, *(item for item in more if item not in configs)]
        said = [
            {"BLOCK_M": item.block_m, "BLOCK_N": item.block_n, "num_stages": item.num_stages, "num_warps": item.num_warps}
            if blocks[0] % item.block_m == 0 and blocks[1] % item.block_n == 0
            else None
            for item in every
        ]
        ranked = _rank(chooser, asked, said, device)
        kept = ranked.order[: chooser.policy.top_k]
        if not kept:
            raise Abstain("no config that the model knows divides the blocks of the mask")
        words = [assignments(said[place] or {}) for place in kept]
        decision = _decision(chooser, op, asked, ranked, words, said[kept[0]], kept[0], "", began)
        return [every[place] for place in kept], decision
    except Exception as error:  # as above
        given = None if isinstance(problem, str) else problem
        return list(configs), _abstention(chooser, op, given, len(configs), error, began)


# -- both ----------------------------------------------------------------------------------------------


def _rank(chooser: Chooser, problem: Problem, configs: Sequence[Mapping[str, Any] | None], device: Device | None) -> _Ranked:
    """All configs at once. Those that break a rule on this problem, or are expected to fail, are in neither list."""
    model, family = chooser.model, chooser.model.family
    places = [place for place, config in enumerate(configs) if config is not None and _measured_alike(chooser, config)]
    unknown = sorted(set(range(len(configs))) - set(places))
    if not places:
        raise Abstain("the model can rank none of the configs that Inductor offers")
    rows = [[(configs[place] or {}).get(name) for name in family.config.parameters] for place in places]
    kinds = schema.schema_of(family)
    types = {f"config.{name}": kinds[f"config.{name}"] for name in family.config.parameters}
    halves = [pl.lit(value, kinds[f"problem.{name}"]).alias(f"problem.{name}") for name, value in problem.as_dict().items()]
    frame = pl.DataFrame(rows, schema=types, orient="row").with_columns(halves)
    described = model.describe(frame, device)
    predicted = model.predict_rows(described)
    if predicted.time_ns is None or not np.isfinite(predicted.score).all():
        raise Abstain("the model predicts no times")
    runs = ~model.learner.fails(described) & _allowed(family, frame, family.bindings(problem, device or model.device))
    order = [places[row] for row in np.lexsort((np.arange(len(places)), predicted.score)) if runs[row]]
    if not order:
        raise Abstain("the model expects every config that Inductor offers to fail")
    return _Ranked(tuple(order), dict(zip(places, predicted.time_ns.tolist(), strict=True)), tuple(unknown))


def _allowed(family: Family, frame: pl.DataFrame, bindings: Mapping[str, Any]) -> Flags:
    """Which rows obey the rules of the family that can be checked."""
    own = {f"c.{name}" for name in family.config.parameters}
    symbols = schema.symbol_columns(family, frame)
    holds = np.ones(frame.height, dtype=bool)
    for rule in (rule.program.bind(bindings) for rule in family.config.constraints):
        if {item.name for item in rule.symbols} <= own:
            holds &= np.broadcast_to(rule.frame(symbols, trusted=True).to_series().to_numpy() != 0.0, holds.shape)
    return holds


def _measured_alike(chooser: Chooser, config: Mapping[str, Any]) -> bool:
    """Whether the model knows what the optional parameters of a config do: it has measured such labels, and such numbers."""
    for name, seen in chooser.optional_values.items():
        rule = chooser.model.family.config.parameters[name]
        value = config.get(name)
        if rule.ordered:
            numbers = [rule.inactive if item is None else item for item in seen] or [rule.inactive]
            if not min(numbers) <= (rule.inactive if value is None else value) <= max(numbers):
                return False
        elif value not in (seen or (None,)):
            return False
    return True


def _top(chooser: Chooser, ranked: _Ranked, configs: Sequence[Mapping[str, Any] | None]) -> tuple[set[int], str]:
    """The best `top_k`, and the library's kernel and the best tile both unless one of them is surely better."""
    family, kept = chooser.model.family, set(ranked.order[: chooser.policy.top_k])
    usual = {**dict.fromkeys(family.config.optional), **family.library}
    theirs = [place for place in ranked.order if all((configs[place] or {}).get(name) == is_ for name, is_ in usual.items())]
    ours = next((place for place in ranked.order if place not in theirs), None)
    if ours is None or not theirs:
        return kept, ""
    if chooser.confidence.sure(ranked.time_ns[theirs[0]], ranked.time_ns[ours]):
        # Two of ATen's kernels may be the same config: both are timed, unless the tile is better.
        return kept | (set(theirs) if kept & set(theirs) else set()), ""
    return kept | {ours, *theirs}, chooser.confidence.doubt("the library's kernel", "the best tile")


def _words(choice: Any, config: Mapping[str, Any] | None) -> str:
    return str(choice.template.uid) if config is None or _is_aten(choice) else assignments(known(config))


def _decision(
    chooser: Chooser, op: str, problem: Problem, ranked: _Ranked, words: Sequence[str], config: Mapping[str, Any] | None,
    best: int, reason: str, began: float,
) -> Decision:  # fmt: skip
    chosen = None if config is None else dict(Config(chooser.model.family, config))
    if len(words) > 1 and chooser.policy.top_k == 1:
        reason = reason or f"{len(ranked.unknown)} that the model cannot rank"
    return chooser.decision(op, problem, len(ranked.order), words, chosen, ranked.time_ns[best], reason, began)


def _abstention(
    chooser: Chooser, op: str, problem: Mapping[str, Any] | None, offered: int, error: Exception, began: float
) -> Decision:
    said = str(error) if isinstance(error, Abstain | KerncastError) else f"{type(error).__name__}: {error}"
    return chooser.abstention(op, said[:LONGEST_REASON], problem, offered, began)
