"""What a dataset holds and what is wrong with it, as plain values that print and serialise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import polars as pl

from kerncast import devices, limits
from kerncast.data import hardware, schema
from kerncast.data.dataset import Dataset
from kerncast.data.label_shift import DeviceOf, find_label_shift
from kerncast.errors import InvalidValue, NotFound
from kerncast.op import Family

SIZE_BANDS = (("under 10 us", 1e4), ("10 to 100 us", 1e5), ("100 us to 1 ms", 1e6), ("1 to 10 ms", 1e7), ("over 10 ms", np.inf))
# Repeats of one measurement that differ by more than this factor contradict each other.
DISAGREEMENT = 1.5
# Of each kind of finding, this many are listed.
EXAMPLES = 5
# Aliases are looked for among at most this many configs, on this many problems.
ALIAS_CONFIGS = 20_000
ALIAS_PROBLEMS = 5

# What is looked at, besides the parameters: all columns of a million rows take half a gigabyte.
READ = (*schema.REPEAT_OF, "device", "status", "time_ns", "source", "source_line", "order")

Report = dict[str, Any]
NOT_CHECKED: Report = {
    "checked_rows": 0,
    "note": "not checked with `where`, which removes neighbouring rows",
    "suspect_rows": 0,
    "stretches": [],
}


def inspect_dataset(dataset: Dataset, where: Sequence[str] = ()) -> Report:
    """Everything `kerncast inspect` shows: one section per family, and the dataset as a whole."""
    dataset.verify()
    dataset.refuse_if_empty()
    sections = []
    unknown: NotFound | None = None
    for family in dataset.families:
        try:
            rows = dataset.read(family, where, [*READ, *schema.parameter_columns(family)])
        except NotFound as error:  # a column that only another family has
            unknown = error
            continue
        if rows.height:
            sections.append(inspect_family(family, rows, dataset.device, filtered=bool(where)))
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


def inspect_family(family: Family, rows: pl.DataFrame, device_of: DeviceOf = devices.get, filtered: bool = False) -> Report:
    """One family's section. A filtered table lacks neighbouring rows, so it is not checked for shifts."""
    problems = [name for name in rows.columns if name.startswith("problem.")]
    configs = [name for name in rows.columns if name.startswith("config.")]
    ok = rows.filter(pl.col("status") == "ok")
    return {
        "op": family.op.name,
        "family": family.id,
        "rows": rows.height,
        "problems": rows.select(problems).hash_rows(seed=0).n_unique(),
        "configs": rows.select(configs).hash_rows(seed=0).n_unique() if configs else 1,
        "devices": _counts(rows, "device"),
        "software": _counts(rows, "software"),
        "backends": _counts(rows, "backend"),
        "statuses": _counts(rows, "status"),
        "coverage": coverage(rows, problems, configs),
        "noise": noise(ok),
        "disagreements": disagreements(rows),
        "fastest": fastest(ok, problems, configs),
        "constant_columns": constant_columns(rows, [*problems, *configs]),
        "aliased_configs": aliased_configs(family, rows, configs, device_of),
        "measured_though_impossible": measured_though_impossible(family, ok, device_of),
        "faster_than_possible": faster_than_possible(family, ok, device_of),
        "label_shift": NOT_CHECKED if filtered else label_shift(family, rows, device_of),
    }


def _counts(rows: pl.DataFrame, column: str) -> dict[str, int]:
    counted = rows[column].value_counts(name="len").sort("len", column, descending=[True, False])
    return {("unknown" if value is None else str(value)): count for value, count in counted.iter_rows()}


def coverage(rows: pl.DataFrame, problems: list[str], configs: list[str]) -> Report:
    """How much of the grid of problems × configs was attempted, and how evenly."""
    # Hashes instead of cells: 64 bits tell a million rows apart.
    numbered = pl.DataFrame(
        {"problem": rows.select(problems).hash_rows(seed=0), "pair": rows.select([*problems, *configs]).hash_rows(seed=0)}
    )
    pairs = numbered.unique("pair")
    per_problem = pairs.group_by("problem").len()["len"]
    total = rows.select(configs).hash_rows(seed=0).n_unique() if configs else 1
    return {
        "configs_per_problem": {
            "min": per_problem.min(),
            "median": per_problem.median(),
            "max": per_problem.max(),
        },
        "share_of_grid": pairs.height / (len(per_problem) * total),
    }


def repeats(ok: pl.DataFrame) -> pl.DataFrame:
    """One row per measurement taken more than once: its median, extremes and relative deviation."""
    again = schema.perhaps_repeated(ok.select(*schema.REPEAT_OF, "time_ns"), schema.REPEAT_OF)
    grouped = again.group_by(schema.REPEAT_OF, maintain_order=True).agg(
        repeats=pl.len(),
        median_ns=pl.col("time_ns").median(),
        fastest_ns=pl.col("time_ns").min(),
        slowest_ns=pl.col("time_ns").max(),
        deviation=((pl.col("time_ns") - pl.col("time_ns").median()).abs().median() / pl.col("time_ns").median()),
    )
    return grouped.filter(pl.col("repeats") > 1)


def noise(ok: pl.DataFrame) -> list[Report]:
    """Spread of repeats by size of the measurement: relative MAD, and slowest ÷ fastest."""
    again = repeats(ok)
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
    """Repeats that contradict each other: times far apart, or success and failure of the same thing."""
    again = repeats(rows.filter(pl.col("status") == "ok"))
    far = again.filter(pl.col("slowest_ns") > DISAGREEMENT * pl.col("fastest_ns"))
    placed = rows.select(*schema.REPEAT_OF, "status", at=pl.int_range(pl.len()))
    mixed = (
        schema.perhaps_repeated(placed, schema.REPEAT_OF)
        .group_by(schema.REPEAT_OF, maintain_order=True)
        .agg(
            pl.col("status").unique_counts().alias("counts"), pl.col("status").unique(maintain_order=True), pl.col("at").first()
        )
        .filter(pl.col("status").list.len() > 1)
    )
    worst = far.with_columns(ratio=pl.col("slowest_ns") / pl.col("fastest_ns")).sort("ratio", "key", descending=[True, False])
    return {
        "factor": DISAGREEMENT,
        "measurements": far.height,
        "worst": worst.head(EXAMPLES).select("key", "repeats", "fastest_ns", "slowest_ns", "ratio").to_dicts(),
        "mixed_statuses": mixed.height,
        "mixed_examples": [_mixed(rows, found) for found in mixed.head(EXAMPLES).iter_rows(named=True)],
    }


def _mixed(rows: pl.DataFrame, found: dict[str, Any]) -> Report:
    """A measurement whose rows ended differently: what it is, and how many rows have each status."""
    row = rows.row(found["at"], named=True)
    values = {
        prefix: {name.removeprefix(f"{prefix}."): value for name, value in row.items() if name.startswith(f"{prefix}.")}
        for prefix in ("problem", "config")
    }
    known = {prefix: {name: value for name, value in cells.items() if value is not None} for prefix, cells in values.items()}
    counts = dict(sorted(zip(found["status"], found["counts"], strict=True)))
    return {"key": found["key"], "device": row["device"], **known, "statuses": counts}


def fastest(ok: pl.DataFrame, problems: list[str], configs: list[str]) -> list[Report]:
    """The fastest config of each problem, by the median of its repeats; ties go to the smaller key."""
    if ok.is_empty():
        return []
    # Of a measurement only its key, its time and the place of its first row: all its columns would be copied several times.
    problem = ok.select("device", *problems).hash_rows(seed=0)
    medians = (
        ok.select("key", "time_ns", problem=problem, at=pl.int_range(pl.len()))
        .group_by("problem", "key")
        .agg(pl.col("time_ns").median(), pl.col("at").first())
    )
    best = medians.sort("time_ns", "key").group_by("problem", maintain_order=True).first()
    counted = medians.group_by("problem").agg(
        measured_configs=pl.len(), slowest_over_fastest=pl.col("time_ns").max() / pl.col("time_ns").min()
    )
    chosen = best.join(counted, on="problem")
    cells = ok.select("device", *problems, *configs)[chosen["at"].to_numpy()]
    joined = pl.concat([cells, chosen.drop("problem", "key", "at")], how="horizontal").sort(*problems, "device")
    return [
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


def constant_columns(rows: pl.DataFrame, columns: list[str]) -> dict[str, Any]:
    """Parameters with one value everywhere: a model learns nothing about them."""
    return {name: rows[name][0] for name in columns if rows[name].n_unique() == 1}


def aliased_configs(family: Family, rows: pl.DataFrame, configs: list[str], device_of: DeviceOf = devices.get) -> Report:
    """Different configs with identical features on every problem looked at: no model can tell them apart."""
    distinct = _distinct(rows, configs).head(ALIAS_CONFIGS) if configs else pl.DataFrame()
    if distinct.height < 2:
        return {"groups": 0, "configs": 0, "problems": 0, "examples": []}
    problems = _distinct(rows, [name for name in rows.columns if name.startswith("problem.")])
    problems = problems[np.unique(np.linspace(0, problems.height - 1, ALIAS_PROBLEMS).astype(int))]
    program = family.feature_program.bind(_hardware(family, rows, device_of))
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


def _distinct(rows: pl.DataFrame, columns: list[str]) -> pl.DataFrame:
    """The distinct values of some columns in the order of their first rows, found by hashes: that takes little memory."""
    _, first = np.unique(rows.select(columns).hash_rows(seed=0).to_numpy(), return_index=True)
    return rows.select(columns)[np.sort(first)]


def _hardware(family: Family, rows: pl.DataFrame, device_of: DeviceOf) -> dict[str, Any]:
    """The device's numbers; unknown ones read as 1, which is enough to compare configs with each other."""
    reads = [item.name for item in family.feature_program.symbols if item.name.startswith("hw.")]
    try:
        known: dict[str, Any] = device_of(rows["device"][0]).bindings(family.op.dtype)
    except NotFound:
        known = {}
    return {name: known.get(name, 1.0) for name in reads}


def measured_though_impossible(family: Family, ok: pl.DataFrame, device_of: DeviceOf = devices.get) -> list[Report]:
    """Constraints that rows with status ok break: the constraint, or the table, is wrong."""
    found: list[Report] = []
    if ok.is_empty():
        return found
    symbols = schema.symbol_columns(family, ok)
    for name in sorted(ok["device"].unique()):
        here = (ok["device"] == name).to_numpy()
        try:
            bindings = device_of(name).bindings(family.op.dtype)
        except NotFound:
            bindings = {}
        for constraint in (*family.problem.constraints, *family.config.constraints):
            program = constraint.program.bind(bindings)
            if any(item.name.startswith("hw.") for item in program.symbols):
                continue
            broken = here & (program.frame(symbols).to_series().to_numpy() == 0.0)
            if broken.any():
                row = ok.row(int(broken.argmax()), named=True)
                parts = ("problem", "config")
                shown = {part: {key.partition(".")[2]: value for key, value in row.items()
                                if key.startswith(f"{part}.") and value is not None} for part in parts}  # fmt: skip
                found.append(
                    {
                        "device": name, "constraint": constraint.name, "sentence": constraint.sentence,
                        "rows": int(broken.sum()), "share": float(broken.sum() / here.sum()), "example": shown,
                    }
                )  # fmt: skip
    return found


def faster_than_possible(family: Family, ok: pl.DataFrame, device_of: DeviceOf = devices.get) -> Report:
    """Rows that took less time than their work needs on the device: the work is overcounted, or the label is wrong."""
    parts = []
    together = ["device", *(["problem.dtype"] if family.op.dtype is not None else [])]
    vectors = ok.select(*schema.parameter_columns(family), "time_ns")
    kinds = _distinct(ok, together)
    for name, *dtypes in kinds.iter_rows():
        try:
            device = device_of(str(name))
        except NotFound:
            continue
        program = limits.limit_program(family, device, dtypes or None)
        if "floor_ns" in program.outputs:
            same = [ok[column] == value for column, value in zip(together, (name, *dtypes), strict=True)]
            own = vectors if kinds.height == 1 else vectors.filter(*same)
            floor = program.frame(schema.symbol_columns(family, own))["floor_ns"].to_numpy()
            parts.append(limits.faster_than_possible(own.drop("time_ns"), own["time_ns"].to_numpy(), floor))
    return limits.together(parts)


def label_shift(family: Family, rows: pl.DataFrame, device_of: DeviceOf = devices.get) -> Report:
    """Stretches of rows whose labels fit neighbouring rows better than their own."""
    result = find_label_shift(family, rows, device_of)
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
