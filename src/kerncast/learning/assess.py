"""The figures of a model and of the baselines on one table: what `evaluation.json` holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from kerncast.core.arrays import MOST_ALIGNED, Flags, Floats, Ints, alignment
from kerncast.core.op import limits
from kerncast.core.parameters import Int
from kerncast.learning.metrics import Predicted, baseline_card, mean_figure, regret, runtime_card, scorecard, top_k
from kerncast.learning.table import Table, pooled
from kerncast.learning.trials import Trials

PORTFOLIO = 8
# The share of problems on which a config must have been tried to count as tried on the same problems as the others.
TRIED_ENOUGH = 0.9
# A model that is no better than these is not worth its cost.
SIMPLE = ("random", "best_single")


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
        expected = {"random": random_expectations(table.trials)}
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
    found = {"random": random_choice(table.trials)}
    found |= learned_choices(table, fold, learned)
    if table.rows.is_library.any():
        always = marked_choice(table.trials, table.rows.is_library)
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
            shares = mean_shares(others, count)
            often = np.bincount(others.config, minlength=count) >= TRIED_ENOUGH * others.solvable.sum()
            knows = Learned(np.where(often, shares, np.nan), greedy_portfolio(others, count, PORTFOLIO))
        solved = own.problems[own.solvable]
        single[solved] = fixed_choice(own, knows.shares)
        # The first of the few is the best single config: where it was not tried, the same config replaces it.
        portfolio[solved] = np.fmax(single[solved], portfolio_oracle(own, knows.portfolio))
        tried[solved] = portfolio_tried(own, knows.portfolio)
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
    shares = mean_shares(table.trials, count)
    places: list[int | None] = [None] * count
    for place, config in enumerate(greedy_portfolio(table.trials, count, most)):
        places[config] = place
    figures = {"ok": worked, "failed": tried - worked, "share": shares, "portfolio_place": pl.Series(places, dtype=pl.Int64)}
    # Concatenated rather than added as columns: the frame of a family with nothing to choose has none to begin with.
    return pl.concat([table.configs, pl.DataFrame(figures)], how="horizontal")


# Sizes are parameters that took at least this many values, up to at least LARGE; others are modes, such as strides.
FEWEST_VALUES, LARGE = 5, 16
# A parameter is laid out on a grid if at least half of the problems have a multiple of this.
GRID = 8
# What is held out is about a quarter of the groups; a kind with fewer than the least share or more than the most is left out.
SHARE, LEAST, MOST = 0.25, 0.02, 0.5
# With fewer groups, the rest is too little to learn from and the part held out too little to judge by.
FEWEST_GROUPS = 50


@dataclass(frozen=True)
class HeldOutKind:
    """One way in which problems differ from the others."""

    name: str
    """`alignment`, `size` or `aspect`."""
    words: str
    """Which problems are held out, in words."""
    held: Flags
    """By row of the table."""


def kinds_of(table: Table) -> list[HeldOutKind]:
    """The kinds that a table has; none if it has too few groups of problems."""
    groups, dense = np.unique(table.group, return_inverse=True)
    if len(groups) < FEWEST_GROUPS:
        return []
    sizes = _sizes(table)
    found = [_by_alignment(sizes, dense), _by_size(table, sizes, dense), _by_aspect(sizes, dense)]
    return [
        kind
        for kind in found
        if kind is not None
        and LEAST <= float(_per_group(kind.held, dense).mean()) <= MOST
        and (kind.held & table.ok).any()
        and (~kind.held & table.ok).any()
    ]


def _sizes(table: Table) -> dict[str, Ints]:
    found = {}
    for name, parameter in table.family.problem.parameters.items():
        column = table.rows.frame[f"problem.{name}"]
        if not isinstance(parameter, Int) or column.null_count() or column.n_unique() < FEWEST_VALUES:
            continue
        values = column.to_numpy().astype(np.int64)
        if values.max() >= LARGE:
            found[name] = values
    return found


def _by_alignment(sizes: dict[str, Ints], dense: Ints) -> HeldOutKind | None:
    gridded = {name: values for name, values in sizes.items() if _per_group(values % GRID == 0, dense).mean() >= 0.5}
    if not gridded:
        return None
    worst = np.minimum.reduce([alignment(values) for values in gridded.values()])
    per_group = _per_group(worst, dense)
    cuts = [(abs(share - SHARE), power) for power in range(MOST_ALIGNED)
            if LEAST <= (share := float((per_group <= power).mean())) <= MOST]  # fmt: skip
    if not cuts:
        return None
    power = min(cuts)[1]
    names = list(gridded)
    listed = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"
    return HeldOutKind("alignment", f"{listed} not a multiple of {2 << power}", worst <= power)


def _by_size(table: Table, sizes: dict[str, Ints], dense: Ints) -> HeldOutKind | None:
    work = table.rows.roofline_ns if table.rows.roofline_ns is not None else table.rows.bytes
    if work is None:
        if not sizes:
            return None
        work = np.sum([np.log2(np.maximum(values, 1)) for values in sizes.values()], axis=0)
    # A shape counts with its largest dtype, so that all its dtypes are on one side.
    largest = _per_group(work, dense)
    low, high = np.quantile(largest, [SHARE / 2, 1 - SHARE / 2])
    held = (largest <= low) | (largest >= high)
    return HeldOutKind("size", "the smallest and the largest eighth", held[dense])


def _by_aspect(sizes: dict[str, Ints], dense: Ints) -> HeldOutKind | None:
    if len(sizes) < 2:
        return None
    logs = np.stack([_per_group(np.log2(np.maximum(values, 1)), dense) for values in sizes.values()])
    # Sizes of an op differ by nature (channels, pixels), so each is compared with what is usual for it.
    unusual = logs - np.median(logs, axis=1, keepdims=True)
    aspect = unusual.max(axis=0) - unusual.min(axis=0)
    held = aspect > np.quantile(aspect, 1 - SHARE)
    return HeldOutKind("aspect", f"the quarter with the most unequal {', '.join(sizes)}", held[dense])


def _per_group(values: Floats | Ints | Flags, dense: Ints) -> Floats:
    """The largest value of each group."""
    found = np.full(int(dense.max()) + 1, -np.inf)
    np.maximum.at(found, dense, values.astype(np.float64))
    return found
