"""`kerncast adapt`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from kerncast.api.printing import echo
from kerncast.api.showing import shown
from kerncast.cli import completing
from kerncast.cli.stored import model_argument, store_of_model
from kerncast.cli.views.output import json_option, print_json, where_option
from kerncast.writing.shell import word

if TYPE_CHECKING:
    from kerncast.models.model import Model


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
    """Adapt a model to a device for which you have a few rows.

    MODEL knows other devices (best: several, `kerncast train --pool`). ROWS are datasets, or files that `kerncast import`
    recognises, measured on one device. `adapt` learns the errors of the model on these rows: a shift at first, more with
    more rows. The result is a model of that device, which predicts, chooses and exports like any other. The output has its
    error on held-out rows, before and after. From 40 rows on, `adapt` also tries a model of the rows alone on the same
    held-out rows, and writes that one if its error is at least a twentieth lower. Rows of a layout or a dtype that MODEL
    does not know are not used, and the output says so.
    `kerncast models add` puts the result where `kerncast predict OP --device mygpu.toml` finds it.

    \b
    kerncast adapt pooled measured --device mygpu.toml --out mygpu
    kerncast models add mygpu
    kerncast adapt pooled gemm_perf.parquet --device h20 --out h20
    """
    from kerncast.api.adapt import adapt
    from kerncast.models.model import Model

    loaded = Model.load(model)
    with shown(plain=True, what="reading the measurements") as progress:
        found = adapt(loaded, list(rows), out=out, device=device, where=where, seed=seed, progress=progress)
    if as_json:
        print_json({"path": str(out), "device": found.device.name, **found.evaluation})
        return
    _show(found, out)


def _show(found: Model, out: Path) -> None:
    facts = found.evaluation["adapted"]
    echo(f"{found.family.id} on {found.device.name}: {facts['rows']:,} rows in {facts['groups']:,} groups")
    for line in facts.get("not_used", ()):
        echo(f"! {line}")
    if "after" not in facts:
        echo("! too few groups of problems to hold any out: the error is not known, and predictions have no interval")
    else:
        of = f" (fold {facts['alone_folds']} was enough)" if facts.get("alone_folds") == 1 else ""
        alone = f", {facts['alone']:.1%} by a model of the rows alone{of}" if "alone" in facts else ""
        echo(f"error on rows that were held out (MAPE): {facts['before']:.1%} before, {facts['after']:.1%} after{alone}")
        if facts["kept"] == "alone":
            echo("the model of the rows alone is better, and was written: it answers for problems like these rows only")
        elif facts["after"] >= facts["before"]:
            echo("! the rows do not improve the model: measure more of them, and other sizes")
    echo(f"written to {out}. Next: kerncast models add {word(out)}, or measure more and adapt again")
