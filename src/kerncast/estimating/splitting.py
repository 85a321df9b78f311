"""Problems that are larger than any that a model saw, in parts that it knows: a large vocabulary, a batch of long prompts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from kerncast.errors import KerncastError
from kerncast.estimating.calls import Call

SHALLOWEST = 1_024
"""K of a product whose parts take as long as the whole."""
MOST_PARTS = 16
# Sizes that kernels like: what is added to the last part does not count.
STEP = 256


@dataclass(frozen=True)
class Side:
    """A size that may be divided: parts that are at least so large take as long as the whole, by these factors."""

    name: str
    least: int
    whole: tuple[float, float]


# Nine of ten wholes in AIConfigurator's tables take so many times two halves (benchmarks/wide_products.py): products with
# N = 65,536, products with M = 32,768 and experts with 16,384 tokens.
SIDES = {
    "gemm": (Side("N", 32_768, (0.90, 1.02)), Side("M", 16_384, (0.83, 1.18))),
    "moe": (Side("tokens", 8_192, (0.76, 1.08)),),
}


class Answered(Protocol):
    """What is known of the time of one problem."""

    @property
    def time_ns(self) -> float | None: ...
    @property
    def lower_ns(self) -> float | None: ...
    @property
    def upper_ns(self) -> float | None: ...
    @property
    def basis(self) -> str: ...
    @property
    def model(self) -> str | None: ...
    @property
    def software(self) -> str | None: ...
    @property
    def reason(self) -> str: ...
    @property
    def note(self) -> str: ...


Ask = Callable[[str, list[Mapping[str, Any]]], Sequence[Answered]]
"""Answers for the problems of an op, in their order."""


@dataclass(frozen=True)
class InParts:
    """The answer for a problem whose parts a model knows."""

    time_ns: float | None
    lower_ns: float | None
    upper_ns: float | None
    basis: str
    model: str | None
    software: str | None
    reason: str
    note: str


def in_parts(call: Call, ask: Ask) -> Answered | None:
    """The answer of a model that knows no problem as large as this one, but its parts; None: there is none."""
    if call.op is None or call.problem.get("K", SHALLOWEST) < SHALLOWEST:
        return None
    for side in SIDES.get(call.op, ()):
        whole = call.problem[side.name]
        for count in range(2, min(MOST_PARTS, whole // side.least) + 1):
            size = -(-whole // (count * STEP)) * STEP
            try:
                (found,) = ask(call.op, [{**call.problem, side.name: size}])
            except KerncastError:
                return None
            if found.basis == "model" and found.time_ns is not None:
                return _added(found, side, whole, count, size)
    return None


def _added(part: Answered, side: Side, whole: int, count: int, size: int) -> InParts:
    many = whole / size
    assert part.time_ns is not None
    lower, upper = (part.lower_ns or part.time_ns, part.upper_ns or part.time_ns)
    why = f"{side.name}={whole:,} is more than {part.model} saw: {count} parts of {size:,}, added"
    reason = "; ".join(filter(None, [why, part.reason]))
    return InParts(
        part.time_ns * many, lower * many * side.whole[0], upper * many * side.whole[1], part.basis, part.model, part.software,
        reason, part.note,
    )  # fmt: skip
