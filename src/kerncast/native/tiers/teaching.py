"""What the model teaches by its answers to made-up problems: a small forest, and the tree that imitates it.

The small forest has a tenth of the model's trees and ranks the portfolio like the model. A model of six hundred trees takes
longer to rank twenty configs than a kernel launch; the small forest only orders them. It is trained with the loss of the
model's own ranking forest: a softmax of its outputs over the portfolio should match that of the model's scores at TEMPERATURE.
The time of the winner then comes from the model.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from kerncast.core.arrays import Flags, Floats, Ints
from kerncast.core.op import Family
from kerncast.core.parameters import Int, Parameter
from kerncast.core.space import Space
from kerncast.learning.learners.lightgbm_text import read_trees
from kerncast.learning.learners.trees import Tree, sum_of
from kerncast.models.manifest import Range

# How a problem is drawn: near a measured one, each size from another measured one, or anywhere in the hull.
JITTERED, CROSSED, ANYWHERE = range(3)
SHARES = (0.5, 0.3, 0.2)
# A jittered size keeps its value half of the time; otherwise it changes by a factor of about 1.6 up or down.
KEPT, SPREAD = 0.5, 0.5
# Sizes are divisible by powers of two like those of measured problems, up to this: kernels hardly tell 256 from 512.
EVENEST = 256
# This share of the problems from anywhere has any size, so that rules about multiples are met both ways.
UNEVEN = 0.5
# Rules may refuse most of what is drawn; after this many rounds drawing stops.
MOST_ROUNDS = 8


def draw_problems(
    family: Family, measured: pl.DataFrame, hull: Mapping[str, Range], count: int, rng: np.random.Generator
) -> pl.DataFrame:
    """Up to `count` different problems (`problem.*`) that the op allows, none of them measured.

    Labels and flags come together from one measured problem, so no new combinations of them are made up.
    """
    columns = [f"problem.{name}" for name in family.problem.parameters]
    measured = measured.select(columns).unique(maintain_order=True)
    sizes = {
        name: span for name, span in hull.items() if span.low is not None and span.high is not None and span.low < span.high
    }
    found = measured.clear()
    if not sizes:
        return found
    for _ in range(MOST_ROUNDS):
        drawn = _draw(family, measured, sizes, count, rng)
        drawn = allowed_problems(family.problem, drawn).join(measured, on=columns, how="anti", nulls_equal=True)
        found = pl.concat([found, drawn]).unique(maintain_order=True)
        if found.height >= count:
            break
    return found.head(count)


def _draw(
    family: Family, measured: pl.DataFrame, sizes: Mapping[str, Range], count: int, rng: np.random.Generator
) -> pl.DataFrame:
    base = measured[rng.integers(measured.height, size=count)]
    way = rng.choice(len(SHARES), size=count, p=SHARES)
    columns = []
    for name, span in sizes.items():
        assert span.low is not None
        assert span.high is not None
        own = base[f"problem.{name}"]
        absent = own.is_null().to_numpy()
        known = own.fill_null(span.low).to_numpy()
        seen = measured[f"problem.{name}"].drop_nulls().to_numpy()
        moved = np.where(rng.random(count) < KEPT, known, known * np.exp(SPREAD * rng.standard_normal(count)))
        other = seen[rng.integers(len(seen), size=count)]
        uniform = np.exp(rng.uniform(np.log(max(span.low, 1)), np.log(max(span.high, 1)), count))
        even = np.minimum(seen & -seen, EVENEST)[rng.integers(len(seen), size=count)]
        even = np.where(way == JITTERED, np.minimum(known & -known, EVENEST), even)
        even = np.where((way == ANYWHERE) & (rng.random(count) < UNEVEN), 1, even)
        value = np.choose(way, [moved, other, uniform])
        whole = np.where(value == known, known, np.rint(value / np.maximum(even, 1)) * np.maximum(even, 1))
        whole = np.where(way == CROSSED, other, whole)
        fitted = _nearest(family.problem.parameters[name], np.clip(whole, span.low, span.high).astype(np.int64), seen)
        columns.append(pl.Series(f"problem.{name}", fitted).set(pl.Series(absent), None))
    return base.with_columns(columns)


def _nearest(parameter: Parameter, values: Ints, seen: Ints) -> Ints:
    """The nearest values that the parameter may have: on its grid or, for a list, those that were measured."""
    if isinstance(parameter, Int):
        return parameter.low + (values - parameter.low) // parameter.step * parameter.step
    known = np.unique(seen)
    above = np.clip(np.searchsorted(known, values), 1, len(known) - 1)
    return np.where(values - known[above - 1] <= known[above] - values, known[above - 1], known[above])


def allowed_problems(space: Space, frame: pl.DataFrame) -> pl.DataFrame:
    """The rows that break no rule; inactive parameters become null, and rows without a value for an active one are dropped."""
    symbols = {f"problem.{name}": f"{space.namespace}.{name}" for name in space.parameters}
    frame = space.without_usual(frame, "problem.")
    for name in space.condition_order:
        column = pl.col(f"problem.{name}")
        applies = space.active[name].frame(frame.rename(symbols), trusted=True).to_series() != 0.0
        frame = frame.with_columns(pl.when(applies).then(column).alias(f"problem.{name}"))
        frame = frame.filter(~applies | frame[f"problem.{name}"].is_not_null())
    for constraint in space.constraints:
        frame = frame.filter(constraint.program.frame(frame.rename(symbols), trusted=True).to_series() != 0.0)
    return frame


TREES, LEAVES, RATE = 70, 47, 0.2
# In log time: configs that the model puts within a percent of each other need not be ordered.
TEMPERATURE = 0.01
# More rows teach little and take seconds longer.
MOST_ROWS = 300_000
# With fewer configs there is little to gain: the model itself ranks them.
FEWEST = 2


Describe = Callable[[pl.DataFrame], Floats]
"""Vectors (`problem.*`, `config.*`) → their features, in the model's order."""


def compact_forest(
    describe: Describe, names: Sequence[str], configs: pl.DataFrame, problems: pl.DataFrame, scores: Floats, seed: int = 0
) -> tuple[Tree, ...] | None:
    """The trees of a forest over the model's features; None if the model itself should rank.

    `configs`: the portfolio's; `scores`: [problem, place in the portfolio], low is chosen, infinite where a rule
    forbids the config.
    """
    import lightgbm

    usable = np.isfinite(scores).sum(axis=1) >= FEWEST
    if configs.height < FEWEST or usable.sum() < FEWEST:
        return None
    # Measured problems come first in `problems`, so they are always kept.
    kept = np.flatnonzero(usable)
    rows = np.isfinite(scores[kept]).sum(axis=1).cumsum()
    kept = kept[: max(FEWEST, int(np.searchsorted(rows, MOST_ROWS, side="right")))]
    scores, problems = scores[kept], problems[kept]
    objective = _Imitation(scores)
    # Configs that cannot run have nothing to teach.
    pairs = problems.join(configs, how="cross", maintain_order="left_right").filter(pl.Series(objective.counts.ravel()))
    features = describe(pairs)
    parameters: dict[str, Any] = {
        "objective": objective.gradients, "num_leaves": LEAVES, "learning_rate": RATE, "min_data_in_leaf": 20,
        "min_sum_hessian_in_leaf": 1.0, "lambda_l2": 1.0, "max_bin": 127, "seed": seed, "deterministic": True,
        "force_row_wise": True, "num_threads": 1, "verbosity": -1,
    }  # fmt: skip
    own = {"max_bin": 127, "verbosity": -1}
    data = lightgbm.Dataset(features, np.zeros(len(features)), feature_name=list(names), params=own)
    return read_trees(lightgbm.train(parameters, data, TREES).model_to_string())


def forest_scores(
    forests: Sequence[Sequence[Tree]], describe: Describe, configs: pl.DataFrame
) -> Callable[[pl.DataFrame, Flags], Floats]:
    """A function of problems: the forests' scores of the portfolio's `configs`, [forest, problem, place], low is chosen;
    infinite but for the pairs of problem and place that are wanted.
    """

    def score(problems: pl.DataFrame, wanted: Flags) -> Floats:
        found = np.full((len(forests), *wanted.shape), np.inf)
        problem, place = np.nonzero(wanted)
        for start in range(0, len(problem), MOST_ROWS):
            rows, columns = problem[start : start + MOST_ROWS], place[start : start + MOST_ROWS]
            features = describe(pl.concat([problems[rows], configs[columns]], how="horizontal"))
            found[:, rows, columns] = [-sum_of(trees, features) for trees in forests]
        return found

    return score


class _Imitation:
    """Cross-entropy between the softmax of a forest's outputs for a problem's configs and that of the model's scores."""

    def __init__(self, scores: Floats) -> None:
        self.shape = scores.shape
        regret = scores - scores.min(axis=1, keepdims=True)
        wanted = np.exp(-regret / TEMPERATURE)
        self.wanted = wanted / wanted.sum(axis=1, keepdims=True)
        self.counts = np.isfinite(scores)

    def gradients(self, raw: Floats, _: Any) -> tuple[Floats, Floats]:
        """First and second derivatives with respect to the outputs, as LightGBM expects them."""
        outputs = np.full(self.shape, -np.inf)
        outputs[self.counts] = raw
        powers = np.exp(outputs - outputs.max(axis=1, keepdims=True))
        believed = powers / powers.sum(axis=1, keepdims=True)
        # Probabilities shrink with the number of configs; scaled by it, gradients keep their size.
        believed, wanted, scale = believed[self.counts], self.wanted[self.counts], self.shape[1]
        return scale * (believed - wanted), scale * np.maximum(believed * (1.0 - believed), 1e-3)


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
