"""How much must be measured? Efficiency against problems, against configs per problem, and against an active choice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kerncast.data.dataset import Dataset
from kerncast.errors import InvalidValue
from kerncast.evaluate.unseen import rows_for, table_for
from kerncast.models.acquire import acquisition
from kerncast.models.model import Model
from kerncast.models.procedure import Procedure, Recipe
from kerncast.models.table import Table
from kerncast.score.metrics import figure, resampled
from kerncast.score.splits import folds_by_group

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
Stage = Callable[[str, int, int], None]

PROBLEM_SHARES = (0.1, 0.2, 0.4, 0.7, 1.0)
CONFIG_SHARES = (0.05, 0.1, 0.25, 0.5, 1.0)
# Active and random choices start from the same vectors and grow by the same steps.
ACTIVE_SHARES = (0.05, 0.1, 0.15, 0.2, 0.3)
# Enough folds to hold every third problem out once; the curve needs many fits, so not five.
FOLDS = 3


def budget_curves(
    model: Model | str | Path, datasets: Sequence[str | Path], where: Sequence[str] = (), threads: int = 0,
    stage: Stage = lambda name, number, of: None,
) -> dict[str, Any]:  # fmt: skip
    """The three curves, each point the mean efficiency on problems held out from it."""
    model = model if isinstance(model, Model) else Model.load(model)
    table = table_for(model, rows_for(model, [Dataset.open(path) for path in datasets], where))
    if len(table.trials.starts) == len(table.trials.order):
        raise InvalidValue(f"{table.family.id} has one config per problem here: a budget curve is about choosing")
    procedure = Procedure(replace(Recipe.from_options(model.manifest.recipe, threads), tune=0, hard_mining=0))
    total = len(PROBLEM_SHARES) + len(CONFIG_SHARES) + 2 * len(ACTIVE_SHARES)
    done = 0

    def tell(name: str) -> None:
        nonlocal done
        done += 1
        stage(name, done, total)

    curves: dict[str, Any] = {"problems": [], "configs": [], "active": []}
    for share in PROBLEM_SHARES:
        tell(f"{share:.0%} of the problems")
        curves["problems"].append(_point(table, procedure, lambda part, s=share: _some_groups(part, s), "problems"))  # type: ignore[misc]
    for share in CONFIG_SHARES:
        tell(f"{share:.0%} of the configs per problem")
        point = _point(table, procedure, lambda part, s=share: _some_rows(part, s), "problems")  # type: ignore[misc]
        curves["configs"].append({"share": share, **point})
    curves["active"] = _active(table, procedure, tell)
    return curves


def _point(table: Table, procedure: Procedure, kept: Callable[[Table], Flags], count: str) -> dict[str, Any]:
    fold = folds_by_group(table.group, FOLDS, procedure.recipe.seed)
    efficiency, sizes, vectors = [], [], []
    for number in range(FOLDS):
        part = table.take(fold != number)
        part = part.take(kept(part))
        sizes.append(len(np.unique(part.problem)))
        vectors.append(len(part.problem))
        efficiency.append(_efficiency(procedure, part, table.take(fold == number)))
    values = np.concatenate(efficiency)
    mean = figure(float(values.mean()), resampled(values, lambda e: np.asarray(e.mean(axis=-1))))
    return {
        count: int(np.mean(sizes)), "vectors": int(np.mean(vectors)), "efficiency_mean": mean["value"],
        "lower": mean["lower"], "upper": mean["upper"], "efficiency_p10": float(np.quantile(values, 0.1)),
    }  # fmt: skip


def _efficiency(procedure: Procedure, training: Table, judge: Table) -> Floats:
    score = procedure.scores(procedure.fit(training), judge)[1]
    trials = judge.trials
    return trials.share[trials.choose(score)][trials.solvable]


def _some_groups(table: Table, share: float) -> Flags:
    groups = np.unique(table.group)
    count = max(2, round(share * len(groups)))
    return np.isin(table.group, np.random.default_rng(1).permutation(groups)[:count])


def _some_rows(table: Table, share: float) -> Flags:
    """A random share of each problem's configs, at least two."""
    order = np.lexsort((np.random.default_rng(2).random(len(table.problem)), table.problem))
    trials = table.trials
    counts = np.diff(np.r_[trials.starts, len(order)])
    place = np.arange(len(order)) - np.repeat(trials.starts, counts)
    kept = np.zeros(len(order), dtype=bool)
    kept[order] = place < np.repeat(np.maximum(2, np.round(share * counts)), counts)
    return kept


def _active(table: Table, procedure: Procedure, tell: Callable[[str], None]) -> list[dict[str, Any]]:
    """One fold: both grow from the same few random vectors, one at random, one by what the model wants to know."""
    fold = folds_by_group(table.group, FOLDS, procedure.recipe.seed)
    pool, judge = table.take(fold != 0), table.take(fold == 0)
    total = len(pool.problem)
    shuffled = np.random.default_rng(3).permutation(total)
    start = round(ACTIVE_SHARES[0] * total)
    chosen = {"random": shuffled[:start], "active": shuffled[:start]}
    points = []
    for share in ACTIVE_SHARES:
        count = round(share * total)
        point: dict[str, Any] = {"vectors": count, "share": share}
        for how in ("random", "active"):
            tell(f"{how} choice of {share:.0%} of the vectors")
            have = chosen[how]
            if count > len(have) and how == "random":
                have = shuffled[:count]
            elif count > len(have):
                have = np.concatenate([have, _wanted(pool, have, count - len(have), procedure)])
            chosen[how] = have
            point[how] = float(_efficiency(procedure, pool.take(np.sort(have)), judge).mean())
        points.append(point)
    return points


def _wanted(pool: Table, have: npt.NDArray[np.int64], count: int, procedure: Procedure) -> npt.NDArray[np.int64]:
    rest = np.setdiff1d(np.arange(len(pool.problem)), have)
    worth = acquisition(pool.take(np.sort(have)), pool.rows.take(rest), pool.problem[rest], procedure)
    return np.asarray(rest[np.argsort(-worth, kind="stable")[:count]])
