"""Predicting times of TTNN ops on a Wormhole card for shapes that were never seen.

    KERNCAST_DATA=/path/to/data python benchmarks/ttnn.py

Data: training tables of https://github.com/tenstorrent/ttnn-op-runtime-predictor, `ttnn/*.csv` under KERNCAST_DATA. All
but the repeats of one shape is held out together. A score counts every measurement (`rows`), not only the medians of
repeats that a model learns. Baselines: a line in the tile count for each dtype and memory, a share of the roofline; the
noise is what the mean of a problem's own repeats would err by. `final_exp_dataset.csv` has labels that belong to other
rows: it is shown as it is, and scored with the suspect rows left out. Exits by the bars.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
from choosing import data_file

from kerncast import devices
from kerncast.data import Dataset
from kerncast.data.importers import Options, import_files
from kerncast.data.quality import label_shift
from kerncast.data.suspect import without_suspect
from kerncast.errors import InvalidValue
from kerncast.evaluating.evaluation import folds_of
from kerncast.models.conformal import cross_bounds
from kerncast.scoring.metrics import runtime_figures
from kerncast.tables.table import Table, build_table
from kerncast.training.folds import cross_validate
from kerncast.training.procedure import Procedure
from kerncast.training.train import Recipe

Floats = npt.NDArray[np.float64]
SOURCE = "github.com/tenstorrent/ttnn-op-runtime-predictor"
DEVICE = "wormhole_b0"
FIGURES = {"mape": "MAPE", "median_ape": "median", "ape_p95": "P95", "rmsre": "RMSRE"}
# Largest MAPE and RMSRE.
BARS = {"big_exp": (0.012, 0.023), "matmul_height_sharded": (0.028, 0.055)}
COVERAGE = (0.88, 0.92)


def rows_of(file: str, values: dict[str, str]) -> tuple[Dataset, pl.DataFrame]:
    """A public file as rows, in its own order."""
    with tempfile.TemporaryDirectory() as folder:
        options = Options(device=DEVICE, values=values)
        path = data_file("ttnn", file, source=SOURCE)
        dataset = import_files("ttnn-csv", [path], Path(folder, "data"), options)
        return dataset, dataset.read()


def predicted(table: Table, kind: str) -> tuple[npt.NDArray[np.int64], Floats] | None:
    """What a kind of model says of shapes that it has not seen; None where it cannot."""
    recipe = Recipe(kind, threads=1).resolved(table, None)
    try:
        fold, found, _ = cross_validate(table, Procedure(recipe), lambda *told: None, folds_of(table, "problem", recipe))
    except InvalidValue:
        return None
    assert found.time_ns is not None
    return fold, found.time_ns


def measured(table: Table, rows: pl.DataFrame) -> tuple[npt.NDArray[np.int64], Floats]:
    """Every measurement, and which row of the table it is a repeat of."""
    columns = [f"problem.{name}" for name in table.family.problem.parameters]
    places = table.rows.frame.select(columns).with_row_index("place")
    joined = rows.filter(pl.col("status") == "ok").join(places, on=columns, how="inner", nulls_equal=True)
    return joined["place"].to_numpy().astype(np.int64), joined["time_ns"].to_numpy()


def line(name: str, problem: npt.NDArray[np.int64], times: Floats, said: Floats, covered: Any = None) -> dict[str, float]:
    """One printed line: n, every figure with its 95 % interval."""
    figures = runtime_figures(problem, times, said, covered)
    found = {key: value for key, value in figures.items() if value is not None}
    shown = [f"{label} {found[key]['value']:7.2%} ({found[key]['lower']:.2%} to {found[key]['upper']:.2%})"
             for key, label in FIGURES.items()]  # fmt: skip
    print(f"  {name:24} n {len(times):6,}  {'  '.join(shown)}")
    return {key: float(value["value"] or 0.0) for key, value in found.items()}


def score(name: str, family: Any, rows: pl.DataFrame) -> bool:
    """The default model and the baselines on held-out shapes; True when the bars are reached."""
    table = build_table(family, rows, {DEVICE: devices.get(DEVICE)}, "benchmark")
    place, times = measured(table, rows)
    print(f"{name}: {rows.height:,} measurements of {len(table.time_ns):,} problems, {len(np.unique(table.group)):,} shapes")
    found = predicted(table, "gbdt")
    assert found is not None
    fold, said = found
    lower, upper = cross_bounds(table.problem, fold, table.time_ns, said)
    inside = (table.time_ns >= lower) & (table.time_ns <= upper)
    medians = line("model, medians", table.problem, table.time_ns, said, inside)
    each = line("model, every row", place, times, said[place])
    for label, kind in (("line in the tile count", "linear"), ("share of the roofline", "roofline")):
        other = predicted(table, kind)
        if other is None:
            print(f"  {label:24} unknown: no work, or no peak of these dtypes, is known")
        else:
            line(label, place, times, other[1][place])
    counts = np.bincount(place, minlength=len(said))
    if (counts > 1).any():
        mean = np.bincount(place, times, len(said)) / np.maximum(counts, 1)
        line("noise: mean of repeats", place, times, mean[place])
    good = COVERAGE[0] <= medians["coverage_90"] <= COVERAGE[1]
    print(f"  {'reached' if good else 'MISSED '} 90 % interval covers {medians['coverage_90']:.2%} (bar 88 to 92 %)")
    negative = int((said <= 0).sum())
    print(f"  {'reached' if not negative else 'MISSED '} {negative} negative predictions (bar 0)")
    for (key, label), bar in zip((("mape", "MAPE"), ("rmsre", "RMSRE")), BARS.get(name, ()), strict=False):
        for what, value in (("medians", medians[key]), ("every row", each[key])):
            print(f"  {'reached' if value <= bar else 'MISSED '} {label} {value:.2%}, {what} (bar {bar:.1%})")
            good &= value <= bar
    return good and not negative


def main() -> int:
    good = True
    for name, values in (("big_exp", {"func": "exp"}), ("matmul_height_sharded", {})):
        dataset, rows = rows_of(f"{name}{'_dataset' if 'exp' in name else ''}.csv", values)
        good &= score(name, dataset.families[0], rows)
    dataset, rows = rows_of("final_exp_dataset.csv", {"func": "exp"})
    family = dataset.families[0]
    found = label_shift(family, rows)
    print(f"final_exp: inspect finds {found['suspect_rows']:,} rows whose labels belong to other rows")
    good &= found["suspect_rows"] > 0
    kept = without_suspect(family, rows)
    good &= score("final_exp, suspect left out", family, kept)
    return int(not good)


if __name__ == "__main__":
    sys.exit(main())
