"""The figures of one chooser on one set of trials, one definition per name (docs/metrics.md)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kerncast.core.arrays import Flags, Floats, Ints
from kerncast.learning.trials import Trials

FigureJson = dict[str, float | None]

RESAMPLES = 1000
# Row quantiles are recomputed for every resample, so there are fewer of them.
ROW_RESAMPLES = 200
INTERVAL = (2.5, 97.5)

SELECTION: dict[str, Callable[[Floats], Floats]] = {
    "efficiency_mean": lambda e: e.mean(axis=-1),
    "efficiency_p50": lambda e: np.quantile(e, 0.50, axis=-1),
    "efficiency_p10": lambda e: np.quantile(e, 0.10, axis=-1),
    "efficiency_p1": lambda e: np.quantile(e, 0.01, axis=-1),
    "efficiency_min": lambda e: e.min(axis=-1),
    "top1": lambda e: (e >= 1.0).mean(axis=-1),
    # A single failed choice makes it 0, as it should.
    "efficiency_gmean": lambda e: np.exp(np.log(np.maximum(e, 1e-300)).mean(axis=-1)) * (e > 0.0).all(axis=-1),
    # A failed choice makes this one infinite, which is reported as no figure.
    "regret_mean": lambda e: regret(e).mean(axis=-1),
}
LOG_ERRORS = ("mse_log", "rmse_log", "exp_rmse_log")
"""Errors of the natural logarithm of the time; the last is a factor: 1.1 is a typical error of 10 %."""
RUNTIME = ("mape", "median_ape", "ape_p95", "rmsre", "rrmse", *LOG_ERRORS, "r2", "r2_log", "coverage_90")


def regret(efficiency: Floats) -> Floats:
    """How much longer than the best a choice takes; infinite where it failed."""
    return 1.0 / np.where(efficiency > 0.0, efficiency, 1.0) - 1.0 + np.where(efficiency > 0.0, 0.0, np.inf)


def figure(value: float, samples: Floats | None = None) -> FigureJson:
    """A value with the 95 % interval of its bootstrap samples."""
    if samples is None or not len(samples):
        return {"value": float(value), "lower": None, "upper": None}
    lower, upper = np.percentile(samples, INTERVAL)
    return {"value": float(value), "lower": float(lower), "upper": float(upper)}


def resampled(values: Floats, statistic: Callable[[Floats], Floats], seed: int = 0, resamples: int = RESAMPLES) -> Floats:
    """Bootstrap samples of a statistic; computed in pieces, to limit memory.

    None for a single value: its resamples are all the same and say nothing about its uncertainty.
    """
    if len(values) < 2:
        return np.empty(0)
    rng = np.random.default_rng(seed)
    piece = max(1, 4_000_000 // max(1, len(values)))
    found: list[Floats] = []
    done = 0
    while done < resamples:
        count = min(piece, resamples - done)
        found.append(statistic(values[rng.integers(0, len(values), (count, len(values)))]))
        done += count
    return np.concatenate(found)


def selection_figures(efficiency: Floats) -> dict[str, FigureJson | None]:
    """The efficiency figures of one chooser, from one value per problem."""
    return {name: _finite(efficiency, f) for name, f in SELECTION.items()}


def mean_figure(values: Floats) -> FigureJson | None:
    """The mean of one value per problem; None if it is infinite."""
    return _finite(values, lambda drawn: np.asarray(drawn.mean(axis=-1)))


def _finite(values: Floats, statistic: Callable[[Floats], Floats]) -> FigureJson | None:
    value = float(statistic(values))
    return figure(value, resampled(values, statistic)) if np.isfinite(value) else None


class _RuntimeErrors:
    """Row errors sorted and summed once, so that a resample of problems is cheap."""

    def __init__(self, problem: Ints, measured: Floats, predicted: Floats, covered: Flags | None) -> None:
        _, self.dense = np.unique(problem, return_inverse=True)
        self.problems = int(self.dense.max()) + 1
        self.ape = np.abs(predicted - measured) / measured
        self.order = np.argsort(self.ape, kind="stable")
        log_measured, log_predicted = np.log(measured), np.log(np.maximum(predicted, 1e-300))
        columns = {
            "n": np.ones_like(measured),
            "ape": self.ape,
            "ape2": self.ape**2,
            "y": measured,
            "yy": measured**2,
            "ee": (predicted - measured) ** 2,
            "ly": log_measured,
            "lyy": log_measured**2,
            "lee": (log_predicted - log_measured) ** 2,
            "covered": np.zeros_like(measured) if covered is None else covered.astype(np.float64),
        }
        self.sums = {name: np.bincount(self.dense, values, self.problems) for name, values in columns.items()}
        self.has_interval = covered is not None

    def figures(self, weights: Floats) -> dict[str, float]:
        """Every runtime metric with each problem counted `weights` times."""
        s = {name: float(values @ weights) for name, values in self.sums.items()}
        rows = np.cumsum(weights[self.dense[self.order]])
        quantile = self.ape[self.order][np.minimum(np.searchsorted(rows, np.array([0.5, 0.95]) * rows[-1]), len(rows) - 1)]
        scatter = s["yy"] - s["y"] ** 2 / s["n"]
        log_scatter = s["lyy"] - s["ly"] ** 2 / s["n"]
        mse_log = s["lee"] / s["n"]
        return {
            "mape": s["ape"] / s["n"],
            "median_ape": float(quantile[0]),
            "ape_p95": float(quantile[1]),
            "rmsre": float(np.sqrt(s["ape2"] / s["n"])),
            "rrmse": float(np.sqrt(s["ee"] / s["n"]) / (s["y"] / s["n"])),
            "mse_log": mse_log,
            "rmse_log": float(np.sqrt(mse_log)),
            # Beyond any float if a prediction is hundreds of orders of magnitude off: then there is no such figure.
            "exp_rmse_log": float(np.exp(min(np.sqrt(mse_log), 709.0))),
            "r2": 1.0 - s["ee"] / scatter if scatter > 1e-9 * s["yy"] else float("nan"),
            # Equal times have no scatter to explain, whatever rounding leaves of it.
            "r2_log": 1.0 - s["lee"] / log_scatter if log_scatter > 1e-9 * max(s["lyy"], 1.0) else float("nan"),
            "coverage_90": s["covered"] / s["n"],
        }


def runtime_figures(
    problem: Ints, measured: Floats, predicted: Floats, covered: Flags | None = None, seed: int = 0
) -> dict[str, FigureJson | None]:
    """The runtime figures over rows that worked; intervals resample whole problems."""
    errors = _RuntimeErrors(problem, measured, predicted, covered)
    values = errors.figures(np.ones(errors.problems))
    rng = np.random.default_rng(seed)
    drawn = [
        errors.figures(np.bincount(rng.integers(0, errors.problems, errors.problems), minlength=errors.problems).astype(float))
        for _ in range(ROW_RESAMPLES if errors.problems > 1 else 0)
    ]
    figures: dict[str, FigureJson | None] = {}
    for name, value in values.items():
        samples = np.array([item[name] for item in drawn])
        known = np.isfinite(value) and (name != "coverage_90" or errors.has_interval)
        figures[name] = figure(value, samples[np.isfinite(samples)]) if known else None
    return figures


def flat(figures: Mapping[str, object], name: str) -> float | None:
    """The value of one figure, for tables and tests."""
    found = figures.get(name)
    if isinstance(found, dict):
        value = found["value"]
        return None if value is None else float(value)
    return None


# The numbers of best-scored configs that are measured, in the top-k-then-measure curve.
TOP_K = (1, 2, 3, 5, 10, 20)


@dataclass(frozen=True)
class Predicted:
    """A model's predictions for every row: the lowest score of a problem is chosen."""

    score: Floats
    time_ns: Floats | None = None
    lower_ns: Floats | None = None
    upper_ns: Floats | None = None

    @classmethod
    def joined(cls, parts: Sequence[Predicted]) -> Predicted:
        """The predictions of several blocks of rows, one after the other."""

        def both(name: str) -> Floats | None:
            values = [getattr(part, name) for part in parts]
            return None if any(item is None for item in values) else np.concatenate(values)

        return cls(np.concatenate([part.score for part in parts]), both("time_ns"), both("lower_ns"), both("upper_ns"))


def scorecard(trials: Trials, predicted: Predicted) -> dict[str, Any]:
    """All figures of a model; what does not apply is None."""
    chosen = trials.choose(predicted.score)
    card: dict[str, Any] = {"n_problems": int(trials.solvable.sum())}
    card |= choice_figures(trials, chosen)
    card |= _runtime(trials, predicted)
    return card


def choice_figures(trials: Trials, chosen: Ints) -> dict[str, FigureJson | None]:
    """The efficiency figures of one chosen row per problem, with and without ties."""
    if not trials.choosing or not trials.solvable.any():
        return dict.fromkeys((*SELECTION, "noise_ceiling", "efficiency_mean_ties", "top1_ties"))
    figures: dict[str, FigureJson | None] = dict(selection_figures(trials.share[chosen][trials.solvable]))
    ceiling = trials.noise_ceiling
    figures["noise_ceiling"] = None if ceiling is None else figure(float(ceiling.mean()), resampled(ceiling, _mean))
    # A choice within the noise of the best counts as the best: only certain losses count.
    merciful = np.where(trials.tied(chosen), 1.0, trials.share[chosen])[trials.solvable]
    figures["efficiency_mean_ties"] = figure(float(merciful.mean()), resampled(merciful, _mean))
    hits = (merciful >= 1.0).astype(np.float64)
    figures["top1_ties"] = figure(float(hits.mean()), resampled(hits, _mean))
    return figures


def baseline_card(efficiency: Floats | None, expected: Mapping[str, Floats] | None = None) -> dict[str, Any]:
    """The figures of a baseline that only chooses.

    If the efficiency is itself an expectation, `expected` has the figures per problem that do not follow from it.
    """
    empty: dict[str, Any] = {
        "n_problems": 0 if efficiency is None else len(efficiency),
        **dict.fromkeys((*SELECTION, "noise_ceiling", *RUNTIME)),
    }
    if efficiency is None:
        return empty
    means = {name: mean_figure(values) for name, values in (expected or {}).items()}
    return {**empty, **selection_figures(efficiency), **means}


def runtime_card(trials: Trials, time_ns: Floats) -> dict[str, Any]:
    """The figures of a baseline that only predicts."""
    return {**baseline_card(None), "n_problems": int(trials.solvable.sum()), **_runtime(trials, Predicted(time_ns, time_ns))}


def top_k(trials: Trials, score: Floats) -> list[dict[str, float]]:
    """The efficiency after measuring the k best-scored configs, and how often the best is among them."""
    most = int(np.diff(np.r_[trials.starts, len(trials.order)]).max())
    curve = []
    for k in TOP_K:
        if k <= most:
            got = trials.top(score, k)
            curve.append({"k": k, "efficiency_mean": float(got.mean()), "hit": float((got >= 1.0).mean())})
    return curve


def _mean(values: Floats) -> Floats:
    return np.asarray(values.mean(axis=-1))


def _runtime(trials: Trials, predicted: Predicted) -> Mapping[str, FigureJson | None]:
    if predicted.time_ns is None:
        return dict.fromkeys(RUNTIME)
    rows = np.isfinite(trials.time_ns) & np.isfinite(predicted.time_ns)
    if not rows.any():
        return dict.fromkeys(RUNTIME)
    covered = None
    if predicted.lower_ns is not None and predicted.upper_ns is not None:
        covered = ((predicted.lower_ns <= trials.time_ns) & (trials.time_ns <= predicted.upper_ns))[rows]
    return runtime_figures(trials.problem[rows], trials.time_ns[rows], predicted.time_ns[rows], covered)


@dataclass(frozen=True)
class Figure:
    """A value and its 95 % interval; with a single problem there is none."""

    value: float
    interval: tuple[float, float] | None = None

    @classmethod
    def of(cls, found: Mapping[str, float | None] | None) -> Figure | None:
        """From `{"value": …, "lower": …, "upper": …}`."""
        if found is None or found["value"] is None:
            return None
        lower, upper = found.get("lower"), found.get("upper")
        return cls(found["value"], None if lower is None or upper is None else (lower, upper))

    def __float__(self) -> float:
        return self.value


@dataclass(frozen=True)
class Efficiency:
    """How fast the choices are, as shares of the best measured speed; docs/metrics.md defines each."""

    mean: Figure
    p10: Figure
    p1: Figure
    min: Figure
    best_chosen: Figure
    """The share of problems on which the choice was the very best."""
    geometric_mean: Figure | None = None
    """None, here and below: not known, or the model is older than this figure."""
    p50: Figure | None = None
    """The median."""
    regret: Figure | None = None
    """How much longer than the best a choice takes; None also if one failed."""
    mean_with_ties: Figure | None = None
    """A choice within the noise of the best counts as the best."""
    best_chosen_with_ties: Figure | None = None
    noise_ceiling: Figure | None = None
    """What a perfect chooser would score on measurements this noisy; None: too little was measured twice to know."""


@dataclass(frozen=True)
class Runtime:
    """How far predicted times are from measured ones; docs/metrics.md defines each."""

    mape: Figure
    median: Figure | None = None
    p95: Figure | None = None
    rmsre: Figure | None = None
    rrmse: Figure | None = None
    mse_log: Figure | None = None
    """Of the natural logarithm of the time, as the next two."""
    rmse_log: Figure | None = None
    exp_rmse_log: Figure | None = None
    """A factor: 1.1 is a typical error of 10 %."""
    r2: Figure | None = None
    r2_log: Figure | None = None
    coverage: Figure | None = None
    """The share of rows inside their 90 % interval."""


# A field here → its name in `evaluation.json`.
_EFFICIENCY = {
    "mean": "efficiency_mean", "p10": "efficiency_p10", "p1": "efficiency_p1", "min": "efficiency_min", "best_chosen": "top1",
    "geometric_mean": "efficiency_gmean", "p50": "efficiency_p50", "regret": "regret_mean",
    "mean_with_ties": "efficiency_mean_ties",
    "best_chosen_with_ties": "top1_ties", "noise_ceiling": "noise_ceiling",
}  # fmt: skip
_RUNTIME = {
    "mape": "mape", "median": "median_ape", "p95": "ape_p95", "rmsre": "rmsre", "rrmse": "rrmse",
    "mse_log": "mse_log", "rmse_log": "rmse_log", "exp_rmse_log": "exp_rmse_log", "r2": "r2", "r2_log": "r2_log",
    "coverage": "coverage_90",
}  # fmt: skip


@dataclass(frozen=True)
class Figures:
    """All figures of a model or a baseline on `n` problems."""

    n: int
    efficiency: Efficiency | None
    """None: it does not choose, or there is nothing to choose."""
    runtime: Runtime | None
    """None: it does not predict times."""

    @classmethod
    def of(cls, card: Mapping[str, Any]) -> Figures:
        """From the block that `evaluation.json` holds under `overall`."""
        chosen = {field: Figure.of(card.get(name)) for field, name in _EFFICIENCY.items()}
        timed = {field: Figure.of(card.get(name)) for field, name in _RUNTIME.items()}
        return cls(
            int(card["n_problems"]),
            None if chosen["mean"] is None else Efficiency(**chosen),  # type: ignore[arg-type]
            None if timed["mape"] is None else Runtime(**timed),  # type: ignore[arg-type]
        )
