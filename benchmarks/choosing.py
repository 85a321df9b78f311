"""What the two selection benchmarks share: import, cross-validate with the default recipe, print, judge."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

from kerncast.data import Dataset
from kerncast.data.importers import Options, import_files
from kerncast.models.conformal import cross_bounds
from kerncast.scoring.scorecard import Predicted
from kerncast.tables.assess import assess
from kerncast.tables.table import Table, load_table
from kerncast.training.folds import cross_validate
from kerncast.training.procedure import Procedure
from kerncast.training.train import Recipe

COVERAGE = (0.88, 0.92)


def data_file(*parts: str, source: str) -> Path:
    """A file under KERNCAST_DATA, or the way to get it."""
    root = os.environ.get("KERNCAST_DATA")
    path = Path(root, *parts) if root else None
    if path is None or not path.exists():
        sys.exit(f"set KERNCAST_DATA to a folder that holds {'/'.join(parts)} (public source: {source})")
    return path


def table_of(format_name: str, path: Path, device: str | None, where: tuple[str, ...] = ()) -> Table:
    """A public file as a training table."""
    with tempfile.TemporaryDirectory() as folder:
        import_files(format_name, [path], Path(folder, "data"), Options(device=device))
        return load_table([Dataset.open(Path(folder, "data"))], where=where)


def report(name: str, table: Table, bars: dict[str, tuple[str, float]], group: str | None = None) -> bool:
    """Five folds by group, the default recipe, every figure with its interval; True when all bars are reached."""
    from dataclasses import replace

    from kerncast.evaluating.evaluation import folds_of, split_groups

    recipe = Recipe().resolved(table, None)
    fitted = table if group is None else replace(table, group=split_groups(table, group))
    start = time.perf_counter()
    fold, found, _ = cross_validate(
        fitted,
        Procedure(recipe),
        lambda what, n, of: print(f"  {what}", file=sys.stderr),
        folds_of(table, group or "problem", recipe),
    )
    spent = time.perf_counter() - start
    lower, upper = cross_bounds(fitted.problem, fold, table.time_ns, found.time_ns)
    evaluation = assess(table, Predicted(found.score, found.time_ns, lower, upper), fold)
    print(
        f"{name}: {evaluation['overall']['n_problems']:,} problems, {len(table.time_ns):,} vectors, five folds in {spent:.0f} s"
    )
    cards = {"model": evaluation["overall"], **evaluation["baselines"]}
    for who, card in cards.items():
        shown = []
        for key in (
            "efficiency_mean",
            "efficiency_p10",
            "efficiency_p1",
            "efficiency_min",
            "top1",
            "noise_ceiling",
            "mape",
            "ape_p95",
        ):
            if card.get(key) is not None:
                figure = card[key]
                shown.append(f"{key} {figure['value']:.2%} ({figure['lower']:.2%} to {figure['upper']:.2%})")
        print(f"  {who:20s} {'; '.join(shown)}")
    covered = evaluation["overall"]["coverage_90"]["value"]
    good = COVERAGE[0] <= covered <= COVERAGE[1]
    print(f"  {'reached' if good else 'MISSED '} 90 % interval covers {covered:.2%} (bar 88 to 92 %)")
    for key, (sense, bar) in bars.items():
        value = evaluation["overall"][key]["value"]
        reached = value >= bar if sense == ">=" else value <= bar
        print(f"  {'reached' if reached else 'MISSED '} {key} {value:.3%} (bar {sense} {bar:.2%})")
        good &= reached
    return good
