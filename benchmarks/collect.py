"""Overhead of collecting (per vector, per crash, per hang), and the agreement of two collections.

    python benchmarks/collect.py [throughput] [faults] [agreement]

Faults and throughput use a backend that does nothing. The agreement is measured with gemm/cpu kernels on this machine, and
compared with that of the naive mean of ten launches in a row.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import polars as pl
from msgspec import structs
from reporting import Benchmark, Row, Target, bootstrap, finish, script_parser, spread

from kerncast.core.op import Config, Family, Problem
from kerncast.data import Dataset
from kerncast.library import devices
from kerncast.library.declared.family_file import family_named
from kerncast.measuring.backends import get_backend
from kerncast.measuring.collection import Request
from kerncast.measuring.messages import Policy
from kerncast.measuring.run import collect
from kerncast.testing.backends import FAULTY, planned, vector_text

BENCHMARK = Benchmark(__file__, "Measuring", "Overhead of collecting, and agreement of two collections")
INSTANT = "kerncast.testing.backends:Instant"
TRITON = family_named("gemm/triton")
FAST = Policy(samples=2, fewest_samples=2)


def triton_vectors(configs: int, problems: int) -> list[pl.DataFrame]:
    device = devices.get("a100")
    found = TRITON.config.sample(configs, 0, TRITON.bindings({"dtype": "fp16"}, device))
    found = found.rename({name: f"config.{name}" for name in found.columns})
    values = {"N": 64, "K": 64, "split_k": 1, "batch": 1, "dtype": "fp16", "layout": "rcr", "tf32": False}
    return [
        found.with_columns(*(pl.lit(v).alias(f"problem.{n}") for n, v in {"M": number + 1, **values}.items()))
        for number in range(problems)
    ]


def run(backend: str, blocks: list[pl.DataFrame], policy: Policy, family: Family = TRITON) -> tuple[float, pl.DataFrame]:
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        collect(Request(family, backend, ("0",), Path(folder, "d"), policy), blocks)
        spent = time.perf_counter() - start
        return spent, Dataset.open(Path(folder, "d")).read()


def throughput() -> list[Row]:
    blocks = triton_vectors(4_000, 15)
    empty, _ = run(INSTANT, [block.head(1) for block in blocks[:1]], FAST)
    rates = []
    for _ in range(3):
        spent, rows = run(INSTANT, blocks, FAST)
        rates.append(rows.height / (spent - empty))
    rate = statistics.median(rates)
    note = f"{1e6 / rate:.0f} µs each, without the kernels; start-up {empty:.2f} s"
    n = f"{rows.height:,} vectors, {len(rates)} runs"
    return [Row("vectors verified and journaled", rate, "per s", Target(5_000), n=n, interval=spread(rates), note=note)]


def faults() -> list[Row]:
    (block,) = triton_vectors(12, 1)
    row = block.row(5, named=True)
    problem = {name.removeprefix("problem."): value for name, value in row.items() if name.startswith("problem.")}
    config = {name.removeprefix("config."): value for name, value in row.items() if name.startswith("config.")}
    text = vector_text(Problem.trusted(TRITON, {n: problem.get(n) for n in TRITON.problem.parameters}), Config(TRITON, config))
    policy = structs.replace(FAST, deadline_floor_ns=2_000_000_000, deadline_ceiling_ns=2_000_000_000)
    stated = []
    for fault, allowed, target, text_of in (
        ("segfault", 0.0, 0.5, "extra time for a kernel that crashes"),
        ("hang", 4.0, 1.0, "extra time for a kernel that hangs, beyond its two deadlines of 2 s"),
    ):
        extra = []
        for _ in range(5):  # interleaved, so that a slow moment affects both
            with planned(INSTANT, {}):
                without, _ = run(FAULTY, [block], policy)
            with planned(INSTANT, {text: fault}):
                spent, _ = run(FAULTY, [block], policy)
            extra.append(spent - without - allowed)
        cost = statistics.median(extra)
        stated.append(Row(text_of, cost, "s", Target(high=target), n=f"{len(extra)} runs", interval=spread(extra)))
    return stated


def cpu_vectors() -> pl.DataFrame:
    """Some shapes of 20 us to a few ms, each with some configs."""
    family, device = family_named("gemm/cpu"), get_backend("cpu")("0").device()
    frames = []
    for number, (m, n, k) in enumerate(
        [(64, 64, 64), (96, 200, 300), (128, 128, 512), (256, 256, 256), (1, 1024, 1024), (300, 40, 700)]
    ):
        problem = Problem(family, M=m, N=n, K=k, dtype="fp32", layout="rrr")
        configs = family.config.sample(40, number, family.bindings(problem, device))
        frames.append(
            configs.rename({name: f"config.{name}" for name in configs.columns}).with_columns(
                *(pl.lit(value).alias(f"problem.{name}") for name, value in problem.as_dict().items())
            )
        )
    return pl.concat(frames)


def naive(vectors: pl.DataFrame) -> np.ndarray:
    """The mean of ten launches in a row after one warm-up launch, as in many benchmark scripts."""
    family, backend = family_named("gemm/cpu"), get_backend("cpu")("0")
    times = []
    for row in vectors.iter_rows(named=True):
        problem = Problem(family, {n.removeprefix("problem."): v for n, v in row.items() if n.startswith("problem.")})
        config = {n.removeprefix("config."): v for n, v in row.items() if n.startswith("config.") and v is not None}
        kernel = backend.prepare(problem, Config(family, config))
        kernel.run(1)
        times.append(kernel.run(10) / 10)
        kernel.close()
    return np.array(times)


def agreement() -> list[Row]:
    vectors = cpu_vectors()
    family = family_named("gemm/cpu")
    policy = Policy()
    _, first = run("cpu", [vectors], policy, family)
    naive_first = naive(vectors)
    _, second = run("cpu", [vectors], policy, family)
    naive_second = naive(vectors)
    joined = first.join(second, on="key", suffix="_2").filter(pl.col("time_ns") > 20_000)
    # Vectors that were given up early are far from the best: compare those that were measured in full.
    full = joined.filter((pl.col("samples") >= policy.fewest_samples) & (pl.col("samples_2") >= policy.fewest_samples))
    ours = (full["time_ns_2"] / full["time_ns"] - 1).abs().to_numpy()
    everything = (joined["time_ns_2"] / joined["time_ns"] - 1).abs().to_numpy()
    theirs = np.abs(naive_second / naive_first - 1)[naive_first > 20_000]
    for name, values in (("kerncast", ours), ("kerncast, with those given up early", everything), ("naive mean of 10", theirs)):
        print(f"agreement, {name}: median {np.median(values):.2%}, P95 {np.quantile(values, 0.95):.2%}, n {len(values)}")
    stated = []
    for name, target, statistic in (
        ("median", Target(high=2.0), np.median),
        ("P95", Target(high=8.0), lambda values: np.quantile(values, 0.95)),
    ):
        against = f"the mean of ten launches in a row {100 * statistic(theirs):.2f} %"
        note = f"including kernels that were given up early: {100 * statistic(everything):.2f} %"
        text = f"difference between two collections of the same kernels, {name}"
        interval = bootstrap(100 * ours, statistic)
        stated.append(Row(text, 100 * float(statistic(ours)), "%", target, against, f"{len(ours)} kernels", "", interval, note))
    return stated


def main() -> int:
    parts = {"throughput": throughput, "faults": faults, "agreement": agreement}
    parser = script_parser(__doc__)
    parser.add_argument("part", nargs="*", help=f"only these: {', '.join(parts)}")
    given = parser.parse_args()
    if unknown := set(given.part) - set(parts):
        parser.error(f"the parts are {', '.join(parts)}, got {', '.join(sorted(unknown))}")
    rows = [row for name in given.part or parts for row in parts[name]()]
    return finish(BENCHMARK, rows, given.json)


if __name__ == "__main__":
    sys.exit(main())
