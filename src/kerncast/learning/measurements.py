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
from kerncast.core.parameters import Bool, Categorical
from kerncast.core.progress import Progress
from kerncast.data import schema
from kerncast.data.dataset import Dataset
from kerncast.data.filters import Condition, columns_of, draw_problems, resolved
from kerncast.data.label_shift import NOT_SUSPECT
from kerncast.data.schema import LABEL
from kerncast.errors import InvalidValue

COUNT = "__count"


def label_table(family: Family, rows: pl.DataFrame) -> pl.DataFrame | None:
    """What each config is called, and on which problems: `problem.*` of the parameters that decide, `config.*`, `label`.

    The fewest parameters that tell names apart are used, and those whose only measured value all names contain: a kernel that
    is called `gemm_fp16_…` is no kernel for bf16, though the rows have nothing to compare it with. If one config still has
    several names on the same problems, the most frequent one counts. None: the rows have no names.
    """
    configs = [f"config.{name}" for name in family.config.parameters]
    if not configs or LABEL not in rows.columns:
        return None
    named = rows.filter(pl.col(LABEL).is_not_null())
    if named.is_empty():
        return None
    categorical = [
        f"problem.{name}" for name, parameter in family.problem.parameters.items() if isinstance(parameter, Categorical | Bool)
    ]
    counted = named.group_by(*configs, *categorical, LABEL).agg(pl.len().alias(COUNT))
    by = [column for column in categorical if _is_said(named, column)]
    ambiguous = _ambiguous(counted, configs)
    while ambiguous:
        left = {column: _ambiguous(counted, [*configs, *by, column]) for column in categorical if column not in by}
        best = min(left, key=lambda column: left[column], default=None)
        if best is None or left[best] >= ambiguous:
            break
        by.append(best)
        ambiguous = left[best]
    keys = [*by, *configs]
    total = counted.group_by(*keys, LABEL).agg(pl.col(COUNT).sum()).sort(COUNT, LABEL, descending=[True, False])
    found = total.group_by(keys, maintain_order=True).agg(pl.col(LABEL).first())
    return found.sort(keys, nulls_last=True)


def _is_said(named: pl.DataFrame, column: str) -> bool:
    """Whether a parameter has one value in these rows, and that is a part of every name."""
    values = named[column].unique()
    if len(values) != 1 or not isinstance(values[0], str):
        return False
    words = named[LABEL].unique().str.to_lowercase().str.replace_all(r"[^a-z0-9]+", "_")
    return bool(("_" + words + "_").str.contains(f"_{values[0].lower()}_", literal=True).all())


def _ambiguous(counted: pl.DataFrame, keys: list[str]) -> int:
    """Groups that have more than one name."""
    return counted.group_by(keys).agg(pl.col(LABEL).n_unique().alias(COUNT)).filter(pl.col(COUNT) > 1).height


def with_earlier(found: pl.DataFrame | None, earlier: pl.DataFrame | None) -> pl.DataFrame | None:
    """Names of new rows, and those of an earlier model where the new rows have none."""
    if found is None or earlier is None:
        return earlier if found is None else found
    if set(earlier.columns) != set(found.columns):  # they depend on other parameters, so they cannot be told apart
        return found
    keys = [name for name in found.columns if name != LABEL]
    both = pl.concat([found, earlier.select(found.columns)])
    return both.unique(keys, keep="first", maintain_order=True).sort(keys, nulls_last=True)


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
    rows = rows if CELLS in rows.columns else _narrowed(family, rows)
    rows = (schema.distinct_rows(rows) if rows[CELLS].is_duplicated().any() else rows).drop(CELLS)
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


# So many times the rows that are asked for are read: repeats of a measurement become one, and whole problems are drawn again.
MARGIN = 8
# Fewer rows are all read: a draw among all of them is the same for a dataset of any size.
READ_WHOLE = 5_000_000


@dataclass(frozen=True)
class ProblemSample:
    """How many rows are wanted, and by which seed they are drawn."""

    rows: int
    seed: int

    def drawn(
        self, family: Family, holders: Sequence[Dataset], where: Sequence[Condition], progress: Progress
    ) -> tuple[Condition, ...]:
        """The conditions, and a draw of problems if there are far more rows than are wanted."""
        total = sum(dataset.rows_of(family) for dataset in holders)
        # Suspect rows are found by their neighbours, so all rows are needed to leave them out.
        if not self.rows or total <= max(READ_WHOLE, 2 * MARGIN * self.rows) or NOT_SUSPECT in where:
            return tuple(where)
        pieces = (piece for dataset in holders for piece in dataset.pieces(family, where, columns_of(family)))
        draw, rows = draw_problems(family, pieces, max(MARGIN * self.rows, READ_WHOLE // 5), self.seed)
        progress.say(f"of {total:,} rows, {rows:,} are read: whole problems, drawn by the seed")
        return (*where, draw)
