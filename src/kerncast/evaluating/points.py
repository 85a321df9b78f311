"""A point per problem and per row of an evaluation, the worst of them, rates in TFLOPS and GB/s, and parts of the data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl

from kerncast.core.arrays import Array, Floats, Ints
from kerncast.core.op.declaration import BANDWIDTH, TFLOPS
from kerncast.core.parameters import Bool, Categorical
from kerncast.learning.metrics import Predicted
from kerncast.learning.table import Table

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


Slice = dict[str, Any]


def slices(table: Table, predicted: Predicted) -> list[Slice]:
    """One line per value of each way to cut the problems, and of each categorical config parameter."""
    trials = table.trials
    chosen, best = trials.choose(predicted.score)[trials.solvable], trials.choose(trials.time_ns)[trials.solvable]
    efficiency = trials.share[chosen]
    first = table.rows.frame[chosen]
    choosing = trials.choosing
    found: list[Slice] = []
    for name, labels in _problem_cuts(table, first, chosen).items():
        # Every row has the label of its problem.
        by_problem = np.full(int(table.problem.max()) + 1, "", dtype=object)
        by_problem[table.problem[chosen]] = labels.to_numpy()
        rows = np.asarray(by_problem[table.problem])
        found += _lines("problem", name, labels, efficiency if choosing else None, rows, table, predicted)
    for name, parameter in table.family.config.parameters.items():
        if isinstance(parameter, Categorical | Bool):
            given = table.rows.frame[f"config.{name}"].cast(pl.String).fill_null("none")
            lines = _lines(
                "chosen config", name, given[chosen], efficiency if choosing else None, given.to_numpy(), table, predicted
            )
            for line in lines:
                # On how many problems the best config has this value, and how well the model chooses there.
                there = (given[best] == line["value"]).to_numpy()
                agreed = there & (given[chosen] == line["value"]).to_numpy()
                line |= {"n_best": int(there.sum()), "n_agreed": int(agreed.sum())}
                line["efficiency_mean_where_best"] = float(efficiency[there].mean()) if there.any() else None
            found += lines
    return found


def _problem_cuts(table: Table, first: pl.DataFrame, chosen: Ints) -> dict[str, pl.Series]:
    """A label for each problem: the op's bands of sizes, its categorical parameters, quarters of the roofline."""
    op = table.family.op
    cuts: dict[str, pl.Series] = {}
    for name, bands in op.bands.items():
        values = first[f"problem.{name}"].to_numpy()
        limits = np.array([limit for _, limit in bands[:-1]])
        names = np.array([f"{number + 1} {label}" for number, (label, _) in enumerate(bands)])
        cuts[name] = pl.Series(names[np.searchsorted(limits, values, side="left")])
    for name, parameter in table.family.problem.parameters.items():
        if isinstance(parameter, Categorical | Bool):
            cuts[name] = first[f"problem.{name}"].cast(pl.String).fill_null("none")
    if len(table.devices) > 1:
        cuts["device"] = pl.Series([table.devices[number].name for number in table.device[chosen]])
    work = table.rows.roofline_ns if table.rows.roofline_ns is not None else table.rows.bytes
    if work is not None and not op.bands:
        quarter = np.searchsorted(np.quantile(work[chosen], [0.25, 0.5, 0.75]), work[chosen], side="left")
        cuts["size"] = pl.Series(np.array(["1 smallest quarter", "2 second", "3 third", "4 largest quarter"])[quarter])
    return {name: labels for name, labels in cuts.items() if labels.n_unique() > 1}


def _lines(
    what: str,
    name: str,
    labels: pl.Series,
    efficiency: Floats | None,
    row_labels: Array,
    table: Table,
    predicted: Predicted,
) -> list[Slice]:
    lines = []
    values = labels.to_numpy()
    # A value that was never chosen has a line too, and so has one that never worked.
    for value in sorted((set(row_labels.tolist()) | set(values.tolist())) - {""}):
        line: Slice = {"of": what, "by": name, "value": value, "n_problems": int((values == value).sum())}
        line |= dict.fromkeys(("n_best", "n_agreed", "efficiency_mean_where_best"))
        part = efficiency[values == value] if efficiency is not None else np.empty(0)
        known = len(part) > 0
        line["efficiency_mean"] = float(part.mean()) if known else None
        line["efficiency_p50"] = float(np.quantile(part, 0.5)) if known else None
        line["efficiency_p10"] = float(np.quantile(part, 0.1)) if known else None
        line["efficiency_min"] = float(part.min()) if known else None
        rows = table.ok & (row_labels == value)
        line["n_rows"] = int(rows.sum())
        line["mape"] = None
        if predicted.time_ns is not None and rows.any():
            line["mape"] = float(np.mean(np.abs(predicted.time_ns[rows] / table.time_ns[rows] - 1.0)))
        lines.append(line)
    return lines
