"""Splits by category as splits by size, so that every reader of trees needs only one kind.

LightGBM sends a row left if its category is in a set. Categories are codes from 0 on, so a set is some runs of codes, and a
few comparisons find the run. A subtree is repeated for each run that leads to it, but never for codes that cannot reach it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from kerncast.errors import InvalidValue
from kerncast.learning.learners.trees import Tree

# A tree that grows beyond this is not worth having in C.
MOST_NODES = 1_000_000
Bounds = Mapping[int, tuple[int, int]]
"""By feature: the codes that are possible at a place in the tree."""


@dataclass(frozen=True)
class _Run:
    """Neighbouring codes that go the same way."""

    low: int
    high: int
    inside: bool


@dataclass
class _Growing:
    feature: list[int] = field(default_factory=list)
    threshold: list[float] = field(default_factory=list)
    left: list[int] = field(default_factory=list)
    right: list[int] = field(default_factory=list)
    value: list[float] = field(default_factory=list)

    def node(self, feature: int, threshold: float) -> int:
        if len(self.feature) >= MOST_NODES:
            raise InvalidValue(f"a tree has more than {MOST_NODES:,} nodes once its categories are compared one by one")
        self.feature.append(feature)
        self.threshold.append(threshold)
        self.left.append(0)
        self.right.append(0)
        return len(self.feature) - 1

    def leaf(self, value: float) -> int:
        self.value.append(value)
        return -len(self.value)

    def tree(self) -> Tree:
        return Tree(
            np.array(self.feature, np.int64), np.array(self.threshold, np.float64), np.array(self.left, np.int64),
            np.array(self.right, np.int64), np.array(self.value, np.float64),
        )  # fmt: skip


def without_categories(tree: Tree, sets: Mapping[int, frozenset[int]]) -> Tree:
    """The same tree, with comparisons instead of the sets of categories of some nodes."""
    if not sets:
        return tree
    highest: dict[int, int] = {}
    for node, members in sets.items():
        place = int(tree.feature[node])
        # One code more stands for all that no set has.
        highest[place] = max(highest.get(place, 0), max(members, default=0) + 1)
    found = _Growing()
    begin: Bounds = {place: (0, most) for place, most in highest.items()}
    # What is still to be made: a node of the old tree (or some runs of it), what is known there, and where its number goes.
    todo: list[tuple[int, list[_Run] | None, Bounds, tuple[list[int], int] | None]] = [(0, None, begin, None)]
    while todo:
        node, runs, bounds, slot = todo.pop()
        if node >= 0 and runs is None and node in sets:
            runs = _runs(sets[node], *bounds[int(tree.feature[node])])
        if node < 0:
            number = found.leaf(float(tree.value[-1 - node]))
        elif runs is None:
            number = found.node(int(tree.feature[node]), float(tree.threshold[node]))
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
            number = found.node(place, float(np.nextafter(float(runs[half].low), -np.inf)))
            todo.append((node, runs[half:], bounds, (found.right, number)))
            todo.append((node, runs[:half], bounds, (found.left, number)))
        if slot is not None:
            side, parent = slot
            side[parent] = number
    return found.tree()


def _runs(members: frozenset[int], low: int, high: int) -> list[_Run]:
    runs: list[_Run] = []
    for code in range(low, high + 1):
        inside = code in members
        if runs and runs[-1].inside == inside:
            runs[-1] = _Run(runs[-1].low, code, inside)
        else:
            runs.append(_Run(code, code, inside))
    return runs
