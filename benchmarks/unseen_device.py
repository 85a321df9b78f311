"""Devices without data, or with little: `KERNCAST_DATA=… python benchmarks/unseen_device.py [--only choosing|predicting]`.

Times: GEMM of TensorRT-LLM on nine GPUs, the newest version of each (PyPI aiconfigurator-core 0.12.0, Apache-2.0, the wheel
under KERNCAST_DATA/aiconfigurator), 12,000 rows of each. A model of eight GPUs predicts the ninth from its profile alone, and
then with 50, 200 and 1,000 rows of it (`train --base`). Half of the pairs (N, K) are for these rows, the other half are for
the test. A model of the same rows alone and the roofline are beside it. What `adapt` does was decided on the H200, the B200 and
the RTX PRO 6000 only.

Choosing: a 2-D convolution that Kernel Tuner measured in full on an A100 and an MI250X
(https://github.com/AutoTuningAssociation/benchmark_hub, cachefiles/convolution_milo, MIT). A model of the A100, moved by 1 % of
the configs of the MI250X, names ten favourites. Beside it: the ten favourites of a model of that 1 % alone, and ten at random.
"""

from __future__ import annotations

import sys
import tempfile
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from choosing import data_file
from h100_gemm import WHEEL
from reporting import Benchmark, Row, Target, bootstrap, finish, format_figure, script_parser, spread

import kerncast
from kerncast.data import Dataset
from kerncast.data.formats import ImportOptions
from kerncast.data.importing import import_files
from kerncast.library import devices
from kerncast.models.model import Model

SOURCE = (
    "NVIDIA's AIConfigurator, PyPI aiconfigurator-core 0.12.0, gemm/trtllm of nine GPUs; AutoTuningAssociation/benchmark_hub"
)
BENCHMARK = Benchmark(
    __file__, "Predicting times, on public data", "Devices without data, or with little", SOURCE, "Apache-2.0; MIT"
)
FRAMEWORK, FAMILY = "trtllm", "gemm/library"
ROWS, TEST = 12_000, 2_000
COUNTS = {50: 12.0, 200: 8.0, 1000: 5.0}
BETTER = 3.0
KNOBS = {"trees": 150, "leaves": 63, "lr": 0.1, "times_only": True, "early_stopping": False, "own_trees": 60, "threads": 1,
         "progress": None}  # fmt: skip
SPACES = {"convolution_A100.json.gz": "a100", "convolution_MI250X.json.gz": "gfx90a"}
SHARE, FAVOURITES, SEEDS = 0.01, 10, 10


@dataclass(frozen=True)
class Judged:
    """One GPU that was left out: MAPE in percent of its roofline, and by the number of its rows of both models."""

    device: str
    roofline: float
    moved: dict[int, float]
    alone: dict[int, float]
    covered: dict[int, float]
    rows: int


def tables(folder: Path) -> Dataset:
    """The newest GEMM table of each GPU."""
    wheel = data_file("aiconfigurator", WHEEL, source="PyPI aiconfigurator-core==0.12.0")
    newest: dict[str, str] = {}
    with zipfile.ZipFile(wheel) as archive:
        for name in sorted(archive.namelist()):
            if f"/gemm/{FRAMEWORK}/" in name and name.endswith("gemm_perf.parquet"):
                newest[name.split("/")[-5]] = name
        files = [Path(archive.extract(name, folder)) for name in newest.values()]
    return import_files("aiconfigurator", files, folder / "all", ImportOptions())


def sampled(whole: Dataset, folder: Path) -> dict[str, pl.DataFrame]:
    """By GPU: all its rows; and a dataset with some of them for the models of the others."""
    frames = {name: part for (name,), part in whole.read(FAMILY).sort("device").group_by("device", maintain_order=True)}
    made = Dataset.create(folder / "some")
    rng = np.random.default_rng(0)
    for part in frames.values():
        chosen = np.sort(rng.permutation(part.height)[:ROWS])
        made.append(whole.family(FAMILY), part[chosen].drop("key", "op", "family"))
    return frames


def judge(name: str, others: list[str], frame: pl.DataFrame, whole: Dataset, folder: Path) -> Judged:
    """Leave one GPU out."""
    family = whole.family(FAMILY)
    where = f"device={','.join(others)}"
    base = kerncast.train(folder / "some", out=folder / f"{name}_base", pool=True, where=where, folds=0, **KNOBS)
    frame = frame.filter(pl.col("problem.dtype").is_in(base.manifest.dtypes))  # of a dtype of its own the others know nothing
    pairs = frame.select("problem.N", "problem.K").unique(maintain_order=True).sort("problem.N", "problem.K")
    half = pairs[np.sort(np.random.default_rng(1).permutation(pairs.height)[: pairs.height // 2])]
    own = frame.join(half, on=["problem.N", "problem.K"], how="semi", maintain_order="left")
    rest = frame.join(half, on=["problem.N", "problem.K"], how="anti", maintain_order="left")
    test = rest[np.sort(np.random.default_rng(2).permutation(rest.height)[:TEST])]
    moved = {0: error(base, test, device=name)}
    alone: dict[int, float] = {}
    covered: dict[int, float] = {}
    profile = devices.get(name)
    roofline = 100 * float((1 - pl.Series(base.describe(test, profile).roofline_ns) / test["time_ns"]).abs().mean())
    for count in COUNTS:
        few = Dataset.create(folder / f"{name}_{count}")
        chosen = np.sort(np.random.default_rng([3, count]).permutation(own.height)[:count])
        few.append(family, own[chosen].drop("key", "op", "family"))
        model = kerncast.train(few, base=base, out=folder / f"{name}_{count}_moved", progress=None)
        moved[count] = error(model, test)
        said = model.predict(vectors(test))
        covered[count] = 100 * float(((said["lower_ns"] <= test["time_ns"]) & (test["time_ns"] <= said["upper_ns"])).mean())
        scratch = kerncast.train(few, out=folder / f"{name}_{count}_alone", folds=0, threads=1, progress=None)
        alone[count] = error(scratch, test)
    return Judged(name, roofline, moved, alone, covered, test.height)


def vectors(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.select(pl.col("^problem\\..*$"), pl.col("^config\\..*$"))


def error(model: Model, test: pl.DataFrame, device: str | None = None) -> float:
    """MAPE in percent; rows that a model of few rows does not cover are predicted all the same."""
    said = model.predict_vectors(vectors(test), None if device is None else devices.get(device))
    return 100 * float((said["time_ns"] / test["time_ns"] - 1).abs().mean())


def predicting(folder: Path) -> list[Row]:
    whole = tables(folder)
    frames = sampled(whole, folder)
    found = []
    for name in frames:
        began = time.perf_counter()
        found.append(judge(name, [other for other in frames if other != name], frames[name], whole, folder))
        print(line(found[-1]), f"{time.perf_counter() - began:.0f} s", flush=True)
    return stated(found)


def line(found: Judged) -> str:
    rows = "  ".join(f"{count:,}: {found.moved[count]:.1f} ({found.alone[count]:.1f} alone)" for count in COUNTS)
    return f"  {found.device:<20s} roofline {found.roofline:.1f}  0: {found.moved[0]:.1f}  {rows}"


def stated(found: list[Judged]) -> list[Row]:
    n, split = f"{len(found)} GPUs, {found[0].rows:,} rows each", "each GPU left out, pairs (N, K) unseen"
    gains = np.array([item.roofline / item.moved[0] for item in found])
    least = found[int(gains.argmin())]
    rows = [
        Row(
            f"GEMM, 0 rows of the GPU, error of the roofline ÷ error, worst GPU ({least.device})", float(gains.min()), "×",
            Target(low=BETTER), f"median of the GPUs {np.median(gains):.1f}", n, split, spread(gains, "GPUs"),
            f"reached on {int((gains >= BETTER).sum())} of {len(found)} GPUs",
        )
    ]  # fmt: skip
    for count, most in COUNTS.items():
        errors, alone = (np.array([getattr(item, what)[count] for item in found]) for what in ("moved", "alone"))
        worst = int(errors.argmax())
        covered = np.mean([item.covered[count] for item in found])
        rows.append(
            Row(
                f"GEMM, {count:,} rows of the GPU, MAPE of its worst GPU ({found[worst].device})", float(errors[worst]), "%",
                Target(high=most), f"a model of these rows alone {format_figure(float(alone[worst]), '%')}", n, split,
                spread(errors, "GPUs"),
                f"median {np.median(errors):.1f} % (alone {np.median(alone):.1f} %); reached on "
                f"{int((errors <= most).sum())} of {len(found)} GPUs; the 90 % interval covers {covered:.0f} %",
            )
        )  # fmt: skip
    return rows


def choosing(folder: Path) -> list[Row]:
    """The best of ten favourites on the MI250X, as a share of the optimum."""
    data = {
        name: import_files(
            "kernel-tuner", [data_file("kernel_tuner", name, source=SOURCE)], folder / name, ImportOptions(device=on)
        )
        for name, on in SPACES.items()
    }
    there, here = data.values()
    base = kerncast.train(there, out=folder / "a100", folds=0, threads=1, progress=None)
    (family,) = here.families
    rows = here.read()
    times = rows["time_ns"].fill_null(float("inf")).to_numpy()
    share = times.min() / times
    ways: dict[str, list[float]] = {"moved": [], "alone": [], "random": []}
    for seed in range(SEEDS):
        order = np.random.default_rng(seed).permutation(rows.height)
        few = Dataset.create(folder / f"few{seed}")
        chosen = np.sort(order[: round(SHARE * rows.height)])
        few.append(family, rows[chosen].drop("key", "op", "family"), machines=here.contents.devices)
        moved = kerncast.train(few, base=base, out=folder / f"moved{seed}", seed=seed, progress=None)
        alone = kerncast.train(few, out=folder / f"alone{seed}", folds=0, threads=1, seed=seed, progress=None)
        for way, model in (("moved", moved), ("alone", alone)):
            said = model.predict_vectors(vectors(rows))
            ways[way].append(100 * float(share[np.argsort(said["score"].to_numpy(), kind="stable")[:FAVOURITES]].max()))
        drawn = np.random.default_rng([seed, 1])
        ways["random"].append(
            100 * float(np.mean([share[drawn.permutation(rows.height)[:FAVOURITES]].max() for _ in range(200)]))
        )
    means = {way: float(np.mean(values)) for way, values in ways.items()}
    ahead = int(np.sum(np.array(ways["moved"]) >= np.array(ways["alone"])))
    return [
        Row(
            "convolution on an MI250X, best of ten favourites ÷ optimum: a model of an A100 moved by 1 % of the configs",
            means["moved"], "%", Target(low=means["alone"]),
            f"a model of the 1 % alone {format_figure(means['alone'], '%')}, ten at random "
            f"{format_figure(means['random'], '%')}",
            f"{rows.height:,} configs, {SEEDS} seeds", "1 % of the configs at random", bootstrap(ways["moved"]),
            f"at least as good as alone in {ahead} of {SEEDS} seeds",
        )
    ]  # fmt: skip


def main() -> int:
    parser = script_parser(__doc__)
    parts = {"choosing": choosing, "predicting": predicting}
    parser.add_argument("--only", choices=parts, help="one of the two parts")
    given = parser.parse_args()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as scratch:
        for name, part in parts.items():
            if given.only in (None, name):
                rows += part(Path(scratch))
    return finish(BENCHMARK, rows, given.json, partial=given.only is not None)


if __name__ == "__main__":
    sys.exit(main())
