"""How soon a fresh install answers: a cold `kerncast predict`, rows in batches, and the size of what ships.

The model is a pooled GEMM model of made-up times on four GPUs, so that the script needs no data. It has as many trees and
leaves as the shipped GEMM models. Cold means a new process, whose files the system has read before and whose modules are
compiled to bytecode, as `pip install` leaves them; the median of several runs counts.

    python benchmarks/ready.py [--keep DIR]
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import polars as pl
from reporting import Benchmark, Interval, Row, Target, finish, script_parser

import kerncast
from kerncast.data import Dataset
from kerncast.library import devices
from kerncast.library.registry import FAMILIES
from kerncast.regenerating.shipping import plans_named

BENCHMARK = Benchmark(
    __file__,
    "How long choosing and predicting take",
    "Answers on a fresh install",
    note="A pooled GEMM model as large as the shipped ones; the times that it learned come from a formula.",
)
GPUS = ("a100", "h100", "h200", "b200")
ROWS, RUNS, BATCH = 24_000, 9, 20_000
PROBLEM = ("M=4096", "N=4096", "K=4096", "dtype=bf16", "--device", "h100")
SHIPPED = Path(kerncast.__file__).parent / "library" / "shipped"
# Bytes of a wheel's models, at most.
MOST_BYTES = 25e6


def made_up_rows() -> pl.DataFrame:
    """Times of a library's products, from rooflines with waves and noise."""
    rng = np.random.default_rng(0)
    sizes = rng.integers(4, 14, size=(ROWS, 3))
    m, n, k = (2.0 ** sizes[:, place] * rng.choice([1.0, 1.5], ROWS) for place in range(3))
    name = rng.choice(GPUS, ROWS)
    peak = np.array([devices.get(item).peak_tflops["bf16"] * 1e3 for item in name])
    bandwidth = np.array([devices.get(item).numbers["memory_bandwidth_gb_s"] for item in name])
    waves = np.ceil(m / 128) * np.ceil(n / 128) / 132
    lost = np.ceil(waves) / np.maximum(waves, 1e-3)
    compute, memory = 2 * m * n * k / peak * np.minimum(lost, 8.0), 2 * (m * k + k * n + m * n) / bandwidth
    ns = (4_000 + 1.3 * np.maximum(compute, memory)) * np.exp(0.02 * rng.standard_normal(ROWS))
    return pl.DataFrame(
        {"device": name, "problem.M": m.astype(int), "problem.N": n.astype(int), "problem.K": k.astype(int), "time_ns": ns}
    ).with_columns(
        **{"problem.layout": pl.lit("rcr"), "problem.dtype": pl.lit("bf16"), "config.kernel_source": pl.lit("torch_flow")},
        status=pl.lit("ok"),
    )


def made_model(folder: Path) -> kerncast.Model:
    """A slim model in the folder `shipped`."""
    if not (folder / "shipped" / "gemm_pooled").exists():
        Dataset.build(folder / "data", lambda draft: draft.append(FAMILIES.get("gemm/library"), made_up_rows()))
        (plan,) = plans_named(["gemm-vllm"])
        whole = kerncast.train(folder / "data", out=folder / "model", pool=True, folds=0, **plan.recipe().knobs)
        whole.slimmed(folder / "shipped" / "gemm_pooled")
    return kerncast.Model.load(folder / "shipped" / "gemm_pooled")


def cold_seconds(folder: Path) -> list[tuple[float, float]]:
    """The wall clock and the CPU time of the command in new processes; the first one writes the bytecode of an install."""
    given = {**os.environ, "KERNCAST_SHIPPED": str(folder / "shipped"), "KERNCAST_STORE": str(folder / "empty")}
    given.pop("PYTHONDONTWRITEBYTECODE", None)
    given["PYTHONPYCACHEPREFIX"] = str(folder / "bytecode")
    found = []
    for _ in range(RUNS + 1):
        began, used = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [sys.executable, "-m", "kerncast.app.cli", "predict", "gemm", *PROBLEM]
        subprocess.run(command, check=True, env=given, stdout=subprocess.DEVNULL)
        now = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime
        found.append((time.perf_counter() - began, cpu))
    return found[1:]  # the first one also reads the files from the disk


def microseconds_per_row(model: kerncast.Model) -> float:
    """The time of rows with their config, in one batch."""
    frame = made_up_rows().drop("device", "time_ns", "status")[:BATCH]
    model.predict(frame[:10], device="h100")
    return 1e6 * min(_seconds(model, frame) for _ in range(3)) / frame.height


def _seconds(model: kerncast.Model, frame: pl.DataFrame) -> float:
    began = time.perf_counter()
    model.predict(frame, device="h100")
    return time.perf_counter() - began


def measure(folder: Path) -> list[Row]:
    folder.mkdir(parents=True, exist_ok=True)
    model = made_model(folder)
    cold, used = zip(*cold_seconds(folder), strict=True)
    size = model.learner.size()["time_trees"]
    kilobytes = sum(file.stat().st_size for file in model.path.iterdir()) / 1e3
    shipped = sum(file.stat().st_size for file in SHIPPED.rglob("*") if file.is_file()) / 1e6
    runs = Interval(min(cold), max(cold), "range")
    return [
        Row("kerncast predict gemm … --device h100 in a new process", statistics.median(cold), "s", Target(high=1.0),
            n=f"{RUNS} runs", interval=runs, note=f"{statistics.median(used):.2f} s of CPU"),
        Row(f"a row in a batch of {BATCH:,}, numpy alone", microseconds_per_row(model), "µs", Target(high=50.0),
            n=f"{size:,} trees"),
        Row("a slim model, 4 GPUs", kilobytes, "KB", n=f"{size:,} trees"),
        Row("everything that ships in the wheel", shipped, "MB", Target(high=MOST_BYTES / 1e6)),
    ]  # fmt: skip


def main() -> int:
    parser = script_parser(__doc__)
    parser.add_argument("--keep", type=Path, help="Keep the model in this folder, and use it again.")
    given = parser.parse_args()
    if given.keep is not None:
        return finish(BENCHMARK, measure(given.keep), given.json)
    with tempfile.TemporaryDirectory() as folder:
        return finish(BENCHMARK, measure(Path(folder)), given.json)


if __name__ == "__main__":
    sys.exit(main())
