"""`compare`: two models, problem by problem, and a verdict with reasons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from kerncast.data.dataset import Dataset
from kerncast.errors import InvalidValue
from kerncast.evaluate.unseen import judged
from kerncast.models.model import Model
from kerncast.models.table import Table
from kerncast.score.metrics import INTERVAL, resampled
from kerncast.score.trials import TIE_SIGMAS

Floats = npt.NDArray[np.float64]

BETTER, SAME, WORSE, AMBIGUOUS = "BETTER", "SAME", "WORSE", "AMBIGUOUS"
# Differences in efficiency smaller than this are none: the same choice, or an equal one.
UNCHANGED = 1e-9


@dataclass(frozen=True)
class Limits:
    """How far a new model may fall behind, as shares of efficiency."""

    mean: float = 0.005
    median: float = 0.005
    p10: float = 0.02
    problem: float = 0.10


@dataclass(frozen=True)
class Verdict:
    """BETTER, SAME, WORSE or AMBIGUOUS, why, and the figures behind it."""

    verdict: str
    reasons: list[str]
    summary: dict[str, Any]
    problems: pl.DataFrame


def compare(
    old: Model | str | Path,
    new: Model | str | Path,
    datasets: Sequence[str | Path],
    *,
    limits: Limits | None = None,
    include_seen: bool = False,
    where: Sequence[str] = (),
) -> Verdict:
    """Pair two models on problems that neither has seen."""
    limits = limits or Limits()
    models = [item if isinstance(item, Model) else Model.load(item) for item in (old, new)]
    if models[0].family is not models[1].family:
        raise InvalidValue(
            f"{models[0].path} is a model of {models[0].family.id}, {models[1].path} of {models[1].family.id}: "
            "only models of one family can be compared"
        )
    opened = [Dataset.open(path) for path in datasets]
    found = judged(models, opened, where, include_seen)
    table = found.table
    if len(table.trials.starts) == len(table.trials.order):
        return _compare_times(models, table, limits, found.seen_problems, found.includes_seen)
    chosen = [_choices(model, table) for model in models]
    trials = table.trials
    kept = trials.solvable
    efficiency = [trials.share[rows][kept] for rows in chosen]
    before, after = chosen[0][kept], chosen[1][kept]
    # A loss counts only beyond the noise of the two choices themselves.
    spread = np.nan_to_num(np.hypot(table.noise[before], table.noise[after])) * TIE_SIGMAS
    margin = np.where(np.isfinite(spread), spread, 0.0)
    agreement = float((table.config[before] == table.config[after]).mean())
    points = (
        table.rows.frame[before]
        .select(pl.col("^problem\\..*$"))
        .with_columns(
            old_efficiency=pl.Series(efficiency[0]),
            new_efficiency=pl.Series(efficiency[1]),
            same_choice=pl.Series(before == after),
        )
    )
    facts = {
        "problems_seen_in_training": found.seen_problems,
        "includes_training_data": found.includes_seen,
        "agreement": agreement,
    }
    return judge(efficiency[0], efficiency[1], margin, limits, points, facts, "efficiency")


def _choices(model: Model, table: Table) -> npt.NDArray[np.int64]:
    rows = model.describe(table.rows.frame)
    return table.trials.choose(model.predict_rows(rows).score)


def _compare_times(models: Sequence[Model], table: Table, limits: Limits, seen: int, includes: bool) -> Verdict:
    """With nothing to choose, accuracy takes the place of efficiency: min(predicted, measured) over the larger."""
    accuracy = []
    ok = table.ok
    for model in models:
        time_ns = model.predict_rows(model.describe(table.rows.frame)).time_ns
        assert time_ns is not None
        ratio = time_ns[ok] / table.time_ns[ok]
        accuracy.append(np.minimum(ratio, 1.0 / ratio))
    margin = TIE_SIGMAS * np.nan_to_num(table.noise[ok])
    points = (
        table.rows.frame.filter(pl.Series(ok))
        .select(pl.col("^problem\\..*$"))
        .with_columns(old_efficiency=pl.Series(accuracy[0]), new_efficiency=pl.Series(accuracy[1]), same_choice=pl.lit(True))
    )
    facts = {"problems_seen_in_training": seen, "includes_training_data": includes, "agreement": 1.0}
    return judge(accuracy[0], accuracy[1], margin, limits, points, facts, "accuracy")


def judge(
    old: Floats, new: Floats, margin: Floats, limits: Limits, points: pl.DataFrame, facts: dict[str, Any], what: str
) -> Verdict:
    """The rule: WORSE on a breach with the interval below 0 (or on one problem's alone), BETTER, SAME, else AMBIGUOUS."""
    change = new - old
    lower, upper = (float(v) for v in np.percentile(resampled(change, lambda e: np.asarray(e.mean(axis=-1))), INTERVAL))
    drops = {
        "mean": float(old.mean() - new.mean()),
        "median": float(np.median(old) - np.median(new)),
        "p10": float(np.quantile(old, 0.1) - np.quantile(new, 0.1)),
    }
    breached = [
        f"{name} {what} down {drop:.2%} (limit {getattr(limits, name):.2%})"
        for name, drop in drops.items()
        if drop > getattr(limits, name)
    ]
    beyond = old - new - margin * new
    lost = np.flatnonzero(beyond > limits.problem)
    alone = []
    if len(lost):
        row = points.row(int(lost[np.argmax(beyond[lost])]), named=True)
        shown = " ".join(
            f"{name.split('.', 1)[1]}={v}" for name, v in row.items() if name.startswith("problem.") and v is not None
        )
        alone = [f"{len(lost)} problems down more than {limits.problem:.0%} beyond their noise (worst: {shown}, "
                 f"{row['old_efficiency']:.1%} to {row['new_efficiency']:.1%})"]  # fmt: skip
    interval = f"the 95 % interval of the mean difference is {lower:+.3%} to {upper:+.3%}"
    if alone or (breached and upper < 0):
        verdict, reasons = WORSE, [*alone, *breached, interval]
    elif not breached and lower > 0:
        verdict, reasons = BETTER, [interval]
    elif not breached and lower <= 0 <= upper and -limits.mean <= lower and upper <= limits.mean:
        verdict, reasons = SAME, [interval]
    else:
        verdict, reasons = AMBIGUOUS, [*breached, f"{interval}: more problems would tell"]
    summary = {
        **facts,
        "measure": what,
        "n_problems": len(old),
        "old": {
            "mean": float(old.mean()),
            "median": float(np.median(old)),
            "p10": float(np.quantile(old, 0.1)),
            "min": float(old.min()),
        },
        "new": {
            "mean": float(new.mean()),
            "median": float(np.median(new)),
            "p10": float(np.quantile(new, 0.1)),
            "min": float(new.min()),
        },
        "mean_difference": {"value": float(change.mean()), "lower": lower, "upper": upper},
        "worst_drop": float(max(0.0, (old - new).max())),
        "improved": int((change > UNCHANGED).sum()),
        "same": int((np.abs(change) <= UNCHANGED).sum()),
        "degraded": int((change < -UNCHANGED).sum()),
        "limits": asdict(limits),
    }
    return Verdict(verdict, reasons, summary, points)
