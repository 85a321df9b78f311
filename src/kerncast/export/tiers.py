"""What the quick tiers of a selector are made of: plain data, built by `kerncast.select`, written out by `export`."""

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
class Tiers:
    """The portfolio by rows of the model's candidates, in the order in which each adds most; and the tree over it."""

    portfolio: tuple[int, ...]
    tree: DecisionTree | None = None
    forest: str | None = None
    """A small forest (LightGBM text) over the model's features that ranks the portfolio like the model does; None: the
    model itself does it."""
