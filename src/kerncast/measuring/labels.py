"""The labels of a running collection: which vectors are done, how fast they were, which to measure again.

There may be millions of vectors. What they are is in the journal; only numbers and the positions of their lines are held.
"""

from __future__ import annotations

import math
import random
from array import array
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np
import polars as pl

from kerncast.core.arrays import Flags, Ints
from kerncast.data.journal import Outcome
from kerncast.measuring.known import KEY_BYTES, Known, digest, digests

# After the sweep, vectors this close to the best of their problem (or within three MADs) are raced again.
NEAR = 0.02
RACED_PER_PROBLEM = 12
# Flags of a vector: it has a row or is being measured, its last visit had too few quiet samples, its label had.
DONE, DOUBTFUL, UNSURE = 1, 2, 4

# Vectors for which memory is taken in advance: 150 MB. More of them take more as they come.
MOST_EXPECTED = 4_000_000


@dataclass(frozen=True)
class Groups:
    """Vectors to measure again, some at a time: the positions of their lines in the journal."""

    places: Ints
    ends: Ints
    order: Ints
    """In which order the groups are measured."""

    @classmethod
    def of(cls, places: Ints, ends: Ints) -> Groups:
        return cls(places, ends, np.arange(len(ends)))

    @property
    def vectors(self) -> int:
        return len(self.places)

    def shuffled(self, seed: int) -> Groups:
        order = self.order.tolist()
        random.Random(seed).shuffle(order)
        return replace(self, order=np.array(order, np.int64))

    def __iter__(self) -> Iterator[Ints]:
        for group in self.order.tolist():
            yield self.places[self.ends[group - 1] if group else 0 : self.ends[group]]


class Labels:
    """What is known of each vector and of each problem."""

    def __init__(self) -> None:
        self._vectors = Known(
            flags=(np.uint8, 0), time_ns=(np.float64, np.nan), mad=(np.float32, 0.0), at=(np.int64, -1), problem=(np.int32, -1)
        )
        self._problems = Known(number=(np.int32, -1), best_ns=(np.float64, 0.0))

    def __len__(self) -> int:
        return len(self._vectors)

    def expect(self, vectors: int) -> None:
        """Take the memory for so many vectors before the first one, so that a long collection stays as large as it began."""
        self._vectors.reserve(min(vectors, MOST_EXPECTED))

    def load(self, records: Iterable[tuple[list[int], list[Outcome]]], retry: Collection[str] = ()) -> tuple[int, int]:
        """Note the records of a journal with the positions of their lines; the last one of a vector counts.

        Those with a status in `retry` are not done. Returns the first order and block that none of them has.
        """
        order = block = -1
        keys, flags, times, mads, places = bytearray(), bytearray(), array("d"), array("f"), array("q")
        # Vectors of one problem mostly follow each other: of each such run, the name of its problem is held.
        names, runs, run, raw = bytearray(), array("i"), -1, b""
        for own_places, found in records:
            # A list at a time, which Python does in less time than one loop that does everything.
            order = max([order, *[item.order for item in found]])
            block = max([block, *[item.block for item in found]])
            keys += digests([item.key for item in found]).tobytes()
            flags += bytes([_flags(item, retry) for item in found])
            times.extend([math.nan if item.time_ns is None or item.status != "ok" else item.time_ns for item in found])
            mads.extend([item.time_ns_mad or 0.0 for item in found])
            places.extend(own_places)
            for problem in [bytes(item.problem) for item in found]:
                if problem != raw:
                    raw, run = problem, run + 1
                    names += digest(_name(msgspec.json.decode(raw)))
                runs.append(run)
        if places:
            problems, numbers = np.unique(np.frombuffer(names, f"S{KEY_BYTES}"), return_inverse=True)
            self._vectors.load(
                np.frombuffer(keys, f"S{KEY_BYTES}"), flags=np.frombuffer(flags, np.uint8), time_ns=np.frombuffer(times),
                mad=np.frombuffer(mads, np.float32), at=np.frombuffer(places, np.int64),
                problem=numbers.astype(np.int32)[np.frombuffer(runs, np.int32)],
            )  # fmt: skip
            best = np.full(len(problems), np.inf)
            times_now, problem_now = self._vectors.column("time_ns"), self._vectors.column("problem")
            known = np.isfinite(times_now)
            np.minimum.at(best, problem_now[known], times_now[known])
            best_ns = np.where(np.isfinite(best), best, 0.0)
            self._problems.load(problems, number=np.arange(len(problems), dtype=np.int32), best_ns=best_ns)
        return order + 1, block + 1

    def mark_done(self, keys: pl.Series) -> None:
        """Note very many vectors as done."""
        self._vectors.mark(digests(keys), "flags", DONE)

    def has(self, key: str, flag: int) -> bool:
        return bool(self._vectors.get(key, "flags") & flag)

    def mark(self, key: str, flag: int, on: bool = True) -> None:
        flags = self._vectors.get(key, "flags")
        if bool(flags & flag) != on:
            self._vectors.set(key, flags=flags ^ flag)

    def done(self, keys: pl.Series) -> Flags:
        """Which of some keys are done."""
        return self._vectors.marked(keys, "flags", DONE)

    @property
    def doubtful(self) -> int:
        """Vectors whose last visit had too few quiet samples."""
        return int(np.count_nonzero(self._vectors.column("flags") & DOUBTFUL))

    def time_ns(self, key: str) -> float | None:
        """The label of a vector; None: it has none."""
        found: float = self._vectors.get(key, "time_ns")
        return None if np.isnan(found) else found

    def best_ns(self, problem: Mapping[str, Any]) -> float:
        """The best time known for a problem; 0: none."""
        found: float = self._problems.get(_name(problem), "best_ns")
        return found

    def add(self, key: str, problem: Mapping[str, Any], time_ns: float, mad: float, at: int, unsure: bool) -> None:
        """Note a vector's time for the race, and for a second visit if it is unsure."""
        name = _name(problem)
        number = self._problems.get(name, "number")
        if number < 0:
            number = len(self._problems)
            self._problems.set(name, number=number)
        best = self._problems.get(name, "best_ns")
        if not best or time_ns < best:
            self._problems.set(name, best_ns=time_ns)
        self.mark(key, UNSURE, unsure)
        self._vectors.set(key, time_ns=time_ns, mad=mad, at=at, problem=number)

    def forget(self, key: str, problem: Mapping[str, Any]) -> bool:
        """A vector turned out to be wrong: its time does not count any more. Returns whether it had one."""
        time_ns = self.time_ns(key)
        if time_ns is None:
            return False
        self._vectors.set(key, time_ns=np.nan)
        self.mark(key, UNSURE, False)
        self.mark(key, DOUBTFUL, False)
        name = _name(problem)
        if self._problems.get(name, "best_ns") == time_ns:
            self._problems.set(name, best_ns=0.0)  # the next one is not known without looking at all of them
        return True

    def unsure(self, size: int) -> Groups:
        """The vectors for a second visit, in the order of the journal; they are not unsure any more."""
        flags = self._vectors.column("flags")
        places = np.sort(self._vectors.column("at")[flags & UNSURE != 0])
        flags &= ~np.uint8(UNSURE)
        return Groups.of(places, np.r_[np.arange(size, len(places), size), len(places)][: -(-len(places) // size)])

    def near_ties(self) -> Groups:
        """The fastest few of each problem that has near-ties, a problem at a time."""
        times = self._vectors.column("time_ns")
        rows = np.flatnonzero(np.isfinite(times))
        if not len(rows):
            return Groups.of(rows, rows)
        problem = self._vectors.column("problem")[rows]
        rows = rows[np.lexsort((times[rows], problem))]  # equal times in the order of the keys
        problem, times = self._vectors.column("problem")[rows], times[rows]
        starts = np.flatnonzero(np.diff(problem, prepend=-1))
        counts = np.diff(starts, append=len(rows))
        best, mad = times[starts], self._vectors.column("mad")[rows[starts]]
        limit = np.repeat(np.minimum(best * (1 + np.maximum(NEAR, 3 * mad / best)), 2 * best), counts)
        near = (times <= limit) & (np.arange(len(rows)) - np.repeat(starts, counts) < RACED_PER_PROBLEM)
        raced = np.add.reduceat(near, starts, dtype=np.int64)
        near &= np.repeat(raced > 1, counts)
        return Groups.of(self._vectors.column("at")[rows[near]], np.cumsum(raced[raced > 1]))


def _flags(record: Outcome, retry: Collection[str]) -> int:
    done = 0 if record.status in retry else DONE
    return done | DOUBTFUL | UNSURE if record.unsure and record.status == "ok" else done


def _name(problem: Mapping[str, Any]) -> str:
    return msgspec.json.encode(list(problem.items())).decode()
