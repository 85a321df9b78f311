"""One definition per metric name, each with a bootstrap interval over whole problems."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from kerncast.core.arrays import Flags, Floats, Ints

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


class _Errors:
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
    errors = _Errors(problem, measured, predicted, covered)
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
