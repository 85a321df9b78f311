"""What to measure next: vectors that may be the best of their problem and that the model is unsure of."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from kerncast.core.arrays import Floats, Ints
from kerncast.learning.tables.feature_rows import Rows
from kerncast.learning.tables.table import Table
from kerncast.training.procedure import Procedure

# Learners that differ in their seed and in the half of the groups they saw: where they disagree, the model is unsure.
COMMITTEE = 3


def acquisition(known: Table, rest: Rows, problem: Ints, procedure: Procedure) -> Floats:
    """How much each remaining vector is worth measuring, in log time: its optimistic gain over the best expected.

    For a vector with mean m and deviation s (over the committee), and b the best mean of its problem, that is
    b - (m - 2 s): large for vectors that may be fastest, small for those that are surely slow, however uncertain.
    """
    opinions = []
    for member in range(COMMITTEE):
        rng = np.random.default_rng([procedure.recipe.seed, member])
        groups = np.unique(known.group)
        some = rng.permutation(groups)[: max(2, (2 * len(groups) + 2) // 3)]
        recipe = replace(procedure.recipe, seed=procedure.recipe.seed + member, tune=0, hard_mining=0)
        one = replace(procedure, recipe=recipe)
        part = known.take(np.isin(known.group, some))
        learner = one.fit(part if part.ok.any() else known)
        opinions.append(np.log(one.target.decode(learner.predict(rest).target, rest)))
    mean, deviation = np.mean(opinions, axis=0), np.std(opinions, axis=0)
    best = np.full(int(problem.max()) + 1, np.inf)
    np.minimum.at(best, problem, mean)
    return np.asarray(best[problem] - (mean - 2.0 * deviation))
