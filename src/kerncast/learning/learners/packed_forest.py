"""Forests as a few small arrays that numpy alone reads: no LightGBM, which takes a second to import, and no compiler.

A forest of LightGBM compares a feature with at most a few hundred different numbers, so a node names its threshold by its
place in a sorted table of that feature. Nodes are stored in preorder, so the number of nodes in the left subtree is all that
a node has to say about its children. Thresholds and leaves stay the float64 that they were: the sums are LightGBM's to the
last bit. Leaves that are all multiples of `STEP` are stored as whole numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from kerncast.core.arrays import Floats, Ints
from kerncast.errors import InvalidValue
from kerncast.learning.learners.trees import NOT_TREES, Tree, cut

FORMAT = 1
NAMES, THRESHOLDS, COUNTS, VERSION = "features", "thresholds", "threshold_counts", "format"
PARTS = ("nodes", "feature", "threshold", "left", "value")
# Leaves that were rounded are multiples of this.
STEP = 2.0**-14
# Rows that are walked through the trees together, and walks at a time: their state stays in the cache.
ROWS, WALKS = 2048, 32_768
FEW_ROWS = 64
# Steps that all walks take before those that have ended are put aside, at first (a tree of 127 leaves is nine nodes deep on
# average) and then again and again.
FIRST_STEPS, MORE_STEPS = 9, 4
# Every row walks every tree from its root, so a chain of a million nodes would never end.
DEEPEST = 10_000

Arrays = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Thresholds:
    """The numbers that each feature is compared with, ascending; the tables of all features one after the other."""

    values: Floats
    counts: Ints

    @cached_property
    def tables(self) -> list[Floats]:
        """The table of each feature."""
        return np.split(self.values, np.cumsum(self.counts)[:-1])

    def ranks(self, features: Floats) -> npt.NDArray[np.uint16]:
        """[feature, row]: how many numbers of the table are below the feature. `x <= table[i]` means that the rank is <= i."""
        found = np.empty(features.shape[::-1], np.uint16)
        for place, table in enumerate(self.tables):
            found[place] = np.searchsorted(table, features[:, place], side="left") if len(table) else 0
        return found


@dataclass(frozen=True)
class PackedForest:
    """The trees of one forest. Children are nodes, or leaves that follow all nodes and lead to themselves."""

    thresholds: Thresholds
    nodes: Ints
    """By tree: how many nodes it has; it has one leaf more."""
    feature: Ints
    threshold: npt.NDArray[np.uint16]
    """By node: the place of its threshold in its feature's table."""
    child: Ints
    """The left and the right child of each node, then of each leaf: itself."""
    value: Floats

    def __len__(self) -> int:
        return len(self.nodes)

    @cached_property
    def roots(self) -> Ints:
        """By tree: its first node, or its only leaf."""
        leaves = np.cumsum(self.nodes + 1) - (self.nodes + 1)
        return np.where(self.nodes > 0, np.cumsum(self.nodes) - self.nodes, len(self.feature) + leaves)

    @cached_property
    def _compared(self) -> tuple[Ints, npt.NDArray[np.uint16]]:
        """By node, then by leaf: its feature and threshold. A leaf compares nothing: whatever it reads, it leads to itself."""
        leaves = np.zeros(len(self.value), np.uint16)
        return np.concatenate([self.feature, leaves.astype(np.int64)]), np.concatenate([self.threshold, leaves])

    def predict(self, features: Floats) -> Floats:
        """The sum of the trees for each row, added in their order."""
        found = np.empty(len(features))
        for start in range(0, len(features), ROWS):
            rows = slice(start, start + ROWS)
            found[rows] = self._sums(self.thresholds.ranks(features[rows]))
        return found

    def _sums(self, ranks: npt.NDArray[np.uint16]) -> Floats:
        rows = ranks.shape[1]
        feature, limit = self._compared
        # Of a few rows each has its ranks side by side, so that nothing as long as the forest is computed for them.
        offset, flat, own = feature, ranks.T.ravel(), np.arange(rows) * len(ranks)
        if rows > FEW_ROWS:
            offset, flat, own = feature * rows, ranks.ravel(), np.arange(rows)
        together = max(1, WALKS // rows)
        total = np.zeros((1, rows))
        starts = self._starts(ranks)
        for first in range(0, len(self), together):
            roots = starts[first : first + together]
            values = self._walked(np.repeat(roots, rows), np.tile(own, len(roots)), offset, limit, flat)
            # Added one after the other, as LightGBM does: a pairwise sum differs in the last bit.
            total = np.cumsum(np.concatenate([total, values.reshape(len(roots), rows)]), axis=0)[-1:]
        return np.asarray(total[0])

    def _starts(self, ranks: npt.NDArray[np.uint16]) -> Ints:
        """By tree: the node, or the leaf, up to which all rows go the same way; most rows of a batch are of one device."""
        at, open_ = self.roots.copy(), np.flatnonzero(self.roots < len(self.feature))
        low, high = (ranks.min(axis=1), ranks.max(axis=1)) if ranks.shape[1] else (ranks[:, :0], ranks[:, :0])
        while len(open_) and ranks.shape[1]:
            node = at[open_]
            feature, limit = self.feature[node], self.threshold[node]
            right = low[feature] > limit
            alike = right | (high[feature] <= limit)
            open_, node = open_[alike], node[alike]
            at[open_] = self.child[2 * node + right[alike]]
            open_ = open_[at[open_] < len(self.feature)]
        return at

    def _walked(self, at: Ints, row: Ints, offset: Ints, limit: npt.NDArray[Any], flat: npt.NDArray[Any]) -> Floats:
        """The value of the leaf that each walk ends in."""
        found = np.empty(len(at))
        place, steps = np.arange(len(at)), FIRST_STEPS
        while len(at):
            for _ in range(steps):
                beyond = flat.take(offset.take(at) + row) > limit.take(at)
                at = self.child.take(2 * at + beyond)
            leaf = at - len(self.feature)
            ended = leaf >= 0
            found[place[ended]] = self.value.take(leaf[ended])
            on = np.flatnonzero(~ended)
            at, row, place, steps = at[on], row[on], place[on], MORE_STEPS
        return found

    def trees(self) -> tuple[Tree, ...]:
        """The same trees as arrays of their own, for what reads trees one by one."""
        inner = len(self.feature)
        owner = np.repeat(np.arange(len(self.nodes)), self.nodes)
        first, first_leaf = np.cumsum(self.nodes) - self.nodes, np.cumsum(self.nodes + 1) - (self.nodes + 1)
        sides = self.child[: 2 * inner].reshape(-1, 2).T
        left, right = (np.where(side < inner, side - first[owner], -1 - (side - inner - first_leaf[owner])) for side in sides)
        begins = np.cumsum(self.thresholds.counts) - self.thresholds.counts
        limits = self.thresholds.values[begins[self.feature] + self.threshold]
        arrays = {"feature": self.feature, "threshold": limits, "left": left, "right": right, "value": self.value}
        return tuple(cut(self.nodes, arrays))


def packed(forests: Mapping[str, Sequence[Sequence[Tree]]], names: Sequence[str]) -> dict[str, npt.NDArray[Any]]:
    """The arrays of some forests (by name, one or several of each), for an .npz file."""
    every = [tree for bags in forests.values() for bag in bags for tree in bag]
    used = np.concatenate([tree.feature for tree in every])
    numbers = np.concatenate([tree.threshold for tree in every])
    tables = [np.unique(numbers[used == place]) for place in range(len(names))]
    arrays: dict[str, npt.NDArray[Any]] = {
        VERSION: np.array(FORMAT),
        NAMES: np.array(list(names), dtype=str),
        THRESHOLDS: np.concatenate([*tables, np.empty(0)]),
        COUNTS: _small(np.array([len(table) for table in tables])),
    }
    for name, bags in forests.items():
        for number, bag in enumerate(bags):
            trees = [tree.preorder() for tree in bag]
            feature = np.concatenate([tree.feature for tree in trees])
            limits = np.concatenate([tree.threshold for tree in trees])
            place = np.empty(len(feature), np.int64)
            for own, table in enumerate(tables):
                place[feature == own] = np.searchsorted(table, limits[feature == own])
            parts = (
                np.array([len(tree.feature) for tree in trees]), feature, place,
                np.concatenate([_left_sizes(tree) for tree in trees]),
            )  # fmt: skip
            found = [*map(_small, parts), _whole(np.concatenate([tree.value for tree in trees]))]
            arrays |= {f"{name}.{number}.{part}": array for part, array in zip(PARTS, found, strict=True)}
    return arrays


def unpacked(arrays: Arrays) -> tuple[tuple[str, ...], dict[str, list[PackedForest]]]:
    """The names of the features and the forests of `packed`, checked, or InvalidValue with what is wrong."""
    if VERSION not in arrays or not np.array_equal(arrays[VERSION], FORMAT):
        raise InvalidValue(f"it is not a packed forest of format {FORMAT}")
    names = tuple(map(str, np.atleast_1d(_array(arrays, NAMES, "U"))))
    thresholds = _thresholds(arrays, len(names))
    found: dict[str, list[PackedForest]] = {}
    for name, _, _ in sorted(key.split(".") for key in arrays if key.endswith(f".{PARTS[0]}") and key.count(".") == 2):
        bag = len(found.setdefault(name, []))
        parts = {part: _array(arrays, f"{name}.{bag}.{part}", "fi" if part == "value" else "iu") for part in PARTS}
        found[name].append(_forest(parts, thresholds))
    return names, found


def _thresholds(arrays: Arrays, features: int) -> Thresholds:
    values = _array(arrays, THRESHOLDS, "f").astype(np.float64, copy=False)
    counts = _array(arrays, COUNTS, "iu").astype(np.int64)
    if len(counts) != features or (counts < 0).any() or counts.sum() != len(values) or not np.isfinite(values).all():
        raise InvalidValue("its thresholds are not one table for each feature")
    found = Thresholds(values, counts)
    if any(len(table) > np.iinfo(np.uint16).max or (np.diff(table) <= 0).any() for table in found.tables):
        raise InvalidValue("a table of thresholds does not ascend, or is too long")
    return found


def _forest(parts: Arrays, thresholds: Thresholds) -> PackedForest:
    nodes = parts["nodes"].astype(np.int64)
    # A tree has no more nodes than there are: sums of larger numbers could come round to the right one.
    inner = int(nodes.sum()) if len(nodes) and ((nodes >= 0) & (nodes <= len(parts["feature"]))).all() else -1
    sizes = {"feature": inner, "threshold": inner, "left": inner, "value": inner + len(nodes)}
    if inner < 0 or any(parts[name].shape != (size,) for name, size in sizes.items()):
        raise InvalidValue(NOT_TREES)
    feature, threshold = parts["feature"].astype(np.int64), parts["threshold"].astype(np.int64)
    if inner and not (feature.min() >= 0 and feature.max() < len(thresholds.counts)):
        raise InvalidValue(f"a node tests a feature that is not among its {len(thresholds.counts)}")
    if inner and not (threshold.min() >= 0 and (threshold < thresholds.counts[feature]).all()):
        raise InvalidValue("a node names a threshold that its feature does not have")
    stored = parts["value"]
    value = stored.astype(np.float64, copy=False) * (STEP if stored.dtype.kind == "i" else 1.0)
    if not np.isfinite(value).all():
        raise InvalidValue("a leaf is not finite")
    child = _children(nodes, parts["left"].astype(np.int64))
    return PackedForest(thresholds, nodes, feature, threshold.astype(np.uint16), child, value)


def _children(nodes: Ints, left: Ints) -> Ints:
    """The children of all nodes and leaves, from the sizes of the left subtrees; level by level, all trees together."""
    inner, leaves = len(left), len(left) + len(nodes)
    child = np.repeat(np.arange(inner + leaves), 2)
    own = nodes > 0
    at, size = (np.cumsum(nodes) - nodes)[own], nodes[own]
    leaf = (np.cumsum(nodes + 1) - (nodes + 1))[own]
    for _ in range(DEEPEST):
        if not len(at):
            return child
        below = left[at]
        if (below < 0).any() or (below >= size).any():
            raise InvalidValue("a node has more nodes below it than its tree")
        beyond, right = size - 1 - below, at + 1 + below
        right_leaf = leaf + below + 1
        child[2 * at] = np.where(below > 0, at + 1, inner + leaf)
        child[2 * at + 1] = np.where(beyond > 0, right, inner + right_leaf)
        first, second = below > 0, beyond > 0
        leaf = np.concatenate([leaf[first], right_leaf[second]])
        size = np.concatenate([below[first], beyond[second]])
        at = np.concatenate([at[first] + 1, right[second]])
    raise InvalidValue(f"a tree is deeper than {DEEPEST:,} nodes")


def _left_sizes(tree: Tree) -> Ints:
    """By node of a tree in preorder: how many nodes its left subtree has."""
    size, found = np.ones(len(tree.feature), np.int64), np.zeros(len(tree.feature), np.int64)
    for node in range(len(tree.feature) - 1, -1, -1):
        left, right = int(tree.left[node]), int(tree.right[node])
        found[node] = size[left] if left >= 0 else 0
        size[node] += found[node] + (size[right] if right >= 0 else 0)
    return found


def _array(arrays: Arrays, name: str, kinds: str) -> npt.NDArray[Any]:
    found = arrays.get(name)
    if found is None or found.dtype.kind not in kinds or found.ndim != 1:
        raise InvalidValue(f"its array '{name}' is missing, or not of the right kind")
    return found


def _whole(values: Floats) -> npt.NDArray[Any]:
    """Multiples of `STEP` as whole numbers; other values as they are."""
    steps = values / STEP
    largest = float(np.abs(steps).max(initial=0.0))
    if largest > np.iinfo(np.int32).max or (steps != np.round(steps)).any():
        return values
    return steps.astype(np.int16 if largest <= np.iinfo(np.int16).max else np.int32)


def _small(values: Ints) -> npt.NDArray[Any]:
    """The same whole numbers in as few bytes as they need."""
    most = int(values.max(initial=0))
    return values.astype(next(kind for kind in (np.uint8, np.uint16, np.uint32, np.uint64) if most <= np.iinfo(kind).max))
