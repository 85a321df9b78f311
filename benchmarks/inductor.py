"""torch.compile with a model that chooses, against max-autotune, on this CPU.

    python benchmarks/inductor.py [--train DATASET …] [--held-out DATASET] [--only kernels,compile,networks]

Without `--train` and `--held-out`, kernels are measured first: `--problems` shapes for training and `--test-problems` others,
more than half of them with at most 32 rows, each with one or two threads, with or without a bias and an activation. That
takes about an hour on two cores, most of it compiling. Good configs are rare in a random sample, so training has two rounds: a
model of the first one says which configs of the same shapes the second one adds. Chosen kernels are scored on shapes that the
model has not seen, among the configs measured there: a random sample, Inductor's own choice, ATen's kernel, the fixed tile, the
model's first four.
Compile times are CPU seconds of this process and its compilers, with Inductor's caches empty and its precompiled headers made.
Whole networks are compiled once in each way, then run in turns. torch is 2.13.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from inductor_networks import networks, three_products, train_diode
from reporting import Benchmark, Row, Target, bootstrap, finish, script_parser, spread

import kerncast as kc
import kerncast.torch as ki
import torch
from kerncast.core.progress import QUIET
from kerncast.library.declared.family_file import family_named
from kerncast.measuring.backends.inductor.build import cpu_software
from kerncast.measuring.collection import Request
from kerncast.measuring.messages import Policy
from kerncast.measuring.run import collect
from kerncast.torch import reporting
from kerncast.torch.chooser import ChoicePolicy, Chooser
from kerncast.torch.validating import compare_modes

BENCHMARK = Benchmark(__file__, "Choosing kernels inside torch.compile", "torch.compile against max-autotune")
FAMILY = "gemm/inductor_cpp"
MOST_FLOPS, FEWEST_FLOPS = 6e8, 2e4
CHOICES = 18
# Random configs are seldom good, so the model's first ones are measured on unseen shapes, too: its choice is one of them.
TOP = 4
# And of each training shape, these many that a model of the random ones likes best.
SECOND_ROUND = 10
# Fewer samples than usual: most of the time goes into compiling, and near-ties are raced again in the end.
POLICY = Policy(samples=8)
Problem = dict[str, Any]


def draw(count: int, seed: int, threads: int, bf16: float = 0.15) -> list[Problem]:
    """Shapes by rule: sizes are log-uniform, most of them multiples of 32, three in five have at most 32 rows."""
    rng, found = random.Random(10 * seed + threads), []

    def size(low: int, high: int) -> int:
        return round(low * (high / low) ** rng.random())

    while len(found) < count:
        m = size(1, 32) if rng.random() < 0.6 else size(33, 768)
        n, k = size(32, 4096), size(32, 4096)
        if rng.random() < 0.6:
            n, k = (max(32, round(value / 32) * 32) for value in (n, k))
        if not FEWEST_FLOPS <= 2 * m * n * k <= MOST_FLOPS:
            continue
        dtype = "bf16" if rng.random() < bf16 else "fp32"
        problem: Problem = {"M": m, "N": n, "K": k, "dtype": dtype, "layout": "rcr", "threads": threads}
        if rng.random() < 0.4:
            problem["bias"] = True
        activation = rng.choice(["none", "none", "none", "relu", "gelu", "silu"])
        found.append(problem if activation == "none" else {**problem, "activation": activation})
    return found


def fixed_tile(problem: Problem) -> dict[str, Any]:
    """The best single rule that is known: six rows (as many as there are) by two vectors, with Inductor's own blocks."""
    wide = "avx512" in cpu_software()["isa"].lower()
    mr, nr = (min(6, problem["M"]), 16) if not wide else (min(4, problem["M"]), 48)
    return {"kind": "tile", "mr": mr, "nr": nr, "mc": 0, "kc": 0, "split": "default"}


def vectors(problems: list[Problem], sample: int, chooser: Chooser | None, seed: int, top: int = TOP) -> pl.DataFrame:
    """A sample of configs for each problem and, with a chooser, its first choices and the fixed tile."""
    family, parts = family_named(FAMILY), []
    with tempfile.TemporaryDirectory() as folder:
        for number, problem in enumerate(problems):
            file = Path(folder) / f"{number}.json"
            file.write_text(json.dumps([problem]))
            parts += list(kc.sweep(family, problems=str(file), configs=f"sample:{sample}", seed=seed).iter_blocks())
            if chooser is not None:
                picked = chooser.decide("gemm", problem, library=True)
                best = Chooser(chooser.model, ChoicePolicy(top_k=top)).decide("gemm", problem, library=True)
                wanted = [fixed_tile(problem), *picked.configs, *best.configs]
                given = parts[-1].head(1)
                for config in wanted:
                    columns = [pl.lit(config.get(name), dtype=given.schema[f"config.{name}"]).alias(f"config.{name}")
                               for name in family.config.parameters]  # fmt: skip
                    parts.append(given.with_columns(columns))
    return pl.concat(parts, how="diagonal").unique(maintain_order=True)


def measured(path: Path, frame: pl.DataFrame) -> pl.DataFrame:
    collect(Request(family_named(FAMILY), "inductor", ("0",), path, POLICY, second_visit_seconds=240), [frame], progress=QUIET)
    return rows_of(path)


def rows_of(path: Path) -> pl.DataFrame:
    return kc.Dataset.open(path).read().filter(pl.col("status") == "ok")


def score(chooser: Chooser, rows: pl.DataFrame, diode: Any) -> pl.DataFrame:
    """One line a problem: times of the best, of the choice and of what it is compared with."""
    names = [name for name in rows.columns if name.startswith("problem.")]
    found = []
    for _, own in rows.group_by(names, maintain_order=True):
        own = own.group_by([name for name in own.columns if name.startswith("config.")], maintain_order=True).agg(
            pl.col("time_ns").median(), *(pl.col(name).first() for name in names)
        )
        problem = {name.removeprefix("problem."): own[name][0] for name in names if own[name][0] is not None}
        kinds = {kind: own.filter(pl.col("config.kind") == kind)["time_ns"].min() for kind in ("default", "aten")}
        if None in kinds.values():
            continue
        picked = chooser.decide("gemm", problem, library=True)
        left = [time_of(own, config) for config in picked.configs] + ([kinds["aten"]] if picked.library else [])
        # Inductor times what is left; where the model abstains, that is its own choice and ATen's.
        if None in left:
            print(f"left out, for the choice was not measured: {problem}")
            continue
        chosen = min(left or list(kinds.values()))
        tiles = own.filter(pl.col("config.kind") == "tile")
        found.append(
            {
                **{name: problem.get(name) for name in ("M", "N", "K", "dtype", "threads")},
                "status": picked.decision.status,
                "best": own["time_ns"].min(),
                "chosen": chosen,
                "fixed": time_of(own, fixed_tile(problem)),
                "diode": tiles["time_ns"][int(np.argmin(diode(tiles)))],
                **kinds,
            }
        )
    return pl.DataFrame(found)


def time_of(own: pl.DataFrame, config: dict[str, Any]) -> float | None:
    same = pl.all_horizontal(
        pl.col(f"config.{name}").eq_missing(pl.lit(config.get(name))) for name in ("kind", "mr", "nr", "mc", "kc", "split")
    )
    return own.filter(same)["time_ns"].min()


def kernel_rows(scored: pl.DataFrame) -> list[Row]:
    """Figures for fp32 by number of threads, with what a fixed rule and torch-diode's network reach."""
    rows, isa = [], cpu_software()["isa"]
    for threads in (1, 2):
        own = scored.filter((pl.col("dtype") == "fp32") & (pl.col("threads") == threads))
        if own.height < 2:
            continue
        few = own.filter(pl.col("M") <= 32).height
        n = f"{own.height} shapes, {few} with at most 32 rows"
        share = (100 * own["best"] / own["chosen"]).to_list()
        stock = (own.select(pl.min_horizontal("default", "aten")).to_series() / own["chosen"]).to_list()
        default = (own["default"] / own["chosen"]).to_list()
        fixed = own.drop_nulls("fixed")
        peers = {"torch-diode's network, tiles only,": "diode", "Inductor's default": "default", "ATen": "aten"}
        others = f"the fixed tile {(100 * fixed['best'] / fixed['fixed']).mean():.2f} %, " + ", ".join(
            f"{name} {(100 * own['best'] / own[column]).mean():.2f} %" for name, column in peers.items()
        )
        left = {status: own.filter(pl.col("status") == status).height for status in ("chosen", "timed", "abstained")}
        note = f"P10 {np.percentile(share, 10):.1f}, worst {min(share):.1f}; " + ", ".join(f"{k} {v}" for k, v in left.items())
        where = f"{isa}, {threads} thread{'s' if threads > 1 else ''}"
        rows += [
            Row(f"chosen kernels, of the best measured config, unseen shapes, fp32, {where}: mean", statistics.fmean(share),
                "%", Target(low=97), others, n, interval=bootstrap(share), note=note),
            Row(f"chosen kernels against Inductor's C++ default, {where}: geometric mean", statistics.geometric_mean(default),
                "×", Target(low=1.3), n=n, interval=bootstrap(default, statistics.geometric_mean),
                note=f"worst {min(default):.2f}"),
            Row(f"chosen kernels against the better of C++ default and ATen, {where}: geometric mean",
                statistics.geometric_mean(stock), "×", Target(low=1.1), n=n,
                interval=bootstrap(stock, statistics.geometric_mean), note=f"worst {min(stock):.2f}"),
        ]  # fmt: skip
    half = scored.filter(pl.col("dtype") == "bf16")
    if half.height >= 2:
        share = (100 * half["best"] / half["chosen"]).to_list()
        what = f"chosen kernels, of the best measured config, unseen shapes, bf16, {isa}: mean"
        n, worst = f"{half.height} shapes", f"worst {min(share):.1f}"
        rows.append(Row(what, statistics.fmean(share), "%", n=n, interval=bootstrap(share), note=worst))
    return rows


def compile_rows(model: kc.Model, repeats: int) -> list[Row]:
    """Compiling a network of three products: with choosing, over the same widened space, and with Inductor's two choices."""
    module, x = three_products()
    runs = [compare_modes(model, module, x, ChoicePolicy(), CHOICES, rounds=2) for _ in range(repeats)]
    seconds = {
        mode.name: [found.compile_cpu_seconds for run in runs for found in run if found.name == mode.name] for mode in runs[0]
    }
    timed = {mode.name: mode.timed for mode in runs[0]}
    ours, wide, stock = (seconds[name] for name in ("kerncast", f"max-autotune of {CHOICES}", "max-autotune"))
    told = ", ".join(f"{name} {statistics.median(values):.1f} CPU s" for name, values in seconds.items())
    each = (statistics.median(wide) - statistics.median(ours)) / max(1, timed[f"max-autotune of {CHOICES}"])
    n = f"{repeats} runs"
    return [
        Row(f"compiling three products, max-autotune over {CHOICES} choices each ÷ choosing: CPU time",
            statistics.median(np.array(wide) / ours), "×", Target(low=15), told, n, interval=spread(np.array(wide) / ours)),
        Row("compiling three products, max-autotune over Inductor's two choices ÷ choosing: CPU time",
            statistics.median(np.array(stock) / ours), "×", Target(low=1.6), told, n, interval=spread(np.array(stock) / ours)),
        Row("compiling and timing one C++ kernel", each, "CPU s", n=n),
    ]  # fmt: skip


def network_rows(model: kc.Model) -> list[Row]:
    """Whole networks: the speed against what max-autotune ends with, and whether results are right."""
    rows, speeds, wrong = [], [], 0.0
    spent: list[float] = []
    for name, (module, x) in networks().items():
        reporting.forget()
        modes = {mode.name: mode for mode in compare_modes(model, module, x, ChoicePolicy(), rounds=40)}
        speed = modes["max-autotune"].run_ns / modes["kerncast"].run_ns
        speeds.append(speed)
        wrong = max(wrong, modes["kerncast"].largest_difference)
        against = ", ".join(
            f"{mode.name} {mode.run_ns / 1e3:.0f} µs, compiled in {mode.compile_cpu_seconds:.1f} CPU s"
            for mode in modes.values()
        )
        made = reporting.made()
        spent += [item.seconds * 1e3 for item in made if item.status != "abstained"]
        note = ", ".join(
            f"{status} {sum(item.status == status for item in made)}" for status in ("chosen", "timed", "abstained")
        )
        rows.append(Row(f"{name}: speed, max-autotune's = 1", speed, "×", None, against, note=note))
    rows += [
        Row("three networks end to end, speed, max-autotune's = 1: geometric mean", statistics.geometric_mean(speeds), "×",
            Target(low=0.97), n=f"{len(speeds)} networks", note=f"worst {min(speeds):.2f}"),
        Row("largest difference of a result from that without torch.compile", wrong, "", Target(high=1e-3)),
    ]  # fmt: skip
    if spent:
        rows.append(
            Row(
                "deciding about one product: median",
                statistics.median(spent),
                "ms",
                Target(high=1.0),
                n=f"{len(spent)} products",
            )
        )
    return rows


def main() -> int:
    parser = script_parser(__doc__)
    parser.add_argument("--train", type=Path, nargs="+", help="datasets of gemm/inductor_cpp, instead of measuring them")
    parser.add_argument("--held-out", type=Path, nargs="+", help="likewise, of other shapes")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="threads that torch may use")
    parser.add_argument("--problems", type=int, default=70, help="for each number of threads")
    parser.add_argument("--test-problems", type=int, default=24, help="likewise")
    parser.add_argument("--sample", type=int, default=14, help="configs of each problem")
    parser.add_argument("--repeats", type=int, default=3, help="of compiling")
    parser.add_argument("--keep", type=Path, help="a folder for what is measured and trained")
    parser.add_argument("--only", default="kernels,compile,networks", type=lambda text: text.split(","))
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        return run(given, given.keep or Path(folder))


def training_data(given: argparse.Namespace, folder: Path, threads: int) -> list[Path]:
    """Two datasets of the same shapes: a random sample of configs, and those that a model of the sample likes best."""
    sampled, liked = folder / f"train-{threads}", folder / f"train-{threads}-liked"
    problems = draw(given.problems, 1, threads)
    if not is_complete(sampled):
        measured(sampled, vectors(problems, given.sample, None, 1))
    if not is_complete(liked):
        first = Chooser(kc.train(sampled))
        measured(liked, vectors(problems, 2, first, 1, SECOND_ROUND))
    return [sampled, liked]


def is_complete(path: Path) -> bool:
    """Whether a collection has ended; one that was stopped goes on."""
    return path.exists() and not (path / "journal.jsonl").exists()


def run(given: argparse.Namespace, folder: Path) -> int:
    torch.set_num_threads(1)
    folder.mkdir(parents=True, exist_ok=True)
    train = given.train or [path for threads in given.threads for path in training_data(given, folder, threads)]
    model = kc.train(train, out=folder / "model") if not (folder / "model").exists() else kc.Model.load(folder / "model")
    chooser = Chooser(model)
    print(f"{model}\nlibrary against tile: {chooser.confidence}")
    rows: list[Row] = []
    if "kernels" in given.only:
        held_out = given.held_out or [folder / f"held-out-{threads}" for threads in given.threads]
        for path, threads in zip(held_out, given.threads, strict=False):
            if given.held_out is None and not is_complete(path):
                measured(path, vectors(draw(given.test_problems, 2, threads), 2 * given.sample, chooser, 2))
        tiles = pl.concat(map(rows_of, train), how="diagonal").filter(pl.col("config.kind") == "tile")
        scored = score(chooser, pl.concat(map(rows_of, held_out), how="diagonal"), train_diode(tiles))
        with pl.Config(tbl_rows=60, tbl_cols=20):
            print(scored.with_columns((pl.col("best") / pl.col("chosen")).alias("share")).sort("share"))
        rows += kernel_rows(scored)
    if "compile" in given.only:
        rows += compile_rows(model, given.repeats)
    if "networks" in given.only:
        rows += network_rows(model)
    print(ki.report())
    return finish(BENCHMARK, rows, given.json)


if __name__ == "__main__":
    sys.exit(main())
