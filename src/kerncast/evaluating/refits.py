"""What needs the model's recipe fitted again: budget curves, whole kinds of problems held out, other seeds."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from kerncast.answering.selector import Selector
from kerncast.core.arrays import Flags, Floats, Ints
from kerncast.core.progress import QUIET, Progress
from kerncast.errors import InvalidValue
from kerncast.evaluating.evaluation import (
    Paths,
    cross_validated,
    folded_for,
    folds_of,
    open_all,
    recipe_of,
    split_groups,
    table_for,
)
from kerncast.evaluating.tiers import TierChoices, Tried, tier_choices, tiers_in
from kerncast.learning.assess import FEWEST_GROUPS, kinds_of
from kerncast.learning.metrics import Predicted, figure, resampled, scorecard
from kerncast.learning.table import Table
from kerncast.learning.trials import folds_by_group
from kerncast.measuring.run import by_turns
from kerncast.models.answer import Tier
from kerncast.models.model import Model
from kerncast.native.tiers.build import TierOptions, build_tiers
from kerncast.training.folds import Predictions, cross_validate_seeds
from kerncast.training.judging import Trained, lines_by_kind
from kerncast.training.procedure import Procedure, Spread, acquisition
from kerncast.training.train import fit_table

PROBLEM_SHARES = (0.1, 0.2, 0.4, 0.7, 1.0)
CONFIG_SHARES = (0.05, 0.1, 0.25, 0.5, 1.0)
# Active and random choices start from the same vectors and grow by the same steps.
ACTIVE_SHARES = (0.05, 0.1, 0.15, 0.2, 0.3)
# Of each seed.
FIGURES = ("efficiency_mean", "efficiency_p10", "mape")
# Three folds, not five: the curves need many fits.
FOLDS = 3


def budget_curves(
    model: Model | str | Path, datasets: Paths, where: Sequence[str] = (), threads: int = 0, *, progress: Progress = QUIET
) -> dict[str, Any]:
    """The three curves, each point the mean efficiency on problems held out from it."""
    model = model if isinstance(model, Model) else Model.load(model)
    table = table_for(model, folded_for(model, open_all(datasets), where))
    if not table.trials.choosing:
        raise InvalidValue(f"a budget curve needs several configs per problem, {table.family.id} has one here")
    groups = len(np.unique(table.group[table.ok]))
    if groups < 2 * FOLDS:
        raise InvalidValue(f"a budget curve needs {2 * FOLDS} groups of problems that worked, got {groups}: measure more")
    procedure = Procedure(replace(recipe_of(model, threads), tune=0, hard_mining=0))
    problem_shares = _different(PROBLEM_SHARES, np.array([groups * (FOLDS - 1) // FOLDS]))
    config_shares = _different(CONFIG_SHARES, _counts(table))
    total = len(problem_shares) + len(config_shares) + 2 * len(ACTIVE_SHARES)
    done = 0

    def begin(name: str) -> None:
        nonlocal done
        done += 1
        progress.stage(name, done, total)

    def some_groups(part: Table, share: float) -> Flags:
        known = np.unique(part.group)
        return np.isin(part.group, np.random.default_rng(1).permutation(known)[: max(2, round(share * len(known)))])

    curves: dict[str, Any] = {"problems": [], "configs": [], "active": []}
    for share in problem_shares:
        begin(f"{share:.0%} of the problems")
        curves["problems"].append(_point(table, procedure, some_groups, share))
    for share, real in config_shares.items():
        begin(f"{real:.0%} of the configs per problem")
        curves["configs"].append({"share": real, **_point(table, procedure, _some_rows, share)})
    curves["active"] = _active(table, procedure, begin)
    return curves


def _counts(table: Table) -> Ints:
    """Rows of each problem."""
    return np.asarray(np.diff(np.r_[table.trials.starts, len(table.trials.order)]))


def _kept(counts: Ints, share: float) -> Ints:
    """A share of each count, but at least two: one config alone teaches nothing about choosing."""
    return np.minimum(counts, np.maximum(2, np.round(share * counts))).astype(np.int64)


def _different(shares: Sequence[float], counts: Ints) -> dict[float, float]:
    """The shares that keep different numbers of rows, each with the share that is really kept."""
    found: dict[int, float] = {}
    for share in shares:
        found.setdefault(int(_kept(counts, share).sum()), share)
    return {share: kept / int(counts.sum()) for kept, share in found.items()}


def _point(table: Table, procedure: Procedure, kept: Callable[[Table, float], Flags], share: float) -> dict[str, Any]:
    fold = folds_by_group(table.group, FOLDS, procedure.recipe.seed)
    efficiency, sizes, vectors = [], [], []
    for number in range(FOLDS):
        part = table.take(fold != number)
        part = part.take(kept(part, share))
        sizes.append(len(np.unique(part.problem)))
        vectors.append(len(part.problem))
        efficiency.append(_efficiency(procedure, part, table.take(fold == number)))
    values = np.concatenate(efficiency)
    mean = figure(float(values.mean()), resampled(values, lambda e: np.asarray(e.mean(axis=-1))))
    return {
        "problems": int(np.mean(sizes)), "vectors": int(np.mean(vectors)), "efficiency_mean": mean["value"],
        "lower": mean["lower"], "upper": mean["upper"], "efficiency_p10": float(np.quantile(values, 0.1)),
    }  # fmt: skip


def _efficiency(procedure: Procedure, training: Table, judge: Table) -> Floats:
    score = procedure.scores(procedure.fit(training), judge, training)[1]
    trials = judge.trials
    return trials.share[trials.choose(score)][trials.solvable]


def _some_rows(table: Table, share: float) -> Flags:
    """A random share of each problem's configs, at least two."""
    order = np.lexsort((np.random.default_rng(2).random(len(table.problem)), table.problem))
    counts = _counts(table)
    place = np.arange(len(order)) - np.repeat(table.trials.starts, counts)
    kept = np.zeros(len(order), dtype=bool)
    kept[order] = place < np.repeat(_kept(counts, share), counts)
    return kept


def _active(table: Table, procedure: Procedure, begin: Callable[[str], None]) -> list[dict[str, Any]]:
    """One fold, two curves from the same few random vectors: one grows at random, the other by the model's choice."""
    fold = folds_by_group(table.group, FOLDS, procedure.recipe.seed)
    pool, judge = table.take(fold != 0), table.take(fold == 0)
    total = len(pool.problem)
    shuffled = np.random.default_rng(3).permutation(total)
    start = max(2, round(ACTIVE_SHARES[0] * total))
    chosen = {"random": shuffled[:start], "active": shuffled[:start]}
    points = []
    for share in ACTIVE_SHARES:
        count = max(start, round(share * total))
        point: dict[str, Any] = {"vectors": count, "share": share}
        for how in ("random", "active"):
            begin(f"{how} choice of {share:.0%} of the vectors")
            have = chosen[how]
            if count > len(have) and how == "random":
                have = shuffled[:count]
            elif count > len(have):
                have = np.concatenate([have, _wanted(pool, have, count - len(have), procedure)])
            chosen[how] = have
            point[how] = float(_efficiency(procedure, pool.take(np.sort(have)), judge).mean())
        points.append(point)
    return points


def _wanted(pool: Table, have: Ints, count: int, procedure: Procedure) -> Ints:
    rest = np.setdiff1d(np.arange(len(pool.problem)), have)
    worth = acquisition(pool.take(np.sort(have)), pool.rows.take(rest), pool.problem[rest], procedure)
    return by_turns(rest[np.argsort(-worth, kind="stable")], np.random.default_rng(len(have)).permutation(rest))[:count]


def off_grid(
    model: Model,
    datasets: Paths,
    where: Sequence[str] = (),
    threads: int = 0,
    *,
    tiers: bool = True,
    options: TierOptions | None = None,
    progress: Progress = QUIET,
) -> list[dict[str, Any]]:
    """A line per kind: the model's recipe fitted without that kind, and scored on it, whatever the status of its answers."""
    opened = open_all(datasets)
    table = table_for(model, folded_for(model, opened, where))
    kinds = kinds_of(table)
    if not kinds:  # refused before anything is fitted
        raise InvalidValue(
            f"`off_grid` holds out whole kinds of problems, which needs {FEWEST_GROUPS} groups of problems of different "
            f"alignment, size or shape; the data have {len(np.unique(table.group))}: measure more, or leave it out"
        )
    procedure = Procedure(recipe_of(model, threads), progress)
    _, predicted, fold = cross_validated(model, opened, where, threads, progress=progress)
    found = []
    by_tier: list[list[dict[str, Any]] | None] = []
    for place, kind in enumerate(kinds, 1):
        progress.stage(f"without {kind.words}", place, len(kinds))
        with tempfile.TemporaryDirectory() as folder:
            fitted = fit_table(table.take(~kind.held), procedure, Path(folder, "model"))
            own = table.take(kind.held)
            said = fitted.rank_rows(own.rows)
            assert said.time_ns is not None
            found.append((kind, Predictions(said.time_ns, said.score)))
            if not tiers or not own.trials.choosing or len(model.manifest.devices) > 1:
                by_tier.append(None)
                continue
            # The model is thrown away, so compiling it for speed would not pay.
            selector = Selector(fitted, tiers=build_tiers(fitted, options or TierOptions(), progress=progress), compile=False)
            tried = Tried.in_table(own)
            chosen = {tier: tier_choices(selector, tried, tier) for tier in tiers_in(selector)}
            by_tier.append([_tier_line(each, chosen[Tier.FULL].efficiency) for each in chosen.values()])
    assert predicted.time_ns is not None
    at_random = Predictions(predicted.time_ns, predicted.score)
    lines = lines_by_kind(Trained(model.learner, table, fold, at_random, kinds=tuple(found)))
    return [line | ({} if own is None else {"tiers": own}) for line, own in zip(lines, by_tier, strict=True)]


def _tier_line(found: TierChoices, full: Floats) -> dict[str, Any]:
    known = np.isfinite(found.efficiency)
    both = known & np.isfinite(full)
    values = found.efficiency[known]
    mean = figure(float(values.mean()), resampled(values, lambda e: np.asarray(e.mean(axis=-1)))) if known.any() else None
    return {
        "tier": str(found.tier), "efficiency": mean, "efficiency_p10": float(np.quantile(values, 0.1)) if known.any() else None,
        "of_full": float(found.efficiency[both].mean() / full[both].mean()) if both.any() and full[both].any() else None,
        "n_problems": int(known.sum()), "not_tried": int((~known).sum()), "answers_itself": float(found.itself.mean()),
        "not_ok": float((~found.ok).mean()),
    }  # fmt: skip


def seed_lines(
    model: Model, datasets: Paths, split: str, seeds: int, overall: Mapping[str, Any], where: Sequence[str] = (),
    threads: int = 0, *, spread: Spread | None = None, progress: Progress = QUIET,
) -> list[dict[str, Any]]:  # fmt: skip
    """A line of figures per seed. `overall` are those of the recipe's own seed; the folds of all others may run in parallel."""
    recipe = recipe_of(model, threads)
    table = table_for(model, folded_for(model, open_all(datasets), where))
    asked = replace(table, group=split_groups(table, split))
    folds = {seed: folds_of(table, split, replace(recipe, seed=seed)) for seed in range(recipe.seed + 1, recipe.seed + seeds)}
    cards = {recipe.seed: overall}
    for seed, found in cross_validate_seeds(asked, Procedure(recipe, progress, spread=spread), folds).items():
        keep = np.isfinite(found.score)
        cards[seed] = scorecard(table.take(keep).trials, Predicted(found.score[keep], found.time_ns[keep]))
    return [
        {"seed": seed, **{name: None if card[name] is None else card[name]["value"] for name in FIGURES}}
        for seed, card in cards.items()
    ]
