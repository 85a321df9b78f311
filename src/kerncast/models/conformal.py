"""Calibrated intervals: quantiles of the errors on problems that were not trained on.

A model is less accurate on problems unlike those that were measured, so an interval widens with the rarity of the problem.
By how much is calibrated on problems of one kind that were held out whole, not only on problems drawn at random.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from kerncast.arrays import Array, Floats, Ints
from kerncast.models.rarity import Traits

LEVEL = 0.90
# Errors depend on the size of the problem, so there are bands of predicted time, each with enough problems.
MOST_BANDS = 8
PROBLEMS_PER_BAND = 40
# Halves of an interval narrower than this (in log time) do not say how much wider another should be.
NARROWEST = 0.005


class Widening(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """By band of rarity, then of predicted time: the factors from a prediction to its bounds."""

    traits: Traits
    edges_bits: tuple[float, ...]
    """The edges between the bands of rarity; one fewer than there are bands."""
    lower: tuple[tuple[float, ...], ...]
    upper: tuple[tuple[float, ...], ...]


class Interval(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """By band of predicted time: the factors from a prediction to its lower and its upper bound."""

    level: float
    edges_ns: tuple[float, ...]
    """The edges between the bands; one fewer than there are bands."""
    lower: tuple[float, ...]
    upper: tuple[float, ...]
    problems: int
    widening: Widening | msgspec.UnsetType = msgspec.UNSET
    """How bounds widen with rarity; left out if too few problems were measured, and by older versions."""

    def bounds(self, predicted_ns: Floats, rarity: Floats | None = None) -> tuple[Floats, Floats]:
        """Lower and upper bound of each prediction. `rarity` is that of its problem by `widening.traits`."""
        band = np.searchsorted(np.array(self.edges_ns), predicted_ns, side="right")
        lower, upper = np.array([self.lower]), np.array([self.upper])
        rare = np.zeros(len(predicted_ns), np.int64)
        if self.widening is not msgspec.UNSET and rarity is not None:
            lower, upper = np.array(self.widening.lower), np.array(self.widening.upper)
            rare = np.searchsorted(np.array(self.widening.edges_bits), rarity, side="right")
        return predicted_ns * lower[rare, band], predicted_ns * upper[rare, band]


@dataclass(frozen=True)
class Errors:
    """Predictions of rows that their predictor had not seen, next to what was measured."""

    problem: Ints
    """The errors of one problem's rows are correlated, so problems are counted, not rows."""
    measured_ns: Floats
    predicted_ns: Floats
    fold: Ints
    """The fold of each row's problem in the cross-validation at random, whatever its predictor had not seen."""
    rarity: Floats | None = None
    """The rarity of each row's problem among those that the predictor had seen; None: not known."""

    def take(self, index: Array) -> Errors:
        """Some of the rows."""
        rarity = None if self.rarity is None else self.rarity[index]
        return Errors(self.problem[index], self.measured_ns[index], self.predicted_ns[index], self.fold[index], rarity)

    @property
    def known(self) -> Errors:
        """The rows that worked and have a prediction."""
        return self.take(np.isfinite(self.measured_ns) & np.isfinite(self.predicted_ns))


def calibrate(errors: Errors, harder: Sequence[Errors] = (), traits: Traits | None = None) -> Interval | None:
    """The interval that would have covered LEVEL of these rows, and the more of `harder`, the rarer their problems are.

    `errors` are of problems held out at random, `harder` of whole kinds of problems. Without `traits` or without `harder`
    the interval does not depend on rarity.
    """
    errors = errors.known
    problems = len(np.unique(errors.problem))
    if problems < 2:
        return None
    bands = int(np.clip(problems // PROBLEMS_PER_BAND, 1, MOST_BANDS))
    edges = np.quantile(errors.predicted_ns, np.arange(1, bands) / bands)
    band = np.searchsorted(edges, errors.predicted_ns, side="right")
    logs = np.log(errors.measured_ns / errors.predicted_ns)
    lower, upper = [], []
    for number in range(bands):
        inside = band == number
        inside = inside if inside.any() else np.ones(len(band), dtype=bool)
        low, high = _tails(logs[inside], np.ones(int(inside.sum())), len(np.unique(errors.problem[inside])))
        lower.append(float(np.exp(low)))
        upper.append(float(np.exp(high)))
    found = Interval(LEVEL, tuple(float(edge) for edge in edges), tuple(lower), tuple(upper), problems)
    if traits is None or not harder or errors.rarity is None:
        return found
    widening = _widening(found, errors, [each.known for each in harder], traits)
    return found if widening is None else msgspec.structs.replace(found, widening=widening)


def _tails(values: Floats, weight: Floats, problems: int) -> tuple[float, float]:
    """The quantiles that leave out (1 - LEVEL) / 2 at either end, with the margin of a finite sample."""
    share = min(1.0, (1.0 + LEVEL) / 2.0 * (1.0 + 1.0 / problems))
    ends = [1.0 - share, share]
    if (weight == weight[0]).all():
        low, high = np.quantile(values, ends)
        return float(low), float(high)
    order = np.argsort(values, kind="stable")
    # Each value stands at the middle of its weight, so that equal weights give nearly the plain quantiles.
    reached = np.cumsum(weight[order]) - weight[order] / 2.0
    low, high = np.interp(np.array(ends) * weight.sum(), reached, values[order])
    return float(low), float(high)


def _widening(interval: Interval, errors: Errors, harder: Sequence[Errors], traits: Traits) -> Widening | None:
    """How many times wider than for the average problem each half of the interval must be, by band of rarity."""
    parts = [errors, *harder]
    rarity = np.concatenate([part.rarity for part in parts if part.rarity is not None])
    # A problem that several predictors had not seen counts once for each.
    unit = np.concatenate([part.problem * len(parts) + place for place, part in enumerate(parts)])
    # All kinds together weigh as much as one: what is asked later is seldom all of a kind that was never measured.
    weight = np.concatenate(
        [np.full(len(part.problem), 1.0 / len(harder) if place else 1.0) for place, part in enumerate(parts)]
    )
    predicted = np.concatenate([part.predicted_ns for part in parts])
    logs = np.log(np.concatenate([part.measured_ns for part in parts]) / predicted)
    band = np.searchsorted(np.array(interval.edges_ns), predicted, side="right")
    below, above = _halves(interval)
    ratio = np.where(logs < 0.0, logs / below[band], logs / above[band])
    _, first = np.unique(unit, return_index=True)
    bands = int(np.clip(len(first) // PROBLEMS_PER_BAND, 1, MOST_BANDS))
    edges = np.unique(np.quantile(rarity[first], np.arange(1, bands) / bands))
    edges = edges[edges > rarity.min()]  # the first band has what is below its edge
    if not len(edges):
        return None
    rare, factors = np.searchsorted(edges, rarity, side="right"), []
    for number in range(len(edges) + 1):
        # If most problems are equally rare, a band may be empty: it gets the factors of the one before.
        inside = rare == number
        factors.append(_tails(ratio[inside], weight[inside], len(np.unique(unit[inside]))) if inside.any() else (0.0, 0.0))
    # A rarer problem is never promised a narrower interval.
    weights = np.bincount(rare, weight, len(edges) + 1).astype(np.float64)
    halves = np.maximum(np.array(factors) * (-1.0, 1.0), 0.0)
    wider = np.stack([_rising(halves[:, side], weights) for side in (0, 1)], axis=1)
    lower, upper = np.exp(-wider[:, :1] * below), np.exp(wider[:, 1:] * above)
    return Widening(traits, tuple(edges.tolist()), tuple(map(tuple, lower.tolist())), tuple(map(tuple, upper.tolist())))


def _rising(values: Floats, weights: Floats) -> Floats:
    """The nearest values that never fall: neighbours that fall are replaced by their mean."""
    blocks: list[tuple[float, float, int]] = []
    for value, weight in zip(values.tolist(), weights.tolist(), strict=True):
        block = (value, weight, 1)
        while blocks and blocks[-1][0] >= block[0]:
            before = blocks.pop()
            total = before[1] + block[1]
            block = ((before[0] * before[1] + block[0] * block[1]) / total, total, before[2] + block[2])
        blocks.append(block)
    return np.repeat([value for value, _, _ in blocks], [count for _, _, count in blocks])


def widened_like(interval: Interval, base: Interval, traits: Traits) -> Interval:
    """The interval of a continued model: it widens with rarity as its base's does."""
    if base.widening is msgspec.UNSET:
        return interval
    below, above = _halves(interval)
    base_below, base_above = _halves(base)
    lower = [np.exp(np.log(row[0]) / base_below[0] * below).tolist() for row in base.widening.lower]
    upper = [np.exp(np.log(row[0]) / base_above[0] * above).tolist() for row in base.widening.upper]
    widening = Widening(traits, base.widening.edges_bits, tuple(map(tuple, lower)), tuple(map(tuple, upper)))
    return msgspec.structs.replace(interval, widening=widening)


def _halves(interval: Interval) -> tuple[Floats, Floats]:
    """By band: how far the bounds are below and above the prediction, in log time."""
    lower, upper = np.log(np.array(interval.lower)), np.log(np.array(interval.upper))
    return np.maximum(-lower, NARROWEST), np.maximum(upper, NARROWEST)


def cross_bounds(errors: Errors, harder: Sequence[Errors] = (), traits: Traits | None = None) -> tuple[Floats, Floats]:
    """Bounds of out-of-fold predictions, each calibrated on the other folds, so that their coverage is unbiased."""
    lower, upper = np.full(len(errors.fold), np.nan), np.full(len(errors.fold), np.nan)
    for number in np.unique(errors.fold):
        own = errors.fold == number
        interval = calibrate(errors.take(~own), [each.take(each.fold != number) for each in harder], traits)
        if interval is not None:
            predicted = errors.predicted_ns[own]
            safe = np.where(np.isfinite(predicted), predicted, 1.0)
            lower[own], upper[own] = interval.bounds(safe, None if errors.rarity is None else errors.rarity[own])
    return lower, upper


def bounds_of_kind(errors: Errors, harder: Sequence[Errors], place: int, traits: Traits) -> tuple[Floats, Floats] | None:
    """Bounds of the rows of one kind, calibrated on problems at random and on the other kinds."""
    interval = calibrate(errors, [*harder[:place], *harder[place + 1 :]], traits)
    return None if interval is None else interval.bounds(harder[place].predicted_ns, harder[place].rarity)
