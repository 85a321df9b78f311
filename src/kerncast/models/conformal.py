"""Calibrated intervals: quantiles of the errors on problems that were not trained on."""

from __future__ import annotations

import msgspec
import numpy as np

from kerncast.arrays import Floats, Ints

LEVEL = 0.90
# Errors depend on the size of the problem, so there are bands of predicted time, each with enough problems.
MOST_BANDS = 8
PROBLEMS_PER_BAND = 40


class Interval(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """By band of predicted time: the factors from a prediction to its lower and its upper bound."""

    level: float
    edges_ns: tuple[float, ...]
    """The edges between the bands; one fewer than there are bands."""
    lower: tuple[float, ...]
    upper: tuple[float, ...]
    problems: int

    def bounds(self, predicted_ns: Floats) -> tuple[Floats, Floats]:
        """Lower and upper bound of each prediction."""
        band = np.searchsorted(np.array(self.edges_ns), predicted_ns, side="right")
        return predicted_ns * np.array(self.lower)[band], predicted_ns * np.array(self.upper)[band]


def calibrate(problem: Ints, measured_ns: Floats, predicted_ns: Floats) -> Interval | None:
    """The interval that would have covered LEVEL of these rows, none of which its predictor had seen.

    The finite-sample margin counts problems, not rows: the errors of one problem's rows are correlated.
    """
    problems = len(np.unique(problem))
    if problems < 2:
        return None
    bands = int(np.clip(problems // PROBLEMS_PER_BAND, 1, MOST_BANDS))
    edges = np.quantile(predicted_ns, np.arange(1, bands) / bands)
    band = np.searchsorted(edges, predicted_ns, side="right")
    errors = np.log(measured_ns / predicted_ns)
    lower, upper = [], []
    for number in range(bands):
        inside = band == number
        inside = inside if inside.any() else np.ones(len(band), dtype=bool)
        count = len(np.unique(problem[inside]))
        tail = (1.0 - LEVEL) / 2.0
        share = min(1.0, (1.0 - tail) * (1.0 + 1.0 / count))
        low, high = np.quantile(errors[inside], [1.0 - share, share])
        lower.append(float(np.exp(low)))
        upper.append(float(np.exp(high)))
    return Interval(LEVEL, tuple(float(edge) for edge in edges), tuple(lower), tuple(upper), problems)


def cross_bounds(problem: Ints, fold: Ints, measured_ns: Floats, predicted_ns: Floats) -> tuple[Floats, Floats]:
    """Bounds of out-of-fold predictions, each calibrated on the other folds, so that their coverage is unbiased."""
    lower, upper = np.full(len(fold), np.nan), np.full(len(fold), np.nan)
    known = np.isfinite(measured_ns) & np.isfinite(predicted_ns)
    for number in np.unique(fold):
        others, own = known & (fold != number), fold == number
        interval = calibrate(problem[others], measured_ns[others], predicted_ns[others]) if others.any() else None
        if interval is not None:
            safe = np.where(np.isfinite(predicted_ns[own]), predicted_ns[own], 1.0)
            lower[own], upper[own] = interval.bounds(safe)
    return lower, upper
