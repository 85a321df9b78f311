"""What the name and the cells of a column say about it, for drafting a mapping."""

from __future__ import annotations

import re
from functools import lru_cache

import polars as pl

TIME_WORDS = ("time", "latency", "duration", "feedback", "runtime", "elapsed")
# Columns beside the time that have its name in theirs.
NOT_THE_TIME = {
    "build", "compile", "cv", "date", "end", "err", "limit", "max", "min", "p90", "p95", "p99", "start", "std", "stddev",
    "stdev", "step", "steps", "timeout", "timestamp", "var", "variance", "warmup",
}  # fmt: skip
UNITS = {
    "ns": "ns", "nanoseconds": "ns", "nsec": "ns", "us": "us", "microseconds": "us", "usec": "us", "µs": "us", "μs": "us",
    "ms": "ms", "milliseconds": "ms", "msec": "ms", "s": "s", "seconds": "s", "sec": "s",
}  # fmt: skip
FILLERS = ("size", "dim", "num", "param", "problem", "config")
# A table with more different cells than this in a column does not hold labels.
MOST_LABELS = 32
# A column is judged by most of its cells: an import skips odd rows, and refuses a table only if more than half of it is odd.
FITTING = 0.5
# Labels that nobody knows are asked about, unless they are as rare as this: then their rows are odd.
ODD = 0.01


@lru_cache(maxsize=100_000)
def words(name: str) -> tuple[str, ...]:
    """The words of a column's name; `latencyMs` has two."""
    parted = re.sub(r"(?<=[a-z0-9])(?=[A-Z][a-z])", " ", name)
    return tuple(word for word in re.split(r"[^a-z0-9µμ]+", parted.lower()) if word)


def plain(name: str) -> str:
    """A column name without case, punctuation and filler words."""
    return "".join(word for word in words(name) if word not in FILLERS)


def texts(cells: pl.Series) -> pl.Series:
    """The cells as text; no null."""
    found = cells.cast(pl.String).fill_null("")
    return found.str.to_lowercase() if cells.dtype == pl.Boolean else found  # as in TOML


def labels_of(cells: pl.Series) -> list[str]:
    """The different texts in a column, sorted; none if there are too many to be labels."""
    found = texts(cells).unique()
    return sorted(text for text in found.to_list() if text != "") if found.len() <= MOST_LABELS + 1 else []


def whole_numbers(cells: pl.Series) -> pl.Series:
    """The cells that are whole numbers of a size that parameters have; null elsewhere."""
    found = texts(cells)
    plain_numbers = found.str.replace(r"^(-?\d+)\.0+$", "${1}")
    return plain_numbers.set(~plain_numbers.str.contains(r"^-?\d{1,15}$"), None).cast(pl.Int64)


def times_of(cells: pl.Series) -> tuple[pl.Series, pl.Series]:
    """The numbers of cells such as `5.41` and `5.41 us`, and the unit that each cell says itself; null where there is none."""
    found = texts(cells)
    plain_numbers = found.cast(pl.Float64, strict=False)
    if not (plain_numbers.is_null() & (found != "")).any():
        return plain_numbers, pl.Series(found.name, [None], dtype=pl.String).new_from_index(0, found.len())
    parts = found.str.extract_groups(r"^\s*([+-]?[\d.]+(?:[eE][+-]?\d+)?)\s*([A-Za-zµμ]+)\s*$").struct
    units = parts[1].str.to_lowercase().replace_strict(UNITS, default=None, return_dtype=pl.String)
    with_unit = parts[0].cast(pl.Float64, strict=False).set(units.is_null(), None)
    return plain_numbers.zip_with(with_unit.is_null(), with_unit), units.set(with_unit.is_null(), None)


def numbers(cells: pl.Series) -> pl.Series:
    """The cells that are finite numbers; null elsewhere."""
    found = texts(cells).cast(pl.Float64, strict=False)
    return found.set(~found.is_finite(), None)
