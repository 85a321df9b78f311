"""The worst problems, with every config that was measured on each: what a click opens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from kerncast.evaluating.points import worst_first
from kerncast.evaluating.report.words import assignments, duration, part_of, percent, problem_of, short

MOST_PROBLEMS = 20
# Configs shown for one problem: all that are near the best, and an even sample of the rest.
MOST_CONFIGS = 300


@dataclass(frozen=True)
class Worst:
    """One problem of the list, in words, and what its drill-down shows."""

    label: str
    efficiency: str
    share: float
    chosen: str
    chosen_time: str
    best: str
    best_time: str
    predicted_time: str
    off: str
    parameters: list[tuple[str, str, str]]
    """Config parameters on which the chosen and the best differ: name, chosen, best."""
    data: dict[str, Any]


def worst_problems(problems: pl.DataFrame, rows: pl.DataFrame) -> list[Worst]:
    """The same problems in the same order as `Evaluation.worst`."""
    worst = worst_first(problems).head(MOST_PROBLEMS)
    return [_worst(row, rows.filter(pl.col("number") == row["number"])) for row in worst.iter_rows(named=True)]


def _worst(row: dict[str, Any], measured: pl.DataFrame) -> Worst:
    chosen, best = part_of(row, "chosen"), part_of(row, "best")
    names = list(dict.fromkeys([*chosen, *best]))
    differs = [
        (name, str(chosen.get(name, "–")), str(best.get(name, "–"))) for name in names if chosen.get(name) != best.get(name)
    ]
    predicted, real = row["predicted_ns"], row["chosen_ns"]
    return Worst(
        label=problem_of(row), efficiency=percent(row["efficiency"]), share=row["efficiency"],
        chosen=assignments(chosen), chosen_time=duration(real) if real is not None else "failed",
        best=assignments(best), best_time=duration(row["best_ns"]), predicted_time=duration(predicted),
        off=f"{real / predicted:.2f}×" if real is not None and predicted else "–",
        parameters=differs, data=_configs(row, measured),
    )  # fmt: skip


def _configs(row: dict[str, Any], measured: pl.DataFrame) -> dict[str, Any]:
    """Columns of the table and points of the chart, fastest first."""
    names = [name for name in measured.columns if name.startswith("config.")]
    ordered = measured.sort("measured_ns", *names)
    varying = [name for name in names if ordered[name].n_unique() > 1]
    chosen, best = _place(ordered, names, row, "chosen"), _place(ordered, names, row, "best")
    kept = np.arange(ordered.height)
    if ordered.height > MOST_CONFIGS:
        spread = np.linspace(0, ordered.height - 1, MOST_CONFIGS // 2).round().astype(np.int64)
        marked = [place for place in (chosen, best) if place is not None]
        kept = np.unique(np.concatenate([np.arange(MOST_CONFIGS // 2), spread, np.array(marked, dtype=np.int64)]))
    shown = ordered[kept]
    position = {int(place): number for number, place in enumerate(kept)}
    return {
        "names": [name.removeprefix("config.") for name in varying],
        "configs": [
            ["–" if line[name] is None else str(line[name]) for name in varying] for line in shown.iter_rows(named=True)
        ],
        "rank": [int(place) + 1 for place in kept],
        "measured": short(shown["measured_ns"]),
        "predicted": short(shown["predicted_ns"]) if "predicted_ns" in shown.columns else None,
        "chosen": None if chosen is None else position[chosen],
        "best": None if best is None else position[best],
        "total": ordered.height,
    }


def _place(ordered: pl.DataFrame, names: list[str], row: dict[str, Any], part: str) -> int | None:
    """The position of the chosen or the best config; None for a choice that failed."""
    same = [pl.col(name).eq_missing(pl.lit(row[f"{part}.{name.removeprefix('config.')}"])) for name in names]
    if not same:
        return 0 if ordered.height else None
    found = ordered.select(pl.all_horizontal(same)).to_series().arg_true()
    return int(found[0]) if len(found) else None
