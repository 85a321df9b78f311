"""Made-up problems within the measured ranges, and a small forest: what the model teaches by its answers.

The small forest has a tenth of the model's trees and ranks the portfolio like the model. A model of six hundred trees takes
longer to rank twenty configs than a kernel launch; the small forest only orders them. It is trained with the loss of the
model's own ranking forest: a softmax of its outputs over the portfolio should match that of the model's scores at TEMPERATURE.
The time of the winner then comes from the model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
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
