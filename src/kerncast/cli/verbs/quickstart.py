"""`kerncast quickstart`: from nothing to measured kernels of this machine, and what choosing is worth."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kerncast.cli.asking import steps
from kerncast.cli.views.collect import CollectView
from kerncast.cli.views.output import assignments, duration, json_option, print_json, table
from kerncast.errors import KerncastError

if TYPE_CHECKING:
    import polars as pl

    from kerncast.evaluating import Evaluation
    from kerncast.op import Family

PROBLEM_SETS = ("cubes", "llm", "tall_skinny", "k_heavy", "primes")
LAYOUTS = ("rrr", "rcr")
# Problems, promising configs of each layout (about 160 of both can run a problem), and how often all is measured: what was
# met by a slow spell of a shared machine is met again at another time.
QUICK, FULL = (44, 104, 1), (300, 104, 2)
# Within one round, second visits to what was disturbed: five minutes have no more time for them.
SECOND_VISIT_SECONDS = 40.0
# Larger operands spend the two minutes waiting for memory.
MOST_BYTES = 3e7


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
        # Other shapes for each kind: the next of every few.
        each = count // len(kinds)
        step = max(1, ordered.height // each)
        parts.append(ordered.drop("__work")[number % step :].gather_every(step)[:each])
    return pl.concat(parts)


def _blocks(family: Family, problems: pl.DataFrame, configs: int) -> Iterator[pl.DataFrame]:
    """The promising configs of either layout, on each problem that they can run: one pool, so that one may win them all."""
    import polars as pl

    from kerncast import devices
    from kerncast.families.gemm_cpu import config_set
    from kerncast.sweeping import Selection, Sweep

    for (dtype,), part in problems.group_by("dtype", maintain_order=True):
        sets = [config_set("quick", {"dtype": dtype, "layout": layout, "threads": 1}, devices.local()) for layout in LAYOUTS]
        pool = pl.concat([found.head(configs) for found in sets]).unique(maintain_order=True)
        yield from Sweep(family, devices.local(), part, Selection(portfolio=pool)).iter_blocks()


def _race_blas(datasets: list[Path]) -> dict[str, float]:
    """numpy's time for each problem, beside the winner's, in a process whose BLAS has one thread."""
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    answer = subprocess.run(
        [sys.executable, "-m", "kerncast.regenerating.blas_race", *map(str, datasets)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if answer.returncode:
        raise KerncastError(f"the race against numpy failed: {answer.stderr.strip().splitlines()[-1:]}")
    return {entry["problem"]: entry["ratio"] for entry in json.loads(answer.stdout)}


def _fixed(family: Family, vectors: pl.DataFrame) -> tuple[dict[str, Any], dict[tuple[Any, ...], float]]:
    """The one config that is best everywhere, with hindsight, and its time on each problem."""
    import polars as pl

    problem = [f"problem.{name}" for name in family.problem.parameters]
    config = [f"config.{name}" for name in family.config.parameters]
    scored = vectors.with_columns(share=pl.col("measured_ns").min().over(problem) / pl.col("measured_ns"))
    # A config that cannot run a problem, or lost its row, is worth nothing there.
    fixed = (
        scored.group_by(config)
        .agg(share=pl.col("share").sum())
        .sort("share", *config, descending=True, nulls_last=True)
        .select(config)
    )
    times = scored.join(fixed.head(1), on=config, nulls_equal=True).select(*problem, "share")
    return fixed.row(0, named=True), {row[:-1]: row[-1] for row in times.iter_rows()}


def _learn(out: Path, datasets: list[Path]) -> Evaluation:
    """A model of what was measured, judged out of fold, and the report to look at."""
    from kerncast.cli.views.training import TrainingView
    from kerncast.evaluating import evaluate
    from kerncast.evaluating.report import write_report
    from kerncast.models.model import Model
    from kerncast.training.train import train

    if not (out / "model").exists():
        click.echo("training a model and judging it on shapes that it has not seen ...", err=True)
        with TrainingView() as view:
            train(datasets, out / "model", progress=view)
    found = evaluate(out / "model", datasets, split="problem")
    write_report(found, Model.load(out / "model"), out / "report.html")
    return found


@click.command("quickstart")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("quickstart"),
    show_default=True,
    metavar="DIR",
    help="Where to write.",
)
@click.option("--full", is_flag=True, help="300 shapes in fp32 and bf16, twice, instead of 44 in fp32: about an hour.")
@json_option
def command(out: Path, full: bool, as_json: bool) -> None:
    """Measure real GEMM kernels on this machine, learn to choose among them, and see what that is worth.

    Builds the family gemm/cpu, measures a few dozen shapes with 160 kernels each, trains a model, judges it on shapes
    that it has not seen, writes a report, races the winners against numpy's BLAS and prints a table. Interrupted,
    the same command goes on.

    \b
    kerncast quickstart
    kerncast quickstart --full --out full
    """
    from kerncast.backends import get_backend
    from kerncast.data import Dataset
    from kerncast.registry import FAMILIES

    family = FAMILIES.get("gemm/cpu")
    why_not = get_backend("cpu").unavailable()
    if why_not is not None:
        raise KerncastError(why_not)
    count, configs, rounds = FULL if full else QUICK
    problems = _problems(family, count, ["fp32", "bf16"] if full else ["fp32"])
    datasets = [out / ("gemm_cpu" if number == 1 else f"gemm_cpu-{number}") for number in range(1, rounds + 1)]
    _refuse_strangers(out, datasets, problems)
    for number, dataset in enumerate(datasets, 1):
        _measure(family, problems, configs, dataset, f", round {number} of {rounds}" if rounds > 1 else "", patient=full)
    found = _learn(out, datasets)
    exported = _export(out)
    click.echo("racing the winners against numpy's BLAS ...", err=True)
    measurements = sum(Dataset.open(dataset).read().height for dataset in datasets)
    _show(family, found, measurements, _race_blas(datasets), exported, out, as_json)


def _is_measured(dataset: Path) -> bool:
    from kerncast.data.dataset import JOURNAL

    return dataset.exists() and not (dataset / JOURNAL).exists()


def _refuse_strangers(out: Path, datasets: list[Path], problems: pl.DataFrame) -> None:
    """A folder is of one quickstart: what another measured or trained there is neither mixed with this one nor removed."""
    from kerncast.data import Dataset
    from kerncast.models.model import Model

    measured = [Dataset.open(dataset) for dataset in datasets if _is_measured(dataset)]
    for dataset in measured:
        held = dataset.read().select(f"problem.{name}" for name in problems.columns).unique().height
        if held != problems.height:
            raise KerncastError(
                f"{dataset.path} holds {held} shapes, and this quickstart has {problems.height}: give another --out"
            )
    if (out / "model").exists():
        digest = "+".join(sorted(dataset.digest for dataset in measured))
        if len(measured) < len(datasets) or Model.load(out / "model").manifest.data.digest != digest:
            raise KerncastError(
                f"{out / 'model'} was trained on other measurements than these: give another --out, or remove it"
            )


def _measure(family: Family, problems: pl.DataFrame, configs: int, dataset: Path, which: str, patient: bool) -> None:
    """What is not in the dataset yet."""
    from kerncast.collecting.run import Request, collect

    if _is_measured(dataset):
        return
    click.echo(f"measuring {problems.height} shapes with about 160 kernels each on this machine{which} ...", err=True)
    with CollectView(None) as view:
        request = Request(family, "cpu", ("0",), dataset, second_visit_seconds=None if patient else SECOND_VISIT_SECONDS)
        summary = collect(request, _blocks(family, problems, configs), view)
    if summary.without_a_row or summary.interrupted:
        click.echo(f"stopped; everything measured is safe in {dataset}: run the same command to go on", err=True)
        raise SystemExit(3)


def _export(out: Path) -> dict[str, Any]:
    """The model as C, tried by its own golden vectors, and how long its tiers take to choose."""
    import numpy as np

    from kerncast.backends.cpu.build import find_compiler
    from kerncast.evaluating.tier_lines import drawn_problems
    from kerncast.exporting.project import write_project
    from kerncast.models.model import Model
    from kerncast.selecting.selector import Selector

    with steps() as step:
        selector = Selector.load(Model.load(out / "model"), step=step)
        folder, program = out / "picker", out / "picker" / "selftest"
        if not folder.exists():
            write_project(selector.artefact, folder, step=step)
        step("running the self-test")
        compiler = find_compiler()
        assert compiler is not None  # the kernels were just compiled
        sources = [str(folder / name) for name in ("kerncast.c", "selftest.c")]
        subprocess.run([compiler.path, "-O1", "-ffp-contract=off", *sources, "-o", str(program), "-lm"], check=True)
        said = subprocess.run([program.absolute()], check=True, capture_output=True, text=True).stdout.strip()
        asked = drawn_problems(selector, 200)
        latency = {tier: float(np.median(selector.latencies_us(asked, tier))) for tier in ("tree", "portfolio", "full")}
    return {"folder": str(folder), "self_test": said, "p50_us": latency, "portfolio": len(selector.tiers.portfolio)}


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
        key = key_text(family.id, "", Problem.trusted(family, values), [])
        text = f"{values['M']}x{values['N']}x{values['K']} {values['dtype']} {values['layout']}"
        shapes.append(
            {"problem": text, "best_ns": row["best_ns"], "model_share": row["efficiency"],
             "fixed_share": fixed.get(tuple(values.values()), 0.0), "best_against_blas": blas.get(key)}
        )  # fmt: skip
    return shapes


def _show(
    family: Family,
    found: Evaluation,
    measurements: int,
    blas: dict[str, float],
    exported: dict[str, Any],
    out: Path,
    as_json: bool,
) -> None:
    fixed, fixed_shares = _fixed(family, found.rows)
    shapes = _shapes(family, found, fixed_shares, blas)
    raced = [item for item in shapes if item["best_against_blas"] is not None]
    overall = found.summary["overall"]
    totals = {
        "problems": len(shapes),
        "rows": measurements,
        "model_share_mean": overall["efficiency_mean"]["value"],
        "model_share_p10": overall["efficiency_p10"]["value"],
        "model_share_min": overall["efficiency_min"]["value"],
        "noise_ceiling": overall["noise_ceiling"]["value"],
        "best_fixed_config": {name.removeprefix("config."): value for name, value in fixed.items() if value is not None},
        "fixed_share_mean": sum(item["fixed_share"] for item in shapes) / len(shapes),
        "fixed_share_min": min(item["fixed_share"] for item in shapes),
        "best_against_blas": _mean([item["best_against_blas"] for item in raced]),
        # A choice that failed has no speed; it counts as a thousandth.
        "model_against_blas": _mean([item["best_against_blas"] * max(item["model_share"], 1e-3) for item in raced]),
        "report": str(out / "report.html"),
        "model": str(out / "model"),
        "export": exported,
    }
    if as_json:
        print_json({**totals, "shapes": shapes})
        return
    _print_table(shapes, totals)
    # `make quickstart` runs it from an environment that is not on the PATH.
    kerncast = "kerncast" if shutil.which("kerncast") else sys.argv[0]
    dataset = out / "gemm_cpu"
    click.echo(f"\nlook at {out / 'report.html'} in a browser. Commands to try next:")
    click.echo(f"  {kerncast} select {out / 'model'} M=300 N=500 K=700 dtype=fp32 layout=rrr --explain")
    click.echo(f"  {kerncast} evaluate {out / 'model'} {dataset} --split size")
    click.echo(f"  {kerncast} inspect {dataset} --where problem.layout=rcr --top 20")
    click.echo(f"  {kerncast} collect gemm/cpu --problems llm --vary dtype=fp32 --vary layout=all --max-flops 1e8 \\")
    click.echo("      --configs sample:50 --out mine")


def _print_table(shapes: list[dict[str, Any]], totals: dict[str, Any]) -> None:
    columns = ("shape", "best kernel", "the model's choice gets", "the best fixed kernel gets", "numpy's BLAS gets")
    lines = [
        (item["problem"], duration(item["best_ns"]), f"{item['model_share']:.0%}", f"{item['fixed_share']:.0%}",
         "-" if item["best_against_blas"] is None else f"{1 / item['best_against_blas']:.0%}")
        for item in shapes
    ]  # fmt: skip
    table(columns, lines, "of the speed of the best measured kernel", right=columns[1:])
    click.echo(
        f"\n{totals['problems']} shapes, {totals['rows']:,} measurements. On shapes that it had not seen, the model's choice "
        f"runs at {totals['model_share_mean']:.1%} of the best measured speed (P10 {totals['model_share_p10']:.1%}, worst "
        f"{totals['model_share_min']:.1%}). The best fixed kernel ({assignments(totals['best_fixed_config'])}), picked with "
        f"hindsight: {totals['fixed_share_mean']:.1%}, worst {totals['fixed_share_min']:.1%}. Against numpy's BLAS: the "
        f"model's choice is {totals['model_against_blas']:.2f} x as fast, the best measured kernel "
        f"{totals['best_against_blas']:.2f} x (geometric means)."
    )
    exported = totals["export"]
    quick = ", ".join(f"{tier} {duration(value * 1e3)}" for tier, value in exported["p50_us"].items())
    click.echo(f"Exported to C in {exported['folder']} ({exported['self_test']}). To choose for a new shape takes: {quick}.")
