"""`kerncast import`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import click

from kerncast.app.api.printing import echo, echo_exactly
from kerncast.app.api.read import any_worked, read
from kerncast.app.api.showing import shown
from kerncast.app.cli.options import in_options
from kerncast.app.cli.verb import Call, verb
from kerncast.app.cli.views.output import Json, print_json
from kerncast.app.cli.views.skipped import skipped_facts, skipped_lines
from kerncast.core.io.arguments import Help
from kerncast.core.io.quoting import word
from kerncast.data.dataset import Dataset
from kerncast.data.formats import get_importer
from kerncast.errors import InvalidValue


@verb("import", read)
def command(
    call: Call,
    format_name: Annotated[str, Help(metavar="FORMAT", names="formats")],
    paths: Annotated[Sequence[Path], Help(metavar="[PATH...]")] = (),
    *,
    guess: Annotated[bool, Help("Print a draft of the mapping file instead of importing (csv, parquet).")] = False,
    family: Annotated[
        str | None,
        Help(
            "With `guess`: the family whose parameters to look for; a name, or a TOML file that declares it.",
            metavar="NAME",
            names="families",
        ),
    ] = None,
    as_json: Json = False,
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
    get_importer(format_name)
    if not paths and not call["installed"]:
        raise InvalidValue("an import needs the PATH of at least one file")
    if guess:
        call.refuse_given("does not go with --guess, which reads one table and prints a draft")
        if len(paths) != 1:
            raise InvalidValue(f"--guess reads one table, got {len(paths)}: name one")
        draft = Dataset.guess_mapping(paths[0], file_format=format_name, family=family)
        print_json({"mapping": draft}) if as_json else echo_exactly(draft, nl=False)
        asked = draft.count('"?"')
        first = f'answer what is marked "?" ({asked}), then' if asked else "read it, then"
        again = f"kerncast import {word(format_name)} {word(paths[0])} --mapping MAPPING.toml --out DATASET"
        echo(f"next: save the draft, {first} {again}", err=True)
        return
    if family is not None:
        raise InvalidValue("--family is only for --guess; an import takes the family from the mapping file")
    if call["out"] is None:
        raise InvalidValue("an import needs --out DATASET, the directory to write")
    with shown() as progress:
        dataset = call(paths=paths, file_format=format_name, progress=progress)
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
