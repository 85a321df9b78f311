"""A decision tree that minimises what its choices cost, grown leaf by leaf, the most useful split first."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

# Where a node has more different values of a feature than this, only so many places between them are tried.
MOST_PLACES = 48
# How much of a split's worth is telling costs apart, which pays in later splits, beside what it saves at once.
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
class Grown:
    """A tree as flat arrays, the root first. Every node knows what it would choose if it were a leaf."""

    feature: Ints
    threshold: Floats
    left: Ints
    right: Ints
    choice: Ints

    @property
    def leaves(self) -> int:
        return int((self.feature < 0).sum())

    def paths(self, features: Floats) -> list[Ints]:
        """For every node: which samples come by."""
        found: list[Ints] = [np.empty(0, np.int64)] * len(self.feature)
        found[0] = np.arange(len(features))
        for node in np.flatnonzero(self.feature >= 0):
            rows = found[node]
            goes_left = features[rows, self.feature[node]] <= self.threshold[node]
            found[self.left[node]], found[self.right[node]] = rows[goes_left], rows[~goes_left]
        return found

    def leaf_of(self, features: Floats) -> Ints:
        """The leaf that each sample ends in."""
        found = np.zeros(len(features), np.int64)
        paths = self.paths(features)
        for leaf in np.flatnonzero(self.feature < 0):
            found[paths[leaf]] = leaf
        return found


@dataclass(frozen=True)
class _Split:
    worth: float
    feature: int
    threshold: float


def grow(material: Material, leaves: int, least_weight: float) -> Grown:
    """At most so many leaves, each of at least some weight; deterministic, of equal splits the first feature's."""
    nodes: list[Ints] = [np.arange(len(material.weight))]
    feature, threshold, left, right = [-1], [0.0], [-1], [-1]
    waiting: list[tuple[float, int, _Split]] = []

    def consider(node: int) -> None:
        split = _best_split(material, nodes[node], least_weight)
        if split is not None:
            heapq.heappush(waiting, (-split.worth, node, split))

    consider(0)
    while waiting and len(nodes) < 2 * leaves - 1:
        _, node, split = heapq.heappop(waiting)
        rows = nodes[node]
        goes_left = material.features[rows, split.feature] <= split.threshold
        feature[node], threshold[node], left[node], right[node] = split.feature, split.threshold, len(nodes), len(nodes) + 1
        for part in (rows[goes_left], rows[~goes_left]):
            nodes.append(part)
            feature.append(-1)
            threshold.append(0.0)
            left.append(-1)
            right.append(-1)
            consider(len(nodes) - 1)
    choice = [int(material.costs[rows].sum(axis=0).argmin()) for rows in nodes]
    return Grown(np.array(feature), np.array(threshold), np.array(left), np.array(right), np.array(choice))


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
    """What each place saves: the cost of one choice for all, less that of one on either side."""
    right = total - left
    saved = total.min() - left.min(axis=1) - right.min(axis=1)
    # The drop in the variance of costs, on the scale of costs.
    told = (left**2).sum(axis=1) / lighter + (right**2).sum(axis=1) / (whole - lighter) - (total**2).sum() / whole
    return np.asarray(saved + FORESIGHT * told)


def _between(below: float, above: float) -> float:
    """A threshold that parts two values: halfway, unless rounding would put the upper one on the wrong side."""
    middle = below + (above - below) / 2
    return float(middle if middle < above else below)
