"""Errors on problems that were not trained on, and the quantiles of such errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kerncast.core.arrays import Array, Floats, Ints

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
