"""Measure a sample of a model's training data again: does the model still fit this machine?

The sample is stratified: problems of all durations, and for each of them the configs that matter for choosing (the
model's own choice, the fastest) plus others over the whole range. The old times are those the model learned from;
the new times come from the same collector, so both define a label in the same way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import polars as pl

from kerncast.core.arrays import Flags, Floats, Ints
from kerncast.core.io.atomic import scratch_folder
from kerncast.core.progress import QUIET, Progress, Stop, never
from kerncast.data import Dataset, schema
from kerncast.errors import InvalidValue
from kerncast.learning.measurements import MAD_TO_SIGMA
from kerncast.learning.metrics import INTERVAL, RESAMPLES
from kerncast.learning.trials import TIE_SIGMAS
from kerncast.measuring.collection import CollectionSummary
from kerncast.measuring.plan import Extent, Runner
from kerncast.measuring.run import collect
from kerncast.models.model import Model

FRESH, DRIFTED, CANNOT_TELL = "fresh", "drifted", "cannot tell"
# With fewer problems the interval of a resampled mean is narrower than it should be.
FEWEST_PROBLEMS = 5
# Noise only slows kernels down: if more than this share of the samples was disturbed, slower times prove nothing.
MOST_DISTURBED = 0.5
# Level of the sign test on problems whose choice got better or worse: one outlier among a dozen is not drift.
SIGNIFICANT = 0.05
# A choice whose efficiency changes by less than this has not changed.
UNCHANGED = 0.01


@dataclass(frozen=True)
class Tolerance:
    """The changes that are allowed."""

    shift: float = 0.10
    """Of all times together, and of a typical vector relative to the others."""
    choice: float = 0.02
    """Loss of mean efficiency."""
    failures: float = 0.05
    """Share of vectors that worked and now fail."""

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not 0.0 < value < 1.0:  # refuses NaN too
                raise InvalidValue(f"`max_{name}` must be above 0 and below 100 %, got {100 * value:g}")


@dataclass(frozen=True)
class Pairs:
    """Vectors then and now. Problems are numbered; `chosen` marks the vector that the model chooses for each of them."""

    problem: Ints
    then_ns: Floats
    now_ns: Floats
    """NaN: it fails now."""
    noise: Floats
    """Relative noise of the ratio; NaN where it is unknown."""
    chosen: Flags
    disturbed: float = 0.0


@dataclass(frozen=True)
class DriftFigure:
    """A value and its 95 % interval."""

    value: float
    lower: float
    upper: float


@dataclass(frozen=True)
class Finding:
    """fresh, drifted or cannot tell, why, and the figures behind it."""

    verdict: str
    reasons: list[str]
    shift: DriftFigure | None
    """The factor between now and then that all times share."""
    movement: DriftFigure | None
    """How far a typical vector moved relative to that factor."""
    efficiency_then: float | None
    efficiency_now: float | None
    efficiency_change: DriftFigure | None
    rank_correlation: float | None
    failures: int
    vectors: int
    problems: int
    disturbed: float

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return asdict(self)


class _Questions:
    """The answers so far: `changed` decides the verdict, `unsure` leaves it open. Noise may explain slower times."""

    def __init__(self, disturbed: float) -> None:
        self.disturbed = disturbed
        self.changed: list[str] = []
        self.unsure: list[str] = []

    def yes(self, said: str, meaning: str, may_be_noise: bool = True) -> None:
        """Record a change beyond its limit and beyond chance."""
        if may_be_noise and self.disturbed > MOST_DISTURBED:
            quiet = f"the machine was disturbed during {self.disturbed:.0%} of the samples: check again when it is quiet"
            self.unsure.append(f"{said}, but {quiet}")
        else:
            self.changed.append(f"{said}: {meaning}")

    def open(self, said: str) -> None:
        """Record a question whose interval crosses the limit."""
        self.unsure.append(f"{said}: a larger `sample` would tell")


def judge(pairs: Pairs, tolerance: Tolerance | None = None) -> Finding:
    """Decide: drifted if anything has changed, fresh if nothing has and no question is open, else cannot tell."""
    tolerance, answers = tolerance or Tolerance(), _Questions(pairs.disturbed)
    failed = ~np.isfinite(pairs.now_ns)
    problems = len(np.unique(pairs.problem[~failed]))
    if failed.sum() > tolerance.failures * len(failed):
        said = f"{int(failed.sum())} of {len(failed)} vectors that worked fail now (limit {tolerance.failures:.0%})"
        answers.yes(said, "the kernels, or what they run on, have changed", may_be_noise=False)
    shift = movement = choices = None
    if problems < FEWEST_PROBLEMS:
        fewest = f"at least {FEWEST_PROBLEMS} are needed: take a larger `sample`, or more time"
        answers.unsure.append(f"{problems} problems could be measured again, {fewest}")
    else:
        shift, movement = _times(pairs, ~failed)
        limit = _limit(pairs, ~failed, tolerance.shift)
        _ask_shift(shift, limit, answers)
        _ask_movement(movement, limit, answers)
        choices = _choices(pairs)
        if choices is not None:
            _ask_choices(choices, tolerance.choice, answers)
    verdict = DRIFTED if answers.changed else CANNOT_TELL if answers.unsure else FRESH
    if answers.changed and choices is not None and choices.change.lower >= -tolerance.choice:
        still = f"choices still reach {choices.now:.1%} of the best ({choices.then:.1%} when trained)"
        answers.changed.append(f"{still}: its choices are still good")
    reasons = answers.changed or answers.unsure or [_unchanged(shift, movement, choices)]
    then, now, change, order = (choices.then, choices.now, choices.change, choices.order) if choices else (None,) * 4
    return Finding(
        verdict, reasons, shift, movement, then, now, change, order, int(failed.sum()), len(failed), problems, pairs.disturbed
    )


def _unchanged(shift: DriftFigure | None, movement: DriftFigure | None, choices: _Choices | None) -> str:
    assert shift is not None
    assert movement is not None
    said = f"times are {shift.value:.3f} x what they were, a typical vector moved {movement.value:.1%} relative to that"
    return said + (f", choices reach {choices.now:.1%} of the best ({choices.then:.1%} when trained)" if choices else "")


def _limit(pairs: Pairs, ok: Flags, allowed: float) -> float:
    """The tolerance, or the noise of the measurements if that is larger; as a logarithm."""
    known = pairs.noise[ok & np.isfinite(pairs.noise)]
    return max(float(np.log1p(allowed)), TIE_SIGMAS * float(np.median(known)) if len(known) else 0.0)


def _times(pairs: Pairs, ok: Flags) -> tuple[DriftFigure, DriftFigure]:
    """The common factor (median of the medians of each problem), and the median distance from it."""
    with np.errstate(invalid="ignore"):
        moved = np.log(pairs.now_ns / pairs.then_ns)
    each = [moved[ok & (pairs.problem == number)] for number in np.unique(pairs.problem[ok])]
    medians = np.array([np.median(part) for part in each])
    location = float(np.median(medians))
    beside = np.array([np.median(np.abs(part - location)) for part in each])
    shift = _resampled(medians, np.median)
    spread = _resampled(beside, np.median)
    factor = DriftFigure(*(float(np.exp(value)) for value in (shift.value, shift.lower, shift.upper)))
    return factor, DriftFigure(*(float(np.expm1(value)) for value in (spread.value, spread.lower, spread.upper)))


@dataclass(frozen=True)
class _Choices:
    """The speed of the choices as a share of the best vector's, over the problems."""

    then: float
    now: float
    change: DriftFigure
    chance: float
    """The probability of at least as many losses among the changed problems, if losses and gains were equally likely."""
    order: float | None


def _choices(pairs: Pairs) -> _Choices | None:
    """The choices then and now, and how similar the order of all vectors is; None if there is nothing to choose."""
    from scipy.stats import binomtest, spearmanr

    now = np.where(np.isfinite(pairs.now_ns), pairs.now_ns, np.inf)
    before, after, orders = [], [], []
    for number in np.unique(pairs.problem):
        own = pairs.problem == number
        if own.sum() < 2 or not pairs.chosen[own].any() or not np.isfinite(now[own]).any():
            continue
        before.append(float((pairs.then_ns[own].min() / pairs.then_ns[own & pairs.chosen])[0]))
        after.append(float((now[own].min() / now[own & pairs.chosen])[0]))
        if np.ptp(pairs.then_ns[own]) > 0 and own.sum() > 2 and np.ptp(now[own]) > 0:
            orders.append(float(spearmanr(pairs.then_ns[own], now[own]).statistic))
    if not before:
        return None
    change = np.array(after) - np.array(before)
    lost, gained = int((change < -UNCHANGED).sum()), int((change > UNCHANGED).sum())
    chance = float(binomtest(lost, lost + gained, alternative="greater").pvalue) if lost + gained else 1.0
    order = float(np.mean(orders)) if orders else None
    return _Choices(float(np.mean(before)), float(np.mean(after)), _resampled(change, np.mean), chance, order)


def _resampled(values: Floats, statistic: Callable[..., Any]) -> DriftFigure:
    """A statistic over one value per problem, with its interval by resampling the problems."""
    rng = np.random.default_rng(0)
    drawn = statistic(values[rng.integers(0, len(values), (RESAMPLES, len(values)))], axis=-1)
    lower, upper = np.percentile(drawn, INTERVAL)
    return DriftFigure(float(statistic(values)), float(lower), float(upper))


def _ask_shift(shift: DriftFigure, limit: float, answers: _Questions) -> None:
    lower, upper = np.log(shift.lower), np.log(shift.upper)
    said = f"times are {shift.value:.3f} x what they were ({shift.lower:.3f} to {shift.upper:.3f}, limit {np.exp(limit):.3f})"
    if lower > limit or upper < -limit:
        answers.yes(said, "predicted times are off by that factor", may_be_noise=lower > limit)
    elif lower < -limit or upper > limit:
        answers.open(said)


def _ask_movement(movement: DriftFigure, limit: float, answers: _Questions) -> None:
    allowed = float(np.expm1(limit))
    interval = f"{movement.lower:.1%} to {movement.upper:.1%}, limit {allowed:.1%}"
    said = f"a typical vector moved {movement.value:.1%} relative to the others ({interval})"
    if movement.lower > allowed:
        answers.yes(said, "no common factor explains it")
    elif movement.upper > allowed:
        answers.open(said)


def _ask_choices(choices: _Choices, allowed: float, answers: _Questions) -> None:
    change = choices.change
    interval = f"change {change.lower:+.1%} to {change.upper:+.1%}, limit {-allowed:.1%}"
    said = f"choices reach {choices.now:.1%} of the best, {choices.then:.1%} when trained ({interval})"
    if change.value < -allowed and change.upper < 0 and choices.chance < SIGNIFICANT:
        answers.yes(said, "other configs are best now")
    elif change.lower < -allowed:
        answers.open(said)


# Vectors per problem: the choice, the fastest few, and others spread over the rest.
PER_PROBLEM = 8
FASTEST = 3


@dataclass(frozen=True)
class ModelCheck:
    """The result of a check."""

    model: str
    finding: Finding
    software_then: tuple[str, ...]
    software_now: tuple[str, ...]
    device: str

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        facts = {"device": self.device, "software_then": self.software_then, "software_now": self.software_now}
        return {
            "model": self.model,
            **self.finding.as_json(),
            **facts,
            "same_software": set(self.software_now) <= set(self.software_then),
        }


def sample(model: Model, count: int, seed: int = 0) -> pl.DataFrame:
    """About `count` vectors that worked in training, problem by problem in random order; `chosen` marks the choices."""
    rows = model.out_of_fold
    if rows is None:
        raise InvalidValue(f"{model.path} does not keep its training times: train it again with `kerncast train`")
    if len(model.manifest.devices) > 1:
        names = ", ".join(item.name for item in model.manifest.devices)
        raise InvalidValue(f"{model.path} was trained on several devices ({names}): check a model of a single device instead")
    problem, config = (
        [name for name in schema.parameter_columns(model.family) if name.startswith(prefix)]
        for prefix in ("problem.", "config.")
    )
    # Out-of-fold scores, so that no choice is judged on times it was trained on.
    tried = rows.with_columns(chosen=(pl.col("score") == pl.col("score").min().over(problem)).fill_null(False))
    worked = tried.filter(pl.col("measured_ns").is_not_null()).sort([*problem, *config], nulls_last=True)
    if worked.is_empty():
        raise InvalidValue(f"no training vector of {model.path} worked: there is nothing to measure again")
    each = min(PER_PROBLEM, max(worked.group_by(problem).len()["len"].to_list()))
    wanted = max(FEWEST_PROBLEMS, round(count / each))
    best = worked.group_by(problem, maintain_order=True).agg(__best=pl.col("measured_ns").min()).sort("__best", *problem)
    rng = np.random.default_rng(seed)
    strata = np.array_split(np.arange(best.height), min(wanted, best.height))
    drawn = rng.permutation([int(rng.choice(part)) for part in strata])
    parts = []
    for number in drawn:
        own = worked.join(best[int(number)].select(problem), on=problem, how="semi", nulls_equal=True).sort(
            "measured_ns", *config
        )
        parts.append(own[_places(own["chosen"].to_numpy(), each)])
    return pl.concat(parts)


def _places(chosen: np.ndarray[Any, np.dtype[np.bool_]], each: int) -> list[int]:
    """Positions in the order of time: the choice, the fastest few, the rest evenly."""
    height = len(chosen)
    kept = {*np.flatnonzero(chosen)[:1].tolist(), *range(min(FASTEST, height))}
    rest = [place for place in range(height) if place not in kept]
    spread = np.linspace(0, len(rest) - 1, max(0, min(each - len(kept), len(rest)))).round().astype(int)
    return sorted(kept | {rest[place] for place in spread})


def recheck(
    model: Model,
    runner: Runner,
    *,
    count: int = 96,
    seed: int = 0,
    seconds: str | float | None = None,
    tolerance: Tolerance | None = None,
    progress: Progress = QUIET,
    stop: Stop = never,
) -> ModelCheck:
    """Measure a sample again, for so many seconds at most, and say whether the model still fits this machine."""
    then = sample(model, count, seed)
    with scratch_folder() as folder:
        request = runner.request(folder / "now", Extent(budget=seconds))
        vectors = then.select(list(schema.parameter_columns(model.family)))
        summary = collect(request, [vectors], total=vectors.height, progress=progress, stop=stop)
        if summary.interrupted:
            raise KeyboardInterrupt
        # If time is up: decide by what was measured.
        now = Dataset.open(request.out)
        rows = now.read() if now.rows else pl.DataFrame(schema=schema.schema_of(model.family))
    if summary.device != model.device.name:
        raise InvalidValue(
            f"{model.path} was trained on {model.device.name}, but this is {summary.device}: check it on its own device, "
            "because another device is not drift"
        )
    finding = judge(_paired(model, then, rows, summary), tolerance)
    software = tuple(sorted(rows["software"].drop_nulls().unique()))
    return ModelCheck(str(model.path), finding, model.manifest.software, software, summary.device)


def _paired(model: Model, then: pl.DataFrame, rows: pl.DataFrame, summary: CollectionSummary) -> Pairs:
    columns = list(schema.parameter_columns(model.family))
    # A vector has one row per visit; the fastest one counts.
    now = rows.group_by(columns, maintain_order=True).agg(
        now_ns=pl.col("time_ns").min(),
        now_noise=(MAD_TO_SIGMA * pl.col("time_ns_mad") / pl.col("time_ns") / pl.col("samples").sqrt()).median(),
    )
    both = then.join(now, on=columns, how="inner", nulls_equal=True, maintain_order="left")
    # The sample comes problem by problem.
    numbers = both.select(pl.struct(name for name in columns if name.startswith("problem.")).rle_id().cast(pl.Int64))
    noise = np.hypot(_floats(both["noise"]), _floats(both["now_noise"]))
    return Pairs(
        numbers.to_series().to_numpy(),
        _floats(both["measured_ns"]),
        _floats(both["now_ns"]),
        noise,
        both["chosen"].to_numpy(),
        summary.disturbed_samples / max(1, summary.samples),
    )


def _floats(values: pl.Series) -> np.ndarray[Any, np.dtype[np.float64]]:
    return values.cast(pl.Float64).fill_null(float("nan")).to_numpy()
