"""The same figures for parts of the data: by size of the problem, by dtype and layout, by what was chosen."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl

from kerncast.core.arrays import Array, Floats, Ints
from kerncast.core.parameters import Bool, Categorical
from kerncast.learning.scoring.metrics import Predicted
from kerncast.learning.tables.table import Table

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
        rows = _row_labels(table, labels, chosen)
        found += _lines("problem", name, labels, efficiency if choosing else None, rows, table, predicted)
    for name, parameter in table.family.config.parameters.items():
        if isinstance(parameter, Categorical | Bool):
            given = table.rows.frame[f"config.{name}"].cast(pl.String).fill_null("none")
            lines = _lines(
                "chosen config", name, given[chosen], efficiency if choosing else None, given.to_numpy(), table, predicted
            )
            found += [line | _beside_best(line["value"], given[best], given[chosen], efficiency) for line in lines]
    return found


def _beside_best(value: str, best: pl.Series, chosen: pl.Series, efficiency: Floats) -> Slice:
    """On how many problems the best config has a value, and how well the model chooses there."""
    there = (best == value).to_numpy()
    return {
        "n_best": int(there.sum()),
        "n_agreed": int((there & (chosen == value).to_numpy()).sum()),
        "efficiency_mean_where_best": float(efficiency[there].mean()) if there.any() else None,
    }


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


def _row_labels(table: Table, labels: pl.Series, chosen: Ints) -> Array:
    """The label of each row's problem."""
    by_problem = np.full(int(table.problem.max()) + 1, "", dtype=object)
    by_problem[table.problem[chosen]] = labels.to_numpy()
    return np.asarray(by_problem[table.problem])


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
