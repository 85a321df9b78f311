"""A forest moved to another device by a few measurements: the same splits, other leaves, and a few trees of its own.

Two corrections of the log time are averaged. The first is a Gaussian process. Its covariance is how often two rows share a
leaf of the forest, plus a shift of all rows, one for each combination of labels, a share of the prediction itself, shares of
what the own trees of other devices say, for the new device may be like some of them, and how near two rows of the same labels
are in size (`size_partitions`). Its mean is a sum over leaves, so it becomes new leaf values and trees. The second is a small
forest that is grown on what the first forest misses. Both go to zero where the rows say nothing. On GPUs that were left out of
a forest of eight others, the mean of the two was about as good as the better one.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kerncast.core.arrays import Floats, Ints
from kerncast.core.expr import Symbol
from kerncast.learning.feature_rows import Rows
from kerncast.learning.learners.trees import Tree, TreeDraft, sum_of


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

    def trees(self, router: TreeDraft, length: float, count: int, rng: np.random.Generator) -> tuple[Tree, ...]:
        """Trees with leaves of zero; `router` leads to a leaf for each combination of labels, whose value is 1 + its number."""
        return tuple(self._tree(router, length, rng) for _ in range(count)) if self.features else ()

    def _tree(self, router: TreeDraft, length: float, rng: np.random.Generator) -> Tree:
        tree = deepcopy(router)
        tree.value = [0.0] * len(router.value)
        low, high = self.octaves.min(axis=0), self.octaves.max(axis=0)
        for place, number in enumerate(router.value):
            if router.feature[place] < 0 and number > 0:
                own = np.flatnonzero(self.number == int(number) - 1)
                self._cut(tree, place, own, low, high, 1.0 / (length * len(self.features)), rng)
        return tree.tree()

    def _cut(
        self, tree: TreeDraft, place: int, own: Ints, low: Floats, high: Floats, remaining: float, rng: np.random.Generator
    ) -> None:
        """Cut a cell, and then its parts; one without rows stays whole, for nothing is learned there."""
        sides = high - low
        total = float(sides.sum())
        wait = rng.exponential() / total if len(own) and total > 0 else np.inf
        if wait >= remaining:
            return
        side = int(rng.choice(len(sides), p=sides / total))
        at = float(rng.uniform(low[side], high[side]))
        below, above = high.copy(), low.copy()
        below[side] = above[side] = at
        first, second = tree.leaf(), tree.leaf()
        tree.split(place, self.features[side], 2.0**at, first, second)
        lower = self.octaves[own, side] <= at
        self._cut(tree, first, own[lower], low, below, remaining - wait, rng)
        self._cut(tree, second, own[~lower], above, high, remaining - wait, rng)


# The Gaussian process is fitted on at most this many rows, and its variances on at most so many of them.
MOST_ROWS, MOST_JUDGED = 1500, 250
# Variances in squared log time: of the shift of all rows, of each combination of labels, of the share of the prediction, of
# the leaves, of the shares of other devices' trees together, of each length of the sizes, of a measurement. What is chosen is
# near these unless the rows say otherwise.
START, OTHERS, BY_SIZE, MEASURED = (0.03, 0.03, 0.03, 0.05), 1.0, 0.05, 0.003
STEP, ROUNDS, SPREAD = 3.0, 6, 1.5
# How many octaves apart in each size two rows of the same labels say 37 % of each other, and the trees for each of these. The
# RTX PRO 6000, left out of a forest of eight others, with 200 and 1,000 rows, two samples of each: 13.3 and 9.2 % without them
# and with SHARE 0.5, then 11.6 and 8.7 %. With 4 octaves alone: 12.0 and 8.8 %; with 300 trees of these 11.7 and 8.7 %.
LENGTHS, PARTITIONS = (2.0, 10.0), 100
# The small forest, and the share of the Gaussian process beside it.
TREES, LEAVES, RATE, BAGS = 100, 15, 0.1, 2
# With 0.5 the H200's error is 0.2 % higher with 200 rows, with 1.0 the RTX PRO 6000's 0.4 % with 1,000. Where sizes do not
# differ the process knows less, and the two are averaged.
SHARE, WITHOUT_SIZES = 0.75, 0.5
# With fewer rows the small forest has nothing to split.
FEWEST_ROWS = 20


@dataclass(frozen=True)
class LabelCombinations:
    """The features that are labels, and the combinations of them that occur."""

    features: tuple[int, ...]
    known: Floats
    """[combination, feature], sorted."""

    @classmethod
    def of(cls, rows: Rows) -> LabelCombinations:
        """Those of some rows that differ between them."""
        places = tuple(rows.names.index(name) for name in rows.codes if len(np.unique(_column(rows, name))) > 1)
        return cls(places, np.unique(rows.features[:, list(places)], axis=0) if places else np.zeros((1, 0)))

    def number(self, features: Floats) -> Ints:
        """By row: the place of its combination; -1 if it is not known."""
        own = features[:, list(self.features)]
        same = (own[:, None, :] == self.known[None, :, :]).all(axis=2)
        return np.where(same.any(axis=1), same.argmax(axis=1), -1)

    def draft(self, values: Floats) -> TreeDraft:
        """A tree with one value for each combination, and 0 for all others."""
        tree = TreeDraft()
        _grow(tree, self.known, values, self.features)
        return tree


def shifted(
    trees: Sequence[Tree], others: Sequence[Sequence[Tree]], rows: Rows, misses: Floats, weight: Floats, seed: int
) -> tuple[Tree, ...]:
    """A forest that predicts what `trees` miss on some rows, too: `misses` are labels less predictions, weights at most 1.

    `others` are trees of other devices, by device: what the same `trees` miss there.
    """
    process, count = _process(trees, others, rows, misses, weight, seed), len(trees)
    grown = _small_forest(rows, misses, weight, seed) if len(misses) >= FEWEST_ROWS else ()
    share = (SHARE if process.by_size else WITHOUT_SIZES) if grown else 1.0
    own = [
        replace(tree, value=tree.value * (1.0 + share * process.slope) + share * (leaves + process.shift / count))
        for tree, leaves in zip(trees, process.leaves, strict=True)
    ]
    labels = process.labels.draft(share * process.by_label).tree() if len(process.labels.known) > 1 else None
    alike = [
        replace(tree, value=share * part * tree.value)
        for part, theirs in zip(process.shares, others, strict=True)
        for tree in theirs
    ]
    by_size = [replace(tree, value=share * tree.value).merged() for tree in process.by_size]
    small = [replace(tree, value=(1.0 - share) * tree.value) for tree in grown]
    return (*own, *alike, *by_size, *(() if labels is None else (labels,)), *small)


@dataclass(frozen=True)
class _Process:
    """The mean of a Gaussian process, as what it adds to a forest."""

    shift: float
    slope: float
    labels: LabelCombinations
    by_label: Floats
    leaves: list[Floats]
    """By tree: what is added to each of its leaves."""
    shares: Floats
    """By other device: the share of its own trees that is added."""
    by_size: list[Tree]
    """Trees that are added: what depends on the sizes, for each combination of labels."""


def _process(
    trees: Sequence[Tree], others: Sequence[Sequence[Tree]], rows: Rows, misses: Floats, weight: Floats, seed: int
) -> _Process:
    rng = np.random.default_rng(seed)
    chosen = np.sort(rng.permutation(len(misses))[:MOST_ROWS])
    rows, misses, weight = rows.take(chosen), misses[chosen], weight[chosen]
    labels = LabelCombinations.of(rows)
    number, predicted = labels.number(rows.features), sum_of(trees, rows.features)
    cuts, router = SizePartitions.of(rows, number), labels.draft(np.arange(1.0, 1.0 + len(labels.known)))
    forests = [trees, *filter(None, (cuts.trees(router, length, PARTITIONS, rng) for length in LENGTHS))]
    shared = [_shared_leaves(forest, rows.features) for forest in forests]
    theirs = np.array([sum_of(forest, rows.features) for forest in others]).reshape(len(others), len(chosen))
    parts = np.stack([
        np.ones((len(chosen), len(chosen))), (number[:, None] == number[None, :]).astype(np.float64),
        np.outer(predicted, predicted),
        *((own @ own.T).toarray() / len(forest) for own, forest in zip(shared, forests, strict=True)),
        *((theirs.T @ theirs / len(others),) if others else ()),
    ])  # fmt: skip
    start = np.array([*START, *(BY_SIZE for _ in forests[1:]), *((OTHERS,) if others else ()), MEASURED])
    judged = rng.permutation(len(chosen))[:MOST_JUDGED]
    variances = _chosen_variances(start, parts[:, judged][:, :, judged], misses[judged], weight[judged])
    alpha = np.linalg.solve(_covariance(parts, variances, weight), misses)
    leaves = [
        np.split(np.asarray(own.T @ alpha) * variance / len(forest), np.cumsum([len(tree.value) for tree in forest])[:-1])
        for own, forest, variance in zip(shared, forests, variances[3:], strict=False)
    ]
    return _Process(
        float(variances[0] * alpha.sum()),
        float(variances[2] * (alpha @ predicted)),
        labels,
        np.bincount(number, alpha, len(labels.known)) * variances[1],
        leaves[0],
        variances[-2] * (theirs @ alpha) / len(others) if others else np.empty(0),
        [
            replace(tree, value=value)
            for forest, values in zip(forests[1:], leaves[1:], strict=True)
            for tree, value in zip(forest, values, strict=True)
        ],
    )


def _shared_leaves(trees: Sequence[Tree], features: Floats) -> Any:
    """A sparse matrix [row, leaf of any of the trees]: 1 where the row ends."""
    from scipy import sparse

    starts = np.cumsum([0, *(len(tree.value) for tree in trees)])
    places = np.concatenate([tree.leaf_of(features) + start for tree, start in zip(trees, starts, strict=False)])
    at = np.tile(np.arange(len(features)), len(trees))
    return sparse.csr_matrix((np.ones(len(places)), (at, places)), shape=(len(features), int(starts[-1])))


def _covariance(parts: Any, variances: Floats, weight: Floats) -> Any:
    return np.tensordot(variances[:-1], parts, axes=1) + np.diag(variances[-1] / weight)


def _chosen_variances(start: Floats, parts: Any, misses: Floats, weight: Floats) -> Floats:
    """The variances under which the misses are likeliest, on a grid of factors, one after the other."""

    def cost(steps: Ints) -> float:
        variances = start * STEP ** steps.astype(np.float64)
        lower = np.linalg.cholesky(_covariance(parts, variances, weight))
        half = np.linalg.solve(lower, misses)
        prior = 0.5 * float(((steps * np.log(STEP) / SPREAD) ** 2).sum())
        return float(0.5 * half @ half + np.log(np.diag(lower)).sum()) + prior

    steps = np.zeros(len(start), np.int64)
    best = cost(steps)
    for _ in range(ROUNDS):
        before = best
        for place in range(len(start)):
            for move in (1, -1):
                tried = steps.copy()
                tried[place] += move
                found = cost(tried)
                # Differences in the last bits must not decide.
                if found < best - 1e-6:
                    best, steps = found, tried
                    break
        if best == before:
            break
    return start * STEP ** steps.astype(np.float64)


def _small_forest(rows: Rows, misses: Floats, weight: Floats, seed: int) -> tuple[Tree, ...]:
    import lightgbm

    from kerncast.learning.learners.lightgbm_text import read_trees

    found: list[Tree] = []
    for bag in range(BAGS):
        data = lightgbm.Dataset(
            rows.features, misses, weight=weight, feature_name=list(rows.names),
            params={"verbosity": -1, "feature_pre_filter": False, "num_threads": 1},
        )  # fmt: skip
        parameters = {
            "objective": "regression", "learning_rate": RATE, "num_leaves": LEAVES, "feature_fraction": 0.35,
            "bagging_fraction": 0.7, "bagging_freq": 1, "lambda_l2": 1.0, "min_data_in_leaf": max(2, len(misses) // 100),
            "boost_from_average": False, "seed": seed + bag, "deterministic": True, "force_row_wise": True, "num_threads": 1,
            "verbosity": -1,
        }  # fmt: skip
        forest = lightgbm.train(parameters, data, TREES)
        found += [replace(tree, value=tree.value / BAGS) for tree in read_trees(forest.model_to_string(num_iteration=-1))]
    return tuple(tree for tree in found if len(tree.feature))


def _column(rows: Rows, name: str) -> Floats:
    return rows.features[:, rows.names.index(name)]


def _grow(tree: TreeDraft, known: Floats, values: Floats, features: Sequence[int]) -> int:
    """Add the nodes that tell combinations of labels apart, and return the first."""
    if not len(known) or known.shape[1] == 0:
        return tree.leaf(float(values[0]) if len(known) else 0.0)
    # Codes are whole numbers: everything between two known ones is another label.
    last = float(known[-1, 0])
    own = known[:, 0] == last
    place, upto = tree.leaf(), tree.leaf()
    others = _grow(tree, known[~own], values[~own], features)
    tree.split(upto, features[0], last - 0.5, others, _grow(tree, known[own][:, 1:], values[own], features[1:]))
    return tree.split(place, features[0], last + 0.5, upto, tree.leaf())
