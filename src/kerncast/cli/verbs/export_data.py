"""`kerncast export-data`."""

from __future__ import annotations

from pathlib import Path

import click

from kerncast.api.printing import echo
from kerncast.cli import completing
from kerncast.cli.views.output import json_option, print_json, working
from kerncast.data.exporters import WRITERS
from kerncast.writing.shell import word


@click.command("export-data")
@click.argument("dataset", metavar="DATASET", type=click.Path(path_type=Path), shell_complete=completing.dataset_folders)
@click.option("--to", type=click.Choice(list(WRITERS)), default="csv", show_default=True, help="The format to write.")
@click.option(
    "--out", required=True, type=click.Path(path_type=Path), metavar="FILE|DIR", help="The path to write; it must not exist."
)
@click.option("--family", metavar="NAME", shell_complete=completing.families, help="The family, if the dataset holds several.")
@click.option(
    "--where",
    multiple=True,
    metavar="CONDITION",
    shell_complete=completing.conditions,
    help="Only some rows, such as dtype=fp16. May be repeated.",
)
@json_option
def command(dataset: Path, to: str, out: Path, family: str | None, where: tuple[str, ...], as_json: bool) -> None:
    """Write the measurements of a dataset for other tools.

    csv and parquet write a table with all columns, times in nanoseconds, and next to it a mapping file with which
    `kerncast import` reads the same rows again. t4 is the results format of the auto-tuning community. kernel-tuner is a
    cache that Kernel Tuner and its simulation mode read. These two have one file per problem and device; if there are
    several, --out is a folder. tt-sweep writes measured reshards as the vectors and results of tt-metal's sweep framework.

    \b
    kerncast export-data times --to csv --out times.csv
    kerncast import csv times.csv --mapping times.toml --out again
    kerncast export-data times --to t4 --where dtype=fp16 --out results.json
    kerncast export-data times --to kernel-tuner --out cache.json
    kerncast export-data reshards --to tt-sweep --out sweep
    """
    from kerncast.data.dataset import Dataset

    with working(f"writing {dataset} as {to}"):
        opened = Dataset.open(dataset)
        before = len(opened.notes)
        written = opened.export(out, to=to, family=family, where=where)
    if as_json:
        print_json({"path": str(out), "format": to, "files": {str(path): path.stat().st_size for path in written}})
        return
    for note in opened.notes[before:]:
        echo(note)
    for path in written[:FILES_SHOWN]:
        echo(f"{path}: {path.stat().st_size:,} bytes")
    if len(written) > FILES_SHOWN:
        echo(f"and {len(written) - FILES_SHOWN:,} more files in {out}")
    if len(written) > 1 and to in ("csv", "parquet"):
        echo(f"to read it again: kerncast import {word(to)} {word(written[0])} --mapping {word(written[1])} --out DATASET")


# Files that are listed; a folder may have thousands.
FILES_SHOWN = 10
