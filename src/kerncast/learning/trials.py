"""The measurements as arrays, the limits of noise, and how they are split for scoring: whole groups, never single rows."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np
import numpy.typing as npt

from kerncast.core.arrays import Array, Flags, Floats, Ints
from kerncast.errors import InvalidValue

# Two configs are a tie when their times differ by less than this many standard errors of the difference.
TIE_SIGMAS = 2.0
# Problems measured twice, below which a noise ceiling would say more of these problems than of the noise.
FEWEST_REPEATED = 5


@dataclass(frozen=True)
class Trials:
    """Every config attempted on some problems. Failed attempts have an infinite time."""

    problem: Ints
    """0, 1, 2 …; any order of rows."""
    config: Ints
    time_ns: Floats
    noise: Floats
    """Relative standard error of each time; NaN where unknown."""
    half_a: Floats
    half_b: Floats
    """Medians of two halves of the repeats, made at different times; NaN where there are none."""

    def take(self, index: Array) -> Trials:
        """Some of the rows; problems and configs keep their numbers."""
        return Trials(*(getattr(self, item.name)[index] for item in fields(self)))

    @cached_property
    def order(self) -> Ints:
        """Rows sorted by problem, then by config, which breaks ties."""
        return np.lexsort((self.config, self.problem))

    @cached_property
    def starts(self) -> Ints:
        """Where each problem's rows begin in `order`."""
        problems = self.problem[self.order]
        return np.flatnonzero(np.r_[True, problems[1:] != problems[:-1]]).astype(np.int64)

    @cached_property
    def problems(self) -> Ints:
        """The problem numbers, ascending, one per entry of `starts`."""
        return self.problem[self.order[self.starts]]

    def per_row(self, values: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
        """One value per problem, repeated for each of its rows (in row order)."""
        counts = np.diff(np.r_[self.starts, len(self.order)])
        spread = np.empty(len(self.order), dtype=values.dtype)
        spread[self.order] = np.repeat(values, counts)
        return spread

    @cached_property
    def best_ns(self) -> Floats:
        """The fastest time of each problem; infinite where nothing worked."""
        return np.minimum.reduceat(self.time_ns[self.order], self.starts)

    @cached_property
    def share(self) -> Floats:
        """For each row: the best time of its problem over its own; 0 for a failure or where nothing worked."""
        best = self.per_row(self.best_ns)
        return np.where(np.isfinite(self.time_ns), best / np.where(np.isfinite(self.time_ns), self.time_ns, 1.0), 0.0)

    @property
    def choosing(self) -> bool:
        """Whether some problem has more than one config, so that there is something to choose."""
        return len(self.starts) < len(self.order)

    @cached_property
    def solvable(self) -> Flags:
        """Problems on which something worked: on the others there is nothing to choose."""
        return np.isfinite(self.best_ns)

    def choose(self, scores: Floats) -> Ints:
        """The row with the lowest score on each problem; ties go to the config that comes first."""
        rank = np.lexsort((self.config, scores, self.problem))
        return rank[self.starts]

    def top(self, scores: Floats, k: int) -> Floats:
        """The efficiency after measuring the k lowest scores and keeping the fastest: best time over the best of the k."""
        rank = np.lexsort((self.config, scores, self.problem))
        counts = np.diff(np.r_[self.starts, len(rank)])
        place = np.arange(len(rank)) - np.repeat(self.starts, counts)
        kept = np.where(place < k, self.share[rank], 0.0)
        return np.maximum.reduceat(kept, self.starts)[self.solvable]

    def tied(self, chosen: Ints) -> Flags:
        """Which chosen rows are within the noise of the best of their problem (False where noise is unknown)."""
        best = self.choose(self.time_ns)
        spread = np.hypot(self.noise[chosen], self.noise[best])
        limit = 1.0 + TIE_SIGMAS * np.where(np.isfinite(spread), spread, 0.0)
        return self.time_ns[chosen] <= self.time_ns[best] * limit

    @cached_property
    def noise_ceiling(self) -> Floats | None:
        """Per problem that was measured twice: the efficiency of a chooser that knows one half and is scored on the other.

        None if too few were. The spread of the samples of one run is no substitute: they share the state of the machine.
        """
        if self.repeated.sum() < max(1, min(FEWEST_REPEATED, self.solvable.sum())):
            return None
        known = np.isfinite(self.half_a) & np.isfinite(self.half_b)
        first, second = (np.where(known, half, np.inf) for half in (self.half_a, self.half_b))
        scores = []
        for seen, hidden in ((first, second), (second, first)):
            chosen = self.choose(seen)
            best = np.minimum.reduceat(hidden[self.order], self.starts)
            with np.errstate(invalid="ignore"):
                scores.append(best / hidden[chosen])
        return np.asarray(np.mean(scores, axis=0)[self.repeated])

    @cached_property
    def repeated(self) -> Flags:
        """The problems on which every config that worked was measured at two different times."""
        known = np.isfinite(self.half_a) & np.isfinite(self.half_b)
        whole = np.logical_and.reduceat((known | ~np.isfinite(self.time_ns))[self.order], self.starts)
        return np.asarray(whole & self.solvable)


CONFIG = "config"
"""What is held out if there is only one problem: configs, not groups of problems."""


def folds_by_group(groups: Ints, folds: int, seed: int) -> Ints:
    """The fold of every row: groups are shuffled and dealt out, so all folds have nearly the same number of groups."""
    distinct, dense = np.unique(groups, return_inverse=True)
    if folds < 2:
        raise InvalidValue(f"cross-validation needs at least 2 folds, got {folds}")
    if len(distinct) < folds:
        raise InvalidValue(
            f"there are {len(distinct)} groups of problems and {folds} folds: measure more problems, or ask for "
            f"fewer folds (`folds={max(2, len(distinct))}`)"
        )
    dealt = np.empty(len(distinct), dtype=np.int64)
    dealt[np.random.default_rng(seed).permutation(len(distinct))] = np.arange(len(distinct)) % folds
    return dealt[dense]


def held_out(groups: Ints, share: float, seed: int) -> Flags:
    """The rows of a random share of the groups: at least one group, and never all."""
    distinct, dense = np.unique(groups, return_inverse=True)
    count = min(max(1, round(share * len(distinct))), len(distinct) - 1)
    chosen = np.zeros(len(distinct), dtype=bool)
    chosen[np.random.default_rng(seed).permutation(len(distinct))[:count]] = True
    return chosen[dense]


def folds_by_size(size: Floats, folds: int) -> Ints:
    """Bands of equal count from the smallest to the largest: each is predicted from sizes outside it."""
    order = np.argsort(size, kind="stable")
    bands = np.empty(len(size), dtype=np.int64)
    bands[order] = np.arange(len(size)) * folds // len(size)
    # Rows of one size must stay together: all follow the first of them.
    _, first, dense = np.unique(size[order], return_index=True, return_inverse=True)
    bands[order] = bands[order][first][dense]
    return bands
