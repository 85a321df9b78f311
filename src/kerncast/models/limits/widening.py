"""Errors on problems that were not trained on, and by what intervals widen: how rare a problem is, and how far out its size.

Rarity is how seldom the alignment, sizes, ratios and labels of a problem are. It is integer arithmetic and sums of stored
numbers, so C computes the same to the last bit (`c/rarity.c`).

A model that has seen no problem of a size goes on with what it learned at the nearest one, so its error grows with every
octave. Rarity does not see this: a problem can be larger than all others although each of its sizes is usual. So these problems
have bounds of their own, calibrated on the smallest and the largest problems, held out whole, each side by itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import polars as pl

from kerncast.core.arrays import Array, Floats, Ints, alignment
from kerncast.core.op import Family
from kerncast.core.parameters import Int, Parameter
from kerncast.learning.assess import FEWEST_VALUES

LEVEL = 0.90


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
    octaves: Floats | None = None
    """How many octaves smaller (negative) or larger each row's problem is than all that the predictor had seen; None: not
    known."""

    def take(self, index: Array) -> Errors:
        """Some of the rows."""
        rarity, octaves = (None if values is None else values[index] for values in (self.rarity, self.octaves))
        return Errors(self.problem[index], self.measured_ns[index], self.predicted_ns[index], self.fold[index], rarity, octaves)

    @property
    def known(self) -> Errors:
        """The rows that worked and have a prediction."""
        return self.take(np.isfinite(self.measured_ns) & np.isfinite(self.predicted_ns))

    @property
    def inside(self) -> Errors:
        """The rows of problems that are neither smaller nor larger than all that the predictor had seen."""
        return self if self.octaves is None else self.take(self.octaves == 0.0)

    @property
    def logs(self) -> Floats:
        """How much slower than predicted, in log time."""
        return np.asarray(np.log(self.measured_ns / self.predicted_ns))


def joined(parts: Sequence[Errors]) -> Errors:
    """All rows. A problem that several predictors had not seen counts once for each."""
    rarity = [part.rarity for part in parts if part.rarity is not None]
    octaves = [part.octaves for part in parts if part.octaves is not None]
    return Errors(
        np.concatenate([part.problem * len(parts) + place for place, part in enumerate(parts)]),
        np.concatenate([part.measured_ns for part in parts]),
        np.concatenate([part.predicted_ns for part in parts]),
        np.concatenate([part.fold for part in parts]),
        np.concatenate(rarity) if len(rarity) == len(parts) else None,
        np.concatenate(octaves) if len(octaves) == len(parts) else None,
    )


def tails(values: Floats, problem: Ints, weight: Floats | None = None) -> tuple[float, float]:
    """The quantiles that leave out (1 - LEVEL) / 2 at either end, with the margin of a finite sample."""
    ends = _quantiles(values, weight, (1.0 + LEVEL) / 2.0)
    outside = (values < ends[0]) | (values > ends[1])
    share = min(1.0, (1.0 + LEVEL) / 2.0 * (1.0 + 1.0 / _sample(outside, problem)))
    return _quantiles(values, weight, share)


def _sample(outside: Array, problem: Ints) -> float:
    """How many independent errors a sample is worth.

    It is the number of problems if all errors of a problem are the same, and that of rows if they have nothing in common.
    How much they have in common is seen in how unevenly the rows outside the quantiles spread over the problems. That is
    itself uncertain with few problems, so the geometric mean of this estimate and the number of problems is taken.
    """
    _, dense = np.unique(problem, return_inverse=True)
    problems, share = int(dense.max()) + 1, float(outside.mean())
    together = float((np.bincount(dense, outside - share) ** 2).sum())
    found = share * (1.0 - share) * len(outside) ** 2 / together if together > 0.0 else float(problems)
    return float(np.sqrt(problems * np.clip(found, problems, len(outside))))


def _quantiles(values: Floats, weight: Floats | None, share: float) -> tuple[float, float]:
    ends = [1.0 - share, share]
    if weight is None or (weight == weight[0]).all():
        low, high = np.quantile(values, ends)
        return float(low), float(high)
    order = np.argsort(values, kind="stable")
    # Each value stands at the middle of its weight, so that equal weights give nearly the plain quantiles.
    reached = np.cumsum(weight[order]) - weight[order] / 2.0
    low, high = np.interp(np.array(ends) * weight.sum(), reached, values[order])
    return float(low), float(high)


# -- rarity ----------------------------------------------------------------------------------------

ALIGNMENT, OCTAVE, RATIO, LABEL = "alignment", "octave", "ratio", "label"
# The numbers that C knows the kinds of traits by.
WHAT = (ALIGNMENT, OCTAVE, RATIO, LABEL)
# A parameter that does not apply to a problem.
ABSENT = -1_000
# An octave is from one power of two to the next: the number of these that are not above a size.
POWERS = 2 ** np.arange(63, dtype=np.int64)


class Trait(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One trait of a problem, and how rare each of its values is."""

    what: str
    """The power of two that divides a size; its octave; the difference of two octaves; the code of a label."""
    of: tuple[str, ...]
    values: tuple[int, ...]
    """The values among the measured problems, ascending."""
    bits: tuple[float, ...]
    """By value: log2 of how many times more frequent the most frequent value is."""
    unseen: float
    """The bits of any other value."""

    def rarity(self, found: Ints) -> Floats:
        """The bits of each value."""
        known = np.array(self.values, np.int64)
        place = np.minimum(np.searchsorted(known, found), len(known) - 1)
        return np.where(known[place] == found, np.array(self.bits)[place], self.unseen)


class ProblemTraits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The traits that vary among the measured problems."""

    traits: tuple[Trait, ...]

    @classmethod
    def of(cls, family: Family, problems: pl.DataFrame) -> ProblemTraits:
        """Count the traits of measured problems, one row (`problem.*`) each."""
        found = []
        for what, names, values in _values(family, _codes(family, problems, family.problem.parameters)):
            known, counts = np.unique(values, return_counts=True)
            bits = np.log2((counts.max() + 1) / (counts + 1))
            unseen = float(np.log2(counts.max() + 1))
            found.append(Trait(what, names, tuple(known.tolist()), tuple(bits.tolist()), unseen))
        return cls(tuple(found))

    def rarity(self, family: Family, problems: pl.DataFrame) -> Floats:
        """The rarity of each problem (`problem.*`): the sum of its traits'."""
        total, columns = np.zeros(problems.height), _codes(family, problems, {name for item in self.traits for name in item.of})
        for trait in self.traits:
            total = total + trait.rarity(_trait(trait.what, [columns[name] for name in trait.of]))
        return total


def _codes(family: Family, problems: pl.DataFrame, names: Collection[str]) -> dict[str, Ints]:
    """Some parameters as C reads them: sizes as they are, labels and flags by their codes."""
    return {name: _code(family.problem.parameters[name], problems[f"problem.{name}"]) for name in names}


def _code(parameter: Parameter, column: pl.Series) -> Ints:
    if parameter.codes:
        codes = {parameter.value(i): parameter.number(i) for i in range(parameter.size)}
        return np.array([ABSENT if value is None else codes[value] for value in column.to_list()], np.int64)
    whole = column.cast(pl.Int64)
    return (whole.fill_null(ABSENT) if whole.null_count() else whole).to_numpy()


def _values(family: Family, columns: Mapping[str, Ints]) -> Iterator[tuple[str, tuple[str, ...], Ints]]:
    """Every trait that a set of problems has more than one value of."""
    sizes = []
    for name, values in columns.items():
        if not isinstance(family.problem.parameters[name], Int):
            if len(np.unique(values)) > 1:
                yield LABEL, (name,), values
        elif len(np.unique(values)) >= FEWEST_VALUES:
            sizes.append(name)
            for what in (ALIGNMENT, OCTAVE):
                yield what, (name,), _trait(what, [values])
    for place, name in enumerate(sizes):
        for other in sizes[:place]:
            yield RATIO, (name, other), _trait(RATIO, [columns[name], columns[other]])


def _trait(what: str, columns: list[Ints]) -> Ints:
    first = columns[0]
    if what == LABEL:
        return first
    absent = np.logical_or.reduce([values == ABSENT for values in columns])
    if what == ALIGNMENT:
        found = alignment(first)
    else:
        octaves = [np.searchsorted(POWERS, values, side="right") for values in columns]
        found = octaves[0] if what == OCTAVE else octaves[0] - octaves[1]
    return np.where(absent, ABSENT, found)


# -- sizes beyond all measured ones ------------------------------------------------------------------

# In this order: the first that is known says how large a problem is.
MEASURES = ("roofline_ns", "bytes")
# Bands of half an octave, counted from the smallest and from the largest measured problem.
BAND = 0.5
# Growth is believed up to twice as far outside as it was calibrated, and at most this many bands.
FURTHER, MOST_BANDS = 2.0, 16
# With fewer problems outside, one side borrows from the other; with fewer on both there is nothing to calibrate on.
FEWEST_PROBLEMS = 10
# An error is counted as at most this many halves of the interval, and grows by at most as many per octave.
MOST = 8.0


class Sizes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The measured problems from the smallest to the largest."""

    measure: str
    """One of `MEASURES`."""
    low: float
    high: float

    @classmethod
    def of(cls, measure: str, sizes: Floats) -> Sizes:
        """The range of some problems."""
        return cls(measure, float(sizes.min()), float(sizes.max()))

    def joined(self, other: Sizes) -> Sizes:
        """The range of both."""
        return Sizes(self.measure, min(self.low, other.low), max(self.high, other.high))


def octaves_outside(sizes: Floats, seen: Floats) -> Floats:
    """How far each size is outside the range of those that were seen: negative below it, positive above it, 0 inside."""
    below, above = np.log2(np.minimum(sizes / seen.min(), 1.0)), np.log2(np.maximum(sizes / seen.max(), 1.0))
    return np.asarray(below + above)


class Beyond(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """By band of size, from the smallest, then of predicted time: the factors from a prediction to its bounds.

    Inside the measured range they are 1, and the bounds by rarity hold; outside the wider of both.
    """

    sizes: Sizes
    smaller: int
    """How many of the bands are below the measured range."""
    lower: tuple[tuple[float, ...], ...]
    upper: tuple[tuple[float, ...], ...]

    @property
    def edges(self) -> Floats:
        """The edges between the bands of size."""
        below = self.sizes.low / 2.0 ** (BAND * np.arange(self.smaller))
        above = self.sizes.high * 2.0 ** (BAND * np.arange(len(self.lower) - 1 - self.smaller))
        # The largest measured problem is inside.
        return np.concatenate([below[::-1], np.nextafter(above, np.inf)])

    def bands(self, sizes: Floats) -> Ints:
        """The band of each size."""
        return np.searchsorted(self.edges, sizes, side="right")

    def bands_outside(self, octaves: Floats) -> Ints:
        """The band of what is so many octaves outside the range of what its predictor had seen."""
        steps = np.where(octaves < 0.0, np.floor(octaves / BAND), np.ceil(octaves / BAND)).astype(np.int64)
        return np.clip(self.smaller + steps, 0, len(self.lower) - 1)


def known_measure(known: Mapping[str, object]) -> str | None:
    """The first measure of size that is known."""
    return next((name for name in MEASURES if name in known), None)


def fit_beyond(errors: Errors, edges_ns: Floats, below: Floats, above: Floats, sizes: Sizes) -> Beyond | None:
    """Calibrate on what is outside the range of its predictor; `below` and `above` are halves by band of predicted time."""
    from scipy.optimize import nnls

    assert errors.octaves is not None
    octaves = errors.octaves
    band = np.searchsorted(edges_ns, errors.predicted_ns, side="right")
    ratio = np.where(errors.logs < 0.0, errors.logs / below[band], errors.logs / above[band])
    ones, rows = np.ones(len(below)), []
    for far in (np.maximum(-octaves, 0.0), np.maximum(octaves, 0.0)):
        if len(np.unique(errors.problem[far > 0.0])) < FEWEST_PROBLEMS:
            far = np.abs(octaves)
        outside = far > 0.0
        if len(np.unique(errors.problem[outside])) < FEWEST_PROBLEMS:
            return None
        # By what share of itself the error at the edge of the range grows with each octave.
        line = np.stack([np.ones(int(outside.sum())), far[outside]], axis=1)
        (start, slope), _ = nnls(line, np.minimum(np.abs(ratio[outside]), MOST))
        growth = float(min(slope / max(start, 0.1), MOST))
        low, high = tails(ratio[outside] / (1.0 + growth * far[outside]), errors.problem[outside])
        bands = int(np.clip(np.ceil(FURTHER * far.max() / BAND), 1, MOST_BANDS))
        wider = 1.0 + growth * BAND * (np.arange(bands)[:, None] + 0.5)
        rows.append((np.exp(-wider * max(-low, 0.0) * below), np.exp(wider * max(high, 0.0) * above)))
    (small_lower, small_upper), (large_lower, large_upper) = rows
    lower = np.concatenate([small_lower[::-1], [ones], large_lower]).tolist()
    upper = np.concatenate([small_upper[::-1], [ones], large_upper]).tolist()
    return Beyond(sizes, len(small_lower), tuple(map(tuple, lower)), tuple(map(tuple, upper)))
