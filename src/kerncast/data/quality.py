"""What a dataset holds and what is wrong with it, as plain values that print and serialise.

The rows are read a piece at a time and condensed. Of a dataset that is too large even for that, whole problems are drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import polars as pl

from kerncast.core.io import html
from kerncast.core.io.terminal import TextTable, distinct, printable
from kerncast.core.op import Family
from kerncast.data import manifest, schema
from kerncast.data.condensed import OK, PLACE, READ, Condensed, RowsAt, condense, contradictions, noise, repeated, spread_of
from kerncast.data.dataset import Dataset
from kerncast.data.filters import Condition, columns_of, draw_problems
from kerncast.data.label_shift import DeviceOf, find_shift_in
from kerncast.data.row_checks import Impossible, Report, TooFast, isolated_rows
from kerncast.data.schema import REPEAT_OF
from kerncast.errors import InvalidValue, KerncastError, NotFound
from kerncast.library import devices

SUMMARY_COLUMNS = ("family", "rows", "problems", "configs", "statuses", "devices", "noise")


# Of more rows, problems and configs are not counted and the noise is not looked at: showing a dataset takes a moment.
COUNTED_ROWS = 5_000_000


@dataclass(frozen=True)
class FamilySummary:
    """What a dataset holds of one family."""

    family: str
    rows: int
    problems: int | None
    """A problem counts once for each device. None: there are too many rows to count them for a summary."""
    configs: int | None
    statuses: dict[str, int]
    devices: tuple[str, ...]
    noise: float | None
    """The median relative MAD: of the samples of a row where they are recorded, else of repeated rows; None: not known."""
    pooled: dict[str, int] | None = None
    """How many problems there are without their devices, and how many devices; None: one device, or not counted."""

    @property
    def cells(self) -> tuple[str, ...]:
        """The cells of a table row."""
        statuses = ", ".join(f"{name} {count:,}" for name, count in self.statuses.items())
        noise = "unknown" if self.noise is None else f"{self.noise:.2%}"
        problems, configs = ("not counted" if count is None else f"{count:,}" for count in (self.problems, self.configs))
        problems += distinct(self.pooled)
        return self.family, f"{self.rows:,}", problems, configs, statuses, ", ".join(self.devices), noise


def summaries(dataset: Dataset) -> list[FamilySummary]:
    """One entry per family; reads the columns that it needs, none of them whole."""
    found = []
    for family in dataset.families:
        rows, total = dataset.scan(family), dataset.rows_of(family)
        ends = rows.group_by("status", "device").len().collect(engine="streaming")
        statuses = ends.group_by("status").agg(pl.col("len").sum()).sort("len", "status", descending=[True, False])
        machines = tuple(str(name) for name in ends["device"].unique().sort())
        problems = configs = noise = pooled = None
        if total <= COUNTED_ROWS:
            problems, configs = _distinct(rows, "device", "problem"), _distinct(rows, "config")
            if len(machines) > 1:
                pooled = {"problems": _distinct(rows, "problem"), "devices": len(machines)}
            noise = _noise_of_rows(rows)
        found.append(FamilySummary(family.id, total, problems, configs, dict(statuses.iter_rows()), machines, noise, pooled))
    return found


def _distinct(rows: pl.LazyFrame, *parts: str) -> int:
    """How many different problems, configs or both there are, or problems on devices."""
    columns = [name for name in rows.collect_schema().names() if name.partition(".")[0] in parts]
    if not columns:
        return 1
    return int(rows.select(pl.struct(columns).hash(seed=0)).unique().select(pl.len()).collect(engine="streaming").item())


def noise_of_samples(rows: pl.LazyFrame) -> float | None:
    """The median relative MAD of the samples of a row; None: no row records it."""
    ok = rows.filter(pl.col("status") == "ok")
    # A source that keeps the standard deviation has no MAD: that of a normal distribution is taken.
    spread = pl.coalesce("time_ns_mad", pl.col("time_ns_std") * 0.6745)
    found = ok.select((spread / pl.col("time_ns")).median()).collect(engine="streaming").item()
    return None if found is None else float(found)


def _noise_of_rows(rows: pl.LazyFrame) -> float | None:
    within = noise_of_samples(rows)
    if within is not None:
        return within
    ok = rows.filter(pl.col("status") == "ok")
    between = spread_of(ok.select("time_ns", repeat=pl.struct(REPEAT_OF).hash(seed=0), at=pl.lit(0)))["deviation"].median()
    return between if isinstance(between, float) else None


def _summaries_of(dataset: Dataset) -> tuple[str, list[FamilySummary], str]:
    """A title, the summaries, and an error if they could not be read: showing a dataset never fails."""
    title = f"Dataset({dataset.path}; {sum(part.rows for part in dataset.contents.parts):,} rows)"
    try:
        unfinished = "" if dataset.completeness is None else f"; {dataset.completeness}"
        title = f"Dataset({dataset.path}; {dataset.rows:,} rows{unfinished})"
        return title, summaries(dataset), ""
    except (KerncastError, OSError, pl.exceptions.PolarsError) as error:
        return title, [], f"it cannot be read: {error}"


def dataset_text(dataset: Dataset) -> str:
    """The dataset as a small table."""
    title, found, problem = _summaries_of(dataset)
    if not found:
        return printable(f"{title} {problem}".strip())
    return str(TextTable(SUMMARY_COLUMNS, [item.cells for item in found], title, SUMMARY_COLUMNS[1:4]))


def dataset_html(dataset: Dataset) -> str:
    """The same for a notebook."""
    title, found, problem = _summaries_of(dataset)
    parts = [html.table(SUMMARY_COLUMNS, [item.cells for item in found], right=SUMMARY_COLUMNS[1:4])] if found else []
    return html.panel(title, *parts, *([html.note(problem)] if problem else []))


# Aliases are looked for among at most this many configs, on this many problems.
ALIAS_CONFIGS = 20_000
ALIAS_PROBLEMS = 5
# Of more problems, the fastest configs of the first ones are listed.
MOST_FASTEST = 20_000
# Of more rows, whole problems are looked at: condensed rows take 50 bytes each, and finding the fastest as much again, twice.
MOST_ROWS = 15_000_000
# Rows that are checked for shifted labels: 300,000 take a quarter of a minute.
SHIFT_ROWS = 600_000


@dataclass(frozen=True)
class _RowSource:
    """Where the rows of a family are read from, any number of times."""

    pieces: Callable[[], Iterator[pl.DataFrame]]
    """All of them, with what is read of them."""
    at: RowsAt
    """Some of them, by their places."""


def inspect_dataset(dataset: Dataset, where: Sequence[str] = ()) -> Report:
    """Everything `kerncast inspect` shows: one section per family, and the dataset as a whole."""
    dataset.verify()
    dataset.refuse_if_empty()
    sections = []
    unknown: NotFound | None = None
    for family in dataset.families:
        try:
            section = _section(dataset, family, where)
        except NotFound as error:  # a column that only another family has
            unknown = error
            continue
        if section is not None:
            if dataset.rows_of(family) <= MOST_ROWS:  # these are read of the stored rows by themselves
                section["isolated_times"] = isolated_rows(dataset, family, where)
                section["noise_of_samples"] = noise_of_samples(dataset.scan(family, where))
            sections.append(section)
    if not sections and unknown is not None:
        raise unknown
    if not sections:
        raise InvalidValue(f"no row of {dataset.path} satisfies {' and '.join(where)}")
    return {
        "path": str(dataset.path),
        "digest": dataset.digest,
        "rows": sum(section["rows"] for section in sections),
        "unfinished": None if dataset.completeness is None else asdict(dataset.completeness),
        "sources": [{"name": item.name, "format": item.format, "digest": item.digest} for item in dataset.contents.sources],
        "hardware": [manifest.as_json(item, dataset.device(item.device)) for item in dataset.hardware],
        "families": sections,
    }


def _section(dataset: Dataset, family: Family, where: Sequence[str]) -> Report | None:
    """The section of one family; None: none of its rows satisfies the conditions."""
    columns, conditions = [*READ, *schema.parameter_columns(family)], list[Condition](where)
    total = dataset.rows_of(family)
    if total > MOST_ROWS and where:
        total = int(dataset.scan(family, where).select(pl.len()).collect(engine="streaming").item())
    if total > MOST_ROWS:
        drawn, _ = draw_problems(family, dataset.pieces(family, where, columns_of(family)), MOST_ROWS, 0)
        conditions.append(drawn)
    source = _RowSource(
        lambda: dataset.pieces(family, conditions, columns),
        lambda places, chosen: dataset.rows_at(family, places, conditions, chosen or columns),
    )
    why = "with `where`, which removes neighbouring rows" if where else "in drawn problems, which lack neighbouring rows"
    section = _inspected(family, source, dataset.device, f"not checked {why}" if conditions else "")
    if section is None or total <= MOST_ROWS:
        return section
    for name, column in _COUNTS.items():
        counted = dataset.scan(family, where).group_by(column).len().collect(engine="streaming")
        counted = counted.sort("len", column, descending=[True, False])
        section[name] = {("unknown" if value is None else str(value)): count for value, count in counted.iter_rows()}
    return {**section, "rows": total}


# A problem counts once for each device.
_PLACED = pl.struct("device", "problem").hash(seed=0).alias("problem")
_COUNTS = {"devices": "device", "software": "software", "backends": "backend", "statuses": "status"}


def inspect_family(family: Family, rows: pl.DataFrame, device_of: DeviceOf = devices.get) -> Report:
    """The section of a family for rows that are in memory."""
    source = _RowSource(lambda: iter([rows]), lambda places, chosen: rows[places].select(chosen or pl.all()))
    section = _inspected(family, source, device_of)
    if section is None:
        raise InvalidValue(f"there are no rows of {family.id} to look at")
    return section


def _inspected(family: Family, source: _RowSource, device_of: DeviceOf, not_shifted: str = "") -> Report | None:
    """One family's section; `not_shifted` says why shifted labels are not looked for, if they are not."""
    impossible, too_fast = Impossible(family, device_of), TooFast(family, device_of)

    def check(rows: pl.DataFrame) -> None:
        ok = rows.filter(pl.col("status") == OK)
        if ok.height:
            impossible.add(ok)
            too_fast.add(ok)

    # Beside this thread: most of the time of both is spent in libraries that let others run.
    with ThreadPoolExecutor(1) as beside:
        rows = condense(_with(check, source.pieces(), beside))
        if not rows.frame.height:
            return None
        shift = beside.submit(_label_shift, family, rows, source.at, device_of, not_shifted)
        again, devices_there = repeated(rows), len(rows.labels["device"])
        problems, configs = ([f"{half}.{name}" for name in space.parameters]
                             for half, space in (("problem", family.problem), ("config", family.config)))  # fmt: skip
        return {
            "op": family.op.name,
            "family": family.id,
            "rows": rows.frame.height,
            "looked_at_rows": rows.frame.height,
            "problems": rows.frame.select(_PLACED).to_series().n_unique(),
            # How many problems there are without their devices; None: one device.
            "pooled": {"problems": rows.frame["problem"].n_unique(), "devices": devices_there} if devices_there > 1 else None,
            "configs": rows.frame["config"].n_unique(),
            **{name: rows.counts[column] for name, column in _COUNTS.items()},
            "coverage": coverage(rows),
            "noise": noise(again),
            "disagreements": contradictions(rows, again, source.at),
            **fastest(rows, problems, configs, source.at),
            "constant_columns": rows.constants,
            "aliased_configs": _aliased(family, rows, problems, configs, source.at, device_of),
            "measured_though_impossible": impossible.report(),
            "faster_than_possible": too_fast.report(),
            "label_shift": shift.result(),
        }


def _with(check: Callable[[pl.DataFrame], None], pieces: Iterable[pl.DataFrame], beside: Executor) -> Iterator[pl.DataFrame]:
    """The same pieces, each checked while the caller works on it."""
    checking: Future[None] | None = None
    for piece in pieces:
        if checking is not None:
            checking.result()
        checking = beside.submit(check, piece)
        yield piece
    if checking is not None:
        checking.result()


def coverage(rows: Condensed) -> Report:
    """How much of the grid of problems × configs was attempted, and how evenly."""
    # 64 bits tell a hundred million pairs apart.
    pairs = rows.frame.select(_PLACED, pair=pl.struct("device", "problem", "config").hash(seed=0)).unique("pair")
    per_problem = pairs.group_by("problem").len()["len"]
    total = rows.frame["config"].n_unique()
    return {
        "configs_per_problem": {"min": per_problem.min(), "median": per_problem.median(), "max": per_problem.max()},
        "share_of_grid": pairs.height / (len(per_problem) * total),
    }


def fastest(rows: Condensed, problems: Sequence[str], configs: Sequence[str], rows_at: RowsAt) -> Report:
    """The fastest config of each problem, by the median of its repeats; ties go to the smaller key."""
    ok = rows.frame.lazy().select(_PLACED, "key", "time_ns", rows.ok.alias("ok"), at=PLACE).filter("ok").drop("ok").collect()
    again = ok["key"].is_duplicated()
    repeats = ok.filter(again).group_by("problem", "key", maintain_order=True)
    once, repeats_once = ok.filter(~again), repeats.agg(pl.col("time_ns").median(), pl.col("at").first())
    del ok, again, repeats  # a third of the memory that this takes
    medians = pl.concat([once, repeats_once])
    counted = medians.group_by("problem").agg(
        first=pl.col("at").min(), best=pl.col("time_ns").min(), slowest=pl.col("time_ns").max(), measured_configs=pl.len()
    )
    total, counted = counted.height, counted.sort("first").head(MOST_FASTEST)
    if not total:
        return {"fastest": [], "fastest_of": 0}
    best = medians.join(counted, on="problem").filter(pl.col("time_ns") == pl.col("best")).sort("problem", "key")
    best = best.unique("problem", keep="first", maintain_order=True).sort("first")
    cells = rows_at(best["at"].to_numpy(), ["device", *problems, *configs])
    spread = best.select("time_ns", "measured_configs", slowest_over_fastest=pl.col("slowest") / pl.col("best"))
    joined = pl.concat([cells, spread], how="horizontal").sort(*problems, "device")
    listed = [
        {
            "device": row["device"],
            "problem": {name.removeprefix("problem."): row[name] for name in problems},
            "config": {name.removeprefix("config."): row[name] for name in configs if row[name] is not None},
            **{name: row[name] for name in spread.columns},
        }
        for row in joined.iter_rows(named=True)
    ]
    return {"fastest": listed, "fastest_of": total}


def _aliased(
    family: Family, rows: Condensed, problems: Sequence[str], configs: Sequence[str], rows_at: RowsAt, device_of: DeviceOf
) -> Report:
    """Different configs with identical features on every problem looked at: no model can tell them apart."""
    places, shapes = (np.flatnonzero(rows.frame[half].is_first_distinct().to_numpy()) for half in ("config", "problem"))
    places = places[:ALIAS_CONFIGS]
    if len(places) < 2 or not configs:
        return {"groups": 0, "configs": 0, "problems": 0, "examples": []}
    looked_at = rows_at(shapes[np.unique(np.linspace(0, len(shapes) - 1, ALIAS_PROBLEMS).astype(int))], problems)
    # Numbers of the device that are unknown read as 1, which is enough to compare configs with each other.
    try:
        hardware: dict[str, Any] = device_of(str(rows.labels["device"][0])).bindings(family.op.dtype)
    except NotFound:
        hardware = {}
    reads = [item.name for item in family.feature_program.symbols if item.name.startswith("hw.")]
    program = family.feature_program.bind({name: hardware.get(name, 1.0) for name in reads})
    table = distinct = rows_at(places, configs)
    for index in range(looked_at.height):
        crossed = distinct.join(looked_at[index : index + 1], how="cross", maintain_order="left_right")
        values = program.frame(schema.symbol_columns(family, crossed))
        table = table.hstack(values.rename({name: f"{index}.{name}" for name in values.columns}))
    groups = table.group_by(table.columns[distinct.width :], maintain_order=True).agg(
        pl.struct(distinct.columns).alias("configs")
    )
    groups = groups.filter(pl.col("configs").list.len() > 1)
    return {
        "groups": groups.height,
        "configs": int(groups["configs"].list.len().sum()),
        "problems": looked_at.height,
        "examples": [
            [{name.removeprefix("config."): value for name, value in config.items()} for config in group[:4]]
            for group in groups["configs"].head(3).to_list()
        ],
    }


def _label_shift(family: Family, rows: Condensed, rows_at: RowsAt, device_of: DeviceOf, not_checked: str) -> Report:
    """Stretches of rows whose labels fit neighbouring rows better than their own."""
    if not_checked:
        return {"checked_rows": 0, "note": not_checked, "suspect_rows": 0, "stretches": []}
    imported = "source" in rows.frame.columns
    # Sources in the order of their names, as when their rows are in memory.
    names = sorted(range(len(rows.labels["source"])), key=lambda code: (rows.labels["source"][code] or "", code))
    order = pl.lit(pl.Series(np.argsort(names), dtype=pl.UInt32)).gather(pl.col("source")) if imported else pl.lit(0)
    line = pl.col("source_line") if imported else pl.lit(None, pl.Int64)
    placed = rows.frame.select("device", ok=rows.ok, source=order, source_line=line)
    shift = find_shift_in(family, placed, rows.measured_in_order, lambda places: rows_at(places, None), device_of, SHIFT_ROWS)
    stretches = [
        {"source": item.source, "first_row": item.first, "last_row": item.last, "rows": item.last - item.first + 1,
         "shift": item.shift}
        for item in shift.stretches
    ]  # fmt: skip
    return {
        "checked_rows": shift.checked_rows,
        "note": shift.reason,
        "suspect_rows": int(shift.suspect.sum()),
        "stretches": stretches,
    }
