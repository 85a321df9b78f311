"""A decision tree that minimises the cost of its choices, grown leaf by leaf, the most useful split first."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from kerncast.core.arrays import Floats, Ints
from kerncast.learning.learners.trees import Tree

# If a node has more different values of a feature than this, only this many thresholds are tried.
MOST_PLACES = 48
# Weight of how well a split separates costs, which pays off in later splits, relative to what it saves at once.
FORESIGHT = 0.1


@dataclass(frozen=True)
class Material:
    """What a tree learns from: features and costs of samples."""

    features: Floats
    """[sample, feature]"""
    costs: Floats
    """[sample, choice], weight included."""
    weight: Floats

    def take(self, index: npt.NDArray[np.generic]) -> Material:
        return Material(self.features[index], self.costs[index], self.weight[index])


@dataclass(frozen=True)
class _Split:
    worth: float
    feature: int
    threshold: float


def grow(material: Material, leaves: int, least_weight: float, judge: Material | None = None) -> Tree:
    """Grow a tree of at most `leaves` leaves, each of at least `least_weight`. Deterministic: ties go to the first feature.

    A leaf's value is the number of its choice. Splits that do not pay off on `judge`, held-out samples, are undone.
    """
    sapling = _Sapling([np.arange(len(material.weight))])
    waiting: list[tuple[float, int, _Split]] = []

    def consider(node: int) -> None:
        split = _best_split(material, sapling.rows[node], least_weight)
        if split is not None:
            heapq.heappush(waiting, (-split.worth, node, split))

    consider(0)
    while waiting and len(sapling.rows) < 2 * leaves - 1:
        _, node, split = heapq.heappop(waiting)
        for child in sapling.split(node, split, material.features):
            consider(child)
    choice = np.array([int(material.costs[rows].sum(axis=0).argmin()) for rows in sapling.rows])
    if judge is not None:
        sapling.prune(judge, choice)
    return sapling.tree(choice)


@dataclass
class _Sapling:
    """A growing tree: nodes, including leaves, in the order in which they were added."""

    rows: list[Ints]
    """By node: the samples that reach it."""
    feature: list[int] = field(default_factory=lambda: [-1])
    """Below zero: a leaf."""
    threshold: list[float] = field(default_factory=lambda: [0.0])
    left: list[int] = field(default_factory=lambda: [-1])
    right: list[int] = field(default_factory=lambda: [-1])

    def split(self, node: int, split: _Split, features: Floats) -> tuple[int, int]:
        """Replace a leaf by two."""
        first, second = len(self.rows), len(self.rows) + 1
        rows = self.rows[node]
        goes_left = features[rows, split.feature] <= split.threshold
        self.feature[node], self.threshold[node], self.left[node], self.right[node] = (
            split.feature,
            split.threshold,
            first,
            second,
        )
        for part in (rows[goes_left], rows[~goes_left]):
            self.rows.append(part)
            self.feature.append(-1)
            self.threshold.append(0.0)
            self.left.append(-1)
            self.right.append(-1)
        return first, second

    def prune(self, judge: Material, choice: Ints) -> None:
        """Undo splits that do not pay off on other samples."""
        paths: list[Ints] = [np.empty(0, np.int64)] * len(self.rows)
        paths[0] = np.arange(len(judge.weight))
        for node, feature in enumerate(self.feature):
            if feature >= 0:
                goes_left = judge.features[paths[node], feature] <= self.threshold[node]
                paths[self.left[node]], paths[self.right[node]] = paths[node][goes_left], paths[node][~goes_left]
        cost = [judge.costs[rows, own].sum() for rows, own in zip(paths, choice, strict=True)]
        for node in range(len(cost) - 1, -1, -1):  # children come after their parents
            if self.feature[node] >= 0:
                below = cost[self.left[node]] + cost[self.right[node]]
                if below < cost[node] - 1e-9:
                    cost[node] = below
                else:
                    self.feature[node] = -1

    def tree(self, choice: Ints) -> Tree:
        """The tree without the undone splits, in the same order."""
        reached = {0}
        for node, feature in enumerate(self.feature):
            if node in reached and feature >= 0:
                reached |= {self.left[node], self.right[node]}
        kept = sorted(reached)
        place = {node: number for number, node in enumerate(kept)}
        leaf = [self.feature[node] < 0 for node in kept]
        left, right = (
            np.array([-1 if end else place[side[node]] for node, end in zip(kept, leaf, strict=True)])
            for side in (self.left, self.right)
        )
        features, thresholds = np.array(self.feature)[kept], np.array(self.threshold)[kept]
        return Tree.of_nodes(features, thresholds, left, right, choice[kept].astype(np.float64))


def _best_split(material: Material, rows: Ints, least_weight: float) -> _Split | None:
    costs, weight = material.costs[rows], material.weight[rows]
    total, whole = costs.sum(axis=0), float(weight.sum())
    if whole < 2 * least_weight or costs.min(axis=1).sum() >= total.min():  # nothing to gain
        return None
    best: _Split | None = None
    for number in range(material.features.shape[1]):
        values = material.features[rows, number]
        order = np.argsort(values, kind="stable")
        values = values[order]
        places = np.flatnonzero(values[1:] > values[:-1]) + 1
        if not len(places):
            continue
        if len(places) > MOST_PLACES:
            places = places[np.linspace(0, len(places) - 1, MOST_PLACES).astype(np.int64)]
        starts = np.r_[0, places]
        lighter = np.add.reduceat(weight[order], starts).cumsum()[:-1]
        left = np.add.reduceat(costs[order], starts, axis=0).cumsum(axis=0)[:-1]
        worth = _worth(left, lighter, total, whole)
        worth[(lighter < least_weight) | (whole - lighter < least_weight)] = -1.0
        place = int(worth.argmax())
        if worth[place] > 1e-12 and (best is None or worth[place] > best.worth * (1 + 1e-9)):
            best = _Split(float(worth[place]), number, _between(values[places[place] - 1], values[places[place]]))
    return best


def _worth(left: Floats, lighter: Floats, total: Floats, whole: float) -> Floats:
    """What each threshold saves: the cost of one choice for all, minus that of one choice on either side."""
    right = total - left
    saved = total.min() - left.min(axis=1) - right.min(axis=1)
    # The drop in the variance of costs, on the scale of costs.
    told = (left**2).sum(axis=1) / lighter + (right**2).sum(axis=1) / (whole - lighter) - (total**2).sum() / whole
    return np.asarray(saved + FORESIGHT * told)


def _between(below: float, above: float) -> float:
    """A threshold between two values: halfway, unless rounding would put the upper one on the wrong side."""
    middle = below + (above - below) / 2
    return float(middle if middle < above else below)
