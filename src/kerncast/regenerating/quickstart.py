"""Measure kernels on this machine from scratch, train a model that chooses among them, and report what that is worth."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kerncast.collecting.request import Stop, never
from kerncast.errors import KerncastError
from kerncast.models.tier import CHOOSING
from kerncast.progress import QUIET, Progress

if TYPE_CHECKING:
    import polars as pl

    from kerncast.evaluating import Evaluation
    from kerncast.op import Family
    from kerncast.sweeping import Sweep

Listening = Callable[[], AbstractContextManager[Stop]]
PROBLEM_SETS = ("cubes", "llm", "tall_skinny", "k_heavy", "primes")
LAYOUTS = ("rrr", "rcr")
# Problems, promising configs of each layout (about 160 of both can run a problem), and how many of the problems a second
# round measures again: at another time, because a shared machine is slow for a while. It is what the noise ceiling is from.
QUICK, FULL = (44, 104, 8), (300, 104, 300)
# Time for second visits to disturbed vectors, in a round of all problems; five minutes in total allow no more.
SECOND_VISIT_SECONDS = 40.0
# Larger operands would spend the measuring time waiting for memory.
MOST_BYTES = 3e7
# What the parts took on two cores of a shared AMD EPYC virtual machine, seconds per vector or in total: shown as "about"
# until the pace of this machine is known.
VECTORS_PER_SHAPE = 170
MEASURING, LEARNING, OTHER = 0.016, 0.003, 30.0


@dataclass(frozen=True)
class Quickstart:
    """What was found: figures over all shapes, and one entry per shape."""

    totals: dict[str, Any]
    shapes: list[dict[str, Any]]
    out: Path

    @property
    def dataset(self) -> Path:
        """The measurements."""
        return self.out / "gemm_cpu"

    @property
    def model(self) -> Path:
        """The model that was trained on them."""
        return self.out / "model"

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {**self.totals, "shapes": self.shapes}

    def __repr__(self) -> str:
        totals = self.totals
        return (
            f"{totals['problems']} shapes, {totals['rows']:,} measurements. On shapes that it had not seen, the model's choice "
            f"runs at {totals['model_share_mean']:.1%} of the best measured speed (P10 {totals['model_share_p10']:.1%}, worst "
            f"{totals['model_share_min']:.1%}). Report: {totals['report']}"
        )


class Stopped(KerncastError):
    """Stopped before the end; the same call continues."""


def quickstart(
    out: Path, *, full: bool = False, progress: Progress = QUIET, listening: Listening = lambda: nullcontext(never)
) -> Quickstart:
    """Measure, train, evaluate, report, export, race against numpy's BLAS; what an earlier call finished is not repeated.

    `listening` makes a context manager for each measurement, which yields the function that says whether to stop.
    """
    from kerncast.backends import get_backend
    from kerncast.data import Dataset
    from kerncast.evaluating.report import check_can_report
    from kerncast.registry import FAMILIES

    check_can_report()
    family = FAMILIES.get("gemm/cpu")
    why_not = get_backend("cpu").unavailable()
    if why_not is not None:
        raise KerncastError(why_not)
    count, configs, again = FULL if full else QUICK
    problems = _problems(family, count, ["fp32", "bf16"] if full else ["fp32"])
    rounds = {out / "gemm_cpu": problems, out / "gemm_cpu-2": _spread(problems, again)}
    datasets = list(rounds)
    _refuse_strangers(out, rounds)
    expected = _expected(out, rounds)
    progress.say(_how_long(expected))
    for number, (dataset, part) in enumerate(rounds.items(), 1):
        share = part.height / sum(item.height for item in rounds.values())
        patience = None if full else SECOND_VISIT_SECONDS * part.height / problems.height
        with listening() as stop:
            done = _measure(
                family,
                part,
                configs,
                dataset,
                f", round {number} of 2",
                share * expected["measuring"],
                patience,
                progress,
                stop,
            )
        if not done:
            raise Stopped(f"stopped; everything measured is safe in {dataset}: run the same command to continue")
    found = _learn(out, datasets, expected["learning"], progress)
    exported = _export(out, progress)
    progress.say("racing the winners against numpy's BLAS ...")
    measurements = sum(Dataset.open(dataset).read().height for dataset in datasets)
    return _figures(family, found, measurements, _race_blas(datasets), exported, out)


def _problems(family: Family, count: int, dtypes: list[str]) -> pl.DataFrame:
    """Shapes of all kinds up to 10^8 FLOP, one thread, spread evenly over the arithmetic that they need."""
    import polars as pl

    from kerncast.problems import problem_set

    kinds = [(dtype, layout) for dtype in dtypes for layout in LAYOUTS]
    parts = []
    for number, (dtype, layout) in enumerate(kinds):
        vary: dict[str, list[int | bool | str | None]] = {"dtype": [dtype], "layout": [layout], "threads": [1]}
        found = problem_set(family, PROBLEM_SETS, vary, max_flops=1e8, max_bytes=MOST_BYTES)
        ordered = found.with_columns(__work=found["M"] * found["N"] * found["K"]).sort("__work", "M", "N", "K")
        # Each kind gets different shapes: every `step`-th one, from another start.
        each = count // len(kinds)
        step = max(1, ordered.height // each)
        parts.append(ordered.drop("__work")[number % step :].gather_every(step)[:each])
    return pl.concat(parts)


def _spread(problems: pl.DataFrame, count: int) -> pl.DataFrame:
    """Some of the problems, evenly spread over all kinds and sizes."""
    return problems[[round(place * (problems.height - 1) / max(1, count - 1)) for place in range(min(count, problems.height))]]


def _sweeps(family: Family, problems: pl.DataFrame, configs: int) -> Iterator[Sweep]:
    """The promising configs of both layouts, on each problem that they can run: one pool, so one config can win everywhere."""
    import polars as pl

    from kerncast import devices
    from kerncast.families.gemm_cpu import config_set
    from kerncast.sweeping import Selection, Sweep

    for (dtype,), part in problems.group_by("dtype", maintain_order=True):
        sets = [config_set("quick", {"dtype": dtype, "layout": layout, "threads": 1}, devices.local()) for layout in LAYOUTS]
        pool = pl.concat([found.head(configs) for found in sets]).unique(maintain_order=True)
        yield Sweep(family, devices.local(), part, Selection(portfolio=pool))


def _race_blas(datasets: list[Path]) -> dict[str, float]:
    """How many times faster than numpy the winner of each problem is, timed in a process whose BLAS has one thread."""
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    answer = subprocess.run(
        [sys.executable, "-P", "-m", "kerncast.regenerating.blas_race", *map(str, datasets)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if answer.returncode:
        raise KerncastError(f"the race against numpy failed: {answer.stderr.strip().splitlines()[-1:]}")
    return {entry["problem"]: entry["ratio"] for entry in json.loads(answer.stdout)}


def _fixed(family: Family, vectors: pl.DataFrame) -> tuple[dict[str, Any], dict[tuple[Any, ...], float]]:
    """The one config that is best overall, with hindsight, and its share of the best speed on each problem."""
    import polars as pl

    problem = [f"problem.{name}" for name in family.problem.parameters]
    config = [f"config.{name}" for name in family.config.parameters]
    scored = vectors.with_columns(share=pl.col("measured_ns").min().over(problem) / pl.col("measured_ns"))
    # A config that cannot run a problem, or has no row for it, counts as zero there.
    fixed = (
        scored.group_by(config)
        .agg(share=pl.col("share").sum())
        .sort("share", *config, descending=True, nulls_last=True)
        .select(config)
    )
    times = scored.join(fixed.head(1), on=config, nulls_equal=True).select(*problem, "share")
    return fixed.row(0, named=True), {row[:-1]: row[-1] for row in times.iter_rows()}


def _learn(out: Path, datasets: list[Path], seconds: float, progress: Progress) -> Evaluation:
    """Train a model on the measurements, evaluate it out of fold, and write the report."""
    from kerncast.evaluating import evaluate
    from kerncast.evaluating.report import write_report
    from kerncast.models.model import Model
    from kerncast.training.train import train

    if not (out / "model").exists():
        progress.say("training a model and evaluating it on shapes that it has not seen ...")
        progress.guess(seconds)
        train(datasets, out / "model", progress=progress)
    found = evaluate(out / "model", datasets, split="problem")
    write_report(found, Model.load(out / "model"), out / "report.html")
    return found


def _expected(out: Path, rounds: Mapping[Path, pl.DataFrame]) -> dict[str, float]:
    """Estimated seconds left for each part, from times on another machine and how busy this one is."""
    vectors = {dataset: VECTORS_PER_SHAPE * part.height for dataset, part in rounds.items()}
    todo = {dataset: count for dataset, count in vectors.items() if not _is_measured(dataset)}
    measuring = sum(MEASURING * max(0, count - _rows_begun(dataset)) for dataset, count in todo.items())
    learning = 0.0 if (out / "model").exists() else LEARNING * sum(vectors.values())
    # Other processes take their share of the cores.
    busy = max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
    visits = SECOND_VISIT_SECONDS * len(todo)
    return {"measuring": busy * measuring + visits, "learning": busy * learning, "exporting and racing": busy * OTHER}


def _how_long(expected: dict[str, float]) -> str:
    parts = ", ".join(f"{name} {_rounded(seconds)}" for name, seconds in expected.items() if seconds)
    return (
        f"this takes about {_rounded(sum(expected.values()))} ({parts}), estimated from two cores of a shared server and how "
        "busy this machine is"
    )


def _rounded(seconds: float) -> str:
    return f"{math.ceil(seconds / 10) * 10} s" if seconds < 90 else f"{round(seconds / 60)} min"


def _rows_begun(dataset: Path) -> int:
    """The number of vectors that a stopped run has measured."""
    from kerncast.data import journal

    path = dataset / journal.NAME
    return len({record["key"] for record in journal.records_of(path)}) if journal.is_begun(path) else 0


def _is_measured(dataset: Path) -> bool:
    from kerncast.data import journal

    return dataset.exists() and not (dataset / journal.NAME).exists()


def _refuse_strangers(out: Path, rounds: Mapping[Path, pl.DataFrame]) -> None:
    """Refuse a folder that another quickstart used: its data are neither mixed with this one's nor removed."""
    from kerncast.data import Dataset
    from kerncast.models.model import Model

    measured = {path: Dataset.open(path) for path in rounds if _is_measured(path)}
    for path, dataset in measured.items():
        held = dataset.read().select(f"problem.{name}" for name in rounds[path].columns).unique().height
        if held != rounds[path].height:
            raise KerncastError(
                f"{path} holds {held} shapes, but this quickstart has {rounds[path].height}: choose another `out`"
            )
    if (out / "model").exists():
        digest = "+".join(sorted(dataset.digest for dataset in measured.values()))
        if len(measured) < len(rounds) or Model.load(out / "model").manifest.data.digest != digest:
            raise KerncastError(f"{out / 'model'} was not trained on these measurements: choose another `out`, or remove it")


def _measure(
    family: Family,
    problems: pl.DataFrame,
    configs: int,
    dataset: Path,
    which: str,
    seconds: float,
    patience: float | None,
    progress: Progress,
    stop: Stop,
) -> bool:
    """Measure what is not in the dataset yet; False when it was stopped before the end."""
    from kerncast.collecting.run import Request, collect

    if _is_measured(dataset):
        return True
    progress.say(f"measuring {problems.height} shapes with about 160 kernels each on this machine{which} ...")
    there = _rows_begun(dataset)
    progress.guess(seconds)
    sweeps = list(_sweeps(family, problems, configs))
    total, blocks = sum(sweep.count() for sweep in sweeps), (block for sweep in sweeps for block in sweep.iter_blocks())
    request = Request(family, "cpu", ("0",), dataset, second_visit_seconds=patience)
    summary = collect(request, blocks, total=total - there, progress=progress, stop=stop)
    return not (summary.without_a_row or summary.interrupted or stop())


def _export(out: Path, progress: Progress) -> dict[str, Any]:
    """Export the model to C, run its self-test, and time how long its tiers take to choose."""
    import numpy as np

    from kerncast.backends.cpu.build import find_compiler
    from kerncast.evaluating.tier_lines import drawn_problems
    from kerncast.exporting.project import write_project
    from kerncast.models.model import Model
    from kerncast.selecting.selector import Selector

    selector = Selector(Model.load(out / "model"), progress=progress)
    folder, program = out / "picker", out / "picker" / "selftest"
    if not folder.exists():
        write_project(selector.artefact, folder, progress=progress)
    progress.stage("running the self-test")
    compiler = find_compiler()
    assert compiler is not None  # the kernels were just compiled
    sources = [str(folder / name) for name in ("kerncast.c", "selftest.c")]
    subprocess.run([compiler.path, "-O1", "-ffp-contract=off", *sources, "-o", str(program), "-lm"], check=True)
    said = subprocess.run([program.absolute()], check=True, capture_output=True, text=True).stdout.strip()
    asked = drawn_problems(selector, 200)
    latency = {str(tier): float(np.median(selector.latencies_us(asked, tier))) for tier in CHOOSING}
    return {"path": str(folder), "self_test": said, "p50_us": latency, "portfolio": len(selector.tiers.portfolio)}


def _mean(values: list[float]) -> float:
    """Geometric mean."""
    return math.exp(sum(map(math.log, values)) / len(values))


def _shapes(
    family: Family, found: Evaluation, fixed: dict[tuple[Any, ...], float], blas: dict[str, float]
) -> list[dict[str, Any]]:
    """One entry per problem: what the model, the best fixed kernel and numpy get of the best measured speed."""
    from kerncast.op import Problem, key_text

    names = list(family.problem.parameters)
    shapes = []
    for row in found.problems.iter_rows(named=True):
        values = {name: row[f"problem.{name}"] for name in names}
        key = key_text(family.id, "", Problem.trusted(family, values).items(), [])
        text = f"{values['M']}x{values['N']}x{values['K']} {values['dtype']} {values['layout']}"
        shapes.append(
            {"problem": text, "best_ns": row["best_ns"], "model_share": row["efficiency"],
             "fixed_share": fixed.get(tuple(values.values()), 0.0), "best_against_blas": blas.get(key)}
        )  # fmt: skip
    return shapes


def _figures(
    family: Family, found: Evaluation, measurements: int, blas: dict[str, float], exported: dict[str, Any], out: Path
) -> Quickstart:
    fixed, fixed_shares = _fixed(family, found.rows)
    shapes = _shapes(family, found, fixed_shares, blas)
    raced = [item for item in shapes if item["best_against_blas"] is not None]
    overall = found.as_json()["overall"]
    totals = {
        "problems": len(shapes),
        "rows": measurements,
        "model_share_mean": overall["efficiency_mean"]["value"],
        "model_share_p10": overall["efficiency_p10"]["value"],
        "model_share_min": overall["efficiency_min"]["value"],
        # None: fewer problems worked twice than a ceiling needs.
        "noise_ceiling": (overall["noise_ceiling"] or {}).get("value"),
        "problems_measured_twice": found.as_json()["problems_measured_twice"],
        "best_fixed_config": {name.removeprefix("config."): value for name, value in fixed.items() if value is not None},
        "fixed_share_mean": sum(item["fixed_share"] for item in shapes) / len(shapes),
        "fixed_share_min": min(item["fixed_share"] for item in shapes),
        "best_against_blas": _mean([item["best_against_blas"] for item in raced]),
        # A choice that failed has no speed; it counts as a thousandth.
        "model_against_blas": _mean([item["best_against_blas"] * max(item["model_share"], 1e-3) for item in raced]),
        "path": str(out),
        "report": str(out / "report.html"),
        "model": str(out / "model"),
        "export": exported,
    }
    return Quickstart(totals, shapes, out)
