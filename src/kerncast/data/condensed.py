"""Rows condensed to a few numbers each: what tells ten million of them apart takes half a gigabyte, their columns take five.

Problems, configs and measurements are hashes of 64 bits, texts are numbers. What a row is in words is read again, for the few
rows that are shown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from kerncast.data import schema

# Texts of which a dataset has few different ones, and the type of their numbers.
CODED: dict[str, type[pl.DataType]] = {"device": pl.UInt32, "status": pl.UInt8, "source": pl.UInt32}
COUNTED = ("device", "software", "backend", "status")
# What is read of each row, besides its parameters.
READ = (*schema.REPEAT_OF, "device", "status", "time_ns", "source", "source_line", "order")
OK = "ok"
# The place of each row among all rows.
PLACE = pl.int_range(pl.len(), dtype=pl.Int64)


@dataclass(frozen=True)
class Condensed:
    """The rows of a family in numbers, and what was counted on the way."""

    frame: pl.DataFrame
    """`problem`, `config`, `key` (in the order of the keys), `repeat`, `device`, `status`, `time_ns`; of imported rows also
    `source` and `source_line`."""
    labels: dict[str, list[str | None]]
    """The texts of the numbers in `device`, `status` and `source`."""
    counts: dict[str, dict[str, int]]
    """How many rows have each device, software, backend and status, the most frequent first."""
    constants: dict[str, Any]
    """The parameters that have one value everywhere."""
    configurable: bool
    """Whether the family has anything to choose."""
    measured_in_order: bool
    """Whether every row was recorded as it was measured."""

    @property
    def ok(self) -> pl.Expr:
        """Which rows have a time."""
        found = self.labels["status"]
        return pl.col("status") == found.index(OK) if OK in found else pl.lit(False)

    def named(self, column: str) -> pl.Expr:
        """A column of texts again."""
        labels = pl.Series(self.labels[column], dtype=pl.String)
        return pl.lit(labels).gather(pl.col(column))


def condense(pieces: Iterable[pl.DataFrame]) -> Condensed:
    """Rows that are given in pieces, with the columns `READ` and their parameters."""
    found: dict[str, list[pl.Series]] = {}
    codes: dict[str, dict[str | None, int]] = {name: {} for name in CODED}
    counts: dict[str, Counter[str]] = {name: Counter() for name in COUNTED}
    constants: dict[str, Any] | None = None
    in_order, configs = True, list[str]()
    for rows in pieces:
        problems, configs = (names_of(rows, half) for half in ("problem", "config"))
        if not rows.height:
            continue
        for name, counted in counts.items():
            for value, count in rows[name].value_counts(name="len").iter_rows():
                counted["unknown" if value is None else str(value)] += count
        constants = _still_constant(rows, dict.fromkeys([*problems, *configs]) if constants is None else constants, not found)
        in_order = in_order and not rows["order"].null_count()
        for column in _numbers(rows, problems, configs, codes):
            found.setdefault(column.name, []).append(column)
    # A column at a time, so that not all rows are in memory twice.
    columns = [pl.concat(found.pop(name), rechunk=True) for name in list(found)]
    frame = pl.DataFrame(columns)
    if "source_line" in frame.columns and frame["source_line"].null_count() == frame.height:
        frame = frame.drop("source", "source_line")
    return Condensed(
        frame,
        {name: list(known) for name, known in codes.items()},
        {name: dict(sorted(counted.items(), key=lambda item: (-item[1], item[0]))) for name, counted in counts.items()},
        constants or {},
        bool(configs),
        in_order,
    )


def names_of(rows: pl.DataFrame, half: str) -> list[str]:
    """The columns of the parameters of one half, "problem" or "config"."""
    return [name for name in rows.columns if name.startswith(f"{half}.")]


def halves_of(row: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The problem and the config of a row, without parameters that do not apply."""
    halves = ("problem", "config")
    return {
        half: {
            name.removeprefix(f"{half}."): value
            for name, value in row.items()
            if name.startswith(f"{half}.") and value is not None
        }
        for half in halves
    }


def _still_constant(rows: pl.DataFrame, known: dict[str, Any], first: bool) -> dict[str, Any]:
    """Which of some columns have one value, the one that they had before."""
    alike = [name for name in known if rows[name].n_unique() == 1]
    return {name: rows[name][0] for name in alike if first or rows[name][0] == known[name]}


def _numbers(
    rows: pl.DataFrame, problems: Sequence[str], configs: Sequence[str], codes: dict[str, dict[str | None, int]]
) -> list[pl.Series]:
    empty = pl.Series([0], dtype=pl.UInt64).new_from_index(0, rows.height)
    keys = rows.select(pl.col("key").str.slice(0, 16).str.decode("hex").bin.reinterpret(dtype=pl.UInt64, endianness="big"))
    return [
        rows.select(problems).hash_rows(seed=0).alias("problem"),
        (rows.select(configs).hash_rows(seed=0) if configs else empty).alias("config"),
        keys.to_series().alias("key"),
        rows.select(schema.REPEAT_OF).hash_rows(seed=0).alias("repeat"),
        *(_coded(rows[name], codes[name], kind) for name, kind in CODED.items()),
        rows["time_ns"],
        rows["source_line"],
    ]


def _coded(column: pl.Series, known: dict[str | None, int], kind: type[pl.DataType]) -> pl.Series:
    """The number of each text; new ones are added to those that are known."""
    for value in column.unique(maintain_order=True):
        known.setdefault(value, len(known))
    return column.replace_strict(list(known), list(known.values()), return_dtype=kind)
