"""Decision trees as flat arrays, from any library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kerncast.core.arrays import Floats, Ints
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

    def preorder(self, root: int = 0) -> Tree:
        """The tree below a node, with each node right before its left subtree and leaves numbered in order, for locality."""
        if not len(self.feature):
            return self
        order, leaves, stack = list[int](), list[int](), [root]
        while stack:
            node = stack.pop()
            if node < 0:
                leaves.append(-1 - node)
                continue
            order.append(node)
            stack += [int(self.right[node]), int(self.left[node])]
        place = {node: number for number, node in enumerate(order)}
        place |= {-1 - leaf: -1 - number for number, leaf in enumerate(leaves)}
        nodes = np.array(order, dtype=np.int64)

        def children(side: Ints) -> Ints:
            return np.array([place[int(child)] for child in side[nodes]], dtype=np.int64)

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


def from_arrays(arrays: Mapping[str, npt.NDArray[np.generic]], features: int | None = None) -> tuple[Tree, ...]:
    """The trees that `as_arrays` was given, checked, or InvalidValue. A tree has one leaf more than it has nodes."""
    given = np.asarray(arrays.get("nodes", np.array([-1])))
    if given.ndim != 1 or not len(given) or given.dtype.kind not in "iu" or (given < 0).any():
        raise InvalidValue(NOT_TREES)
    nodes = given.astype(np.int64)
    sizes = {name: int(nodes.sum()) + (len(nodes) if name == "value" else 0) for name in Tree.__dataclass_fields__}
    if any(name not in arrays or arrays[name].shape != (size,) for name, size in sizes.items()):
        raise InvalidValue(NOT_TREES)
    numbers = {name: np.asarray(arrays[name]) for name in Tree.__dataclass_fields__}
    if any(part.dtype.kind not in ("f" if name in ("threshold", "value") else "iu") for name, part in numbers.items()):
        raise InvalidValue("its arrays are not numbers of the right kind")
    refuse_bad_trees(nodes, numbers, features)
    return tuple(cut(nodes, numbers))


def cut(nodes: Ints, arrays: Mapping[str, npt.NDArray[Any]]) -> list[Tree]:
    """Trees whose arrays are stored one after the other; `nodes` has the number of nodes of each."""
    ends = np.cumsum(nodes)
    leaf_ends = ends + np.arange(1, len(ends) + 1)
    parts = {name: np.split(arrays[name], (leaf_ends if name == "value" else ends)[:-1]) for name in Tree.__dataclass_fields__}
    return [Tree(**{name: part[number] for name, part in parts.items()}) for number in range(len(ends))]


def refuse_bad_trees(nodes: Ints, arrays: Mapping[str, npt.NDArray[Any]], features: int | None = None) -> None:
    """Refuse arrays, stored as for `cut`, that are not trees.

    Every node but the root and every leaf is the child of one node, and all are reached from the root; tested features are
    below `features` (None: not negative); thresholds and values are finite.
    """
    if not all(np.isfinite(arrays[name]).all() for name in ("threshold", "value")):
        raise InvalidValue("a threshold or a leaf is not finite")
    tested = arrays["feature"]
    if len(tested) and (tested.min() < 0 or (features is not None and tested.max() >= features)):
        strange = int(tested.min() if tested.min() < 0 else tested.max())
        raise InvalidValue(f"a node tests feature {strange}" + ("" if features is None else f", and there are {features}"))
    owner = np.repeat(np.arange(len(nodes)), nodes)
    first, first_leaf = np.cumsum(nodes) - nodes, np.cumsum(nodes + 1) - (nodes + 1)
    sides = {}
    for name in ("left", "right"):
        child = arrays[name].astype(np.int64)
        wrong = (child >= nodes[owner]) | (child < -1 - nodes[owner]) | (child == 0)
        if wrong.any():
            node = int(wrong.argmax())
            raise InvalidValue(f"tree {owner[node]} has a child {child[node]}, and {nodes[owner[node]]} nodes")
        sides[name] = np.where(child >= 0, child + first[owner], -1 - (first_leaf[owner] - 1 - child))
    children = np.concatenate(list(sides.values()))
    seen = np.bincount(children[children >= 0], minlength=len(owner))
    leaves = np.bincount(-1 - children[children < 0], minlength=int((nodes + 1).sum()))
    roots = first[nodes > 0]
    seen[roots] += 1
    leaves[first_leaf[nodes == 0]] += 1
    if (seen != 1).any() or (leaves != 1).any():
        raise InvalidValue("a node or a leaf is not the child of exactly one node")
    # One parent each: what the roots do not reach goes round in a circle.
    reached, level = 0, roots
    while len(level):
        reached += len(level)
        below = np.concatenate([sides["left"][level], sides["right"][level]])
        level = below[below >= 0]
    if reached != len(owner):
        raise InvalidValue("a tree leads back to itself")


# A tree that grows beyond this is not worth having in C.
MOST_NODES = 1_000_000
NOT_TREES = "its arrays do not make trees"
Bounds = Mapping[int, tuple[int, int]]
"""By feature: the codes that are possible at a place in the tree."""


@dataclass(frozen=True)
class _CodeRun:
    """Neighbouring codes that go the same way."""

    low: int
    high: int
    inside: bool


class TreeDraft:
    """A tree that is being made, of nodes and leaves in any order; the first is the root."""

    def __init__(self) -> None:
        self.feature = list[int]()
        self.threshold, self.value = list[float](), list[float]()
        self.left, self.right = list[int](), list[int]()

    def leaf(self, value: float = 0.0) -> int:
        """Add a leaf, which `split` may make a node; its number."""
        self.feature.append(-1)
        self.threshold.append(0.0)
        self.left.append(0)
        self.right.append(0)
        self.value.append(value)
        return len(self.feature) - 1

    def split(self, place: int, feature: int, threshold: float, left: int = 0, right: int = 0) -> int:
        """Make a leaf a node; its number. Its children may be set later."""
        self.feature[place], self.threshold[place] = feature, threshold
        self.left[place], self.right[place] = left, right
        return place

    def tree(self) -> Tree:
        """The tree, its nodes and its leaves numbered as they were added."""
        columns = (self.feature, self.threshold, self.left, self.right, self.value)
        return Tree.of_nodes(*map(np.array, columns))


def without_categories(tree: Tree, sets: Mapping[int, frozenset[int]]) -> Tree:
    """The same tree, with comparisons instead of the sets of categories of some nodes."""
    if not sets:
        return tree
    highest: dict[int, int] = {}
    for node, members in sets.items():
        place = int(tree.feature[node])
        # One code more stands for all that no set has.
        highest[place] = max(highest.get(place, 0), max(members, default=0) + 1)
    found = TreeDraft()
    begin: Bounds = {place: (0, most) for place, most in highest.items()}
    # What is still to be made: a node of the old tree (or some runs of it), what is known there, and where its number goes.
    todo: list[tuple[int, list[_CodeRun] | None, Bounds, tuple[list[int], int] | None]] = [(0, None, begin, None)]
    while todo:
        if len(found.feature) > 2 * MOST_NODES:
            raise InvalidValue(f"a tree has more than {MOST_NODES:,} nodes once its categories are compared one by one")
        node, runs, bounds, slot = todo.pop()
        if node >= 0 and runs is None and node in sets:
            runs = _runs(sets[node], *bounds[int(tree.feature[node])])
        if node < 0:
            number = found.leaf(float(tree.value[-1 - node]))
        elif runs is None:
            number = found.split(found.leaf(), int(tree.feature[node]), float(tree.threshold[node]))
            todo.append((int(tree.right[node]), None, bounds, (found.right, number)))
            todo.append((int(tree.left[node]), None, bounds, (found.left, number)))
        else:
            place = int(tree.feature[node])
            if len(runs) == 1:
                child = int(tree.left[node] if runs[0].inside else tree.right[node])
                todo.append((child, None, {**bounds, place: (runs[0].low, runs[0].high)}, slot))
                continue
            half = len(runs) // 2
            # LightGBM cuts a value off to a whole number: everything below the first code of the second half goes left.
            number = found.split(found.leaf(), place, float(np.nextafter(float(runs[half].low), -np.inf)))
            todo.append((node, runs[half:], bounds, (found.right, number)))
            todo.append((node, runs[:half], bounds, (found.left, number)))
        if slot is not None:
            side, parent = slot
            side[parent] = number
    return found.tree()


def _runs(members: frozenset[int], low: int, high: int) -> list[_CodeRun]:
    runs: list[_CodeRun] = []
    for code in range(low, high + 1):
        inside = code in members
        if runs and runs[-1].inside == inside:
            runs[-1] = _CodeRun(runs[-1].low, code, inside)
        else:
            runs.append(_CodeRun(code, code, inside))
    return runs
