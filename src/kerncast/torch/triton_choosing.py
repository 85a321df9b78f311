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
from functools import cached_property
from importlib import import_module
from typing import Any, TypeVar

import numpy as np
import polars as pl

from kerncast.core.arrays import Flags, Floats
from kerncast.core.device import Device
from kerncast.core.io.terminal import assignments, known
from kerncast.core.op import Config, Family, Problem
from kerncast.data import schema
from kerncast.errors import KerncastError
from kerncast.library.families.inductor_templates import ATEN, config_of
from kerncast.library.families.torch_products import gemm_problem
from kerncast.models.model import Model
from kerncast.torch.asking import Abstain, in_range
from kerncast.torch.confidence import NONE_MEASURED, Confidence
from kerncast.torch.decisions import ABSTAINED, CHOSEN, TIMED, Decision
from kerncast.torch.describing import describe_choice, describe_inputs, describe_layout

T = TypeVar("T")
SEARCH_SPACES = ("max_autotune_gemm_search_space", "max_autotune_flex_search_space")
LONGEST_REASON = 300
# Inductor asks for ATen's kernels apart where there is a bias: nothing was to be decided.
NOTHING_OFFERED = "no template is offered"


@dataclass(frozen=True)
class Ask:
    """A model and what to keep of its ranking."""

    model: Model
    top_k: int = 1
    """Tiles that are kept; with more than one kernel left, Inductor times them."""
    confidence: Confidence = NONE_MEASURED
    """Whether the predicted times of the library's kernel and of the best tile tell which is faster; else both are kept."""
    device: Device | None = None
    """The device that kernels are chosen for; None: the model's own."""

    @cached_property
    def seen(self) -> Mapping[str, tuple[Any, ...]]:
        """The values of optional config parameters that the model has measured; None: the usual one."""
        found = self.model.candidates
        return {name: tuple(found[f"config.{name}"].unique()) for name in self.model.family.config.optional}


@dataclass(frozen=True)
class _Ranked:
    """Candidates by their places: those that can be ranked, best first, with times; and those that cannot be."""

    order: tuple[int, ...]
    time_ns: Mapping[int, float]
    unknown: tuple[int, ...]


# -- products ------------------------------------------------------------------------------------------


def prune(
    ask: Ask, choices: Sequence[Any], kernel_inputs: Any, op_name: str, more: Sequence[Any] = ()
) -> tuple[list[Any], Decision]:
    """The choices to render, in Inductor's order, and what to report. Never empty unless `choices` is.

    `choices` are the `KernelTemplateChoice`s that Inductor would render. `more` may be chosen, too, but only if the model
    ranks them first: if it abstains, they are forgotten. What the model cannot rank (a template that it never measured) is
    kept beside its choice, so that Inductor can time it.
    """
    began = time.perf_counter()
    problem: dict[str, Any] | None = None
    try:
        if all(_is_aten(item) for item in choices):
            raise Abstain(NOTHING_OFFERED)
        problem = _product(choices, kernel_inputs, op_name)
        asked = in_range(ask.model, problem)
        every = [*choices, *_others(more, choices)]
        configs = [config_of(str(item.template.uid), _arguments(item)) for item in every]
        ranked = _rank(ask, asked, configs)
        kept, reason = _top(ask, ranked, [config is not None and _is_library(ask, config) for config in configs])
        kept |= {place for place in ranked.unknown if place < len(choices)}
        if not any(_renders(every[place], kernel_inputs) for place in sorted(kept)):  # ATen comes first
            raise Abstain("Inductor cannot render what the model chose")
        best = next(place for place in ranked.order if place in kept)
        words = [_words(every[place], configs[place]) for place in sorted(kept)]
        decision = _decided(ask, op_name, asked, ranked, words, configs[best], ranked.time_ns[best], reason, began)
        return [every[place] for place in sorted(kept)], decision
    except Exception as error:  # whatever Inductor's objects are, a compilation must go on
        return list(choices), _abstained(ask, op_name, problem, len(choices), error, began)


def settle(ask: Ask, rendered: Sequence[Any], op_name: str) -> tuple[list[Any], Decision] | None:
    """The same for rendered choices (`ChoiceCaller`s), all of which Inductor would time; None: not all of them are known.

    Inductor asks for ATen's kernels and for Triton's apart where there is a bias. Only here are they seen together.
    """
    sources = [getattr(item, "annotations", {}).get("ktc") for item in rendered]
    tiles = [item for item in sources if item is not None and not _is_aten(item)]
    if None in sources or not tiles:
        return None
    kept, decision = prune(ask, sources, tiles[0].inputs, op_name)
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
    output = describe_layout(kernel_inputs.output_layout(flexible=False))
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
    ask: Ask, configs: Sequence[Any], problem: Mapping[str, Any] | str, blocks: tuple[int, int], more: Sequence[Any] = ()
) -> tuple[list[Any], Decision]:
    """The forward configs of flex attention to render. `problem` and `blocks` are what `flex_asked` found, `more` as above.

    A text instead of a problem says why there is none. A tile must divide the block of the mask, `blocks`: (queries, keys).
    """
    began = time.perf_counter()
    op = ask.model.family.op.name
    try:
        if isinstance(problem, str):
            raise Abstain(problem)
        asked = in_range(ask.model, problem)
        every = [*configs, *(item for item in more if item not in configs)]
        said = [_flex_config(item) if _divides(item, blocks) else None for item in every]
        ranked = _rank(ask, asked, said)
        kept = ranked.order[: ask.top_k]
        if not kept:
            raise Abstain("no config that the model knows divides the blocks of the mask")
        words = [assignments(said[place] or {}) for place in kept]
        best = kept[0]
        decision = _decided(ask, op, asked, ranked, words, said[best], ranked.time_ns[best], "", began)
        return [every[place] for place in kept], decision
    except Exception as error:  # as above
        given = None if isinstance(problem, str) else problem
        return list(configs), _abstained(ask, op, given, len(configs), error, began)


def _flex_config(config: Any) -> dict[str, Any]:
    return {
        "BLOCK_M": config.block_m,
        "BLOCK_N": config.block_n,
        "num_stages": config.num_stages,
        "num_warps": config.num_warps,
    }


def _divides(config: Any, blocks: tuple[int, int]) -> bool:
    return bool(blocks[0] % config.block_m == 0 and blocks[1] % config.block_n == 0)


# -- both ----------------------------------------------------------------------------------------------


def _rank(ask: Ask, problem: Problem, configs: Sequence[Mapping[str, Any] | None]) -> _Ranked:
    """All configs at once. Those that break a rule on this problem, or are expected to fail, are in neither list."""
    family, device = ask.model.family, ask.device or ask.model.device
    places = [place for place, config in enumerate(configs) if config is not None and _measured_alike(ask, config)]
    unknown = sorted(set(range(len(configs))) - set(places))
    if not places:
        raise Abstain("the model can rank none of the configs that Inductor offers")
    rows = [[(configs[place] or {}).get(name) for name in family.config.parameters] for place in places]
    kinds = schema.schema_of(family)
    types = {name: kinds[f"config.{name}"] for name in family.config.parameters}
    frame = pl.DataFrame(rows, schema=types, orient="row")
    halves = [pl.lit(value, kinds[f"problem.{name}"]).alias(f"problem.{name}") for name, value in problem.as_dict().items()]
    frame = frame.rename(lambda name: f"config.{name}").with_columns(halves)
    score, time_ns, runs = _predicted(ask, frame)
    runs &= _allowed(family, frame, family.bindings(problem, device))
    order = [places[row] for row in np.lexsort((np.arange(len(score)), score)) if runs[row]]
    if not order:
        raise Abstain("the model expects every config that Inductor offers to fail")
    return _Ranked(tuple(order), dict(zip(places, time_ns.tolist(), strict=True)), tuple(unknown))


def _predicted(ask: Ask, frame: pl.DataFrame) -> tuple[Floats, Floats, Flags]:
    described = ask.model.describe(frame, ask.device)
    found = ask.model.predict_rows(described)
    if found.time_ns is None or not np.isfinite(found.score).all():
        raise Abstain("the model predicts no times")
    return found.score, found.time_ns, ~ask.model.learner.fails(described)


def _allowed(family: Family, frame: pl.DataFrame, bindings: Mapping[str, Any]) -> Flags:
    """Which rows obey the rules of the family that can be checked."""
    rules = [rule.program.bind(bindings) for rule in family.config.constraints]
    own = {f"c.{name}" for name in family.config.parameters}
    symbols = schema.symbol_columns(family, frame)
    holds = np.ones(frame.height, dtype=bool)
    for rule in rules:
        if {item.name for item in rule.symbols} <= own:
            holds &= np.broadcast_to(rule.frame(symbols, trusted=True).to_series().to_numpy() != 0.0, holds.shape)
    return holds


def _measured_alike(ask: Ask, config: Mapping[str, Any]) -> bool:
    """Whether the model knows what the optional parameters of a config do: it has measured such labels, and such numbers."""
    for name, seen in ask.seen.items():
        rule = ask.model.family.config.parameters[name]
        value = config.get(name)
        if rule.ordered:
            numbers = [rule.inactive if item is None else item for item in seen] or [rule.inactive]
            if not min(numbers) <= (rule.inactive if value is None else value) <= max(numbers):
                return False
        elif value not in (seen or (None,)):
            return False
    return True


def _is_library(ask: Ask, config: Mapping[str, Any]) -> bool:
    family = ask.model.family
    named = all(config.get(name) == value for name, value in family.library.items())
    return named and all(config.get(name) is None for name in family.config.optional)


def _top(ask: Ask, ranked: _Ranked, library: Sequence[bool]) -> tuple[set[int], str]:
    """The best `top_k`, and the library's kernel and the best tile both unless one of them is surely better."""
    kept = set(ranked.order[: ask.top_k])
    ours = next((place for place in ranked.order if not library[place]), None)
    theirs = [place for place in ranked.order if library[place]]
    if ours is None or not theirs:
        return kept, ""
    if ask.confidence.sure(ranked.time_ns[theirs[0]], ranked.time_ns[ours]):
        # Two of ATen's kernels may be the same config: both are timed, unless the tile is better.
        return kept | (set(theirs) if kept & set(theirs) else set()), ""
    return kept | {ours, *theirs}, ask.confidence.doubt("the library's kernel", "the best tile")


def _words(choice: Any, config: Mapping[str, Any] | None) -> str:
    return str(choice.template.uid) if config is None or _is_aten(choice) else assignments(known(config))


def _decided(
    ask: Ask, op: str, problem: Problem, ranked: _Ranked, words: Sequence[str], config: Mapping[str, Any] | None,
    predicted_ns: float, reason: str, began: float,
) -> Decision:  # fmt: skip
    chosen = config if config is None else Config(ask.model.family, config)
    several = f"top_k={ask.top_k}" if ask.top_k > 1 else f"{len(ranked.unknown)} that the model cannot rank"
    return Decision(
        op=op,
        family=ask.model.family.id,
        problem=known(problem),
        candidates=len(ranked.order),
        kept=len(words),
        chosen="; ".join(words),
        config=None if chosen is None else dict(chosen),
        predicted_ns=predicted_ns,
        status=CHOSEN if len(words) == 1 else TIMED,
        reason=reason or ("" if len(words) == 1 else several),
        seconds=time.perf_counter() - began,
    )


def _abstained(ask: Ask, op: str, problem: Mapping[str, Any] | None, offered: int, error: Exception, began: float) -> Decision:
    said = str(error) if isinstance(error, Abstain | KerncastError) else f"{type(error).__name__}: {error}"
    seconds = time.perf_counter() - began
    return Decision(op, ask.model.family.id, problem, 0, offered, "", None, None, ABSTAINED, said[:LONGEST_REASON], seconds)
