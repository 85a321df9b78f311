"""`kerncast verify`."""

from __future__ import annotations

from pathlib import Path

import click

from kerncast.api.printing import echo
from kerncast.cli.views.output import json_option, print_json


@click.command("verify")
@click.argument("path", metavar="PATH", type=click.Path(path_type=Path))
@json_option
def command(path: Path, as_json: bool) -> None:
    """Check an artefact whole, and say what is wrong with it.

    PATH is a dataset, an unfinished collection, a model, a store, a sweep, exported C or a table of choices, measured
    choices, saved predictions, printed JSON of evaluate, a TOML file (overrides, mapping, device profile, routine,
    benchmark), or a folder of these. Checksums, rows, keys, times, weights and tables are checked by the code that reads
    them; nothing of the artefact is compiled or run.

    Each artefact gets a line; below it, `!` is something wrong with what to do about it, `-` something to know. Exit code
    0: all is whole; 1: something is wrong; 2: there is no artefact at PATH.

    \b
    kerncast verify exp
    kerncast verify ~/.local/share/kerncast/models
    kerncast verify . --json
    """
    from kerncast.api.verify import verify

    found = verify(path)
    if as_json:
        print_json(found.as_json())
    else:
        echo(*found.lines())
    if not found.whole:
        raise SystemExit(1)
