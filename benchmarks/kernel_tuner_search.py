"""Searching measured spaces with a model of 5 % of the configs: `KERNCAST_DATA=… python benchmarks/kernel_tuner_search.py`.

Data: a 2-D convolution (4,362 configs each, every launch of each kept) on an A100 and an MI250X, tuned with Kernel
Tuner; published as cachefiles/convolution_milo/{A100,MI250X}.json.gz in
https://github.com/AutoTuningAssociation/benchmark_hub.

A model is trained on a random 5 % of the configs. A strategy scores 500 configs with it (exhaustive: all), and the finalists
are looked up in the file instead of being measured. The figure is the optimum's time ÷ the best time found, mean over seeds.
There are two tables. The first counts new measurements only, next to random search with as many. The second counts all
measurements, including the 5 %; random search then continues from the same 5 %, so both have the same luck with them. Optuna
takes tens of milliseconds per suggestion, so it scores only 60 configs.

Target: on both spaces, exhaustive and local search beat random search with the same total number of measurements, if at least
5 % of the space are new measurements.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import polars as pl
from choosing import data_file
from reporting import Benchmark, Row, Target, finish, format_figure, script_parser, spread

from kerncast.answering.search import STRATEGIES, search
from kerncast.core.op import Problem
from kerncast.data import Dataset
from kerncast.data.formats import ImportOptions
from kerncast.data.importing import import_files
from kerncast.models.model import Model
from kerncast.training.train import Recipe, train

SOURCE = "AutoTuningAssociation/benchmark_hub, cachefiles/convolution_milo"
BENCHMARK = Benchmark(
    __file__,
    "Choosing kernels, on public data",
    "Searching spaces that Kernel Tuner measured in full",
    "https://github.com/AutoTuningAssociation/benchmark_hub, cachefiles/convolution_milo: A100, MI250X",
    "MIT",
)
SPACES = {"convolution_A100.json.gz": None, "convolution_MI250X.json.gz": "gfx90a"}
SHARE = 0.05
# New measurements, as shares of the space. Targets apply from 5 % on.
BUDGETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.10)
TARGET_FROM = 0.05
# The default strategies of `kerncast select --search`. The other strategies have no target.
WITH_TARGET = ("exhaustive", "local")
SEEDS = 8
SCORED = {"exhaustive": None, "random": 500, "de": 500, "local": 500, "optuna": 60}
DRAWS = 100


def sampled_model(rows: pl.DataFrame, dataset: Dataset, seed: int, folder: Path) -> Model:
    """A model of a random 5 % of the space; the declared space is the whole one."""
    (family,) = dataset.families
    part = Dataset.create(folder / f"rows{seed}")
    chosen = np.sort(np.random.default_rng(seed).permutation(rows.height)[: round(SHARE * rows.height)])
    part.append(family, rows[chosen].drop("key", "op", "family"), machines=dataset.contents.devices)
    return train(part.path, folder / f"model{seed}", Recipe(folds=2, threads=1))


def orders(
    model: Model, problem: Problem, place: dict[tuple[object, ...], int], measured: set[int], seed: int
) -> dict[str, list[int]]:
    """For each strategy, the rows that it would measure, in order, without rows that are already measured."""
    found = {}
    most = len(place)
    for name in STRATEGIES:
        result = search(model, problem, name, budget=SCORED[name], top_k=most, seed=seed)
        rows = [place[tuple(item.config.as_dict().values())] for item in result.finalists]
        found[name] = [row for row in rows if row not in measured]
    return found


def best_within(share: np.ndarray, rows: list[int], counts: list[int]) -> list[float]:
    """The largest share of the optimum among the first N rows, for each N in `counts`; NaN if there are fewer rows."""
    running = np.maximum.accumulate(share[rows])
    return [float(running[count - 1]) if count <= len(running) else float("nan") for count in counts]


def judge(name: str, path: Path, device: str | None) -> list[Row]:
    """Print both tables of one space, and return its rows."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        dataset = import_files("kernel-tuner", [path], folder / "all", ImportOptions(device=device))
        (family,) = dataset.families
        rows = dataset.read()
        times = rows["time_ns"].fill_null(float("inf")).to_numpy()
        share = times.min() / times
        place = {row: number for number, row in enumerate(rows.select(f"config.{n}" for n in family.config.parameters).rows())}
        problem = Problem(family, {n: rows[f"problem.{n}"][0] for n in family.problem.parameters})
        counts = [max(1, round(budget * rows.height)) for budget in BUDGETS]
        alone: dict[str, list[list[float]]] = {}
        total: dict[str, list[list[float]]] = {}
        for seed in range(SEEDS):
            sample = np.random.default_rng(seed).permutation(rows.height)
            seen, rest = sample[: round(SHARE * rows.height)], sample[round(SHARE * rows.height) :]
            model = sampled_model(rows, dataset, seed, folder)
            ways = orders(model, problem, place, set(seen.tolist()), seed)
            for way, order in ways.items():
                alone.setdefault(way, []).append(best_within(share, order, counts))
            rng = np.random.default_rng([seed, 1])
            drawn = np.mean([best_within(share, rng.permutation(rows.height).tolist(), counts) for _ in range(DRAWS)], axis=0)
            alone.setdefault("(random search)", []).append(drawn.tolist())
            more = [best_within(share, rng.permutation(rest).tolist(), counts) for _ in range(DRAWS)]
            start = float(share[seen].max())
            for way, values in alone.items():
                if way != "(random search)":
                    total.setdefault(way, []).append(np.maximum(values[-1], start).tolist())
            total.setdefault("(random search)", []).append(np.mean(np.maximum(more, start), axis=0).tolist())
    print(f"\n{name}: {rows.height:,} configs, of which {int(np.isinf(times).sum())} fail, {SEEDS} seeds")
    show("new measurements only", counts, alone)
    show(
        f"all measurements, including {round(SHARE * rows.height)} for the model",
        [c + round(SHARE * rows.height) for c in counts],
        total,
    )
    return stated(name.removesuffix(".json.gz"), counts, rows.height, total)


def show(title: str, counts: list[int], found: dict[str, list[list[float]]]) -> None:
    print(f"  {title:<52s}" + "".join(f"{count:>8,}" for count in counts))
    for way, values in found.items():
        means = np.mean(values, axis=0)
        print(f"    {way:<50s}" + "".join(f"{value:>8.1%}" if np.isfinite(value) else f"{'-':>8s}" for value in means))


def stated(name: str, counts: list[int], height: int, total: dict[str, list[list[float]]]) -> list[Row]:
    """Rows for each strategy from 5 % new measurements on, against random search with the same total of measurements."""
    rows = []
    chance = np.array(total["(random search)"])
    for way in STRATEGIES:
        found = np.array(total[way])
        for place, count in enumerate(counts):
            ours, theirs = 100 * found[:, place], 100 * chance[:, place]
            if count < round(TARGET_FROM * height) or not np.isfinite(ours).all():
                continue
            beside = float(theirs.mean())
            rows.append(
                Row(
                    f"{name}: best found with the model ({way}) ÷ optimum, {round(SHARE * height)} + {count} measurements",
                    float(ours.mean()),
                    "%",
                    Target(beside) if way in WITH_TARGET else None,
                    f"random search with as many measurements {format_figure(beside, '%')}",
                    f"{height:,} configs, {len(ours)} seeds",
                    f"the model sees a random {100 * SHARE:g} %",
                    spread(ours, "seeds"),
                    f"ahead in {int((ours > theirs).sum())} of {len(ours)} seeds",
                )
            )
    return rows


if __name__ == "__main__":
    given = script_parser(__doc__).parse_args()
    began = time.perf_counter()
    found = [judge(name, data_file("kernel_tuner", name, source=SOURCE), device) for name, device in SPACES.items()]
    print(f"\n{time.perf_counter() - began:.0f} s")
    sys.exit(finish(BENCHMARK, [row for rows in found for row in rows], given.json))
