"""Rows condensed to a few numbers each, and the measurements among them that were taken more than once.

What tells ten million rows apart takes half a gigabyte, their columns take five. Problems, configs and measurements are hashes
of 64 bits, texts are numbers. What a row is in words is read again, for the few rows that are shown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from kerncast.core.arrays import Ints
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


Report = dict[str, Any]
RowsAt = Callable[[Ints, Sequence[str] | None], pl.DataFrame]
"""Some rows by their places, with some columns (None: with all that are read)."""

SIZE_BANDS = (("under 10 us", 1e4), ("10 to 100 us", 1e5), ("100 us to 1 ms", 1e6), ("1 to 10 ms", 1e7), ("over 10 ms", np.inf))
# Repeats of one measurement that differ by more than this factor contradict each other.
DISAGREEMENT = 1.5
# Of each kind of finding, this many are listed.
EXAMPLES = 5


def repeated(rows: Condensed) -> pl.DataFrame:
    """One row per measurement taken more than once: its median, extremes and relative deviation, and where its first row is."""
    return spread_of(rows.frame.lazy().select("repeat", "time_ns", rows.ok.alias("ok"), at=PLACE).filter("ok").drop("ok"))


def spread_of(rows: pl.LazyFrame) -> pl.DataFrame:
    """The same of rows that all have a time, given as `repeat`, `time_ns` and `at`."""
    times = rows.collect()
    again = times.filter(times["repeat"].is_duplicated())
    time_ns = pl.col("time_ns")
    return again.group_by("repeat", maintain_order=True).agg(
        repeats=pl.len(),
        median_ns=time_ns.median(),
        fastest_ns=time_ns.min(),
        slowest_ns=time_ns.max(),
        deviation=((time_ns - time_ns.median()).abs().median() / time_ns.median()),
        at=pl.col("at").first(),
    )


def noise(again: pl.DataFrame) -> list[Report]:
    """Spread of repeats by size of the measurement: relative MAD, and slowest ÷ fastest."""
    bands = []
    low = 0.0
    for name, high in SIZE_BANDS:
        band = again.filter((pl.col("median_ns") >= low) & (pl.col("median_ns") < high))
        low = high
        if band.height:
            ratio = band["slowest_ns"] / band["fastest_ns"]
            bands.append(
                {
                    "band": name,
                    "measurements": band.height,
                    "relative_mad_median": band["deviation"].median(),
                    "relative_mad_p90": band["deviation"].quantile(0.9),
                    "slowest_over_fastest_median": ratio.median(),
                    "slowest_over_fastest_p99": ratio.quantile(0.99),
                }
            )
    return bands


def disagreements(rows: pl.DataFrame) -> Report:
    """What contradicts itself in some rows, as a dataset stores them."""
    found = condense([rows.select(*READ, *(name for name in rows.columns if name.startswith(("problem.", "config."))))])
    return contradictions(found, repeated(found), lambda places, columns: rows[places].select(columns or pl.all()))


def contradictions(rows: Condensed, again: pl.DataFrame, rows_at: RowsAt) -> Report:
    """Repeats that contradict each other: times far apart, or success and failure of the same thing."""
    far = again.filter(pl.col("slowest_ns") > DISAGREEMENT * pl.col("fastest_ns"))
    far = far.with_columns(ratio=pl.col("slowest_ns") / pl.col("fastest_ns"))
    # Equal ones in the order of their keys, whose beginnings are held.
    far = far.with_columns(order=rows.frame["key"].gather(far["at"])).sort("ratio", "order", descending=[True, False])
    worst = far.head(EXAMPLES)
    keys = rows_at(worst["at"].to_numpy(), ["key"]) if worst.height else pl.DataFrame({"key": []})
    shown = pl.concat([keys, worst.select("repeats", "fastest_ns", "slowest_ns", "ratio")], how="horizontal")
    placed = rows.frame.select("repeat", "status", at=PLACE)
    ended = placed.filter(placed["repeat"].is_duplicated()) if rows.frame["status"].n_unique() > 1 else placed.clear()
    mixed = (
        ended.group_by("repeat", maintain_order=True)
        .agg(ends=pl.col("status").n_unique(), at=pl.col("at").first())
        .filter(pl.col("ends") > 1)
    )
    return {
        "factor": DISAGREEMENT,
        "measurements": far.height,
        "worst": shown.to_dicts(),
        "mixed_statuses": mixed.height,
        "mixed_examples": _examples(rows, ended, mixed.head(EXAMPLES), rows_at),
    }


def _examples(rows: Condensed, ended: pl.DataFrame, mixed: pl.DataFrame, rows_at: RowsAt) -> list[Report]:
    """Measurements whose rows ended differently: what each is, and how many rows have each status."""
    if not mixed.height:
        return []
    examples = []
    for row, repeat in zip(rows_at(mixed["at"].to_numpy(), None).iter_rows(named=True), mixed["repeat"], strict=True):
        ends = ended.filter(pl.col("repeat") == repeat)["status"].value_counts(name="len")
        counted = sorted((str(rows.labels["status"][end]), count) for end, count in ends.iter_rows())
        examples.append({"key": row["key"], "device": row["device"], **halves_of(row), "statuses": dict(counted)})
    return examples
