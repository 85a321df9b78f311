"""`kerncast update`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from kerncast.api.printing import echo
from kerncast.api.showing import shown
from kerncast.cli import completing
from kerncast.cli.options import in_options
from kerncast.cli.verbs.models import store_option
from kerncast.cli.views.output import datasets_argument, json_option, print_json


@click.command("update")
@click.argument("model", metavar="MODEL", shell_complete=completing.stored_models)
@datasets_argument()
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="DIR",
    help="Write the new model there and leave MODEL as it is. [default: it replaces MODEL]",
)  # fmt: skip
@click.option("--pool", is_flag=True, help="Also use rows of another backend, software or cache state, scaled to the model's. "
              "What torch.compile timed with the model's software is used without it.")  # fmt: skip
@click.option("--max-mean", default=0.5, show_default=True, metavar="%", help="Allowed drop of the mean.")
@click.option("--max-median", default=0.5, show_default=True, metavar="%", help="Allowed drop of the median.")
@click.option("--max-p10", default=2.0, show_default=True, metavar="%", help="Allowed drop of the P10.")
@click.option(
    "--max-problem", default=10.0, show_default=True, metavar="%", help="Allowed drop of any single problem, beyond its noise."
)
@click.option("--seed", default=0, show_default=True, type=click.IntRange(min=0), help="Seed of the hold-out and the training.")
@click.option("--threads", default=0, type=click.IntRange(min=0), help="Cores to train with. [default: all]")
@click.option("--dry-run", is_flag=True, help="Say what would be learned; train and write nothing.")
@store_option
@json_option
def command(model: str, datasets: tuple[Path, ...], as_json: bool, **options: Any) -> None:
    """Continue a model with new measurements, and replace it if the result is not worse.

    MODEL is a directory, or the id of a model in the store. Rows that it has learned from already are left out. The new
    model is trained on the other rows and compared with the old one, on held-out problems of the new data and on the old
    data. If the verdict is BETTER or SAME, the new model replaces the old one, which is kept as MODEL.previous. Otherwise
    the old model stays, and the exit code is 1. If no row is new, nothing happens, and the exit code is 0.

    \b
    kerncast update model today --dry-run
    kerncast update model today
    kerncast update my-model autotunes
    kerncast update gemm/triton measured-elsewhere --pool
    """
    from kerncast.api.update import update

    with shown(plain=True, what="reading the measurements") as progress:
        found = update(model, datasets, progress=progress, **options)
    if as_json:
        print_json(found.as_json())
    else:
        context = click.get_current_context()
        echo(*(in_options(line, context.command) for line in str(found).splitlines()))
        if found.replaced:
            echo(f"the new model is {found.model}; the old one is {found.previous}")
        else:
            echo(f"{found.model} stays as it is")
    if not found:
        raise SystemExit(1)
