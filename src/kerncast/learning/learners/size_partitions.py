"""Trees that cut the sizes of problems at random, so that rows near each other in size often share a leaf.

A cell is cut after a random wait that is shorter the larger the cell is, at a random place of a random side (a Mondrian
process). Two rows whose sizes are `d` octaves apart on average then share a leaf with probability exp(-d / length). So the
share of leaves that they have in common is a covariance, and what is learned with it is a sum over leaves: ordinary trees. Each
combination of labels has cuts of its own: rows of one dtype say nothing of another.
Source: Balog et al., "The Mondrian kernel", UAI 2016.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kerncast.core.arrays import Floats, Ints
from kerncast.core.expr import Symbol
from kerncast.learning.learners.trees import Tree
from kerncast.learning.tables.feature_rows import Rows

# A node while trees are made: [feature, limit, left, right, value]; a leaf has feature -1.
Node = list[float]


def size_features(rows: Rows) -> tuple[int, ...]:
    """The places of the features that are a number of the problem unchanged, and differ between some rows."""
    outputs = rows.family.outputs_of(rows.names)
    found: dict[str, int] = {}
    for place, name in enumerate(rows.names):
        symbol = outputs[name].payload
        if not isinstance(symbol, Symbol) or symbol.codes or not symbol.name.startswith("p."):
            continue
        column = rows.features[:, place]
        if np.isfinite(column).all() and np.ptp(column) > 0:
            found.setdefault(symbol.name, place)
    return tuple(found.values())


@dataclass(frozen=True)
class SizePartitions:
    """Rows by their sizes, as random cuts read them."""

    features: tuple[int, ...]
    octaves: Floats
    """[row, size]: log2 of each size."""
    number: Ints
    """By row: the number of its combination of labels."""

    @classmethod
    def of(cls, rows: Rows, number: Ints) -> SizePartitions:
        """Those of some rows with known labels."""
        places = size_features(rows)
        return cls(places, np.log2(np.maximum(rows.features[:, list(places)], 1.0)), number)

    def trees(self, router: Sequence[Node], length: float, count: int, rng: np.random.Generator) -> tuple[Tree, ...]:
        """Trees with leaves of zero; `router` leads to a leaf for each combination of labels, whose value is 1 + its number."""
        return tuple(self._tree(router, length, rng) for _ in range(count)) if self.features else ()

    def _tree(self, router: Sequence[Node], length: float, rng: np.random.Generator) -> Tree:
        nodes = [list(node) for node in router]
        low, high = self.octaves.min(axis=0), self.octaves.max(axis=0)
        for place in range(len(router)):
            if nodes[place][0] < 0 and nodes[place][4] > 0:
                own = np.flatnonzero(self.number == int(nodes[place][4]) - 1)
                self._cut(nodes, place, own, low, high, 1.0 / (length * len(self.features)), rng)
        feature, threshold, left, right, value = np.array(nodes).T
        return Tree.of_nodes(feature.astype(np.int64), threshold, left.astype(np.int64), right.astype(np.int64), 0.0 * value)

    def _cut(
        self, nodes: list[Node], place: int, own: Ints, low: Floats, high: Floats, remaining: float, rng: np.random.Generator
    ) -> None:
        """Cut a cell, and then its parts; one without rows stays whole, for nothing is learned there."""
        sides = high - low
        total = float(sides.sum())
        wait = rng.exponential() / total if len(own) and total > 0 else np.inf
        nodes[place] = [-1.0, 0.0, 0.0, 0.0, 0.0]
        if wait >= remaining:
            return
        side = int(rng.choice(len(sides), p=sides / total))
        at = float(rng.uniform(low[side], high[side]))
        below, above = high.copy(), low.copy()
        below[side] = above[side] = at
        first = len(nodes)
        nodes += [[], []]
        nodes[place] = [float(self.features[side]), 2.0**at, float(first), float(first + 1), 0.0]
        lower = self.octaves[own, side] <= at
        self._cut(nodes, first, own[lower], low, below, remaining - wait, rng)
        self._cut(nodes, first + 1, own[~lower], above, high, remaining - wait, rng)
