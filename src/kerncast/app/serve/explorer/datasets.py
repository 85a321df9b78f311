"""A dataset: its problems, how its rows ended, how noisy they are, and where a model does worst on them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl

from kerncast.app.serve.explorer.describing import Json, software_words
from kerncast.core.op import Family
from kerncast.data import repeats, schema
from kerncast.data.dataset import Dataset
from kerncast.errors import InvalidValue
from kerncast.evaluating.evaluation import evaluate
from kerncast.evaluating.points import part_of
from kerncast.evaluating.unseen import digest_of
from kerncast.models.model import Model

# Of each list; a page of problems has this many.
LISTED, PAGE = 12, 50
MOST_ROWS_OF_A_PROBLEM = 300
NOISE_BINS = 24
# Relative deviations from a hundredth of a percent to 100 %: what is outside is in the first or last bin.
LEAST_NOISE, MOST_NOISE = 1e-4, 1.0
NOISE = pl.col("time_ns_mad") / pl.col("time_ns")
SORTS = {"best_ns": False, "failed": True, "noise": True, "spread": True, "configs": True}
"""What problems may be sorted by, and whether the largest come first."""


def overview(dataset: Dataset, family: str | None = None) -> Json:
    """What a dataset holds, of one of its families."""
    dataset.refuse_if_empty()
    families = dataset.families
    own = dataset.family(family) if family is not None else families[0]
    rows = dataset.scan(own)
    ok = rows.filter(pl.col("status") == "ok")
    problems, configs = _columns(own)
    counts = rows.select(
        pl.len().alias("rows"),
        pl.struct("device", *problems).n_unique().alias("problems"),
        pl.struct(problems).n_unique().alias("distinct"),
        pl.col("device").n_unique().alias("devices"),
        (pl.struct(configs).n_unique() if configs else pl.lit(1)).alias("configs"),
    ).collect()
    counted = counts.row(0, named=True)
    pooled = {"problems": counted.pop("distinct"), "devices": counted.pop("devices")}
    same = rows.select(pl.col(name).n_unique() == 1 for name in problems).collect().row(0, named=True)
    constant = rows.select(name for name, alone in same.items() if alone).head(1).collect()
    unfinished = dataset.completeness
    return {
        "families": [item.id for item in families],
        "family": own.id,
        "op": own.op.name,
        **counted,
        "pooled": pooled if pooled["devices"] > 1 else None,
        "problem": [name.removeprefix("problem.") for name in problems],
        "config": [name.removeprefix("config.") for name in configs],
        "constant": part_of(constant.row(0, named=True), "problem") if constant.width else {},
        "devices": _counts(rows, "device"),
        "software": [{**item, "value": item["value"] and software_words(item["value"])} for item in _counts(rows, "software")],
        "statuses": _counts(rows, "status"),
        "errors": _errors(rows),
        "noise": _noise(ok),
        "repeats": repeats.noise(
            repeats.spread_of(ok.select("time_ns", repeat=pl.struct(schema.REPEAT_OF).hash(seed=0), at=pl.lit(0)))
        ),
        "unfinished": None if unfinished is None else str(unfinished),
        "sources": [{"name": item.name, "format": item.format} for item in dataset.contents.sources[:LISTED]],
    }


def _columns(family: Family) -> tuple[list[str], list[str]]:
    return [f"problem.{name}" for name in family.problem.parameters], [f"config.{name}" for name in family.config.parameters]


def _counts(rows: pl.LazyFrame, column: str) -> list[Json]:
    found = rows.group_by(column).agg(rows=pl.len()).sort("rows", column, descending=[True, False]).head(LISTED).collect()
    return [{"value": value, "rows": count} for value, count in found.iter_rows()]


def _errors(rows: pl.LazyFrame) -> list[Json]:
    failed = rows.filter((pl.col("status") != "ok") & pl.col("error").is_not_null())
    found = failed.group_by("status", "error").agg(rows=pl.len()).sort("rows", "error", descending=[True, False])
    return found.head(LISTED).collect().to_dicts()


def _noise(ok: pl.LazyFrame) -> Json:
    """How far the samples of a row are from its time: a histogram of relative deviations."""
    edges = np.geomspace(LEAST_NOISE, MOST_NOISE, NOISE_BINS + 1)
    known = ok.select(noise=NOISE).filter(pl.col("noise").is_finite())
    place = (pl.col("noise").clip(LEAST_NOISE, MOST_NOISE).log10() - np.log10(LEAST_NOISE)) / np.log10(MOST_NOISE / LEAST_NOISE)
    number = (place * NOISE_BINS).floor().clip(0, NOISE_BINS - 1).cast(pl.Int64).alias("bin")
    counted = dict(known.group_by(number).agg(rows=pl.len()).collect().iter_rows())
    middle = known.select(pl.col("noise").median().alias("median"), pl.col("noise").quantile(0.9).alias("p90")).collect()
    return {
        "edges": edges.tolist(), "rows": [counted.get(number, 0) for number in range(NOISE_BINS)],
        "median": middle["median"][0], "p90": middle["p90"][0],
    }  # fmt: skip


def problems(dataset: Dataset, family: str | None = None, sort: str = "failed", page: int = 0, text: str = "") -> Json:
    """A page of the problems of a family: how many rows worked, the fastest config, the spread and the noise."""
    if sort not in SORTS:
        raise InvalidValue(f"`sort` is one of {', '.join(SORTS)}, got '{sort}'")
    own = dataset.family(family) if family is not None else dataset.families[0]
    names, configs = _columns(own)
    ok = pl.col("status") == "ok"
    grouped = (
        dataset.scan(own).group_by("device", *names)
        .agg(
            rows=pl.len(), ok=ok.sum(), configs=pl.col("key").n_unique(), best_ns=pl.col("time_ns").filter(ok).min(),
            slowest_ns=pl.col("time_ns").filter(ok).max(), noise=NOISE.filter(ok).median(),
            best=pl.struct(configs).sort_by(pl.when(ok).then("time_ns"), nulls_last=True).first() if configs else pl.lit(None),
        )
        .with_columns(failed=pl.col("rows") - pl.col("ok"), spread=pl.col("slowest_ns") / pl.col("best_ns"))
    )  # fmt: skip
    for word in text.split()[:8]:
        name, equals, value = word.partition("=")
        column = name if name == "device" else f"problem.{name}"
        if column not in ("device", *names) or not equals:
            raise InvalidValue(f"filter by parameters or device, as {own.op.split_group[0]}=128; got '{word[:80]}'")
        grouped = grouped.filter(pl.col(column).cast(pl.String) == value)
    sorted_ = grouped.sort(sort, "device", *names, descending=[SORTS[sort], False, *([False] * len(names))], nulls_last=True)
    total = grouped.select(pl.len()).collect().item()
    page = min(max(page, 0), total // PAGE)
    found = sorted_.slice(page * PAGE, PAGE).collect()
    return {
        "total": total, "page": page, "page_size": PAGE, "sort": sort,
        "problems": [
            {
                "device": row["device"], "problem": part_of(row, "problem"),
                "best": part_of(row["best"] or {}, "config"),
                **{name: row[name] for name in ("rows", "ok", "failed", "configs", "best_ns", "slowest_ns", "spread", "noise")},
            }
            for row in found.iter_rows(named=True)
        ],
    }  # fmt: skip


def measured_rows(dataset: Dataset, problem: Mapping[str, Any], device: str, family: str | None = None) -> Json:
    """The rows of one problem, fastest first, failures last."""
    own = dataset.family(family) if family is not None else dataset.families[0]
    names, _ = _columns(own)
    kinds = schema.schema_of(own)
    unknown = [name for name in problem if f"problem.{name}" not in names]
    if unknown:
        raise InvalidValue(f"{own.op.name} has no parameter '{unknown[0]}'")
    try:
        same = [pl.col(name).eq_missing(pl.lit(problem.get(name.removeprefix("problem.")), kinds[name])) for name in names]
        rows = dataset.scan(own).filter(pl.col("device") == device, *same).sort("time_ns", "key", nulls_last=True)
        found = rows.head(MOST_ROWS_OF_A_PROBLEM).collect()
    except (TypeError, OverflowError, pl.exceptions.PolarsError) as error:
        raise InvalidValue(f"the problem has a value of the wrong kind ({str(error).splitlines()[0]})") from error
    columns = ("status", "time_ns", "time_ns_mad", "samples", "error", "label")
    return {
        "total": rows.select(pl.len()).collect().item(),
        "rows": [
            {"config": part_of(row, "config")} | {name: row.get(name) for name in columns}
            for row in found.iter_rows(named=True)
        ],
    }


def worst_of(model: Model, dataset: Dataset, count: int = 20) -> Json:
    """Where a model does worst on a dataset: on problems that it has not seen, or out of fold on those it was trained on."""
    trained = digest_of(model, [dataset]) == model.manifest.data.digest
    remembered = trained and model.out_of_fold is not None and model.evaluated and not model.manifest.warm_start
    if remembered:
        found, how = evaluate(model, [dataset.path], split="problem", worst=count, threads=1), "out_of_fold"
    else:
        try:
            found, how = evaluate(model, [dataset.path], worst=count, threads=1), "unseen"
        except InvalidValue:
            if not model.recorded or model.slim:
                raise
            # Every problem was seen: better a figure that says so than none.
            found, how = evaluate(model, [dataset.path], include_seen=True, worst=count, threads=1), "seen"
    summary: Json = json.loads(json.dumps(found.as_json(), default=str))
    overall = summary["overall"]
    figures = ("efficiency_mean", "efficiency_p10", "efficiency_min", "top1", "noise_ceiling", "mape", "coverage_90")
    return {
        "how": how,
        "problems": overall["n_problems"],
        "pooled": summary["pooled"],
        "overall": {name: overall.get(name) for name in figures},
        "worst": summary["worst"][:count],
        "worst_predictions": summary["worst_predictions"][:count],
    }
