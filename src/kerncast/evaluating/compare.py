"""`compare`: two models, problem by problem, and a verdict with reasons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import polars as pl

from kerncast.answering.selector import Selector
from kerncast.core.arrays import Floats, Ints
from kerncast.core.io import html
from kerncast.core.io.arguments import Help
from kerncast.core.io.terminal import assignments, counted, distinct, on_device
from kerncast.core.progress import QUIET, Progress
from kerncast.errors import InvalidValue
from kerncast.evaluating.evaluation import Judged, Paths, judged, listed, open_all, table_for, unknown_configs, untrained_labels
from kerncast.evaluating.points import part_of
from kerncast.evaluating.text import joined, verdict_blocks
from kerncast.evaluating.tiers import Tried, tier_choices, tiers_in
from kerncast.learning.metrics import Figure, Predicted, figure, resampled
from kerncast.learning.table import Table, pooled
from kerncast.learning.trials import TIE_SIGMAS
from kerncast.models.answer import CHOOSING, Tier
from kerncast.models.model import Model

BETTER, SAME, WORSE, AMBIGUOUS = "BETTER", "SAME", "WORSE", "AMBIGUOUS"
# Two models are the same when the interval of the mean difference is within this. A limit may narrow it, never widen it.
EQUIVALENT = 0.005
# Smaller differences in efficiency count as none: the same choice, or an equally fast one.
UNCHANGED = 1e-9


@dataclass(frozen=True)
class Limits:
    """How much efficiency a new model may lose, in per cent."""

    max_mean: Annotated[float, Help("Allowed drop of the mean.", metavar="%")] = 0.5
    max_median: Annotated[float, Help("Allowed drop of the median.", metavar="%")] = 0.5
    max_p10: Annotated[float, Help("Allowed drop of the P10.", metavar="%")] = 2.0
    max_problem: Annotated[float, Help("Allowed drop of any single problem, beyond its noise.", metavar="%")] = 10.0

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not 0.0 <= value <= 100.0:  # also refuses NaN
                raise InvalidValue(f"`{name}` is a drop of efficiency from 0 to 100 %, got {value:g}")

    @property
    def shares(self) -> dict[str, float]:
        """The limits as fractions: `mean`, `median`, `p10` and `problem`."""
        return {name.removeprefix("max_"): value / 100 for name, value in asdict(self).items()}


LIMITS = Limits()


@dataclass(frozen=True)
class Quantiles:
    """The efficiencies (or accuracies) of one model, in four numbers."""

    mean: float
    median: float
    p10: float
    min: float

    @classmethod
    def of(cls, values: Floats) -> Quantiles:
        return cls(float(values.mean()), float(np.median(values)), float(np.quantile(values, 0.1)), float(values.min()))


@dataclass(frozen=True, repr=False, eq=False)
class Verdict:
    """BETTER, SAME, WORSE or AMBIGUOUS, with reasons and figures. `as_json()` is what `--json` prints."""

    verdict: str
    reasons: tuple[str, ...]
    _summary: Mapping[str, Any]
    problems: pl.DataFrame
    """Per problem: its parameters and device, `old_efficiency`, `new_efficiency`, `same_choice`."""

    @property
    def n(self) -> int:
        """Number of problems that both models were judged on."""
        return int(self._summary["n_problems"])

    @property
    def measure(self) -> str:
        """What was compared: `efficiency`, or `accuracy` where there is nothing to choose."""
        return str(self._summary["measure"])

    @property
    def old(self) -> Quantiles:
        """The old model's efficiency (or accuracy)."""
        return Quantiles(**self._summary["old"])

    @property
    def new(self) -> Quantiles:
        """The new model's efficiency (or accuracy)."""
        return Quantiles(**self._summary["new"])

    @property
    def mean_difference(self) -> Figure:
        """By how much the new model is better on average, with its interval."""
        found = Figure.of(self._summary["mean_difference"])
        assert found is not None
        return found

    @property
    def worst_drop(self) -> float:
        """The largest loss on a single problem."""
        return float(self._summary["worst_drop"])

    def __bool__(self) -> bool:
        """Whether the new model may ship: False for WORSE."""
        return self.verdict != WORSE

    def as_json(self) -> dict[str, Any]:
        """What `kerncast compare --json` prints."""
        return {"verdict": self.verdict, "reasons": list(self.reasons), **deepcopy(dict(self._summary))}

    def __str__(self) -> str:
        return joined(verdict_blocks(self.verdict, self.reasons, self._summary))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        rows = [
            (name, f"{old:.2%}", f"{new:.2%}", f"{new - old:+.2%}")
            for name, old, new in zip(asdict(self.old), asdict(self.old).values(), asdict(self.new).values(), strict=True)
        ]
        columns = (self.measure, "old", "new", "difference")
        problems = f"{counted(self.n, 'problem')}{distinct(self._summary['pooled'])}"
        return html.panel(f"{self.verdict}: {'; '.join(self.reasons)}", html.table(columns, rows, problems, columns[1:]))


def compare(
    old: Model | str | Path,
    new: Model | str | Path,
    datasets: Paths,
    *,
    limits: Limits | None = None,
    include_seen: bool = False,
    where: Sequence[str] = (),
    tier: Tier | str | None = None,
    progress: Progress = QUIET,
) -> Verdict:
    """Compare two models, problem by problem, on problems that neither has seen; with `tier`, what that tier would run."""
    limits = limits or LIMITS
    models = [item if isinstance(item, Model) else Model.load(item) for item in (old, new)]
    if models[0].family is not models[1].family:
        raise InvalidValue(
            f"{models[0].path} is a model of {models[0].family.id}, {models[1].path} of {models[1].family.id}: "
            "only models of one family can be compared"
        )
    found = judged(models, open_all(datasets), where, include_seen)
    table, facts = found.table, _facts(models, datasets, found)
    if tier is not None:
        return _compare_tiers(models, table, tier, limits, facts, progress)
    # Each model with its own features, and the device numbers that it was trained with.
    tables = [table, *(table_for(model, found.measured) for model in models[1:])]
    predicted = [model.rank_rows(own.rows) for model, own in zip(models, tables, strict=True)]
    if not table.trials.choosing:
        return _compare_times(predicted, table, limits, facts)
    trials = table.trials
    chosen = [trials.choose(item.score) for item in predicted]
    kept = trials.solvable
    efficiency = [trials.share[rows][kept] for rows in chosen]
    before, after = chosen[0][kept], chosen[1][kept]
    return _judge_choices(table, table.placed(before), (before, after), (efficiency[0], efficiency[1]), limits, facts)


def _judge_choices(
    table: Table, problems: pl.DataFrame, rows: tuple[Ints, Ints], efficiency: tuple[Floats, Floats], limits: Limits,
    facts: dict[str, Any],
) -> Verdict:  # fmt: skip
    """The verdict on two choices for each problem, given as rows of the table (below 0: nothing to run)."""
    # A loss counts only if it exceeds the noise of both choices; 0 where one is unknown.
    spread = np.hypot(*(np.where(each < 0, np.nan, table.noise[each]) for each in rows))
    margin = np.where(np.isfinite(spread), TIE_SIGMAS * spread, 0.0)
    same = rows[0] == rows[1]
    points = problems.with_columns(
        old_efficiency=pl.Series(efficiency[0]), new_efficiency=pl.Series(efficiency[1]), same_choice=pl.Series(same)
    )
    return judge(*efficiency, margin, limits, points, {**facts, "agreement": float(same.mean())}, "efficiency")


def _compare_tiers(
    models: Sequence[Model], table: Table, tier: Tier | str, limits: Limits, facts: dict[str, Any], progress: Progress
) -> Verdict:
    """Compare what a tier of each model would run, fallbacks included, where both configs were measured."""
    if tier not in CHOOSING:
        raise InvalidValue(f"`tier` must be one of {', '.join(CHOOSING)}, got '{tier}'")
    if not table.trials.choosing:
        raise InvalidValue(f"{models[0].family.id} has nothing to choose, so its tiers have no efficiency: leave out `tier`")
    for model in models:
        if not model.candidates.height or model.out_of_fold is None or len(model.manifest.devices) > 1:
            why = "is for several devices" if len(model.manifest.devices) > 1 else "does not record which configs work"
            raise InvalidValue(f"{model.path} {why}, so it has no tiers: leave out `tier` to compare the models themselves")
    tried, found = Tried.in_table(table), []
    for model in models:
        selector = Selector(model, progress=progress)
        there = Tier(tier) if tier in tiers_in(selector) else Tier.PORTFOLIO
        found.append(tier_choices(selector, tried, there))
    known = ~np.isnan(found[0].efficiency) & ~np.isnan(found[1].efficiency)
    if not known.any():
        raise InvalidValue(
            f"none of the {len(known):,} problems was measured with the configs that the {tier} tiers choose: measure those "
            "configs too, or leave out `tier`"
        )
    facts |= {
        "tier": str(tier), "not_tried": int((~known).sum()),
        "answers_itself": {side: float(item.itself.mean()) for side, item in zip(("old", "new"), found, strict=True)},
    }  # fmt: skip
    trials = table.trials
    problems = table.placed(trials.order[trials.starts[trials.solvable]][known])
    rows, efficiency = ((found[0].rows[known], found[1].rows[known]), (found[0].efficiency[known], found[1].efficiency[known]))
    return _judge_choices(table, problems, rows, efficiency, limits, facts)


def _facts(models: Sequence[Model], datasets: Paths, found: Judged) -> dict[str, Any]:
    return {
        "old_model": str(models[0].path), "new_model": str(models[1].path), "family": models[0].family.id,
        "datasets": [str(path) for path in listed(datasets)], "problems_seen_in_training": found.seen_problems,
        "includes_training_data": found.includes_seen, "unknown_configs": unknown_configs(models, found.table),
        "untrained_labels": untrained_labels(models, found.table),
        "training_recorded": all(model.recorded for model in models),
    }  # fmt: skip


def _compare_times(predicted: Sequence[Predicted], table: Table, limits: Limits, facts: dict[str, Any]) -> Verdict:
    """With nothing to choose, compare accuracy instead of efficiency: min(predicted, measured) over the larger."""
    accuracy = []
    ok = table.ok
    for item in predicted:
        assert item.time_ns is not None
        ratio = item.time_ns[ok] / table.time_ns[ok]
        accuracy.append(np.minimum(ratio, 1.0 / ratio))
    margin = TIE_SIGMAS * np.nan_to_num(table.noise[ok])
    points = table.placed(np.flatnonzero(ok)).with_columns(
        old_efficiency=pl.Series(accuracy[0]), new_efficiency=pl.Series(accuracy[1]), same_choice=pl.lit(True)
    )
    return judge(accuracy[0], accuracy[1], margin, limits, points, {**facts, "agreement": 1.0}, "accuracy")


def judge(
    old: Floats, new: Floats, margin: Floats, limits: Limits, points: pl.DataFrame, facts: dict[str, Any], what: str
) -> Verdict:
    """Decide the verdict. WORSE: a problem lost too much, or a limit is exceeded and the interval is below 0."""
    change = new - old
    mean = figure(float(change.mean()), resampled(change, lambda e: np.asarray(e.mean(axis=-1))))
    # A single problem has no interval, so nothing is ruled out.
    lower, upper = (-np.inf, np.inf) if mean["lower"] is None or mean["upper"] is None else (mean["lower"], mean["upper"])
    before, after = (asdict(Quantiles.of(values)) for values in (old, new))
    shares = limits.shares
    drops = {name: before[name] - after[name] for name in ("mean", "median", "p10")}
    breached = [
        f"{name} {what} down {drop:.2%} (limit {shares[name]:.2%})" for name, drop in drops.items() if drop > shares[name]
    ]
    alone = _lost(old - new - margin * new, limits, points)
    interval = f"the 95 % interval of the mean difference is {lower:+.3%} to {upper:+.3%}"
    if mean["lower"] is None:
        interval = f"one problem, with a difference of {mean['value']:+.3%}, has no interval"
    band = min(EQUIVALENT, shares["mean"])
    if alone or (breached and upper < 0):
        verdict, reasons = WORSE, [*alone, *breached, interval]
    elif not breached and lower > 0:
        verdict, reasons = BETTER, [interval]
    elif not breached and -band <= lower <= 0 <= upper <= band:
        verdict, reasons = SAME, [interval]
    else:
        told = "a loss, within the limits" if upper < 0 and not breached else "measure more problems to decide"
        verdict, reasons = AMBIGUOUS, [*breached, f"{interval}: {told}"]
    summary = {
        **facts, "measure": what, "n_problems": len(old), "pooled": pooled(points), "old": before, "new": after,
        "mean_difference": mean,
        "worst_drop": float(max(0.0, (old - new).max())),
        "improved": int((change > UNCHANGED).sum()),
        "same": int((np.abs(change) <= UNCHANGED).sum()),
        "degraded": int((change < -UNCHANGED).sum()),
        "limits": shares,
    }  # fmt: skip
    return Verdict(verdict, tuple(reasons), summary, points)


def _lost(beyond: Floats, limits: Limits, points: pl.DataFrame) -> list[str]:
    """The reason, if any one problem lost more than its limit."""
    lost = np.flatnonzero(beyond > limits.shares["problem"])
    if not len(lost):
        return []
    row = points.row(int(lost[np.argmax(beyond[lost])]), named=True)
    shown = assignments(part_of(row, "problem")) + (on_device(row) if pooled(points) else "")
    return [
        f"{counted(len(lost), 'problem')} down more than {limits.max_problem:.0f}% beyond the noise (worst: {shown}, "
        f"{row['old_efficiency']:.1%} to {row['new_efficiency']:.1%})"
    ]
