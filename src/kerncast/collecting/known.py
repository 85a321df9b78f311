"""What is known of millions of vectors, in a few dozen bytes each: columns of numbers, sorted by the hash of a key."""

from __future__ import annotations

import hashlib
import re
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from kerncast.arrays import Array, Flags

KEY_BYTES = 12
_KEY = re.compile(f"[0-9a-f]{{{2 * KEY_BYTES}}}")
# New keys wait in a dictionary, which takes ten times as much per key: at most this many, or this share of all keys.
FEWEST_WAITING, WAITING_SHARE = 2048, 1 / 128


def digest(key: str) -> bytes:
    """The bytes of a vector's key; any other text by its hash."""
    if _KEY.fullmatch(key):
        return bytes.fromhex(key)
    return hashlib.blake2b(key.encode(), digest_size=KEY_BYTES).digest()


class Known:
    """Numbers by key. A key that was never set has the defaults."""

    def __init__(self, **columns: tuple[npt.DTypeLike, Any]) -> None:
        self._names = tuple(columns)
        self._defaults = [default for _, default in columns.values()]
        self._keys: Array = np.empty(0, f"S{KEY_BYTES}")
        self._columns: dict[str, Array] = {name: np.empty(0, kind) for name, (kind, _) in columns.items()}
        self._waiting: dict[bytes, list[Any]] = {}

    def __len__(self) -> int:
        return len(self._keys) + len(self._waiting)

    def get(self, key: str, name: str) -> Any:
        found = digest(key)
        waiting = self._waiting.get(found)
        if waiting is not None:
            return waiting[self._names.index(name)]
        place = self._place(found)
        return self._defaults[self._names.index(name)] if place is None else self._columns[name][place].item()

    def set(self, key: str, **values: Any) -> None:
        """Set some numbers of a key; the others stay."""
        found = digest(key)
        place = None if found in self._waiting else self._place(found)
        if place is not None:
            for name, value in values.items():
                self._columns[name][place] = value
            return
        waiting = self._waiting.setdefault(found, list(self._defaults))
        for name, value in values.items():
            waiting[self._names.index(name)] = value
        if len(self._waiting) > max(FEWEST_WAITING, WAITING_SHARE * len(self._keys)):
            self._sort_in()

    def _place(self, found: bytes) -> int | None:
        # Numpy leaves out zeros at the end of a text, on both sides of a comparison.
        place = int(np.searchsorted(self._keys, np.bytes_(found)))
        return place if place < len(self._keys) and self._keys[place] == found.rstrip(b"\0") else None

    def column(self, name: str) -> Array:
        """The numbers of all keys, in the order of the keys; what is written into it is kept."""
        self._sort_in()
        return self._columns[name]

    def marked(self, keys: pl.Series, name: str, mark: int) -> Flags:
        """For which of some keys a flag is set."""
        marks = self.column(name)
        asked = np.array([digest(key) for key in keys], self._keys.dtype)
        if not len(marks) or not len(asked):
            return np.zeros(len(asked), dtype=bool)
        places = np.minimum(np.searchsorted(self._keys, asked), len(marks) - 1)
        return np.asarray((self._keys[places] == asked) & (marks[places] & mark != 0))

    def _sort_in(self) -> None:
        if not self._waiting:
            return
        new = np.array(list(self._waiting), self._keys.dtype)
        order = np.argsort(new)
        new, places = new[order], np.searchsorted(self._keys, new[order])
        # A column at a time, so that not all numbers are in memory twice.
        self._keys = np.insert(self._keys, places, new)
        for number, (name, values) in enumerate(self._columns.items()):
            added = np.array([row[number] for row in self._waiting.values()], values.dtype)[order]
            self._columns[name] = np.insert(values, places, added)
        self._waiting.clear()
