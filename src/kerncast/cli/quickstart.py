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

from kerncast.cli.collect_view import CollectView
from kerncast.cli.output import assignments, duration, json_option, print_json, table
from kerncast.errors import KerncastError

if TYPE_CHECKING:
    import polars as pl

    from kerncast.op import Family

PROBLEM_SETS = ("cubes", "llm", "tall_skinny", "k_heavy", "primes")
LAYOUTS = ("rrr", "rcr")
# Problems, and promising configs of each layout; about 160 of both can run a problem.
QUICK, FULL = (44, 104), (300, 104)
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
    from kerncast.sweep import Selection, Sweep

    for (dtype,), part in problems.group_by("dtype", maintain_order=True):
        sets = [config_set("quick", {"dtype": dtype, "layout": layout, "threads": 1}, devices.local()) for layout in LAYOUTS]
        pool = pl.concat([found.head(configs) for found in sets]).unique(maintain_order=True)
        yield from Sweep(family, devices.local(), part, Selection(portfolio=pool)).iter_blocks()


def _race_blas(path: Path) -> dict[str, float]:
    """numpy's time for each problem, beside the winner's, in a process whose BLAS has one thread."""
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    answer = subprocess.run(
        [sys.executable, "-m", "kerncast.cli.blas_race", str(path)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if answer.returncode:
        raise KerncastError(f"the race against numpy failed: {answer.stderr.strip().splitlines()[-1:]}")
    return {entry["problem"]: entry["ratio"] for entry in json.loads(answer.stdout)}


def _compare(family: Family, rows: pl.DataFrame) -> tuple[pl.DataFrame, dict[str, Any]]:
    """Per problem: the best measured config, and the one config that is best everywhere."""
    import polars as pl

    problem = [f"problem.{name}" for name in family.problem.parameters]
    config = [f"config.{name}" for name in family.config.parameters]
    ok = rows.filter(pl.col("status") == "ok")
    scored = ok.with_columns(share=pl.col("time_ns").min().over(problem) / pl.col("time_ns"))
    problems = scored.select(problem).n_unique()
    # A config that cannot run a problem, or lost its row, is worth nothing there.
    fixed = (
        scored.group_by(config)
        .agg(share=pl.col("share").sum() / problems)
        .sort("share", *config, descending=True, nulls_last=True)
    )
    chosen = fixed.select(config).row(0, named=True)
    best = scored.sort("time_ns", "key").group_by(problem, maintain_order=True).first()
    fixed_times = scored.join(fixed.head(1).select(config), on=config, nulls_equal=True).select(*problem, fixed_ns="time_ns")
    return best.join(fixed_times, on=problem, how="left").sort(*problem), chosen


@click.command("quickstart")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("quickstart"),
    show_default=True,
    metavar="DIR",
    help="Where to write.",
)
@click.option("--full", is_flag=True, help="300 shapes instead of 44.")
@json_option
def command(out: Path, full: bool, as_json: bool) -> None:
    """Measure real GEMM kernels on this machine and see what choosing the right one is worth.

    Builds the family gemm/cpu, measures a few dozen shapes with 160 kernels each, races the winners against
    numpy's BLAS and prints a table. Interrupted, the same command goes on.

    \b
    kerncast quickstart
    kerncast quickstart --full --out full
    """
    from kerncast.backends import get_backend
    from kerncast.collect.run import Request, collect
    from kerncast.data import Dataset
    from kerncast.registry import FAMILIES

    family = FAMILIES.get("gemm/cpu")
    why_not = get_backend("cpu").unavailable()
    if why_not is not None:
        raise KerncastError(why_not)
    count, configs = FULL if full else QUICK
    problems = _problems(family, count, ["fp32"])
    dataset = out / "gemm_cpu"
    if not dataset.exists() or (dataset / "journal.jsonl").exists():
        click.echo(f"measuring {problems.height} shapes with about 160 kernels each on this machine ...", err=True)
        with CollectView(None) as view:
            summary = collect(Request(family, "cpu", ("0",), dataset), _blocks(family, problems, configs), view)
        if summary.without_a_row:
            click.echo(f"stopped; everything measured is safe in {dataset}: run the same command to go on", err=True)
            raise SystemExit(3)
    rows = Dataset.open(dataset).read()
    click.echo("racing the winners against numpy's BLAS ...", err=True)
    blas = _race_blas(dataset)
    best, fixed = _compare(family, rows)
    _show(best, fixed, blas, rows, dataset, as_json)


def _mean(values: list[float]) -> float:
    """Geometric mean."""
    return math.exp(sum(map(math.log, values)) / len(values))


def _show(
    best: pl.DataFrame, fixed: dict[str, Any], blas: dict[str, float], rows: pl.DataFrame, path: Path, as_json: bool
) -> None:
    shown = []
    for row in best.iter_rows(named=True):
        name = f"{row['problem.M']}x{row['problem.N']}x{row['problem.K']} {row['problem.layout']}"
        share = row["time_ns"] / row["fixed_ns"] if row["fixed_ns"] is not None else None
        shown.append({"problem": name, "best_ns": row["time_ns"], "fixed_share": share, "against_blas": blas[row["key"]]})
    shares = [item["fixed_share"] or 0.0 for item in shown]
    against = [item["against_blas"] for item in shown]
    fixed_config = {name.removeprefix("config."): value for name, value in fixed.items() if value is not None}
    totals = {
        "problems": len(shown),
        "rows": rows.height,
        "best_fixed_config": fixed_config,
        "fixed_share_mean": sum(shares) / len(shares),
        "fixed_share_min": min(shares),
        "best_against_blas": _mean(against),
    }
    if as_json:
        print_json({**totals, "shapes": shown})
        return
    columns = ("shape", "best kernel", "the best fixed kernel gets", "numpy's BLAS gets")
    lines = [
        (item["problem"], duration(item["best_ns"]), f"{item['fixed_share'] or 0:.0%}", f"{1 / item['against_blas']:.0%}")
        for item in shown
    ]
    table(columns, lines, "of the speed of the best measured kernel", right=columns[1:])
    click.echo(
        f"\n{len(shown)} shapes, {rows.height:,} measurements. Best fixed kernel ({assignments(fixed_config)}): "
        f"{totals['fixed_share_mean']:.1%} of the best on average, {totals['fixed_share_min']:.1%} at worst. "
        f"Choosing the best kernel for each shape: {totals['best_against_blas']:.2f} x the speed of numpy's BLAS "
        "(geometric mean)."
    )
    # `make quickstart` runs it from an environment that is not on the PATH.
    kerncast = "kerncast" if shutil.which("kerncast") else sys.argv[0]
    click.echo("\nthree commands to try next:")
    click.echo(f"  {kerncast} inspect {path}")
    click.echo(f"  {kerncast} inspect {path} --where problem.layout=rcr --top 20")
    click.echo(f"  {kerncast} collect gemm/cpu --problems llm --vary dtype=fp32 --vary layout=all --max-flops 1e8 \\")
    click.echo("      --configs sample:50 --out mine")
