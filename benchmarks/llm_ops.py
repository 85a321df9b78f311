"""Predicting the times of language-model ops on public tables: GEMM on all GPUs, attention and experts on an H100.

    KERNCAST_DATA=… python benchmarks/llm_ops.py [--only NAME …] [--rows 60000]

Five folds; each holds out whole groups (pairs (N, K), heads, lengths, shapes of experts). Beside each figure, on the same rows:
interpolation between the nearest measured neighbours in log space, as planners with tables do it; plain LightGBM on the bare
parameters; the roofline. Data: PyPI aiconfigurator-core 0.12.0 (Apache-2.0); put the wheel under KERNCAST_DATA/aiconfigurator
(`pip download --no-deps aiconfigurator-core==0.12.0`).
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import polars as pl
from choosing import data_file
from h100_gemm import WHEEL
from reporting import Benchmark, Row, Target, bootstrap, finish, format_figure, script_parser

from kerncast.api.showing import shown
from kerncast.arrays import Floats, Ints
from kerncast.data.importers import Options, import_files
from kerncast.evaluating.evaluation import folds_of, split_groups
from kerncast.regenerating.shipping.plans import TIMES
from kerncast.tables.table import Table, load_table
from kerncast.training.folds import cross_validate
from kerncast.training.procedure import Procedure
from kerncast.training.recipe import Recipe

NOTE = (
    "Features and settings (350 trees of 127 leaves at a rate of 0.1) were chosen on the same tables, by their errors on one "
    "or two of five folds, so expect larger errors on other data. "
    "Tables with more rows than the limit are sampled: whole problems, of each device about as many."
)
BENCHMARK = Benchmark(
    __file__, "Predicting times, on public data", "Ops of language models",
    "NVIDIA's AIConfigurator, PyPI aiconfigurator-core 0.12.0", "Apache-2.0", NOTE,
)  # fmt: skip
KNOBS = {**TIMES, "trees": 350, "leaves": 127, "lr": 0.1}
UNTUNED = {"num_leaves": 63, "learning_rate": 0.1, "verbosity": -1, "num_threads": 1, "deterministic": True,
           "force_row_wise": True, "seed": 0}  # fmt: skip
UNTUNED_TREES = 400


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

    @property
    def name(self) -> str:
        return f"{self.op}-{self.framework}-{self.split}"


def _attention(op: str, length: str, targets: dict[tuple[str, str], float]) -> list[Task]:
    axes = {"heads": ("heads", "head_dim", "kv_heads"), "lengths": (length, "batch")}
    words = {"heads": "heads unseen", "lengths": "lengths unseen"}
    return [Task(op, name, split, words[split], target, axes[split]) for (name, split), target in targets.items()]


TASKS = [
    *(Task("gemm", name, "nk", "pairs (N, K) unseen", 4.0, ("N", "K"), (), 2.5) for name in ("trtllm", "vllm", "sglang")),
    *_attention("attention_context", "seq_len", {
        ("trtllm", "heads"): 1.8, ("sglang", "heads"): 3.5, ("trtllm", "lengths"): 2.2, ("sglang", "lengths"): 3.5,
    }),
    *_attention("attention_generation", "context_len", {
        (name, split): 3.0 for name in ("trtllm", "sglang") for split in ("heads", "lengths")
    }),
    *(Task("moe", name, "problem", "(shape, tp, ep) unseen", 5.5, ("tp", "ep", "inter"))
      for name in ("trtllm", "sglang", "vllm")),
    *(Task("moe", name, "model", "model shape unseen", 14.0, ("inter", "hidden")) for name in ("trtllm", "sglang", "vllm")),
]  # fmt: skip


def table_of(task: Task, wheel: Path, rows: int) -> Table:
    """The rows of a task, sampled if there are more."""
    options = Options(only=(f"{task.op}/library",), devices=task.devices, keep_software=(task.framework,))
    with tempfile.TemporaryDirectory() as folder:
        data = import_files("aiconfigurator", [wheel], Path(folder, "data"), options)
        return Recipe(rows=rows).sampled(load_table([data], f"{task.op}/library", pool=True))


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


def untuned(table: Table, fold: Ints) -> Floats:
    """Plain LightGBM of log times on the parameters and the device, without any feature."""
    import lightgbm

    columns = [table.rows.frame[name] for name in table.rows.frame.columns]
    codes = [item.rank("dense") if item.dtype in (pl.String, pl.Categorical) else item for item in columns]
    bare = np.column_stack([item.cast(pl.Float64).fill_null(-1.0).to_numpy() for item in codes] + [table.device])
    found, labels = np.empty(len(fold)), np.log(table.time_ns)
    for number in np.unique(fold):
        own = fold == number
        forest = lightgbm.train(UNTUNED, lightgbm.Dataset(bare[~own], labels[~own]), UNTUNED_TREES)
        found[own] = np.exp(forest.predict(bare[own]))
    return found


def error(table: Table, predicted: Floats) -> Floats:
    """The relative error of each row, in percent; NaN without a prediction."""
    return np.asarray(100.0 * np.abs(predicted / table.time_ns - 1.0))


def measure(task: Task, wheel: Path, most: int) -> list[Row]:
    """The figures of one task."""
    table = table_of(task, wheel, most)
    table = table.take(np.flatnonzero(table.ok)).renumbered()
    recipe = Recipe(knobs=KNOBS, threads=1).resolved(table, None)
    fold = folds_of(table, task.split, recipe)
    grouped = replace(table, group=split_groups(table, task.split))
    with shown(plain=True) as progress:
        _, found, _ = cross_validate(grouped, Procedure(recipe, progress), fold)
    errors = error(table, found.time_ns)
    between = error(table, interpolated(table, fold, task.axes))
    covered = np.isfinite(between)
    beside = [f"untuned LightGBM {format_figure(float(error(table, untuned(table, fold)).mean()), '%')}"]
    if covered.any():
        same = format_figure(float(errors[covered].mean()), "%")
        beside.append(
            f"interpolation {format_figure(float(between[covered].mean()), '%')} on the {covered.mean():.0%} of rows that have "
            f"neighbours, the model {same} there"
        )
    if table.rows.roofline_ns is not None:
        beside.append(f"roofline {format_figure(float(error(table, table.rows.roofline_ns).mean()), '%')}")
    names = table.device_names.to_numpy()
    by_device = {str(name): float(errors[names == name].mean()) for name in np.unique(names)}
    worst = max(by_device, key=lambda name: by_device[name])
    n = f"{len(errors):,} rows, {len(np.unique(grouped.group)):,} groups"
    split = f"five folds, {task.held_out}"
    title = f"{task.op}, {task.framework}, {task.held_out}"
    note = f"median {format_figure(float(np.median(errors)), '%')}, P95 {format_figure(float(np.percentile(errors, 95)), '%')}"
    if len(by_device) > 1:
        note += f"; worst device {worst}, {format_figure(by_device[worst], '%')}"
    # Rows of one group err together, so groups are drawn.
    means = np.array([errors[grouped.group == group].mean() for group in np.unique(grouped.group)])
    rows = [
        Row(f"{title}: MAPE", float(errors.mean()), "%", Target(high=task.target), "; ".join(beside), n, split,
            bootstrap(means), note)
    ]  # fmt: skip
    if task.target_by_device is not None and len(by_device) > 1:
        middle = float(np.median(list(by_device.values())))
        listed = ", ".join(f"{name} {format_figure(value, '%')}" for name, value in by_device.items())
        rows.append(
            Row(f"{title}: MAPE of the median device", middle, "%", Target(high=task.target_by_device), listed, n, split)
        )
    return rows


if __name__ == "__main__":
    parser = script_parser(__doc__)
    parser.add_argument("--only", action="append", metavar="NAME", help="a task or the beginning of its name: moe-vllm")
    parser.add_argument("--rows", type=int, default=60_000, help="rows of a task at most [60000]")
    given = parser.parse_args()
    chosen = [task for task in TASKS if not given.only or any(task.name.startswith(name) for name in given.only)]
    if not chosen:
        sys.exit(f"--only names none of {', '.join(task.name for task in TASKS)}")
    source = data_file("aiconfigurator", WHEEL, source="PyPI aiconfigurator-core==0.12.0")
    rows = [row for task in chosen for row in measure(task, source, given.rows)]
    sys.exit(finish(BENCHMARK, rows, given.json))
