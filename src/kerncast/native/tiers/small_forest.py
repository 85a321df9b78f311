"""A small forest that ranks the portfolio like the model: a tenth of its trees, taught by its scores on many problems.

A model of six hundred trees takes longer to rank twenty configs than a kernel launch. The small forest only orders them.
It is trained with the loss of the model's own ranking forest: a softmax of its outputs over the portfolio should match
that of the model's scores at TEMPERATURE. The time of the winner then comes from the model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import polars as pl

from kerncast.core.arrays import Flags, Floats
from kerncast.learning.learners.lightgbm_text import read_trees
from kerncast.learning.learners.trees import Tree, sum_of

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
