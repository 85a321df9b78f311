"""`kerncast quickstart`."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import click

from kerncast.api.printing import echo
from kerncast.api.showing import shown
from kerncast.cli.signals import polite_signals
from kerncast.cli.views.output import assignments, duration, json_option, print_json, table
from kerncast.writing.shell import word


@click.command("quickstart")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("quickstart"),
    show_default=True,
    metavar="DIR",
    help="Where to write.",
)
@click.option("--full", is_flag=True, help="300 shapes in fp32 and bf16, all twice, instead of 44 in fp32: about an hour.")
@json_option
def command(out: Path, full: bool, as_json: bool) -> None:
    """Measure real GEMM kernels on this machine, learn to choose among them, and see what that is worth.

    Builds the family gemm/cpu, measures a few dozen shapes with 160 kernels each and some of them again (to know how far
    two measurements agree), trains a model, evaluates it on shapes that it has not seen, writes a report, races the
    winners against numpy's BLAS and prints a table. If it is interrupted, run the same command to continue.

    \b
    kerncast quickstart
    kerncast quickstart --full --out full
    """
    from kerncast.regenerating.quickstart import Stopped, quickstart

    try:
        with shown(plain=True) as progress:
            found = quickstart(out, full=full, progress=progress, listening=polite_signals)
    except Stopped as error:
        echo(str(error), err=True)
        raise SystemExit(3) from error
    if as_json:
        print_json(found.as_json())
        return
    _print_table(found.shapes, found.totals)
    # `make quickstart` runs it from an environment that is not on the PATH.
    kerncast = "kerncast" if shutil.which("kerncast") else word(sys.argv[0])
    dataset, model = word(out / "gemm_cpu"), word(out / "model")
    echo("", f"look at {out / 'report.html'} in a browser. Commands to try next:")
    echo(f"  {kerncast} select {model} M=300 N=500 K=700 dtype=fp32 layout=rrr --explain")
    echo(f"  {kerncast} evaluate {model} {dataset} --split size")
    echo(f"  {kerncast} inspect {dataset} --where problem.layout=rcr --top 20")
    echo(f"  {kerncast} collect gemm/cpu --problems llm --vary dtype=fp32 --vary layout=all --max-flops 1e8 \\")
    echo("      --configs sample:50 --out mine")


def _print_table(shapes: list[dict[str, Any]], totals: dict[str, Any]) -> None:
    columns = ("shape", "best kernel", "the model's choice gets", "the best fixed kernel gets", "numpy's BLAS gets")
    lines = [
        (item["problem"], duration(item["best_ns"]), f"{item['model_share']:.0%}", f"{item['fixed_share']:.0%}",
         "-" if item["best_against_blas"] is None else f"{1 / item['best_against_blas']:.0%}")
        for item in shapes
    ]  # fmt: skip
    table(columns, lines, "of the speed of the best measured kernel", right=columns[1:])
    echo(
        "",
        f"{totals['problems']} shapes, {totals['rows']:,} measurements. On shapes that it had not seen, the model's choice "
        f"runs at {totals['model_share_mean']:.1%} of the best measured speed (P10 {totals['model_share_p10']:.1%}, worst "
        f"{totals['model_share_min']:.1%}). The best fixed kernel ({assignments(totals['best_fixed_config'])}), picked with "
        f"hindsight: {totals['fixed_share_mean']:.1%}, worst {totals['fixed_share_min']:.1%}. Against numpy's BLAS: the "
        f"model's choice is {totals['model_against_blas']:.2f} x as fast, the best measured kernel "
        f"{totals['best_against_blas']:.2f} x (geometric means).",
    )
    if totals["noise_ceiling"] is not None:
        meaning = (
            "No chooser can be expected to get more."
            if totals["noise_ceiling"] >= totals["model_share_mean"]
            else "The model's figure is above it, because the ceiling is of these few shapes alone: on a machine this busy, "
            "both figures are rough."
        )
        echo(
            f"Noise: {totals['problems_measured_twice']} shapes were measured twice; the fastest kernel of one time gets "
            f"{totals['noise_ceiling']:.1%} of the best at the other (noise ceiling). {meaning}"
        )
    exported = totals["export"]
    quick = ", ".join(f"{tier} {duration(value * 1e3)}" for tier, value in exported["p50_us"].items())
    echo(f"Exported to C in {exported['path']} ({exported['self_test']}). Choosing for a new shape takes: {quick}.")
