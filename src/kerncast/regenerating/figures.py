"""Steps that say what a model is worth here: a report on unseen problems, an export that tests itself, a race against numpy.

`python -P -m kerncast.regenerating.figures DATASET...` is the race itself: the number of BLAS threads is fixed when numpy is
first imported, so it needs a process of its own. It prints JSON: the problem's canonical text and how many times faster than
numpy its winner is. Problems in dtypes that numpy has no BLAS for are left out."""

from __future__ import annotations

import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from kerncast.answering.exporters.project import write_project
from kerncast.answering.selector import Selector
from kerncast.core.io.terminal import assignments
from kerncast.core.op import Config, Family, Problem, key_text
from kerncast.data.dataset import Dataset
from kerncast.errors import KerncastError, NotFound
from kerncast.evaluating import Evaluation, evaluate
from kerncast.evaluating.report.page import write_report
from kerncast.evaluating.tiers import drawn_problems
from kerncast.learning.table import load_table
from kerncast.library.ops.gemm import gemm
from kerncast.measuring.backends import get_backend
from kerncast.measuring.backends.cpu.build import find_compiler
from kerncast.models.answer import CHOOSING, Tier
from kerncast.models.model import Model

if TYPE_CHECKING:
    from kerncast.regenerating.loop import FamilyRun
    from kerncast.regenerating.routine import Facts


def report(run: FamilyRun) -> Facts | None:
    """Evaluate the recipe on problems that it has not seen, write the report, and sum up what the steps found out."""
    evaluation = evaluate(run.model, run.datasets, split="problem", progress=run.progress)
    write_report(evaluation, Model.load(run.model), run.folder / "report.html")
    best, shares = _best_fixed(run.family, evaluation.rows)
    shapes = _shapes(run.family, evaluation, shares, run.facts("race") if "race" in run.routine.steps else {})
    raced = [shape for shape in shapes if shape["best_against_blas"] is not None]
    summary = evaluation.as_json()
    overall, fixed = summary["overall"], [shape["fixed_share"] for shape in shapes]
    totals = {
        "problems": len(shapes),
        "rows": sum(Dataset.open(dataset).rows for dataset in run.datasets),
        "model_share_mean": overall["efficiency_mean"]["value"],
        "model_share_p10": overall["efficiency_p10"]["value"],
        "model_share_min": overall["efficiency_min"]["value"],
        # None: fewer problems worked twice than a ceiling needs.
        "noise_ceiling": (overall["noise_ceiling"] or {}).get("value"),
        "problems_measured_twice": summary["problems_measured_twice"],
        "best_fixed_config": {name.removeprefix("config."): value for name, value in best.items() if value is not None},
        "fixed_share_mean": sum(fixed) / len(fixed),
        "fixed_share_min": min(fixed),
        "best_against_blas": _geometric_mean([shape["best_against_blas"] for shape in raced]),
        # A choice that failed has no speed; it counts as a thousandth.
        "model_against_blas": _geometric_mean(
            [shape["best_against_blas"] * max(shape["model_share"], 1e-3) for shape in raced]
        ),
    }
    return {"totals": totals, "shapes": shapes}


def _geometric_mean(values: list[float]) -> float | None:
    return math.exp(sum(map(math.log, values)) / len(values)) if values else None


def _best_fixed(family: Family, vectors: pl.DataFrame) -> tuple[dict[str, Any], dict[tuple[Any, ...], float]]:
    """The one config that is best overall, with hindsight, and its share of the best speed on each problem."""
    problem = [f"problem.{name}" for name in family.problem.parameters]
    config = [f"config.{name}" for name in family.config.parameters]
    scored = vectors.with_columns(share=pl.col("measured_ns").min().over(problem) / pl.col("measured_ns"))
    # A config that cannot run a problem, or has no row for it, counts as zero there.
    ranked = scored.group_by(config).agg(share=pl.col("share").sum()).sort("share", *config, descending=True, nulls_last=True)
    best = ranked.select(config).head(1)
    times = scored.join(best, on=config, nulls_equal=True).select(*problem, "share")
    return best.row(0, named=True), {row[:-1]: row[-1] for row in times.iter_rows()}


def _shapes(family: Family, evaluation: Evaluation, fixed: dict[tuple[Any, ...], float], ratios: Facts) -> list[dict[str, Any]]:
    """One entry per problem: what the model, the best fixed config and numpy get of the best measured speed."""
    names, shapes = list(family.problem.parameters), []
    for row in evaluation.problems.iter_rows(named=True):
        values = {name: row[f"problem.{name}"] for name in names}
        label = assignments(values)
        if family.op is gemm:
            label = f"{values['M']}x{values['N']}x{values['K']} {values['dtype']} {values['layout']}"
        key = key_text(family.id, "", Problem.trusted(family, values).items(), [])
        shapes.append(
            {"problem": label, "best_ns": row["best_ns"], "model_share": row["efficiency"],
             "fixed_share": fixed.get(tuple(values.values()), 0.0), "best_against_blas": ratios.get(key)}
        )  # fmt: skip
    return shapes


def export(run: FamilyRun) -> Facts | None:
    """Export the model to C, run its self-test, and time how long its tiers take to choose."""
    folder, program = run.folder / "picker", run.folder / "picker" / "selftest"
    compiler = find_compiler()
    if compiler is None:
        raise NotFound("the step export runs the self-test of what it writes: install gcc or clang, or leave the step out")
    shutil.rmtree(folder, ignore_errors=True)
    selector = Selector(Model.load(run.model), progress=run.progress)
    write_project(selector.artefact, folder, progress=run.progress)
    run.progress.stage("running the self-test")
    sources = [str(folder / name) for name in ("kerncast.c", "selftest.c")]
    subprocess.run([compiler.path, "-O1", "-ffp-contract=off", *sources, "-o", str(program), "-lm"], check=True)
    printed = subprocess.run([program.absolute()], check=True, capture_output=True, text=True).stdout.strip()
    problems = drawn_problems(selector, 200)
    latency = {str(tier): float(np.median(selector.latencies_us(problems, tier))) for tier in CHOOSING}
    return {"self_test": printed, "p50_us": latency, str(Tier.PORTFOLIO): len(selector.tiers.portfolio)}


def race(run: FamilyRun) -> Facts | None:
    """How many times faster than numpy the winner of each problem is, timed in a process whose BLAS has one thread."""
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    answer = subprocess.run(
        [sys.executable, "-P", "-m", "kerncast.regenerating.figures", *map(str, run.datasets)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if answer.returncode:
        raise KerncastError(f"the race against numpy failed: {answer.stderr.strip().splitlines()[-1:]}")
    return {entry["problem"]: entry["ratio"] for entry in json.loads(answer.stdout)}


DTYPES = {"fp32": np.float32, "fp64": np.float64}
ROUNDS = 9
REGION_NS = 300_000


def _loops(time_ns: float) -> int:
    return max(1, round(REGION_NS / max(time_ns, 1.0)))


def raced(paths: list[str]) -> list[dict[str, object]]:
    """One entry per problem; the ratio is the median over rounds in which both ran side by side."""
    table = load_table([Dataset.open(path) for path in paths])
    family, trials = table.family, table.trials
    best = trials.choose(trials.time_ns)
    winners = table.rows.frame[best].with_columns(time_ns=pl.Series(trials.time_ns[best])).filter(pl.Series(trials.solvable))
    backend = get_backend("cpu")("0")
    rng = np.random.default_rng(0)
    found: list[dict[str, object]] = []
    for row in winners.filter(pl.col("problem.dtype").is_in(list(DTYPES))).iter_rows(named=True):
        problem = Problem.trusted(family, {name: row[f"problem.{name}"] for name in family.problem.parameters})
        config = Config.trusted(family, {name: row[f"config.{name}"] for name in family.config.parameters})
        kernel = backend.prepare(problem, config)
        dtype = DTYPES[problem.dtype]
        a = rng.standard_normal((problem.M, problem.K)).astype(dtype, order="F" if problem.layout[0] == "c" else "C")
        b = rng.standard_normal((problem.K, problem.N)).astype(dtype, order="F" if problem.layout[1] == "c" else "C")
        out = np.empty((problem.M, problem.N), dtype)
        loops = _loops(row["time_ns"])
        ratios = []
        for _ in range(ROUNDS + 1):
            start = time.perf_counter_ns()
            for _ in range(loops):
                np.matmul(a, b, out=out)
            ratios.append((time.perf_counter_ns() - start) / kernel.run(loops))
        kernel.close()
        found.append({"problem": key_text(family.id, "", problem.items(), []), "ratio": statistics.median(ratios[1:])})
    return found


if __name__ == "__main__":
    print(json.dumps(raced(sys.argv[1:])))
