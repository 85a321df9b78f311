"""Predicting the times of language-model ops on public tables: GEMM on all GPUs, attention and experts on an H100.

    KERNCAST_DATA=… python benchmarks/llm_ops.py [--only NAME …] [--rows N]

It takes about an hour and a half of one core.

Five folds; each holds out whole groups (pairs (N, K), heads, lengths, shapes of experts). Beside each figure, on the same rows:
interpolation between the nearest measured neighbours in log space, as planners with tables do it; plain LightGBM on the bare
parameters; the roofline. Data: PyPI aiconfigurator-core 0.12.0 (Apache-2.0); put the wheel under KERNCAST_DATA/aiconfigurator
(`pip download --no-deps aiconfigurator-core==0.12.0`).
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import polars as pl
from choosing import data_file
from h100_gemm import WHEEL
from plain_lightgbm import bare_columns, times
from reporting import Benchmark, Row, Target, bootstrap, finish, format_figure, script_parser

from kerncast.app.api.showing import shown
from kerncast.core.arrays import Flags, Floats, Ints
from kerncast.data.formats import ImportOptions
from kerncast.data.importing import import_files
from kerncast.evaluating.evaluation import folds_of, split_groups
from kerncast.learning.table import Table, load_table
from kerncast.regenerating.shipped_plans import LEAST_SHARE, TIMES, medians_of
from kerncast.training.folds import cross_validate
from kerncast.training.procedure import Procedure, Recipe

NOTE = (
    "Trees of 127 leaves (GEMM and context attention: 255). For one GPU two forests of 600 at a rate of 0.05, averaged; for "
    "several GPUs, at a rate of 0.1, 60 for all and 150 for each, which keep absolute errors small. Experts of TensorRT-LLM "
    "and vLLM are learned as medians. The share of the features that a tree sees, the leaves, the medians, and that there "
    "are trees for each GPU, were chosen by one of five folds of the H200's tables (GEMM of vLLM, attention of SGLang, "
    "experts), the two forests and their rate by two of them (context attention of SGLang, experts of vLLM), the absolute "
    "errors by one of vLLM's and one of SGLang's fp8 GEMMs of the H200. The H100's rows and TensorRT-LLM's GEMMs had no part "
    "in it, but most "
    "features were written with an eye on folds of the H100's tables. The shipped models have fewer trees; their cards have "
    "their own errors. Tables with more rows than the limit are sampled: whole problems, of each device about as many. "
    "Noise: how much rows of M from 3 to 15 miss the mean of M - 1 and M + 1, as a range from rare slow rows to noise of a "
    "normal distribution; at these M no model can err much less."
)
BENCHMARK = Benchmark(
    __file__, "Predicting times, on public data", "Ops of language models",
    "NVIDIA's AIConfigurator, PyPI aiconfigurator-core 0.12.0", "Apache-2.0", NOTE,
)  # fmt: skip
ONE_DEVICE = {"trees": 600, "lr": 0.05, "bags": 2}
SEVERAL_DEVICES = {"trees": 60, "own_trees": 150, "own_loss": "absolute", "lr": 0.1}
LEAVES = {"gemm": 255, "attention_context": 255}
# More rows than any of an H100's tables has.
ALL = 130_000


@dataclass(frozen=True)
class Task:
    """One op of one framework, and what folds hold out."""

    op: str
    framework: str
    split: str
    held_out: str
    target: float
    axes: tuple[str, ...]
    """The parameters along which to interpolate."""
    devices: tuple[str, ...] = ("h100",)
    target_by_device: float | None = None
    rows: int = 60_000
    """Learned from and judged at most, unless the command says otherwise."""

    @property
    def name(self) -> str:
        return f"{self.op}-{self.framework}-{self.split}"


def _attention(op: str, length: str, targets: dict[tuple[str, str], float]) -> list[Task]:
    axes = {"heads": ("heads", "head_dim", "kv_heads"), "lengths": (length, "batch")}
    words = {"heads": "heads unseen", "lengths": "lengths unseen"}
    return [Task(op, name, split, words[split], target, axes[split], rows=ALL) for (name, split), target in targets.items()]


TASKS = [
    *(Task("gemm", name, "nk", "pairs (N, K) unseen", 4.0, ("N", "K"), (), 2.5, 300_000)
      for name in ("trtllm", "vllm", "sglang")),
    *_attention("attention_context", "seq_len", {
        ("trtllm", "heads"): 1.8, ("sglang", "heads"): 3.5, ("trtllm", "lengths"): 2.2, ("sglang", "lengths"): 3.5,
    }),
    *_attention("attention_generation", "context_len", {
        (name, split): 3.0 for name in ("trtllm", "sglang") for split in ("heads", "lengths")
    }),
    *(Task("moe", name, "problem", "(shape, tp, ep) unseen", 5.5, ("tp", "ep", "inter"), rows=ALL)
      for name in ("trtllm", "sglang", "vllm")),
    *(Task("moe", name, "model", "model shape unseen", 14.0, ("inter", "hidden"), rows=ALL)
      for name in ("trtllm", "sglang", "vllm")),
]  # fmt: skip


@cache
def table_of(op: str, framework: str, devices: tuple[str, ...], wheel: Path, rows: int) -> tuple[Table, dict[str, Floats]]:
    """The rows of some tasks that worked, sampled if there are more, and the `noise` of GEMMs before that, by device."""
    options = ImportOptions(only=(f"{op}/library",), devices=devices, keep_software=(framework,), least_share=LEAST_SHARE)
    with tempfile.TemporaryDirectory() as folder:
        data = import_files("aiconfigurator", [wheel], Path(folder, "data"), options)
        whole = load_table([data], f"{op}/library", pool=True)
        # A sample has too few rows with both neighbours.
        found = noise(whole.take(np.flatnonzero(whole.ok))) if op == "gemm" else {}
        table = Recipe(rows=rows).sampled(whole)
    return table.take(np.flatnonzero(table.ok)).renumbered(), found


def interpolated(table: Table, fold: Ints, axes: tuple[str, ...]) -> Floats:
    """Times by the nearest rows of other folds on both sides along an axis, linear in logarithms; the mean over the axes.

    NaN where no axis has a neighbour on both sides.
    """
    frame = table.rows.frame.with_columns(device=table.device_names)
    found = np.full((len(axes), len(fold)), np.nan)
    for place, axis in enumerate(axes):
        others = [name for name in frame.columns if name != f"problem.{axis}"]
        points = frame.select(
            pl.struct(others).hash(0).alias("line"), pl.col(f"problem.{axis}").cast(pl.Float64).log().alias("at")
        ).with_columns(row=pl.int_range(pl.len()), fold=pl.Series(fold), log=pl.Series(np.log(table.time_ns)))
        for number in np.unique(fold):
            asked = points.filter(pl.col("fold") == number).sort("at").select("line", "at", "row")
            known = points.filter(pl.col("fold") != number).sort("at").select("line", "at", "log", at_known="at")
            below = asked.join_asof(known, on="at", by="line", strategy="backward", check_sortedness=False).sort("row")
            above = asked.join_asof(known, on="at", by="line", strategy="forward", check_sortedness=False).sort("row")
            low, high = below["at_known"].to_numpy(), above["at_known"].to_numpy()
            share = np.where(high > low, (below["at"].to_numpy() - low) / np.maximum(high - low, 1e-12), 0.5)
            rows = below["row"].to_numpy()
            found[place, rows] = (1.0 - share) * below["log"].to_numpy() + share * above["log"].to_numpy()
    known_at_all = np.isfinite(found).any(axis=0)
    mean = np.full(len(fold), np.nan)
    mean[known_at_all] = np.nanmean(found[:, known_at_all], axis=0)
    return np.asarray(np.exp(mean))


def noise(table: Table) -> dict[str, Floats]:
    """By device, how much each row of M from 3 to 15 misses the mean of M - 1 and M + 1, in percent.

    One tile covers all these M, so a kernel takes as long for each. What all pairs (N, K) of a device and a code path have in
    common at one M, as at odd ones, is not noise.
    """
    own = [name for name in table.rows.frame.columns if name != "problem.M"]
    frame = (
        table.rows.frame.with_columns(device=table.device_names, log=pl.Series(np.log(table.time_ns)))
        .filter(pl.col("problem.M") <= 16)
        .sort("problem.M")
    )
    before, after = (pl.col("problem.M", "log").shift(by).over([*own, "device"]).name.suffix(name)
                     for by, name in ((1, "_before"), (-1, "_after")))  # fmt: skip
    size = pl.col("problem.M")
    near = frame.with_columns(before, after).filter(
        (size > 2) & (size < 16) & (size - pl.col("problem.M_before") == 1) & (pl.col("problem.M_after") - size == 1)
    ).with_columns(off=pl.col("log") - (pl.col("log_before") + pl.col("log_after")) / 2)  # fmt: skip
    alike = ["device", "problem.dtype", "config.kernel_source", "problem.M"]
    off = near.select("device", off=100.0 * (pl.col("off") - pl.col("off").median().over(alike)).abs())
    return {str(name): part["off"].to_numpy() for (name,), part in sorted(off.partition_by("device", as_dict=True).items())}


def noise_words(off: Floats) -> str:
    """What the mean of `noise` says about one row. A single slow row is seen three times: once whole and twice by half."""
    ends = (format_figure(float(off.mean() / 2.0), "%"), format_figure(float(off.mean() / 1.5**0.5), "%"))
    return f"{ends[0].removesuffix(' %')} to {ends[1]}"


def shares_tuning(table: Table) -> Flags:
    """Rows of TensorRT-LLM's experts whose tuned tiles may be another case's.

    AIConfigurator keeps what the autotuner found in a file named by dtype, hidden, inter / tp and experts / ep, and a case
    takes any file that begins with its name. The autotuner tells cases apart by top_k, tp and ep too: with another case's file
    it finds nothing and runs untuned tiles. Triton and fp8_block have no tuned tiles.
    """
    p = {name: pl.col(f"problem.{name}") for name in ("hidden", "inter", "experts", "top_k", "tp", "ep", "dtype")}
    stem = pl.concat_str(p["dtype"], p["hidden"], p["inter"] // p["tp"], p["experts"] // p["ep"], separator="_")
    frame = table.rows.frame.select(stem.alias("stem"), p["top_k"], p["tp"], p["ep"])
    stems = frame.unique()["stem"].to_list()
    shared = {stem: sum(other.startswith(stem) for other in stems) > 1 for stem in set(stems)}
    tuned = table.rows.frame["problem.dtype"].is_in(["bf16", "fp8"]).to_numpy()
    return np.asarray(tuned & frame["stem"].replace_strict(shared).to_numpy())


def error(table: Table, predicted: Floats) -> Floats:
    """The relative error of each row, in percent; NaN without a prediction."""
    return np.asarray(100.0 * np.abs(predicted / table.time_ns - 1.0))


def recipe_of(table: Table, framework: str) -> Recipe:
    """As the shipped models are made, with more trees; on one device all of them are the device's own."""
    forests = ONE_DEVICE if len(table.devices) == 1 else SEVERAL_DEVICES
    leaves = LEAVES.get(table.family.op.name, 127)
    knobs = {**TIMES, **forests, "leaves": leaves, **medians_of(table.family.op.name, framework)}
    return Recipe(knobs=knobs, threads=1).resolved(table, None)


def measure(task: Task, wheel: Path, most: int) -> list[Row]:
    """The figures of one task."""
    table, off = table_of(task.op, task.framework, task.devices, wheel, most)
    recipe = recipe_of(table, task.framework)
    fold = folds_of(table, task.split, recipe)
    grouped = replace(table, group=split_groups(table, task.split))
    with shown(plain=True) as progress:
        _, found, _ = cross_validate(grouped, Procedure(recipe, progress), fold)
    errors = error(table, found.time_ns)
    between = error(table, interpolated(table, fold, task.axes))
    covered = np.isfinite(between)
    beside = [f"untuned LightGBM {format_figure(float(error(table, times(table, fold, bare_columns(table))).mean()), '%')}"]
    if covered.any():
        same = format_figure(float(errors[covered].mean()), "%")
        beside.append(
            f"interpolation {format_figure(float(between[covered].mean()), '%')} on the {covered.mean():.0%} of rows that have "
            f"neighbours, the model {same} there"
        )
    if table.rows.roofline_ns is not None:
        beside.append(f"roofline {format_figure(float(error(table, table.rows.roofline_ns).mean()), '%')}")
    names = table.device_names.to_numpy()
    if off:
        beside.append(f"noise of a row at M to 16 about {noise_words(np.concatenate([*off.values()]))}")
    if (task.op, task.framework) == ("moe", "trtllm"):
        shared = shares_tuning(table)
        alone, others = (format_figure(float(errors[part].mean()), "%") for part in (~shared, shared))
        beside.append(f"the model {others} on the {shared.mean():.0%} of rows that may have run untuned, {alone} on the others")
    by_device = {str(name): float(errors[names == name].mean()) for name in np.unique(names)}
    worst = max(by_device, key=lambda name: by_device[name])
    n = f"{len(errors):,} rows, {len(np.unique(grouped.group)):,} groups"
    split = f"five folds, {task.held_out}"
    title = f"{task.op}, {task.framework}, {task.held_out}"
    spread = dict(zip(("P10", "median", "P90", "worst"), np.percentile(errors, (10, 50, 90, 100)), strict=True))
    note = ", ".join(f"{name} {format_figure(float(value), '%')}" for name, value in spread.items())
    if len(by_device) > 1:
        note += f"; worst device {worst}, {format_figure(by_device[worst], '%')}"
    # Rows of one group err together, so groups are drawn.
    _, group = np.unique(grouped.group, return_inverse=True)
    sums = np.column_stack([np.bincount(group, errors), np.bincount(group)])
    rows = [
        Row(f"{title}: MAPE", float(errors.mean()), "%", Target(high=task.target), "; ".join(beside), n, split,
            bootstrap(sums, lambda drawn: drawn[:, 0].sum() / drawn[:, 1].sum()), note)
    ]  # fmt: skip
    if task.target_by_device is not None and len(by_device) > 1:
        middle = float(np.median(list(by_device.values())))
        listed = ", ".join(f"{name} {format_figure(value, '%')}" for name, value in by_device.items())
        if off:
            listed += "; noise " + ", ".join(f"{name} {noise_words(found)}" for name, found in off.items())
        rows.append(
            Row(f"{title}: MAPE of the median device", middle, "%", Target(high=task.target_by_device), listed, n, split)
        )
    return rows


if __name__ == "__main__":
    parser = script_parser(__doc__)
    parser.add_argument("--only", action="append", metavar="NAME", help="a task or the beginning of its name: moe-vllm")
    parser.add_argument("--rows", type=int, help="rows of a task at most [300000 for GEMM, else all]")
    given = parser.parse_args()
    chosen = [task for task in TASKS if not given.only or any(task.name.startswith(name) for name in given.only)]
    if not chosen:
        sys.exit(f"--only names none of {', '.join(task.name for task in TASKS)}")
    source = data_file("aiconfigurator", WHEEL, source="PyPI aiconfigurator-core==0.12.0")
    rows = [row for task in chosen for row in measure(task, source, given.rows or task.rows)]
    sys.exit(finish(BENCHMARK, rows, given.json, partial=len(chosen) < len(TASKS)))
