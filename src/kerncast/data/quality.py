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

from kerncast.core.arrays import Ints
from kerncast.core.expr import Program
from kerncast.core.op import Family
from kerncast.data import manifest as hardware
from kerncast.data import schema
from kerncast.data.condensed import (
    PLACE,
    READ,
    Condensed,
    RowsAt,
    condense,
    contradictions,
    disagreements,
    names_of,
    noise,
    repeated,
)
from kerncast.data.dataset import Dataset
from kerncast.data.filters import Condition, columns_of, draw_problems
from kerncast.data.label_shift import DeviceOf, LabelShift, find_label_shift, find_shift_in
from kerncast.data.row_checks import RowChecks, faster_than_possible, isolated_rows, measured_though_impossible
from kerncast.data.summary import noise_of_samples
from kerncast.errors import InvalidValue, NotFound
from kerncast.library import devices

__all__ = ["aliased_configs", "disagreements", "faster_than_possible", "inspect_dataset", "inspect_family", "label_shift",
           "measured_though_impossible"]  # fmt: skip

# Aliases are looked for among at most this many configs, on this many problems.
ALIAS_CONFIGS = 20_000
ALIAS_PROBLEMS = 5
# Of more problems, the fastest configs of the first ones are listed.
MOST_FASTEST = 20_000
# Of more rows, whole problems are looked at: condensed rows take 50 bytes each, and finding the fastest as much again, twice.
MOST_ROWS = 15_000_000
# Rows that are checked for shifted labels: 300,000 take a quarter of a minute.
SHIFT_ROWS = 600_000

Report = dict[str, Any]


def _not_checked(why: str) -> Report:
    return {"checked_rows": 0, "note": f"not checked {why}", "suspect_rows": 0, "stretches": []}


@dataclass(frozen=True)
class _Rows:
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
            sections.append({**section, **_further(dataset, family, where)})
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
        "hardware": [hardware.as_json(item, dataset.device(item.device)) for item in dataset.hardware],
        "families": sections,
    }


def _further(dataset: Dataset, family: Family, where: Sequence[str]) -> Report:
    """What is read of the stored rows by itself; of very many rows it is left out."""
    if dataset.rows_of(family) > MOST_ROWS:
        return {}
    samples = noise_of_samples(dataset.scan(family, where))
    return {"isolated_times": isolated_rows(dataset, family, where), "noise_of_samples": samples}


def _section(dataset: Dataset, family: Family, where: Sequence[str]) -> Report | None:
    """The section of one family; None: none of its rows satisfies the conditions."""
    columns, conditions = [*READ, *schema.parameter_columns(family)], list[Condition](where)
    total = dataset.rows_of(family)
    if total > MOST_ROWS and where:
        total = int(dataset.scan(family, where).select(pl.len()).collect(engine="streaming").item())
    if total > MOST_ROWS:
        drawn, _ = draw_problems(family, dataset.pieces(family, where, columns_of(family)), MOST_ROWS, 0)
        conditions.append(drawn)
    source = _Rows(
        lambda: dataset.pieces(family, conditions, columns),
        lambda places, chosen: dataset.rows_at(family, places, conditions, chosen or columns),
    )
    why = "with `where`, which removes neighbouring rows" if where else "in drawn problems, which lack neighbouring rows"
    found = _inspected(family, source, dataset.device, _not_checked(why) if conditions else None)
    if found is None or total <= MOST_ROWS:
        return found
    counted = {name: _counts(dataset.scan(family, where), column) for name, column in _COUNTS.items()}
    return {**found, "rows": total, **counted}


# A problem counts once for each device.
_PLACED = pl.struct("device", "problem").hash(seed=0).alias("problem")
_COUNTS = {"devices": "device", "software": "software", "backends": "backend", "statuses": "status"}


def _counts(rows: pl.LazyFrame, column: str) -> dict[str, int]:
    counted = rows.group_by(column).len().collect(engine="streaming").sort("len", column, descending=[True, False])
    return {("unknown" if value is None else str(value)): count for value, count in counted.iter_rows()}


def inspect_family(family: Family, rows: pl.DataFrame, device_of: DeviceOf = devices.get) -> Report:
    """The section of a family for rows that are in memory."""
    source = _Rows(lambda: iter([rows]), lambda places, chosen: rows[places].select(chosen or pl.all()))
    found = _inspected(family, source, device_of, None)
    if found is None:
        raise InvalidValue(f"there are no rows of {family.id} to look at")
    return found


def _inspected(family: Family, source: _Rows, device_of: DeviceOf, unchecked: Report | None) -> Report | None:
    """One family's section; `unchecked` is what it says of shifted labels if these are not looked for."""
    checks = RowChecks(family, device_of)
    # Beside this thread: most of the time of both is spent in libraries that let others run.
    with ThreadPoolExecutor(1) as beside:
        rows = condense(_checked(source.pieces(), checks, beside))
        if not rows.frame.height:
            return None
        shift = beside.submit(
            lambda: _shift_report(_shift(family, rows, source.at, device_of)) if unchecked is None else unchecked
        )
        return {**_told(family, rows, source, checks, device_of), "label_shift": shift.result()}


def _checked(pieces: Iterable[pl.DataFrame], checks: RowChecks, beside: Executor) -> Iterator[pl.DataFrame]:
    """The same pieces, each checked while the caller works on it."""
    checking: Future[None] | None = None
    for piece in pieces:
        if checking is not None:
            checking.result()
        checking = beside.submit(checks.add, piece)
        yield piece
    if checking is not None:
        checking.result()


def _told(family: Family, rows: Condensed, source: _Rows, checks: RowChecks, device_of: DeviceOf) -> Report:
    again = repeated(rows)
    problems, configs = ([f"{half}.{name}" for name in space.parameters] for half, space in _halves(family))
    return {
        "op": family.op.name,
        "family": family.id,
        "rows": rows.frame.height,
        "looked_at_rows": rows.frame.height,
        "problems": rows.frame.select(_PLACED).to_series().n_unique(),
        "pooled": _pooled(rows),
        "configs": rows.frame["config"].n_unique(),
        **{name: rows.counts[column] for name, column in _COUNTS.items()},
        "coverage": coverage(rows),
        "noise": noise(again),
        "disagreements": contradictions(rows, again, source.at),
        **fastest(rows, problems, configs, source.at),
        "constant_columns": rows.constants,
        "aliased_configs": _aliased(family, rows, problems, configs, source.at, device_of),
        "measured_though_impossible": checks.impossible.report(),
        "faster_than_possible": checks.too_fast.report(),
    }


def _pooled(rows: Condensed) -> dict[str, int] | None:
    """How many problems there are without their devices, and how many devices; None: one device."""
    devices = len(rows.labels["device"])
    return {"problems": rows.frame["problem"].n_unique(), "devices": devices} if devices > 1 else None


def _halves(family: Family) -> tuple[tuple[str, Any], tuple[str, Any]]:
    return ("problem", family.problem), ("config", family.config)


def coverage(rows: Condensed) -> Report:
    """How much of the grid of problems × configs was attempted, and how evenly."""
    # 64 bits tell a hundred million pairs apart.
    pairs = rows.frame.select(_PLACED, pair=pl.struct("device", "problem", "config").hash(seed=0)).unique("pair")
    per_problem = pairs.group_by("problem").len()["len"]
    total = rows.frame["config"].n_unique()
    return {
        "configs_per_problem": {
            "min": per_problem.min(),
            "median": per_problem.median(),
            "max": per_problem.max(),
        },
        "share_of_grid": pairs.height / (len(per_problem) * total),
    }


def fastest(
    rows: Condensed,
    problems: Sequence[str],
    configs: Sequence[str],
    rows_at: RowsAt,
) -> Report:
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
            "time_ns": row["time_ns"],
            "measured_configs": row["measured_configs"],
            "slowest_over_fastest": row["slowest_over_fastest"],
        }
        for row in joined.iter_rows(named=True)
    ]
    return {"fastest": listed, "fastest_of": total}


def aliased_configs(family: Family, rows: pl.DataFrame, device_of: DeviceOf = devices.get) -> Report:
    """Different configs with identical features, among rows that are in memory."""
    problems, configs = (names_of(rows, half) for half in ("problem", "config"))
    found = condense([rows])
    return _aliased(family, found, problems, configs, lambda places, chosen: rows[places].select(chosen or pl.all()), device_of)


def _aliased(
    family: Family,
    rows: Condensed,
    problems: Sequence[str],
    configs: Sequence[str],
    rows_at: RowsAt,
    device_of: DeviceOf,
) -> Report:
    """Different configs with identical features on every problem looked at: no model can tell them apart."""
    places = _first_places(rows, "config")[:ALIAS_CONFIGS]
    if len(places) < 2 or not configs:
        return {"groups": 0, "configs": 0, "problems": 0, "examples": []}
    distinct, shapes = rows_at(places, configs), _first_places(rows, "problem")
    looked_at = rows_at(shapes[np.unique(np.linspace(0, len(shapes) - 1, ALIAS_PROBLEMS).astype(int))], problems)
    program = family.feature_program.bind(_hardware(family, str(rows.labels["device"][0]), device_of))
    return _alias_groups(family, distinct, looked_at, program)


def _alias_groups(family: Family, distinct: pl.DataFrame, problems: pl.DataFrame, program: Program) -> Report:
    configs = distinct.columns
    features = []
    for index in range(problems.height):
        crossed = distinct.join(problems[index : index + 1], how="cross", maintain_order="left_right")
        values = program.frame(schema.symbol_columns(family, crossed))
        features.append(values.rename({name: f"{index}.{name}" for name in values.columns}))
    table = pl.concat([distinct, *features], how="horizontal")
    columns = [name for frame in features for name in frame.columns]
    groups = table.group_by(columns, maintain_order=True).agg(pl.struct(configs).alias("configs"))
    groups = groups.filter(pl.col("configs").list.len() > 1)
    return {
        "groups": groups.height,
        "configs": int(groups["configs"].list.len().sum()),
        "problems": problems.height,
        "examples": [
            [{name.removeprefix("config."): value for name, value in config.items()} for config in group[:4]]
            for group in groups["configs"].head(3).to_list()
        ],
    }


def _first_places(rows: Condensed, column: str) -> Ints:
    """Where the distinct values of a column are for the first time, in that order."""
    return np.flatnonzero(rows.frame[column].is_first_distinct().to_numpy())


def _hardware(family: Family, device: str, device_of: DeviceOf) -> dict[str, Any]:
    """The device's numbers; unknown ones read as 1, which is enough to compare configs with each other."""
    reads = [item.name for item in family.feature_program.symbols if item.name.startswith("hw.")]
    try:
        known: dict[str, Any] = device_of(device).bindings(family.op.dtype)
    except NotFound:
        known = {}
    return {name: known.get(name, 1.0) for name in reads}


def label_shift(family: Family, rows: pl.DataFrame, device_of: DeviceOf = devices.get) -> Report:
    """Stretches of rows whose labels fit neighbouring rows better than their own."""
    return _shift_report(find_label_shift(family, rows, device_of))


def _shift(family: Family, rows: Condensed, rows_at: RowsAt, device_of: DeviceOf) -> LabelShift:
    """Where the labels of condensed rows are shifted."""
    imported = "source" in rows.frame.columns
    # Sources in the order of their names, as when their rows are in memory.
    names = sorted(range(len(rows.labels["source"])), key=lambda code: (rows.labels["source"][code] or "", code))
    order = pl.lit(pl.Series(np.argsort(names), dtype=pl.UInt32)).gather(pl.col("source")) if imported else pl.lit(0)
    line = pl.col("source_line") if imported else pl.lit(None, pl.Int64)
    placed = rows.frame.select("device", ok=rows.ok, source=order, source_line=line)
    return find_shift_in(family, placed, rows.measured_in_order, lambda places: rows_at(places, None), device_of, SHIFT_ROWS)


def _shift_report(result: LabelShift) -> Report:
    return {
        "checked_rows": result.checked_rows,
        "note": result.reason,
        "suspect_rows": int(result.suspect.sum()),
        "stretches": [
            {
                "source": item.source,
                "first_row": item.first,
                "last_row": item.last,
                "rows": item.last - item.first + 1,
                "shift": item.shift,
            }
            for item in result.stretches
        ],
    }
