"""The figures of a model and of the baselines on one table: what `evaluation.json` holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from kerncast.core.arrays import Floats, Ints
from kerncast.core.op import limits
from kerncast.learning.scoring import baselines
from kerncast.learning.scoring.metrics import mean_figure
from kerncast.learning.scoring.scorecard import Predicted, baseline_card, runtime_card, scorecard, top_k
from kerncast.learning.tables.table import Table, pooled

PORTFOLIO = 8
# The share of problems on which a config must have been tried to count as tried on the same problems as the others.
TRIED_ENOUGH = 0.9
# A model that is no better than these is not worth its cost.
SIMPLE = ("random", "best_single")


@dataclass(frozen=True)
class Learned:
    """What the learning baselines know from training: each config's mean share, and a portfolio."""

    shares: Floats
    """NaN: the config was not tried on nearly all problems, so its mean is of other problems than the others'."""
    portfolio: list[int]


def assess(table: Table, predicted: Predicted, fold: Ints, learned: Learned | None = None) -> dict[str, Any]:
    """Figures of `predicted`, which came from models that did not see the fold they predict.

    Two of the baselines learn too: from the other folds, unless `learned` gives what they know.
    """
    trials = table.trials
    card = scorecard(trials, predicted)
    result: dict[str, Any] = {"overall": card, "baselines": {}}
    result["pooled"] = pooled(table.placed(trials.order[trials.starts[trials.solvable]]))
    if card["efficiency_mean"] is not None:
        expected = {"random": baselines.random_expectations(table.trials)}
        found = choosing_baselines(table, fold, learned)
        result["baselines"] = {
            name: baseline_card(values[np.isfinite(values)], expected.get(name)) for name, values in found.items()
        }
        chosen = table.trials.share[table.trials.choose(predicted.score)][table.trials.solvable]
        result["not_better"] = _not_better(chosen, found)
        result["top_k"] = top_k(table.trials, predicted.score)
        result["problems_measured_twice"] = int(table.trials.repeated.sum())
    if table.rows.limit_ns is not None:
        result["baselines"]["roofline"] = runtime_card(table.trials, table.rows.limit_ns)
    result["noise_floor"] = table.noise_floor
    result["faster_than_possible"] = None
    if table.rows.floor_ns is not None:
        result["faster_than_possible"] = limits.faster_than_possible(table.rows.frame, table.time_ns, table.rows.floor_ns)
    return result


def _not_better(chosen: Floats, found: dict[str, Floats]) -> dict[str, Any]:
    """The simple choosers that are on average as good as the model or better on the same problems, with both means.

    `ahead` is how far the model is ahead of them, problem by problem, with its interval.
    """
    said = {}
    for name in SIMPLE:
        known = np.isfinite(found[name]) if name in found else np.zeros(0, dtype=bool)
        if not known.any():
            continue
        ahead = chosen[known] - found[name][known]
        if ahead.mean() <= 0.0 and (chosen[known] < 1.0).any():  # where any choice is the best, there is nothing to learn
            said[name] = {
                "model": float(chosen[known].mean()), "other": float(found[name][known].mean()), "n_problems": int(known.sum()),
                "ahead": mean_figure(ahead),
            }  # fmt: skip
    return said


def choosing_baselines(table: Table, fold: Ints, learned: Learned | None) -> dict[str, Floats]:
    """Efficiency of the choosers that need no model, on each problem that can be solved; NaN where it is not known."""
    found = {"random": baselines.random_choice(table.trials)}
    found |= learned_choices(table, fold, learned)
    if table.rows.is_library.any():
        always = baselines.marked_choice(table.trials, table.rows.is_library)
        if always is not None:
            found["library"] = always
    return found


def learned_choices(table: Table, fold: Ints, learned: Learned | None) -> dict[str, Floats]:
    """The best single config and the best of a small portfolio, both chosen on other problems.

    Both are left out if each problem has its own sample of configs: then no config was tried on nearly all problems.
    """
    count = int(table.config.max()) + 1
    single, portfolio, tried = (np.full(int(table.problem.max()) + 1, np.nan) for _ in range(3))
    for number in np.unique(fold):
        # Only the trials: the features would be copied with them.
        own, others = table.trials.take(fold == number), table.trials.take(fold != number)
        knows = learned
        if knows is None:
            if not len(others.problem) or not others.solvable.any():
                continue
            shares = baselines.mean_shares(others, count)
            often = np.bincount(others.config, minlength=count) >= TRIED_ENOUGH * others.solvable.sum()
            knows = Learned(np.where(often, shares, np.nan), baselines.greedy_portfolio(others, count, PORTFOLIO))
        solved = own.problems[own.solvable]
        single[solved] = baselines.fixed_choice(own, knows.shares)
        # The first of the few is the best single config: where it was not tried, the same config replaces it.
        portfolio[solved] = np.fmax(single[solved], baselines.portfolio_oracle(own, knows.portfolio))
        tried[solved] = baselines.portfolio_tried(own, knows.portfolio)
    judged = np.isfinite(tried)
    if not judged.any() or np.isfinite(single[judged]).mean() < TRIED_ENOUGH:
        return {}
    solved = table.trials.problems[table.trials.solvable]
    values = {"best_single": single[solved]}
    if tried[judged].mean() >= TRIED_ENOUGH:
        values[f"portfolio_{PORTFOLIO}_oracle"] = portfolio[solved]
    return values


def attempts(table: Table, most: int) -> pl.DataFrame:
    """Every config: how often it worked, how well on average, and its place in a greedy portfolio."""
    table = table.renumbered()
    count = int(table.config.max()) + 1
    worked = np.bincount(table.config, table.ok, count).astype(np.int64)
    tried = np.bincount(table.config, minlength=count)
    shares = baselines.mean_shares(table.trials, count)
    places = _places(baselines.greedy_portfolio(table.trials, count, most), count)
    figures = {"ok": worked, "failed": tried - worked, "share": shares, "portfolio_place": pl.Series(places, dtype=pl.Int64)}
    # Concatenated rather than added as columns: the frame of a family with nothing to choose has none to begin with.
    return pl.concat([table.configs, pl.DataFrame(figures)], how="horizontal")


def _places(picked: Sequence[int], count: int) -> list[int | None]:
    places: list[int | None] = [None] * count
    for place, config in enumerate(picked):
        places[config] = place
    return places
