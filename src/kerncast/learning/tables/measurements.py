"""The rows of datasets as a table needs them: some of their columns, each measurement once, repeats folded into one row.

A million rows with all their columns take half a gigabyte, and grouping them takes as much again. So rows are read a piece at
a time, only what a table needs is kept, and repeats are folded some keys at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np
import polars as pl

from kerncast.core.arrays import Ints
from kerncast.core.op import Family
from kerncast.data import schema
from kerncast.data.dataset import Dataset
from kerncast.data.filters import Condition, resolved
from kerncast.errors import InvalidValue
from kerncast.learning.tables.label_table import label_table

# From the median absolute deviation to a standard deviation, for normal errors.
MAD_TO_SIGMA = 1.4826
# Repeats that differ by more than this factor contradict each other, and it is unknown which is right.
CONTRADICTION = 100.0
# What a table reads, besides the parameters.
READ = (
    "key", "device", "status", "time_ns", "time_ns_std", "time_ns_mad", "samples", "backend", "software", "cache", "source",
    "source_line", "run_id", "order", schema.LABEL,
)  # fmt: skip
# What besides device and software makes times that are not repeats of each other.
CONDITIONS = ("backend", "cache")
# A hash of all cells of a row, also of those that are not read: 64 bits, next to the cells that are.
CELLS = "__cells"
VISIT = "__visit"
# Repeated rows that are grouped at a time.
FOLDED_ROWS = 200_000


def read_measurements(family: Family, datasets: Iterable[Dataset], where: Sequence[Condition]) -> Iterator[pl.DataFrame]:
    """The rows of some datasets, a piece at a time, with the columns that a table reads."""
    return (_narrowed(family, piece) for dataset in datasets for piece in dataset.pieces(family, where))


def resolved_software(family: Family, datasets: Sequence[Dataset], where: Sequence[str]) -> tuple[Condition, ...]:
    """The conditions with short names of software resolved: the newest version of a device, in all the datasets together."""
    known = cache(lambda: [pair for dataset in datasets for pair in dataset.devices_and_software(family)])
    return resolved(where, known, f"{family.id} in {', '.join(str(dataset.path) for dataset in datasets)}")


def stacked(pieces: list[pl.DataFrame]) -> pl.DataFrame:
    """One frame of some pieces, which are taken from the list.

    Its columns are contiguous: else most operations would first copy the whole frame to make them so. They are made one at a
    time, so that not all rows are in memory twice.
    """
    names, columns = pieces[0].columns, [piece.get_columns() for piece in pieces]
    pieces.clear()
    return pl.DataFrame([pl.concat([column.pop(0) for column in columns], rechunk=True) for _ in names])


def rows_where(columns: list[pl.Series], kept: pl.Series) -> pl.DataFrame:
    """Some of the rows whose columns are in a list. The list is emptied, so that not all rows are in memory twice."""
    return pl.DataFrame([columns.pop(0).filter(kept).rechunk() for _ in range(len(columns))])


def _narrowed(family: Family, rows: pl.DataFrame) -> pl.DataFrame:
    return rows.select(*schema.parameter_columns(family), *READ, rows.hash_rows(seed=0).alias(CELLS))


@dataclass(frozen=True)
class Folded:
    """Measurements with their repeats folded: what a table is made of, in less than half the memory of the rows."""

    frame: pl.DataFrame
    """One row per key: `device`, `problem.*`, `config.*`, by which it is sorted; `time_ns` (null: it failed), `noise`,
    `half_a`, `half_b`."""
    software: tuple[str, ...]
    labels: pl.DataFrame | None
    """What each config is called (see `label_table`)."""
    conditions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """How it was measured: the different values of CONDITIONS, where the rows say them."""
    device_software: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The software of the rows of each device, where they say it."""

    @classmethod
    def of(cls, family: Family, columns: list[pl.Series]) -> Folded:
        """The measurements of some rows, given as a list of their columns, which is emptied: sorting them takes as much
        memory again."""
        rows = pl.DataFrame(columns)
        columns.clear()
        software, labels = tuple(sorted(rows["software"].drop_nulls().unique())), label_table(family, rows)
        said = {name: tuple(sorted(rows[name].drop_nulls().unique())) for name in CONDITIONS if name in rows.columns}
        pairs = rows.select("device", "software").drop_nulls().unique().sort("device", "software").rows()
        frame = fold_repeats(family, rows)
        del rows
        sorted_rows = frame.sort("device", *schema.parameter_columns(family), nulls_last=True)
        by_device = {device: tuple(text for name, text in pairs if name == device) for device, _ in pairs}
        return cls(sorted_rows, software, labels, {name: values for name, values in said.items() if values}, by_device)


def fold_repeats(family: Family, rows: pl.DataFrame) -> pl.DataFrame:
    """One row per key: the median of its repeats, their spread, and the medians of two halves made at different times.

    The rows may be those of `read_measurements` or all columns of a dataset. As in `merge`, rows that are equal in every cell
    are one measurement given twice, not a repeat without noise.
    """
    rows = _given_once(rows if CELLS in rows.columns else _narrowed(family, rows))
    # If configs are compared, the median of an even number is the faster of the two in the middle: disturbances only slow
    # a measurement down. If only times are predicted, that would make them too short.
    keys = rows["key"].hash(0)
    problems = rows.select(f"problem.{name}" for name in family.problem.parameters).hash_rows(seed=0)
    choosing = keys.n_unique() > problems.n_unique()
    repeated = keys.is_duplicated()
    if not repeated.any():
        return _measured_once(family, rows)
    rows = rows.with_columns(pl.Series(VISIT, _visits(family, rows)))
    again, keys = rows.filter(repeated), keys.filter(repeated)
    buckets = -(-again.height // FOLDED_ROWS)
    folded = [
        _folded(family, again if buckets == 1 else again.filter(keys % buckets == number), choosing)
        for number in range(buckets)
    ]
    _refuse_contradictions(family, [part.filter(pl.col("spread") > CONTRADICTION) for part in folded])
    return pl.concat([_measured_once(family, rows.filter(~repeated)), *(part.drop("key", "spread") for part in folded)])


def _given_once(rows: pl.DataFrame) -> pl.DataFrame:
    return (schema.distinct_rows(rows) if rows[CELLS].is_duplicated().any() else rows).drop(CELLS)


_OK = pl.col("status") == "ok"
# What a measurement says of its own noise: the standard error of its samples.
_OF_ONE_RUN = pl.coalesce(MAD_TO_SIGMA * pl.col("time_ns_mad"), "time_ns_std") / pl.col("time_ns") / pl.col("samples").sqrt()


def _measured_once(family: Family, rows: pl.DataFrame) -> pl.DataFrame:
    """Keys with a single row: the row is the result."""
    unknown = pl.lit(None, pl.Float64)
    return rows.select(
        "device",
        *schema.parameter_columns(family),
        time_ns=pl.when(_OK).then("time_ns"),
        noise=pl.when(_OK).then(_OF_ONE_RUN),
        half_a=unknown,
        half_b=unknown,
    )


def _folded(family: Family, rows: pl.DataFrame, choosing: bool) -> pl.DataFrame:
    """The repeats of some keys."""
    times = pl.col("time_ns").filter(_OK)
    of_repeats = times.log().std() / times.count().sqrt()
    folded = rows.group_by("key", maintain_order=True).agg(
        pl.first("device", *schema.parameter_columns(family)),
        time_ns=times.quantile(0.5, "lower" if choosing else "midpoint"),
        noise=pl.when(times.count() > 1).then(of_repeats).otherwise(_OF_ONE_RUN.filter(_OK).median()),
        spread=times.max() / times.min(),
    )
    return folded.join(_halves(rows.filter(_OK)), on="key", how="left", maintain_order="left")


def _refuse_contradictions(family: Family, found: Sequence[pl.DataFrame]) -> None:
    worst = pl.concat(found)
    if worst.height:
        row = worst.sort("spread", descending=True).row(0, named=True)
        shown = " ".join(
            f"{name.split('.')[1]}={row[name]}" for name in schema.parameter_columns(family) if row[name] is not None
        )
        raise InvalidValue(
            f"{worst.height} measurements have contradictory repeats: the slowest repeat of {shown} takes {row['spread']:.0f} "
            f"times the fastest (key {row['key']}, limit {CONTRADICTION:.0f}); look with `kerncast inspect` and drop one "
            "side with `where`"
        )


def _visits(family: Family, rows: pl.DataFrame) -> Ints:
    """The number of each row's visit, in the order of the visits; a row that failed has none (-1).

    A visit is a stretch of one run (or one file) that measures one problem: repeats within it share the state of the
    machine, and say nothing of another time.
    """
    ok = np.flatnonzero((rows["status"] == "ok").to_numpy())
    origin = rows.select(pl.coalesce("source", "run_id")).to_series()
    # Numbers in the order of the names take less memory than the names.
    ordered = pl.Enum(origin.drop_nulls().unique().sort())
    placed = pl.DataFrame(
        {
            "origin": origin.cast(ordered).to_physical(),
            "place": rows.select(pl.coalesce("source_line", "order")).to_series(),
            "problem": rows.select("device", *(f"problem.{name}" for name in family.problem.parameters)).hash_rows(seed=0),
        }
    )[ok]
    placed = placed.with_columns(at=pl.Series(ok)).sort("origin", "place", maintain_order=True)
    visits = np.full(rows.height, -1, dtype=np.int64)
    visits[placed["at"].to_numpy()] = placed.select(pl.struct("origin", "problem").rle_id()).to_series().to_numpy()
    return visits


def _halves(ok: pl.DataFrame) -> pl.DataFrame:
    """The keys that were visited more than once, with the medians of either half of their visits.

    Visits alternate between the halves, so each has early and late ones.
    """
    visits = ok.group_by("key", VISIT).agg(pl.col("time_ns").median()).sort(VISIT)
    return (
        visits.group_by("key", maintain_order=True)
        .agg(
            count=pl.len(),
            half_a=pl.col("time_ns").gather_every(2).median(),
            half_b=pl.col("time_ns").gather_every(2, 1).median(),
        )
        .filter(pl.col("count") > 1)
        .drop("count")
    )
