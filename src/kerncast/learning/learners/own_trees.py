"""Trees of their own for each of several devices, as part of one forest.

A forest of ten devices spends most of its leaves on telling them apart, and devices whose profiles agree in every number that
it reads look the same to it. So small forests are grown, one for each device, on what the forest of all devices misses there.
The first trees of all devices become one tree, the second ones another: its upper nodes compare the numbers of the devices'
profiles and lead to the tree of that device. A device with other numbers than these reaches a leaf of zero, so for a device
that was never measured the forest of all devices answers alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from kerncast.core.arrays import Floats, Ints
from kerncast.core.device import PEAK, TELLING_APART
from kerncast.core.expr import Program
from kerncast.learning.feature_rows import Rows
from kerncast.learning.learners.contract import Fitting
from kerncast.learning.learners.growing import Bins, Grower, PartOfTable, time_task
from kerncast.learning.learners.lightgbm_text import read_trees
from kerncast.learning.learners.packed_forest import STEP
from kerncast.learning.learners.trees import Tree, TreeDraft

if TYPE_CHECKING:
    from kerncast.learning.table import Table

# A number of a profile is a known device's if it is this near, as a share of it. Among data-centre GPUs of one generation the
# nearest two are 2.7 % apart (148 and 152 compute units).
SAME = 0.01
# With fewer rows a kind of device gets no trees of its own.
FEWEST_ROWS = 50


def identifying(rows: Rows) -> tuple[int, ...]:
    """The places of the features that are numbers of a device alone, whatever the problem."""
    outputs = rows.family.outputs_of(rows.names)
    read = [{item.name for item in Program({name: outputs[name]}).symbols} for name in rows.names]
    return tuple(
        place
        for place, names in enumerate(read)
        if names and f"hw.{PEAK}" not in names and all(name.startswith("hw.") for name in names)
    )


def telling_apart(rows: Rows) -> tuple[int, ...]:
    """The places of the features that only tell devices apart: a forest of all devices would learn one by heart by them."""
    outputs, names = rows.family.outputs_of(rows.names), {f"hw.{name}" for name in TELLING_APART}
    read = [{item.name for item in Program({name: outputs[name]}).symbols} for name in rows.names]
    return tuple(place for place, found in enumerate(read) if found and found <= names)


def without(rows: Rows, places: Sequence[int]) -> Rows:
    """The rows with some features the same everywhere, so that no tree can use them."""
    features = rows.features.copy()
    features[:, list(places)] = 0.0
    return replace(rows, described=features)


@dataclass(frozen=True)
class Kinds:
    """The devices of a table that their numbers tell apart."""

    places: tuple[int, ...]
    """The features that are compared."""
    known: Floats
    """[kind, place]: the numbers of each, sorted."""
    of_row: Ints
    """By row of the table: its kind."""

    @classmethod
    def of(cls, table: Table) -> Kinds:
        """Those of a table; devices with the same numbers are of one kind."""
        places = tuple(place for place in identifying(table.rows) if np.ptp(table.rows.features[:, place]) > 0)
        known, of_row = np.unique(table.rows.features[:, list(places)], axis=0, return_inverse=True)
        return cls(places, known, of_row.reshape(-1))

    def __len__(self) -> int:
        return len(self.known) if self.places else 0


def grown(
    table: Table, fitting: Fitting, kinds: Kinds, grower: Grower, trees: int, medians: bool, predict: Callable[[Rows], Floats]
) -> dict[int, tuple[Tree, ...]]:
    """By kind: trees that learn what `predict` misses there; none for a kind with too few rows."""
    found: dict[int, tuple[Tree, ...]] = {}
    for kind in range(len(kinds)):
        rows = np.flatnonzero((kinds.of_row == kind) & table.ok)
        if len(rows) < FEWEST_ROWS:
            continue
        part = PartOfTable(table.take(rows), np.arange(len(rows)))
        task = time_task(part, fitting, True, medians)
        task = replace(task, labels=task.labels - predict(part.table.rows))
        bins = Bins(part.table, grower.threads, keep=False, fewer=True)
        own = replace(grower, bins=bins, trees=trees, forests=len(kinds), grown=kind)
        found[kind] = read_trees(own.grow("time", task, trees, kind, None).model_to_string(num_iteration=-1))
    return found


def joined(shared: Sequence[Tree], own: Mapping[int, Sequence[Tree]], kinds: Kinds) -> tuple[Tree, ...]:
    """One forest of the trees of all devices and of those of each kind, with rounded leaves."""
    router, slots = _router(kinds)
    count = max(map(len, own.values()), default=0)
    branches = [{kind: trees[number] for kind, trees in own.items() if number < len(trees)} for number in range(count)]
    return tuple(map(_rounded, (*shared, *(_branched(router, slots, branch) for branch in branches))))


def branches(routed: Sequence[Tree], places: Collection[int]) -> list[tuple[Tree, ...]]:
    """The trees of each kind of device in trees of `joined`, one kind after the other; `places` are those compared above."""
    found: dict[int, list[Tree]] = {}
    for tree in routed:
        # The nodes above are the same in each of them, so a kind has the same number among their ends.
        for number, end in enumerate(_ends(tree, places)):
            if end >= 0 or tree.value[-1 - end] != 0.0:
                found.setdefault(number, []).append(tree.preorder(end))
    return [tuple(found[number]) for number in sorted(found)]


def _ends(tree: Tree, places: Collection[int]) -> list[int]:
    """The first nodes (or leaves) below those that compare numbers of the device, from left to right."""
    found, stack = [], [0 if len(tree.feature) else -1]
    while stack:
        node = stack.pop()
        if node >= 0 and int(tree.feature[node]) in places:
            stack += [int(tree.right[node]), int(tree.left[node])]
        else:
            found.append(node)
    return found


def _rounded(tree: Tree) -> Tree:
    """The same tree with leaves that take two bytes: three hundred roundings are 0.03 % of a time."""
    return replace(tree, value=np.round(tree.value / STEP) * STEP)


def _router(kinds: Kinds) -> tuple[TreeDraft, dict[int, int]]:
    """Nodes that lead to one leaf for each kind, and to others for unknown numbers; the leaf of each kind."""
    nodes, slots = TreeDraft(), dict[int, int]()

    def choose(own: Ints, level: int) -> int:
        """Among kinds that agree in the numbers before a level."""
        if level == len(kinds.places):
            slots[int(own[0])] = nodes.leaf()
            return slots[int(own[0])]
        return among(own, level, np.unique(kinds.known[own, level]))

    def among(own: Ints, level: int, values: Floats) -> int:
        feature, place = kinds.places[level], nodes.leaf()
        if len(values) == 1:
            value, below, like = float(values[0]), nodes.leaf(), nodes.leaf()
            nodes.split(like, feature, value * (1.0 + SAME), choose(own, level + 1), nodes.leaf())
            return nodes.split(place, feature, value * (1.0 - SAME), below, like)
        half = len(values) // 2
        middle = float(values[half - 1] + values[half]) / 2.0
        low = kinds.known[own, level] < middle
        sides = among(own[low], level, values[:half]), among(own[~low], level, values[half:])
        return nodes.split(place, feature, middle, *sides)

    choose(np.arange(len(kinds.known)), 0)
    return nodes, slots


def _branched(router: TreeDraft, slots: Mapping[int, int], branch: Mapping[int, Tree]) -> Tree:
    """The router with a tree in the place of each kind's leaf."""
    parts = [[np.array(values) for values in (router.feature, router.threshold, router.left, router.right)]]
    parts[0].append(np.zeros(len(router.feature)))
    begins, begin = np.arange(len(router.feature)), len(router.feature)
    for kind, tree in branch.items():
        inner = len(tree.feature)
        below = [begin + np.where(side >= 0, side, inner - 1 - side) for side in (tree.left, tree.right)]
        ends, zeros = np.full(inner + 1, -1), np.zeros(inner + 1, np.int64)
        parts.append([
            np.concatenate([tree.feature, ends]), np.concatenate([tree.threshold, zeros]),
            *(np.concatenate([side, zeros]) for side in below), np.concatenate([np.zeros(inner), tree.value]),
        ])  # fmt: skip
        begins[slots[kind]] = begin
        begin += 2 * inner + 1
    feature, limit, left, right, value = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    upper = len(router.feature)
    left[:upper], right[:upper] = begins[left[:upper]], begins[right[:upper]]
    return Tree.of_nodes(feature, limit, left, right, value).preorder()
