"""Problems that are larger than any that a model saw, in parts that it knows: a large vocabulary, a batch of long prompts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from kerncast.core.op import Problem
from kerncast.models.answer import Answer

SHALLOWEST = 1_024
"""K of a product whose parts take as long as the whole."""
MOST_PARTS = 16
# Sizes that kernels like: what is added to the last part does not count.
STEP = 256


@dataclass(frozen=True)
class DividedSize:
    """A size that may be divided: parts that are at least so large take as long as the whole, by these factors."""

    name: str
    least: int
    whole: tuple[float, float]


# Nine of ten wholes in AIConfigurator's tables take so many times two halves (benchmarks/wide_products.py): products with
# N = 65,536, products with M = 32,768 and experts with 16,384 tokens.
SIDES = {
    "gemm": (DividedSize("N", 32_768, (0.90, 1.02)), DividedSize("M", 16_384, (0.83, 1.18))),
    "moe": (DividedSize("tokens", 8_192, (0.76, 1.08)),),
}


@dataclass(frozen=True)
class Parts:
    """One way to divide a problem: launches whose times add up to that of the whole."""

    side: DividedSize
    whole: int
    count: int
    size: int
    """Of all parts but the last, which may be smaller."""

    def problem_of_one(self, problem: Mapping[str, Any]) -> dict[str, Any]:
        """The problem of one part."""
        return {**problem, self.side.name: self.size}

    def problem_of_all(self, problem: Mapping[str, Any]) -> dict[str, Any]:
        """The whole problem of a part's."""
        return {**problem, self.side.name: self.whole}

    def added(self, part: Answer, problem: Problem, model: str) -> Answer:
        """The answer about the whole problem, from that about one part; one without a time stays without."""
        if part.time_ns is None:
            return replace(part, problem=problem)
        many, (less, more) = self.whole / self.size, self.side.whole
        lower = None if part.lower_ns is None else part.lower_ns * many * less
        upper = None if part.upper_ns is None else part.upper_ns * many * more
        why = f"{self.side.name}={self.whole:,} is more than {model} saw: {self.count} parts of {self.size:,}, added"
        reason = "; ".join(filter(None, [why, part.reason]))
        return replace(part, problem=problem, time_ns=part.time_ns * many, lower_ns=lower, upper_ns=upper, reason=reason)


def ways_to_divide(op: str, problem: Mapping[str, Any]) -> Iterator[Parts]:
    """The ways to divide a problem, those with fewer parts first; none if its parts would take longer than the whole."""
    if (problem.get("K") or SHALLOWEST) < SHALLOWEST:
        return
    for side in SIDES.get(op, ()):
        whole = problem.get(side.name) or 0
        for count in range(2, min(MOST_PARTS, whole // side.least) + 1):
            yield Parts(side, whole, count, -(-whole // (count * STEP)) * STEP)
