"""What is known of the vectors of a running collection: which are done, how fast they were, which to measure again.

There may be millions of vectors. What they are is in the journal; only numbers and the positions of their lines are held, in
columns sorted by the hash of a key.
"""

from __future__ import annotations

import hashlib
import math
import random
import re
from array import array
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from kerncast.core.arrays import Array, Flags, Ints
from kerncast.data.journal import Outcome

KEY_BYTES = 12
_HEX = re.compile("[0-9a-f]*")
_KEY = re.compile(f"[0-9a-f]{{{2 * KEY_BYTES}}}")
# New keys wait in a dictionary, which takes ten times as much per key: at most this many, or this share of all keys.
FEWEST_WAITING, MOST_WAITING, WAITING_SHARE = 2048, 8192, 1 / 128
# Room for more keys is taken in steps: this share of what is there.
GROWTH = 1 / 8


def digest(key: str) -> bytes:
    """The bytes of a vector's key; any other text by its hash."""
    if _KEY.fullmatch(key):
        return bytes.fromhex(key)
    return hashlib.blake2b(key.encode(), digest_size=KEY_BYTES).digest()


def digests(keys: Sequence[str] | pl.Series) -> Array:
    """The bytes of very many keys."""
    texts = list(keys)
    joined = "".join(texts)
    if set(map(len, texts)) == {2 * KEY_BYTES} and _HEX.fullmatch(joined):
        return np.frombuffer(bytes.fromhex(joined), f"S{KEY_BYTES}")
    return np.array([digest(key) for key in texts], f"S{KEY_BYTES}")


class KeyedColumns:
    """Numbers by key. A key that was never set has the defaults."""

    def __init__(self, **columns: tuple[npt.DTypeLike, Any]) -> None:
        self._names = tuple(columns)
        self._defaults = [default for _, default in columns.values()]
        self._size = 0
        """How many keys are sorted in; the arrays have room for more."""
        self._all_keys: Array = np.empty(0, f"S{KEY_BYTES}")
        self._all: dict[str, Array] = {name: np.empty(0, kind) for name, (kind, _) in columns.items()}
        self._waiting: dict[bytes, list[Any]] = {}

    def __len__(self) -> int:
        return self._size + len(self._waiting)

    @property
    def _keys(self) -> Array:
        return self._all_keys[: self._size]

    def reserve(self, keys: int) -> None:
        """Take the memory for so many keys now, so that it does not grow while they come."""
        if keys <= len(self._all_keys):
            return
        self._all_keys = _widened(self._all_keys, self._size, keys)
        for name, values in self._all.items():  # one at a time, so that not all numbers are in memory twice
            self._all[name] = _widened(values, self._size, keys)

    def get(self, key: str, name: str) -> Any:
        found = digest(key)
        waiting = self._waiting.get(found)
        if waiting is not None:
            return waiting[self._names.index(name)]
        place = self._place(found)
        return self._defaults[self._names.index(name)] if place is None else self._all[name][place].item()

    def set(self, key: str, **values: Any) -> None:
        """Set some numbers of a key; the others stay."""
        found = digest(key)
        place = None if found in self._waiting else self._place(found)
        if place is not None:
            for name, value in values.items():
                self._all[name][place] = value
            return
        waiting = self._waiting.setdefault(found, list(self._defaults))
        for name, value in values.items():
            waiting[self._names.index(name)] = value
        if len(self._waiting) > min(MOST_WAITING, max(FEWEST_WAITING, WAITING_SHARE * self._size)):
            self._sort_in()

    def load(self, keys: Array, **columns: Array) -> None:
        """Set all numbers of very many keys, given by their digests; those that are left out are the defaults.

        Of equal keys the last one counts.
        """
        self._sort_in()
        old = self._keys
        joined = np.concatenate([old, keys.astype(old.dtype)])
        order = np.argsort(joined, kind="stable")
        joined = joined[order]
        last = np.r_[joined[1:] != joined[:-1], True] if len(joined) else np.zeros(0, bool)
        order = order[last]
        size = self._size
        self.reserve(len(order))
        self._all_keys[: len(order)] = joined[last]
        del joined, old
        for name, default in zip(self._names, self._defaults, strict=True):
            values = self._all[name]
            given = columns.get(name)
            added = np.full(len(keys), default, values.dtype) if given is None else given
            values[: len(order)] = np.concatenate([values[:size], added])[order]
        self._size = len(order)

    def mark(self, keys: Array, name: str, mark: int) -> None:
        """Set a flag of very many keys, given by their digests."""
        self._sort_in()
        places = np.minimum(np.searchsorted(self._keys, keys), max(0, self._size - 1))
        known = self._keys[places] == keys if self._size else np.zeros(len(keys), dtype=bool)
        self._all[name][places[known]] |= mark
        new = keys[~known]
        self.load(new, **{name: np.full(len(new), mark, self._all[name].dtype)})

    def _place(self, found: bytes) -> int | None:
        # Numpy leaves out zeros at the end of a text, on both sides of a comparison.
        keys = self._keys
        place = int(np.searchsorted(keys, np.bytes_(found)))
        return place if place < self._size and keys[place] == found.rstrip(b"\0") else None

    def column(self, name: str) -> Array:
        """The numbers of all keys, in the order of the keys; what is written into it is kept."""
        self._sort_in()
        return self._all[name][: self._size]

    def marked(self, keys: pl.Series, name: str, mark: int) -> Flags:
        """For which of some keys a flag is set."""
        self._sort_in()
        wanted = digests(keys)
        if not self._size or not len(wanted):
            return np.zeros(len(wanted), dtype=bool)
        # In order, so that each search begins near the end of the one before: a third less time, sorting included.
        order = np.argsort(wanted)
        places = np.minimum(np.searchsorted(self._keys, wanted[order]), self._size - 1)
        flags = np.empty(len(wanted), bool)
        flags[order] = (self._keys[places] == wanted[order]) & (self._all[name][places] & mark != 0)
        return flags

    def _sort_in(self) -> None:
        if not self._waiting:
            return
        new = np.array(list(self._waiting), self._all_keys.dtype)
        order = np.argsort(new)
        new, places = new[order], np.searchsorted(self._keys, new[order])
        if self._size + len(new) > len(self._all_keys):
            self.reserve(self._size + max(len(new), int(GROWTH * self._size)))
        _insert(self._all_keys, self._size, places, new)
        for number, values in enumerate(self._all.values()):
            added = np.array([row[number] for row in self._waiting.values()], values.dtype)[order]
            _insert(values, self._size, places, added)
        self._size += len(new)
        self._waiting.clear()


def _widened(values: Array, size: int, room: int) -> Array:
    """The first values of an array in one with more room, all of which is in memory."""
    found = np.empty(room, values.dtype)
    found.view(np.uint8)[:] = 0  # what was never written takes no memory yet
    found[:size] = values[:size]
    return found


def _insert(values: Array, size: int, places: Array, new: Array) -> None:
    """Insert new values before those at some places, in the room behind the first `size`: no copy of all of them is made."""
    end = size
    for number in range(len(new), 0, -1):
        start = int(places[number - 1])
        if start < end:
            values[start + number : end + number] = values[start:end]
            end = start
    values[places + np.arange(len(new))] = new


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
    seed: int | None = None
    """The groups are measured in an order that this draws; None: in theirs."""

    @property
    def vectors(self) -> int:
        return len(self.places)

    def __iter__(self) -> Iterator[Ints]:
        order = list(range(len(self.ends)))
        if self.seed is not None:
            random.Random(self.seed).shuffle(order)
        for group in order:
            yield self.places[self.ends[group - 1] if group else 0 : self.ends[group]]


class KnownVectors:
    """What is known of each vector and of each problem."""

    def __init__(self) -> None:
        self._vectors = KeyedColumns(
            flags=(np.uint8, 0), time_ns=(np.float64, np.nan), mad=(np.float32, 0.0), at=(np.int64, -1), problem=(np.int32, -1)
        )
        self._problems = KeyedColumns(number=(np.int32, -1), best_ns=(np.float64, 0.0))

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
        return Groups(places, np.r_[np.arange(size, len(places), size), len(places)][: -(-len(places) // size)])

    def near_ties(self) -> Groups:
        """The fastest few of each problem that has near-ties, a problem at a time."""
        times = self._vectors.column("time_ns")
        rows = np.flatnonzero(np.isfinite(times))
        if not len(rows):
            return Groups(rows, rows)
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
        return Groups(self._vectors.column("at")[rows[near]], np.cumsum(raced[raced > 1]))


def _flags(record: Outcome, retry: Collection[str]) -> int:
    done = 0 if record.status in retry else DONE
    return done | DOUBTFUL | UNSURE if record.unsure and record.status == "ok" else done


def _name(problem: Mapping[str, Any]) -> str:
    return msgspec.json.encode(list(problem.items())).decode()
