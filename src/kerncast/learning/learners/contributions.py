"""What each feature adds to one prediction of a forest: exact Shapley values, in numpy alone.

A leaf is reached if every feature that was tested on the way lies in the leaf's range of it. If a feature is not known, its
range holds with the share of the background rows that went this way. So the value of a leaf, for a known set of features, is a
product with one factor per feature, and the Shapley value of a feature in a product is an integral over the other factors
(Owen's multilinear extension): a polynomial, which Gauss' rule integrates exactly. Path-dependent TreeSHAP computes the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kerncast.core.arrays import Floats, Ints
from kerncast.learning.learners.trees import Tree


@dataclass(frozen=True)
class LeafRanges:
    """Every leaf of a forest and the ranges that lead to it: one entry for each leaf and each feature that it depends on."""

    value: Floats
    """By leaf."""
    first: Ints
    """By leaf: its first entry; its entries follow each other."""
    leaf: Ints
    feature: Ints
    low: Floats
    high: Floats
    """By entry: the leaf is reached if low < feature <= high for all its entries."""
    share: Floats
    """By entry: the share of the background rows for which its range holds, among those that came so far."""
    constant: float
    """The sum of trees without a node."""

    @classmethod
    def of(cls, trees: Sequence[Tree], background: Floats) -> LeafRanges:
        """The leaves of trees that are added up; `background` are feature rows like those that are to be explained."""
        grown = [tree for tree in trees if len(tree.feature)]
        constant = float(sum(tree.value[0] for tree in trees if not len(tree.feature)))
        parts = [_walked_up(tree, background) for tree in grown]
        leaves = np.cumsum([0, *(len(tree.value) for tree in grown)])
        if not parts:
            none, empty = np.empty(0, np.int64), np.empty(0)
            return cls(empty, none, none, none, empty, empty, empty, constant)
        leaf = np.concatenate([part[0] + start for part, start in zip(parts, leaves[:-1], strict=True)])
        feature, low, high, share = (np.concatenate([part[place] for part in parts]) for place in range(1, 5))
        # A feature that is tested several times on one way has one range, and its shares multiply.
        order = np.lexsort((feature, leaf))
        leaf, feature, low, high, share = (item[order] for item in (leaf, feature, low, high, share))
        new = np.r_[True, (leaf[1:] != leaf[:-1]) | (feature[1:] != feature[:-1])]
        start = np.flatnonzero(new)
        first = np.flatnonzero(np.r_[True, leaf[start][1:] != leaf[start][:-1]])
        return cls(
            np.concatenate([tree.value for tree in grown]), first, leaf[start], feature[start],
            np.maximum.reduceat(low, start), np.minimum.reduceat(high, start), np.multiply.reduceat(share, start), constant,
        )  # fmt: skip

    def contributions(self, row: Floats) -> tuple[float, Floats]:
        """The mean prediction of the background, and what each feature of a row adds to it: all together the prediction."""
        added = np.zeros(len(row))
        if not len(self.first):
            return self.constant, added
        held = ((self.low < row[self.feature]) & (row[self.feature] <= self.high)).astype(np.float64)
        # A leaf that neither the row nor any background row reaches by some feature is worth nothing either way.
        dead = np.zeros(len(self.value), dtype=bool)
        dead[self.leaf[(held == 0.0) & (self.share == 0.0)]] = True
        value = np.where(dead, 0.0, self.value)
        most = int(np.diff(np.r_[self.first, len(self.leaf)]).max())
        total = np.zeros(len(self.leaf))
        for place, weight in zip(*np.polynomial.legendre.leggauss(max(1, -(-most // 2))), strict=True):
            known = (place + 1.0) / 2.0
            factor = known * held + (1.0 - known) * self.share
            factor[factor == 0.0] = 1.0  # of a dead leaf
            product = np.multiply.reduceat(factor, self.first)
            total += weight / 2.0 * (product[self.leaf] / factor)
        np.add.at(added, self.feature, value[self.leaf] * (held - self.share) * total)
        mean = float((self.value * np.multiply.reduceat(self.share, self.first)).sum()) + self.constant
        return mean, added


def _walked_up(tree: Tree, background: Floats) -> tuple[Ints, Ints, Floats, Floats, Floats]:
    """Every test on the way to every leaf of a tree: leaf, feature, low, high, share of the rows that go this way."""
    inner, leaves = len(tree.feature), len(tree.value)
    # Nodes first, then leaves.
    children = np.stack([tree.left, tree.right], axis=1).astype(np.int64)
    children = np.where(children >= 0, children, inner - 1 - children)
    parent, side = np.full(inner + leaves, -1), np.zeros(inner + leaves, np.int64)
    parent[children], side[children] = np.arange(inner)[:, None], np.array([0, 1])
    rows, below = np.zeros(inner + leaves), np.zeros(inner + leaves)
    rows[inner:] = np.bincount(tree.leaf_of(background), minlength=leaves)
    below[inner:] = 1.0
    for node in _children_first(parent, inner):
        rows[node], below[node] = rows[children[node]].sum(), below[children[node]].sum()
    found: list[tuple[Ints, Ints, Floats, Floats, Floats]] = []
    leaf, at = np.arange(leaves), np.arange(inner, inner + leaves)
    while len(at):
        up = parent[at]
        limit, left = tree.threshold[up], side[at] == 0
        # Where no background row came, each leaf below counts the same.
        share = np.where(rows[up] > 0, rows[at] / np.maximum(rows[up], 1.0), below[at] / below[up])
        found.append((leaf, tree.feature[up], np.where(left, -np.inf, limit), np.where(left, limit, np.inf), share))
        onward = parent[up] >= 0
        leaf, at = leaf[onward], up[onward]
    leaf, feature, low, high, share = (np.concatenate(part) for part in zip(*found, strict=True))
    return leaf, feature, low, high, share


def _children_first(parent: Ints, inner: int) -> Ints:
    """The nodes, deepest first."""
    depth, at = np.zeros(inner, np.int64), parent[:inner].copy()
    while (at >= 0).any():
        depth += at >= 0
        at = np.where(at >= 0, parent[at], -1)
    return np.argsort(-depth, kind="stable")
