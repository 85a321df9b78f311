"""Calibrated intervals: quantiles of the errors on problems that were not trained on.

A model is less accurate on problems unlike those that were measured, so an interval widens with the rarity of the problem, and
with how much smaller or larger it is than all of them. By how much is calibrated on problems of one kind that were held out
whole, not only on problems drawn at random.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from kerncast.core.arrays import Floats, Ints
from kerncast.models.limits.widening import LEVEL, Beyond, Errors, ProblemTraits, Sizes, fit_beyond, joined, tails

# Errors depend on the size of the problem, so there are bands of predicted time, each with enough problems.
MOST_BANDS = 8
PROBLEMS_PER_BAND = 40
# Halves of an interval narrower than this (in log time) do not say how much wider another should be.
NARROWEST = 0.005


class Widening(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """By band of rarity, then of predicted time: the factors from a prediction to its bounds."""

    traits: ProblemTraits
    edges_bits: tuple[float, ...]
    """The edges between the bands of rarity; one fewer than there are bands."""
    lower: tuple[tuple[float, ...], ...]
    upper: tuple[tuple[float, ...], ...]
    beyond: Beyond | None = None
    """Problems smaller or larger than all measured ones; None: too few were held out."""


class Interval(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """By band of predicted time: the factors from a prediction to its lower and its upper bound."""

    level: float
    edges_ns: tuple[float, ...]
    """The edges between the bands; one fewer than there are bands."""
    lower: tuple[float, ...]
    upper: tuple[float, ...]
    problems: int
    widening: Widening | None = None
    """How bounds widen with rarity; None: too few problems were measured."""

    @property
    def beyond(self) -> Beyond | None:
        """The bounds of problems smaller or larger than all measured ones, if they were calibrated."""
        return None if self.widening is None else self.widening.beyond

    @property
    def traits(self) -> ProblemTraits | None:
        """What rarity is counted in, if bounds widen with it."""
        return None if self.widening is None else self.widening.traits

    def bounds(
        self, predicted_ns: Floats, rarity: Floats | None = None, size_band: Ints | None = None
    ) -> tuple[Floats, Floats]:
        """Lower and upper bound of each prediction, by the rarity of its problem and by its band in `beyond`."""
        band = np.searchsorted(np.array(self.edges_ns), predicted_ns, side="right")
        if self.widening is None or rarity is None:
            return predicted_ns * np.array(self.lower)[band], predicted_ns * np.array(self.upper)[band]
        rare = np.searchsorted(np.array(self.widening.edges_bits), rarity, side="right")
        lower, upper = np.array(self.widening.lower)[rare, band], np.array(self.widening.upper)[rare, band]
        if self.beyond is not None and size_band is not None:
            lower = np.minimum(lower, np.array(self.beyond.lower)[size_band, band])
            upper = np.maximum(upper, np.array(self.beyond.upper)[size_band, band])
        return predicted_ns * lower, predicted_ns * upper

    def bounds_of_errors(self, errors: Errors) -> tuple[Floats, Floats]:
        """The bounds of predictions by a model that had not seen their problems."""
        # A row without a prediction needs a band all the same; nothing reads its bounds.
        predicted = np.where(np.isfinite(errors.predicted_ns), errors.predicted_ns, 1.0)
        beyond, octaves = self.beyond, errors.octaves
        size_band = None if beyond is None or octaves is None else beyond.bands_outside(octaves)
        return self.bounds(predicted, errors.rarity, size_band)


def calibrate(
    errors: Errors, harder: Sequence[Errors] = (), traits: ProblemTraits | None = None, sizes: Sizes | None = None
) -> Interval | None:
    """The interval that would have covered LEVEL of these rows, and the more of `harder`, the rarer their problems are.

    `errors` are of problems held out at random, `harder` of whole kinds of problems. Without `traits` or without `harder`
    the interval does not depend on rarity; without `sizes`, the range of the measured problems, not on size.
    """
    errors = errors.known
    problems = len(np.unique(errors.problem))
    if problems < 2:
        return None
    bands = int(np.clip(problems // PROBLEMS_PER_BAND, 1, MOST_BANDS))
    edges = np.quantile(errors.predicted_ns, np.arange(1, bands) / bands)
    band = np.searchsorted(edges, errors.predicted_ns, side="right")
    lower, upper = [], []
    for number in range(bands):
        inside = band == number
        inside = inside if inside.any() else np.ones(len(band), dtype=bool)
        low, high = tails(errors.logs[inside], errors.problem[inside])
        lower.append(float(np.exp(low)))
        upper.append(float(np.exp(high)))
    found = Interval(LEVEL, tuple(float(edge) for edge in edges), tuple(lower), tuple(upper), problems)
    if traits is None or not harder or errors.rarity is None:
        return found
    parts = [errors, *(each.known for each in harder)]
    widening = _widening(found, parts, traits)
    if sizes is not None and all(part.octaves is not None for part in parts):
        beyond = fit_beyond(joined(parts), edges, *_halves(found), sizes)
        if beyond is not None:
            widening = msgspec.structs.replace(widening, beyond=beyond)
    if not widening.edges_bits and widening.beyond is None:
        return found
    return msgspec.structs.replace(found, widening=widening)


def _widening(interval: Interval, parts: Sequence[Errors], traits: ProblemTraits) -> Widening:
    """How many times wider than for the average problem each half of the interval must be, by band of rarity.

    Problems outside the range of sizes are not counted: they have bounds of their own.
    """
    parts = [part.inside for part in parts]
    parts = [part for place, part in enumerate(parts) if place == 0 or len(part.problem)]
    every = joined(parts)
    assert every.rarity is not None
    rarity, unit = every.rarity, every.problem
    # All kinds together weigh as much as one: what is asked later is seldom all of a kind that was never measured.
    share = 1.0 / max(1, len(parts) - 1)
    weight = np.concatenate([np.full(len(part.problem), share if place else 1.0) for place, part in enumerate(parts)])
    band = np.searchsorted(np.array(interval.edges_ns), every.predicted_ns, side="right")
    below, above = _halves(interval)
    ratio = np.where(every.logs < 0.0, every.logs / below[band], every.logs / above[band])
    _, first = np.unique(unit, return_index=True)
    bands = int(np.clip(len(first) // PROBLEMS_PER_BAND, 1, MOST_BANDS))
    edges = np.unique(np.quantile(rarity[first], np.arange(1, bands) / bands))
    edges = edges[edges > rarity.min()]  # the first band has what is below its edge
    rare, factors = np.searchsorted(edges, rarity, side="right"), []
    for number in range(len(edges) + 1):
        # If most problems are equally rare, a band may be empty: it gets the factors of the one before.
        inside = rare == number
        factors.append(tails(ratio[inside], unit[inside], weight[inside]) if inside.any() else (0.0, 0.0))
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


def widened_like(interval: Interval, base: Interval, traits: ProblemTraits, sizes: Sizes | None) -> Interval:
    """The interval of a continued model: it widens as its base's does, around the range of sizes of all problems."""
    wide, beyond = base.widening, base.beyond
    if wide is None:
        return interval
    found = Widening(traits, wide.edges_bits, *_scaled(wide.lower, wide.upper, base, interval))
    if beyond is not None and sizes is not None:
        rows = _scaled(beyond.lower, beyond.upper, base, interval)
        found = msgspec.structs.replace(found, beyond=Beyond(beyond.sizes.joined(sizes), beyond.smaller, *rows))
    return msgspec.structs.replace(interval, widening=found)


Rows = tuple[tuple[float, ...], ...]


def _scaled(lower: Rows, upper: Rows, base: Interval, interval: Interval) -> tuple[Rows, Rows]:
    """Factors that are as many halves of an interval as they were of its base's."""
    found = []
    for rows, old, new in zip((lower, upper), _halves(base), _halves(interval), strict=True):
        found.append(tuple(tuple(np.exp(np.log(row[0]) / old[0] * new).tolist()) for row in rows))
    return found[0], found[1]


def _halves(interval: Interval) -> tuple[Floats, Floats]:
    """By band: how far the bounds are below and above the prediction, in log time."""
    lower, upper = np.log(np.array(interval.lower)), np.log(np.array(interval.upper))
    return np.maximum(-lower, NARROWEST), np.maximum(upper, NARROWEST)


def cross_bounds(
    errors: Errors,
    harder: Sequence[Errors] = (),
    traits: ProblemTraits | None = None,
    sizes: Sizes | None = None,
    of: Errors | None = None,
) -> tuple[Floats, Floats]:
    """Bounds of out-of-fold predictions (or of those of a kind, `of`), each calibrated on the other folds.

    No problem's own errors are among those that its bounds are calibrated on, so that the coverage is unbiased.
    """
    of = errors if of is None else of
    lower, upper = np.full(len(of.fold), np.nan), np.full(len(of.fold), np.nan)
    for number in np.unique(of.fold):
        own = of.fold == number
        others = [each.take(each.fold != number) for each in harder]
        interval = calibrate(errors.take(errors.fold != number), others, traits, sizes)
        if interval is not None:
            lower[own], upper[own] = interval.bounds_of_errors(of.take(own))
    return lower, upper
