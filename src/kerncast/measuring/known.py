"""What is known of millions of vectors, in a few dozen bytes each: columns of numbers, sorted by the hash of a key."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from kerncast.core.arrays import Array, Flags

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


class Known:
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
        asked, number = digests(keys), self._names.index(name)
        found = _flagged(self._keys, self._all[name][: self._size], asked, mark)
        if self._waiting:
            waiting = np.array(list(self._waiting), self._all_keys.dtype)
            order = np.argsort(waiting)
            flags = np.array([row[number] for row in self._waiting.values()], self._all[name].dtype)
            found |= _flagged(waiting[order], flags[order], asked, mark)
        return found

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


def _flagged(keys: Array, flags: Array, asked: Array, mark: int) -> Flags:
    """For which of some keys a flag is set, by a sorted list of keys and their flags."""
    if not len(keys) or not len(asked):
        return np.zeros(len(asked), dtype=bool)
    # In order, so that each search begins near the end of the one before: a third less time, sorting included.
    order = np.argsort(asked)
    places, found = np.minimum(np.searchsorted(keys, asked[order]), len(keys) - 1), np.empty(len(asked), bool)
    found[order] = (keys[places] == asked[order]) & (flags[places] & mark != 0)
    return found


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
