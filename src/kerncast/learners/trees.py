"""Decision trees as flat arrays, from any library."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kerncast.arrays import Floats, Ints
from kerncast.errors import InvalidValue


@dataclass(frozen=True)
class Tree:
    """A node tests `feature <= threshold`; yes goes left. A child below zero is the leaf `-1 - child`; no node: one leaf."""

    feature: Ints
    threshold: Floats
    left: Ints
    right: Ints
    value: Floats

    @classmethod
    def of_nodes(cls, feature: Ints, threshold: Floats, left: Ints, right: Ints, value: Floats) -> Tree:
        """From arrays in which leaves are nodes too: those whose feature is below zero. The root comes first."""
        inner = np.asarray(feature) >= 0
        place = np.where(inner, np.cumsum(inner) - 1, 0 - np.cumsum(~inner))
        first, second = (place[np.asarray(side)[inner]].astype(np.int64) for side in (left, right))
        own, limit = np.asarray(feature)[inner].astype(np.int64), np.asarray(threshold, np.float64)[inner]
        return cls(own, limit, first, second, np.asarray(value, np.float64)[~inner])

    def merged(self) -> Tree:
        """The tree without splits whose two sides have the same value. Parents must come before their children."""
        says: dict[int, float | None] = {-1 - leaf: float(value) for leaf, value in enumerate(self.value)}
        for node in range(len(self.feature) - 1, -1, -1):
            first, second = says[int(self.left[node])], says[int(self.right[node])]
            says[node] = first if first is not None and first == second else None
        order = [0 if len(self.feature) else -1]
        for node in order:  # grows while it is read
            if says[node] is None:
                order += [int(self.left[node]), int(self.right[node])]
        place = {node: number for number, node in enumerate(order)}
        inner = [says[node] is None for node in order]

        def of(side: Ints) -> list[int]:
            return [place[int(side[node])] if split else -1 for node, split in zip(order, inner, strict=True)]

        return Tree.of_nodes(
            np.array([self.feature[node] if split else -1 for node, split in zip(order, inner, strict=True)]),
            np.array([self.threshold[node] if split else 0.0 for node, split in zip(order, inner, strict=True)]),
            np.array(of(self.left)),
            np.array(of(self.right)),
            np.array([0.0 if says[node] is None else says[node] for node in order]),
        )

    def preorder(self) -> Tree:
        """The same tree with each node right before its left subtree and leaves numbered in order, for locality."""
        if not len(self.feature):
            return self
        order, leaves, stack = [], [], [0]
        while stack:
            node = stack.pop()
            if node < 0:
                leaves.append(-1 - node)
                continue
            order.append(node)
            stack += [int(self.right[node]), int(self.left[node])]
        place = {node: number for number, node in enumerate(order)}
        place |= {-1 - leaf: -1 - number for number, leaf in enumerate(leaves)}
        nodes = np.array(order)

        def children(side: Ints) -> Ints:
            return np.array([place[int(child)] for child in side[nodes]])

        return Tree(self.feature[nodes], self.threshold[nodes], children(self.left), children(self.right), self.value[leaves])

    def leaf_values(self, features: Floats) -> Floats:
        """The value of each row's leaf."""
        return np.asarray(self.value[self.leaf_of(features)])

    def leaf_of(self, features: Floats) -> Ints:
        """The leaf that each row ends in."""
        at = np.full(len(features), 0 if len(self.feature) else -1)
        rows = np.flatnonzero(at >= 0)
        while len(rows):
            node = at[rows]
            yes = features[rows, self.feature[node]] <= self.threshold[node]
            at[rows] = np.where(yes, self.left[node], self.right[node])
            rows = rows[at[rows] >= 0]
        return np.asarray(-1 - at)


def sum_of(trees: Sequence[Tree], features: Floats) -> Floats:
    """The sum of the trees, added in order, as exported C does."""
    total = np.zeros(len(features))
    for tree in trees:
        total += tree.leaf_values(features)
    return total


def as_arrays(trees: Sequence[Tree]) -> dict[str, npt.NDArray[np.generic]]:
    """The trees as arrays for an .npz file."""
    joined = {name: np.concatenate([getattr(tree, name) for tree in trees]) for name in Tree.__dataclass_fields__}
    return {**joined, "nodes": np.array([len(tree.feature) for tree in trees])}


def from_arrays(arrays: dict[str, npt.NDArray[np.generic]]) -> tuple[Tree, ...]:
    """The trees that `as_arrays` was given, or InvalidValue. A tree has one leaf more than it has nodes."""
    nodes = np.asarray(arrays.get("nodes", np.array([-1])))
    sizes = {name: nodes.sum() + (len(nodes) if name == "value" else 0) for name in Tree.__dataclass_fields__}
    if (nodes < 0).any() or any(name not in arrays or arrays[name].shape != (size,) for name, size in sizes.items()):
        raise InvalidValue("its arrays do not make trees")
    ends = np.cumsum(np.asarray(arrays["nodes"]))
    leaf_ends = ends + np.arange(1, len(ends) + 1)
    parts = {
        name: np.split(np.asarray(arrays[name]), (leaf_ends if name == "value" else ends)[:-1])
        for name in Tree.__dataclass_fields__
    }
    return tuple(Tree(**{name: part[number] for name, part in parts.items()}) for number in range(len(ends)))
