"""What the quick tiers of a selector are made of: plain data, built by `kerncast.selecting`, written out by `export`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kerncast.expr import Program

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

UNSURE = -1


@dataclass(frozen=True)
class DecisionTree:
    """Problem → config: flat arrays, the root first. A leaf names a place in the portfolio, or is unsure."""

    program: Program
    """What splits read: exact features of the problem alone (a last-bit difference must not turn a split)."""
    feature: Ints
    """By node: the output of `program` that it reads; -1 in a leaf."""
    threshold: Floats
    """By node: a value up to it goes left."""
    left: Ints
    right: Ints
    choice: Ints
    """By node: in a leaf the place in the portfolio, or UNSURE; UNSURE elsewhere."""

    def decide(self, values: Mapping[str, Any]) -> int:
        """The place in the portfolio for a problem's values under their symbol names (`p.M`), or UNSURE."""
        found = list(self.program.scalar(values).values())
        node = 0
        while self.feature[node] >= 0:
            node = int((self.left if found[self.feature[node]] <= self.threshold[node] else self.right)[node])
        return int(self.choice[node])


@dataclass(frozen=True)
class Reach:
    """Where each candidate was tried: [candidate, problem parameter], in declared order.

    Libraries and compilers leave kernels out by size, so data hold many for a band of sizes only. Beyond it a model
    guesses, and what it guesses to be fastest is often what nobody would try there.
    """

    low: Floats
    high: Floats
    """Of sizes; infinite where nothing is known."""
    labels: npt.NDArray[np.uint64]
    """Of labels and flags: a bit per code; all of them where nothing is known."""

    def holds(self, numbers: Floats) -> npt.NDArray[np.bool_]:
        """Which candidates were tried on problems like this one (its parameters as numbers)."""
        inside = (self.low <= numbers) & (numbers <= self.high)
        bit = np.minimum(np.maximum(numbers, 0.0), 63.0).astype(np.uint64)
        return np.asarray((inside & ((self.labels >> bit) & np.uint64(1)).astype(bool)).all(axis=1))


@dataclass(frozen=True)
class Expectation:
    """What a choice is worth: bands of predicted time, and the mean efficiency of out-of-fold choices in each."""

    edges_ns: tuple[float, ...]
    """Between the bands; one fewer than there are bands."""
    efficiency: tuple[float, ...]

    def of(self, time_ns: float) -> float:
        """The expected efficiency of a choice that is predicted to take so long."""
        return self.efficiency[int(np.searchsorted(np.array(self.edges_ns), time_ns, side="right"))]


@dataclass(frozen=True)
class Tiers:
    """The portfolio by rows of the model's candidates, in the order in which each adds most; and the tree over it."""

    portfolio: tuple[int, ...]
    tree: DecisionTree | None = None
    forest: str | None = None
    """A small forest (LightGBM text) over the model's features that ranks the portfolio like the model does; None: the
    model itself does it."""
    reach: Reach | None = None
    """Candidates are answered with only where they were tried, unless none was tried there; None: anywhere."""
    expectation: Expectation | None = None
    """None: nothing was chosen in training."""
