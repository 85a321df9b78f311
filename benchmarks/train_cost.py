"""What `kerncast train` costs, in CPU seconds, against one plain LightGBM five-fold run on the same rows and features.

    KERNCAST_DATA=… python benchmarks/train_cost.py [--json FILE] [--repeats N]

Plain: 500 trees of 127 leaves at LightGBM's own learning rate on log(time ÷ expected), five folds, one thread; its CPU
seconds are those of fitting and predicting alone. `train`: the whole process with its defaults, import, reading, judging
and writing included. The two take turns, first alone, then while one other process keeps a core busy. Data: see
a100_mm.py and a100_mixed_mm.py.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from choosing import FIGURES, data_file
from reporting import Benchmark, Interval, Row, Target, finish, percent, script_parser, spread

from kerncast.data.formats import ImportOptions
from kerncast.data.importing import import_files

TABLES = {"A100 mm": "a100_mm.zip", "A100 mixed_mm": "mixedmm_a100_data.zip"}
BENCHMARK = Benchmark(
    __file__,
    "How long training takes",
    "kerncast train against plain LightGBM",
    "PyTorch's AutoHeuristic data sets (https://github.com/pytorch/pytorch, torchgen/_autoheuristic)",
    "none stated",
)
TREES, LEAVES, THREADS = 500, 127, 1
PLAIN = f"plain LightGBM, {TREES} trees x {LEAVES} leaves, five folds, {THREADS} thread"
ALONE, BUSY = 1.5, 2.0
# Out-of-fold efficiency in percent when training cost three times as much: today's 95 % interval must reach it.
BEFORE = {
    "A100 mm": {"efficiency_mean": 99.15, "efficiency_p10": 97.9, "efficiency_p1": 86.8},
    "A100 mixed_mm": {"efficiency_mean": 99.80, "efficiency_p10": 100.0},
}
# The busy process ends by itself if this one is killed.
LONGEST_SECONDS = 3600


def plain_run(dataset: Path) -> float:
    """CPU seconds of the five folds."""
    import lightgbm
    import numpy as np

    from kerncast.data import Dataset
    from kerncast.learning.table import load_table
    from kerncast.learning.trials import folds_by_group
    from kerncast.training import Recipe
    from kerncast.training.procedure import Procedure

    table = load_table([Dataset.open(dataset)])
    recipe = Recipe().resolved(table, None)
    fold = folds_by_group(table.group, recipe.folds, recipe.seed)
    parameters = {"objective": "regression", "num_leaves": LEAVES, "num_threads": THREADS, "verbosity": -1}
    begun = time.process_time()
    for number in np.unique(fold):
        seen, held = table.take((fold != number) & table.ok), table.take(fold == number)
        labels = Procedure(recipe).target.encode(seen.time_ns, seen.rows)
        forest = lightgbm.train(parameters, lightgbm.Dataset(seen.rows.features, labels, params=parameters), TREES)
        forest.predict(held.rows.features, num_threads=THREADS)
    return time.process_time() - begun


def measured(arguments: list[str]) -> tuple[float, float, str]:
    """CPU and wall seconds of a process and its children, and what it printed."""
    begun = time.perf_counter()
    with tempfile.TemporaryFile() as printed:
        child = subprocess.Popen([sys.executable, *arguments], stdout=printed, stderr=subprocess.DEVNULL)
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        printed.seek(0)
        text = printed.read().decode()
    if child.returncode:
        sys.exit(f"{' '.join(arguments)} ended with {child.returncode}: {text}")
    return used.ru_utime + used.ru_stime, time.perf_counter() - begun, text


@contextmanager
def busy_process() -> Iterator[None]:
    """Keep one core busy."""
    loop = f"import time\nend = time.monotonic() + {LONGEST_SECONDS}\nwhile time.monotonic() < end: pass"
    child = subprocess.Popen([sys.executable, "-c", loop])
    try:
        yield
    finally:
        child.kill()
        child.wait()


def take_turns(dataset: Path, folder: Path, repeats: int) -> tuple[dict[str, list[float]], dict[str, Any]]:
    """CPU and wall seconds of both, turn by turn, and the figures of the last model."""
    spent: dict[str, list[float]] = {"plain": [], "train": [], "train wall": []}
    figures: dict[str, Any] = {}
    for turn in range(repeats):
        spent["plain"].append(float(measured([__file__, "--plain", str(dataset)])[2]))
        out = folder / f"model{turn}-{len(list(folder.iterdir()))}"
        cpu, wall, text = measured(["-m", "kerncast.app.cli", "train", str(dataset), "--out", str(out), "--json"])
        spent["train"].append(cpu)
        spent["train wall"].append(wall)
        figures = json.loads(text)["overall"]
        print(f"  turn {turn + 1}: plain {spent['plain'][-1]:.1f} CPU s, train {cpu:.1f} CPU s", file=sys.stderr)
    return spent, figures


def cost_row(name: str, where: str, spent: dict[str, list[float]], limit: float) -> Row:
    """The ratio of each turn: what slows one down slows down the other."""
    ratios = [ours / plain for ours, plain in zip(spent["train"], spent["plain"], strict=True)]
    middle = {what: statistics.median(values) for what, values in spent.items()}
    return Row(
        f"{name}, {where}: CPU seconds of kerncast train ÷ of plain LightGBM",
        statistics.median(ratios),
        target=Target(high=limit),
        against=f"{PLAIN}: {middle['plain']:.0f} CPU s; train {middle['train']:.0f} CPU s",
        n=f"{len(ratios)} turns" if len(ratios) > 1 else "1 turn",
        interval=spread(ratios, "turns") if len(ratios) > 1 else None,
    )


def figure_row(name: str, key: str, before: float, figures: dict[str, Any]) -> Row:
    """An out-of-fold figure of that training; the upper end of its interval is what the target judges."""
    value, interval = percent(figures[key])
    upper = interval.high if interval else value
    return Row(
        f"{name}: upper end of the interval of: {FIGURES[key]}",
        round(upper, 2),
        "%",
        Target(before),
        f"{before:g} when training cost three times as much; the figure itself is {value:.2f}",
        f"{figures['n_problems']:,} problems",
        "five folds, problems unseen",
        Interval(interval.low, interval.high) if interval else None,
    )


def rows_of(name: str, dataset: Path, folder: Path, repeats: int) -> list[Row]:
    print(f"{name}: {repeats} turns on {os.cpu_count()} cores")
    alone, figures = take_turns(dataset, folder, repeats)
    with busy_process():
        busy, _ = take_turns(dataset, folder, repeats)
    return [
        cost_row(name, "alone", alone, ALONE),
        cost_row(name, "while another process is busy", busy, BUSY),
        *(figure_row(name, key, before, figures) for key, before in BEFORE[name].items()),
    ]


def main() -> int:
    parser = script_parser(__doc__)
    parser.add_argument("--repeats", type=int, default=1, help="turns of each, alone and with a busy core")
    parser.add_argument("--only", choices=TABLES, help="one of the tables")
    parser.add_argument("--plain", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.plain is not None:
        print(plain_run(asked.plain))
        return 0
    rows: list[Row] = []
    for name, file in TABLES.items():
        if asked.only in (None, name):
            path = data_file("autoheuristic", file, source="pytorch/pytorch, AutoHeuristic data sets")
            with tempfile.TemporaryDirectory() as folder:
                import_files("autoheuristic", [path], Path(folder, "data"), ImportOptions(device="a100"))
                rows += rows_of(name, Path(folder, "data"), Path(folder), asked.repeats)
    return finish(BENCHMARK, rows, asked.json)


if __name__ == "__main__":
    sys.exit(main())
