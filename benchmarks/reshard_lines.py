"""Predicting reshard times on Wormhole cards for unseen pairs of grids, one model for each pair of strategies.

Data: the lines fitted to 2.9 million measurements that are attached to https://github.com/tenstorrent/tt-metal/issues/14762;
put them under KERNCAST_DATA/reshard/all_models.csv.gz. A line is evaluated at every tile count of the published sweep that
fits on the cards and where the line is above 1 µs. Models are trained on twelve tile counts of each line in the other folds and
scored on all tile counts of the held-out lines. Peers: the MLPs published for the same op reached R² 0.862 to 0.977 on rows
split at random; there is none for block to width. `untouched` has the figures for a quarter of the pairs of grids on which no
feature and no setting was ever tried.
"""

from __future__ import annotations

import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl
from choosing import data_file
from reporting import Benchmark, Interval, Row, Target, finish, format_figure, script_parser

from kerncast.data import Dataset
from kerncast.data.formats import ImportOptions
from kerncast.data.importing import import_files
from kerncast.evaluating.evaluation import split_groups
from kerncast.learning.metrics import flat, runtime_figures
from kerncast.learning.table import Table, load_table
from kerncast.learning.trials import folds_by_group
from kerncast.training.procedure import Procedure
from kerncast.training.train import Recipe

R2, MAPE = Target(0.97), Target(high=6.0)
BENCHMARK = Benchmark(
    __file__,
    "Predicting times, on public data",
    "Reshards between shard layouts on Wormhole cards",
    "lines fitted to 2.9 million measurements, attached to https://github.com/tenstorrent/tt-metal/issues/14762",
    "Apache-2.0",
)
SPLIT = "five folds, pairs of grids unseen"
# R² of the published MLPs.
PEERS = {"block-height": 0.862, "width-height": 0.891, "block-width": None, "block-block": 0.972, "width-block": 0.951,
         "height-block": 0.977, "height-width": 0.975}  # fmt: skip
KNOBS = {"trees": 600, "leaves": 127, "lr": 0.05}
POINTS = 12
GRIDS = ("in_x", "in_y", "out_x", "out_y")
FIGURES = ("r2", "mape", "median_ape", "ape_p95", "rmsre")
Floats = npt.NDArray[np.float64]


def out_of_fold(learned_from: Table, scored: Table) -> Floats:
    """Every row of `scored` predicted by a model that saw none of its pair of grids."""
    learned_from = replace(learned_from, group=split_groups(learned_from, "grids"))
    recipe = Recipe(knobs=KNOBS, threads=1).resolved(learned_from, None)
    procedure = Procedure(recipe)
    # Both tables have the same pairs of grids, so both get the same folds.
    fold, aim = (
        folds_by_group(group, recipe.folds, recipe.seed) for group in (learned_from.group, split_groups(scored, "grids"))
    )
    found = np.full(len(aim), np.nan)
    for number in range(recipe.folds):
        print(f"  fold {number + 1} of {recipe.folds}", file=sys.stderr)
        learner = procedure.fit(learned_from.take(fold != number))
        found[aim == number] = procedure.scores(learner, scored.take(aim == number))[0]
    return found


def line(pair: str, scored: Table, predicted: Floats) -> list[Row]:
    """Print the figures of one pair of strategies, and return rows for those with a target."""
    assert scored.rows.roofline_ns is not None
    figures = figures_of(scored, predicted)
    keep = untouched(scored.rows.frame)
    floor, apart = figures_of(scored, scored.rows.roofline_ns), figures_of(scored.take(keep), predicted[keep])
    peer = f"{PEERS[pair]:.3f}" if PEERS[pair] else "none"
    shown = "  ".join(f"{value(figures, name):6.2%}" for name in FIGURES[1:])
    print(
        f"{pair:13s} {len(predicted):7,d}  {value(figures, 'r2'):.4f}  {shown}  "
        f"{value(apart, 'r2'):.4f} {value(apart, 'mape'):.2%}  {value(floor, 'r2'):7.3f} {value(floor, 'mape'):6.1%}  {peer}"
    )
    groups = len(np.unique(split_groups(scored, "grids")))
    n = f"{len(predicted):,} points of {groups:,} pairs of grids"
    stated = []
    for key, label, unit, scale, target in (("r2", "R²", "", 1.0, R2), ("mape", "MAPE", "%", 100.0, MAPE)):
        found = {name: scale * (figures[key][name] or 0.0) for name in ("value", "lower", "upper")}
        against = [f"lower bound of the network {format_figure(scale * value(floor, key), unit)}"]
        if key == "r2":
            against.append(f"published MLP {peer}, on rows split at random" if PEERS[pair] else "no published MLP")
        note = f"on the quarter of the pairs of grids that was never tuned on: {format_figure(scale * value(apart, key), unit)}"
        interval = Interval(found["lower"], found["upper"])
        stated.append(Row(f"{pair}: {label}", found["value"], unit, target, "; ".join(against), n, SPLIT, interval, note))
    return stated


def figures_of(scored: Table, predicted: Floats) -> dict[str, dict[str, float | None]]:
    """Runtime figures. The bootstrap draws whole pairs of grids, because points of one line are not independent."""
    found = runtime_figures(split_groups(scored, "grids"), scored.time_ns, predicted)
    return {name: found[name] or {} for name in FIGURES}


def value(figures: dict[str, dict[str, float | None]], name: str) -> float:
    return flat(figures, name) or 0.0


def untouched(frame: pl.DataFrame) -> npt.NDArray[np.bool_]:
    """The pairs of grids that were set aside before the first feature was tried."""
    x, y, to_x, to_y = (frame[f"problem.{name}"].to_numpy().astype(np.int64) - 1 for name in GRIDS)
    return np.random.default_rng(12345).random(4096)[x * 512 + y * 64 + to_x * 8 + to_y] < 0.25


def main() -> int:
    given = script_parser(__doc__).parse_args()
    file = data_file("reshard", "all_models.csv.gz", source="https://github.com/tenstorrent/tt-metal/issues/14762")
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        datasets = {}
        for name, values in (("all", {}), ("some", {"points": str(POINTS)})):
            report = print if name == "all" else None
            import_files("reshard-lines", [file], Path(folder, name), ImportOptions(values=values), report)
            datasets[name] = Dataset.open(Path(folder, name))
        print(f"imported in {time.perf_counter() - start:.0f} s")
        print("strategies          n  R²      MAPE    median  P95     RMSRE   untouched      roofline        peer's R²")
        stated: list[Row] = []
        start = time.perf_counter()
        for pair in PEERS:
            source, target = pair.split("-")
            where = (f"problem.in_strategy={source}", f"problem.out_strategy={target}")
            scored, some = (load_table([datasets[name]], where=where) for name in ("all", "some"))
            stated += line(pair, scored, out_of_fold(some, scored))
    print(f"trained and scored in {time.perf_counter() - start:.0f} s on one thread")
    return finish(BENCHMARK, stated, given.json)


if __name__ == "__main__":
    sys.exit(main())
