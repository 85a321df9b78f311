"""`kerncast import`."""

from __future__ import annotations

from pathlib import Path

import click

from kerncast.api.printing import echo, echo_exactly
from kerncast.api.showing import shown
from kerncast.cli import completing
from kerncast.cli.options import in_options
from kerncast.cli.views.output import json_option, print_json
from kerncast.cli.views.skipped import skipped_facts, skipped_lines
from kerncast.errors import InvalidValue
from kerncast.writing.shell import word


@click.command("import")
@click.argument("format_name", metavar="FORMAT", shell_complete=completing.formats)
@click.argument("paths", metavar="[PATH...]", nargs=-1, type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), metavar="DATASET", help="The directory to write; it must not exist.")
@click.option(
    "--device",
    metavar="NAME",
    shell_complete=completing.devices,
    help="The device that was measured, if the table does not say (see `kerncast devices`).",
)
@click.option(
    "--software", multiple=True, metavar="NAME=VALUE|NAME",
    help="Software that was measured: commit=…, driver=…. vllm or vllm==0.24.0 (aiconfigurator): read only its rows, of each "
    "device the newest version. May be repeated.",
)  # fmt: skip
@click.option(
    "--only",
    multiple=True,
    metavar="NAMES",
    help="Read only these ops or kinds of table, comma-separated: gemm,moe (aiconfigurator).",
)
@click.option(
    "--devices", multiple=True, metavar="NAMES", shell_complete=completing.devices,
    help="Read only rows of these devices, comma-separated: h100,h200 (aiconfigurator).",
)  # fmt: skip
@click.option("--installed", is_flag=True, help="Read the tables of the installed package instead of a PATH (aiconfigurator).")
@click.option(
    "--mapping", type=click.Path(path_type=Path), metavar="FILE.toml", help="Which column holds which parameter (csv, parquet)."
)
@click.option("--set", multiple=True, metavar="NAME=VALUE", help="A parameter that is the same in every row. May be repeated.")
@click.option(
    "--strict", is_flag=True, help="Refuse the file at the first row that cannot be represented, instead of skipping the row."
)
@click.option("--guess", is_flag=True, help="Print a draft of the mapping file instead of importing (csv, parquet).")
@click.option(
    "--family",
    metavar="NAME",
    shell_complete=completing.families,
    help="With --guess: the family whose parameters to look for; a name, or a TOML file that declares it.",
)
@json_option
def command(
    format_name: str,
    paths: tuple[Path, ...],
    out: Path | None,
    device: str | None,
    software: tuple[str, ...],
    only: tuple[str, ...],
    devices: tuple[str, ...],
    installed: bool,
    mapping: Path | None,
    set: tuple[str, ...],
    strict: bool,
    guess: bool,
    family: str | None,
    as_json: bool,
) -> None:
    """Convert another tool's table of measurements into a new dataset.

    FORMAT is csv or parquet (any table, with a mapping file), or a known one: aiconfigurator, autoheuristic,
    ck-tile, diode, inductor, kernel-tuner, reshard-lines, t4, tt-sweep, ttnn-csv.
    Units are converted, repeats and failures are kept, and every row records its file and line.

    A row that cannot be represented is skipped. Each kind is printed with its number of rows and the first
    of them, the rows are kept in DATASET/skipped.parquet, and the exit code is 3, as it is when no row worked.
    If more than half of the rows of a file would be skipped, the file is refused. --strict refuses the first
    such row instead.

    \b
    kerncast import csv times.csv --guess > times.toml      # then read and fix times.toml
    kerncast import csv times.csv --mapping times.toml --device a100 --out times
    kerncast import ttnn-csv exp.csv --set func=exp --device wormhole_b0 --out exp
    kerncast import inductor autotune.log --device h100 --out logged
    kerncast import aiconfigurator --installed --only gemm,moe --devices h100,h200 --software vllm --out tables
    """
    from kerncast.api.read import any_worked, read
    from kerncast.data.importers import get_importer

    get_importer(format_name)
    if not paths and not installed:
        raise InvalidValue("an import needs the PATH of at least one file")
    if guess:
        from kerncast.data.dataset import Dataset

        if out is not None or device or software or mapping or set or strict or only or devices or len(paths) != 1:
            raise InvalidValue("--guess reads one table and prints a draft: combine it only with --family and --json")
        draft = Dataset.guess_mapping(paths[0], format=format_name, family=family)
        print_json({"mapping": draft}) if as_json else echo_exactly(draft, nl=False)
        asked = draft.count('"?"')
        first = f'answer what is marked "?" ({asked}), then' if asked else "read it, then"
        again = f"kerncast import {word(format_name)} {word(paths[0])} --mapping MAPPING.toml --out DATASET"
        echo(f"next: save the draft, {first} {again}", err=True)
        return
    if family is not None:
        raise InvalidValue("--family is only for --guess; an import takes the family from the mapping file")
    if out is None:
        raise InvalidValue("an import needs --out DATASET, the directory to write")
    with shown() as progress:
        dataset = read(
            paths, format=format_name, out=out, device=device, software=software, mapping=mapping, set=set, strict=strict,
            only=only, devices=devices, installed=installed, progress=progress,
        )  # fmt: skip
    notes = [in_options(note, click.get_current_context().command) for note in dataset.notes]
    notes = [note.replace("`where`", "`kerncast train` --where") for note in notes]  # an import has no conditions
    counts = {item.id: sum(p.rows for p in dataset.contents.parts if p.family == item.id) for item in dataset.families}
    summary = {
        "path": str(dataset.path),
        "rows": dataset.rows,
        "families": [{"family": name, "rows": rows} for name, rows in counts.items()],
        "digest": dataset.digest,
        "notes": notes,
        "skipped": skipped_facts(dataset.skipped),
    }
    if as_json:
        print_json(summary)
    else:
        for note in notes:
            echo(note, err=True)
        told = ", ".join(f"{rows:,} of {name}" for name, rows in counts.items())
        echo(f"{dataset.path}: {dataset.rows:,} rows ({told})")
        for line in skipped_lines(dataset.skipped):
            echo(line, err=True)
        echo(f"next: kerncast inspect {word(dataset.path)}")
    if dataset.skipped.rows or not any_worked(dataset):
        raise SystemExit(3)
