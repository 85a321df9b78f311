"""Measurements that were taken more than once: how noisy they are, and where they contradict each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import polars as pl

from kerncast.core.arrays import Ints
from kerncast.data.condensed import PLACE, READ, Condensed, condense, halves_of

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
