"""`kerncast adapt`."""

from __future__ import annotations

from pathlib import Path

import click

from kerncast.api.printing import echo
from kerncast.api.showing import shown
from kerncast.cli import completing
from kerncast.cli.stored import model_argument, store_of_model
from kerncast.cli.views.output import json_option, print_json, where_option
from kerncast.writing.shell import word


@click.command("adapt")
@model_argument()
@store_of_model
@click.argument("rows", metavar="ROWS...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--device", metavar="NAME|TOML", shell_complete=completing.devices,
    help="The device of the rows: a profile by name, or a TOML file. [default: the one that the dataset records]",
)  # fmt: skip
@click.option("--out", required=True, type=click.Path(path_type=Path), metavar="MODELDIR", help="Where to write the model.")
@where_option
@click.option(
    "--seed", default=0, show_default=True, type=click.IntRange(min=0), help="The same rows and seed give the same bytes."
)
@json_option
def command(
    model: Path, rows: tuple[Path, ...], device: str | None, out: Path, where: tuple[str, ...], seed: int, as_json: bool
) -> None:
    """Move a model to a device of which you have a few rows.

    MODEL knows other devices (best: several, `kerncast train --pool`). ROWS are datasets, or files that `kerncast import`
    recognises, measured on one device. What the model misses there is learned on top of it: a shift, then more as rows are
    added. The result is a model of that device, which predicts, chooses and exports like any other. Its error and its
    interval are those of rows that were held out; the error before is printed beside.

    \b
    kerncast adapt pooled measured --device mygpu.toml --out mygpu
    kerncast adapt pooled gemm_perf.parquet --device h20 --out h20
    """
    from kerncast.api.adapt import adapt
    from kerncast.models.model import Model

    loaded = Model.load(model)
    with shown(plain=True, what="reading the measurements") as progress:
        found = adapt(loaded, list(rows), out=out, device=device, where=where, seed=seed, progress=progress)
    facts = found.evaluation["adapted"]
    if as_json:
        print_json({"path": str(out), "device": found.device.name, **found.evaluation})
        return
    echo(f"{found.family.id} on {found.device.name}: {facts['rows']:,} rows in {facts['groups']:,} groups")
    if "after" in facts:
        echo(f"error on rows that were held out (MAPE): {facts['before']:.1%} before, {facts['after']:.1%} after")
        if facts["after"] >= facts["before"]:
            echo("! the rows do not improve the model: measure more of them, and other sizes")
    else:
        echo("! too few groups of problems to hold any out: the error is not known, and predictions have no interval")
    echo(f"written to {out}. Next: kerncast predict {word(out)} …, or measure more and adapt again")
