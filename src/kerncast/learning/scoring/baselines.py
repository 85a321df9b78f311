"""Baselines that need no model; every model is compared with their figures."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kerncast.core.arrays import Flags, Floats
from kerncast.learning.scoring.metrics import regret
from kerncast.learning.scoring.trials import Trials


def random_choice(trials: Trials) -> Floats:
    """Expected efficiency of a config drawn at random, per problem."""
    return _expected(trials, trials.share)


def random_expectations(trials: Trials) -> dict[str, Floats]:
    """Per problem, the other expectations: the chance to draw the best (ties count as the best), and the regret."""
    return {
        "top1": _expected(trials, (trials.share >= 1.0).astype(np.float64)),
        "regret_mean": _expected(trials, regret(trials.share)),
    }


def _expected(trials: Trials, values: Floats) -> Floats:
    """The mean over the configs tried on each problem."""
    sums = np.add.reduceat(values[trials.order], trials.starts)
    counts = np.diff(np.r_[trials.starts, len(trials.order)])
    return np.asarray((sums / counts)[trials.solvable])


def mean_shares(trials: Trials, configs: int) -> Floats:
    """For each config: the mean of best over own time, counting 0 where it failed or was not tried."""
    solvable = trials.per_row(trials.solvable)
    sums = np.bincount(trials.config, np.where(solvable, trials.share, 0.0), configs)
    return sums / max(1, int(trials.solvable.sum()))


def fixed_choice(trials: Trials, shares: Floats) -> Floats:
    """Efficiency of always taking the config with the highest share that was tried on the problem.

    Configs whose share is NaN are not taken; NaN where no other was tried.
    """
    own = shares[trials.config]
    chosen = trials.choose(np.where(np.isnan(own), np.inf, -own))
    return np.where(np.isnan(own[chosen]), np.nan, trials.share[chosen])[trials.solvable]


def greedy_portfolio(trials: Trials, configs: int, size: int) -> list[int]:
    """Configs in greedy order: each adds most to the best of those before it."""
    covered = np.zeros(int(trials.problem.max()) + 1)
    picked: list[int] = []
    left = np.ones(configs, dtype=bool)
    for _ in range(min(size, configs)):
        gain = np.bincount(trials.config, np.maximum(0.0, trials.share - covered[trials.problem]), configs)
        best = int(np.argmax(np.where(left, gain, -1.0)))
        if gain[best] <= 0.0:
            break
        picked.append(best)
        left[best] = False
        rows = trials.config == best
        np.maximum.at(covered, trials.problem[rows], trials.share[rows])
    return picked


def portfolio_oracle(trials: Trials, portfolio: Sequence[int]) -> Floats:
    """Efficiency of the best of a few configs, chosen with hindsight."""
    inside = np.where(np.isin(trials.config, list(portfolio)), trials.share, 0.0)
    return np.maximum.reduceat(inside[trials.order], trials.starts)[trials.solvable]


def portfolio_tried(trials: Trials, portfolio: Sequence[int]) -> Flags:
    """On which problems any of the few configs was tried."""
    inside = np.isin(trials.config, list(portfolio))
    return np.asarray(np.logical_or.reduceat(inside[trials.order], trials.starts)[trials.solvable])


def marked_choice(trials: Trials, marked: Flags) -> Floats | None:
    """Efficiency of always taking a marked config (the library's own), None unless it was tried everywhere."""
    tried = np.logical_or.reduceat(marked[trials.order], trials.starts)
    if not tried[trials.solvable].all():
        return None
    chosen = trials.choose(np.where(marked, 0.0, 1.0))
    return trials.share[chosen][trials.solvable]
