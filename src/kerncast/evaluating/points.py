"""A point per problem and per row of an evaluation, the worst of them, and their rates in TFLOPS and GB/s."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl

from kerncast.core.op.declaration import BANDWIDTH, TFLOPS
from kerncast.learning.scoring.metrics import Predicted
from kerncast.learning.tables.table import Table

# A rate's name → the column with the work it counts, and what a nanosecond of one unit of it is.
_RATES = {TFLOPS: ("flops", 1e-3), BANDWIDTH: ("bytes", 1.0)}
RATES = tuple(_RATES)
_SIDES = ("chosen", "best")


def problem_points(table: Table, predicted: Predicted) -> pl.DataFrame:
    """One row per problem on which something worked, with its device."""
    trials = table.trials
    chosen, best = trials.choose(predicted.score)[trials.solvable], trials.choose(trials.time_ns)[trials.solvable]
    frame = table.rows.frame
    config = [name for name in frame.columns if name.startswith("config.")]
    parts = [
        table.placed(chosen),
        frame[chosen].select(pl.col(config).name.map(lambda name: "chosen." + name.removeprefix("config."))),
        frame[best].select(pl.col(config).name.map(lambda name: "best." + name.removeprefix("config."))),
    ]
    points = pl.concat([part for part in parts if part.width], how="horizontal")
    times = np.where(np.isfinite(trials.time_ns[chosen]), trials.time_ns[chosen], np.nan)
    counts = np.diff(np.r_[trials.starts, len(trials.order)])[trials.solvable]
    points = points.with_columns(
        number=pl.Series(table.problem[chosen]),
        chosen_ns=pl.Series(times).fill_nan(None),
        best_ns=pl.Series(trials.time_ns[best]),
        predicted_ns=pl.Series(predicted.time_ns[chosen]) if predicted.time_ns is not None else pl.lit(None, pl.Float64),
        efficiency=pl.Series(trials.share[chosen]),
        configs=pl.Series(counts),
        **{
            name: pl.lit(None, pl.Float64) if values is None else pl.Series(values[chosen])
            for name, values in (
                ("roofline_ns", table.rows.limit_ns), ("peak_share", table.rows.peak_share), ("flops", table.rows.flops),
                ("bytes", table.rows.bytes),
            )
        },
    )  # fmt: skip
    return points.with_columns(rate_of(rate, f"{side}_ns").alias(f"{side}_{rate}") for rate in RATES for side in _SIDES)


def row_points(table: Table, predicted: Predicted) -> pl.DataFrame:
    """One row per vector; `measured_ns` is null where it failed."""
    trials = table.trials
    chosen = np.zeros(len(table.problem), dtype=bool)
    chosen[trials.choose(predicted.score)] = True
    columns = {
        "number": table.problem, "measured_ns": table.time_ns, "predicted_ns": predicted.time_ns,
        "lower_ns": predicted.lower_ns, "upper_ns": predicted.upper_ns, "score": predicted.score, "chosen": chosen,
        "noise": table.noise, "flops": table.rows.flops, "bytes": table.rows.bytes,
    }  # fmt: skip
    points = table.rows.frame.with_columns(
        table.device_names, *(pl.Series(name, values) for name, values in columns.items() if values is not None)
    )
    return points.with_columns(pl.col("measured_ns", "noise").fill_nan(None))


def rate_of(rate: str, time: str) -> pl.Expr:
    """A column of work over a column of times; null where either is unknown, or where there is no such work."""
    work, unit = _RATES[rate]
    return pl.when(pl.col(work) > 0).then(pl.col(work) * unit / pl.col(time))


def rates(problems: pl.DataFrame) -> dict[str, Any]:
    """How fast the chosen and the best configs are in TFLOPS and GB/s, over problems; None where the work is unknown."""
    found: dict[str, Any] = {}
    for rate in RATES:
        if problems[f"best_{rate}"].null_count():
            found[rate] = None
            continue
        # A choice that failed computes nothing.
        sides = {side: problems[f"{side}_{rate}"].fill_null(0.0).to_numpy() for side in _SIDES}
        found[rate] = {
            side: {"p10": float(np.quantile(each, 0.1)), "p50": float(np.quantile(each, 0.5)), "max": float(each.max())}
            for side, each in sides.items()
        }
    return found


def worst_first(points: pl.DataFrame) -> pl.DataFrame:
    """Problems sorted by efficiency, worst first; with nothing to choose, by the error of the predicted time."""
    if (points["configs"] > 1).any():
        return points.sort("efficiency", "number")
    return points.sort(_off("best_ns"), "number", descending=[True, False])


def _off(measured: str) -> pl.Expr:
    """How far a predicted time is from a measured one, in either direction."""
    return (pl.col("predicted_ns").clip(1e-300) / pl.col(measured)).log().abs()


def worst_problems(points: pl.DataFrame, count: int) -> list[dict[str, Any]]:
    """The worst problems, each with the chosen and the best config."""
    known = ("efficiency", "chosen_ns", "best_ns", "predicted_ns", "configs", *(f"{s}_{r}" for r in RATES for s in _SIDES))
    if points["device"].n_unique() > 1:
        known = ("device", *known)
    return [
        {part: part_of(row, part) for part in ("problem", *_SIDES)} | {name: row[name] for name in known}
        for row in worst_first(points).head(count).iter_rows(named=True)
    ]


def worst_predictions(rows: pl.DataFrame, count: int) -> list[dict[str, Any]]:
    """The rows whose predicted time is furthest from the measured one, by their ratio."""
    if "predicted_ns" not in rows.columns:
        return []
    told = rows.filter(pl.col("predicted_ns").is_finite())
    told = told.with_columns(rate_of(rate, "measured_ns").alias(rate) if _RATES[rate][0] in rows.columns
                             else pl.lit(None, pl.Float64).alias(rate) for rate in RATES)  # fmt: skip
    several = told["device"].n_unique() > 1
    found = []
    for row in told.sort(_off("measured_ns"), descending=True, maintain_order=True).head(count).iter_rows(named=True):
        entry: dict[str, Any] = {"problem": part_of(row, "problem"), "config": part_of(row, "config")}
        if several:
            entry["device"] = row["device"]
        entry |= {"measured_ns": row["measured_ns"], "predicted_ns": row["predicted_ns"]}
        found.append(entry | {"ratio": row["predicted_ns"] / row["measured_ns"], **{rate: row[rate] for rate in RATES}})
    return found


def part_of(row: Mapping[str, Any], part: str) -> dict[str, Any]:
    """The parameters of one part (`problem`, `config`, `chosen`, `best`) of a row, inactive ones left out."""
    return {name.split(".", 1)[1]: value for name, value in row.items() if name.startswith(f"{part}.") and value is not None}
