"""What this package prints for people, line by line. Nothing else here or in the command line writes to a terminal."""

from __future__ import annotations

import shutil
import sys

import click

from kerncast.core.io.terminal import fitted, line


def terminal_width(err: bool = False) -> int | None:
    """How wide the terminal is; None where stdout (or stderr) is none: what a program reads does not depend on a width."""
    return shutil.get_terminal_size().columns if (sys.stderr if err else sys.stdout).isatty() else None


def echo(*lines: object, err: bool = False) -> None:
    """Print each argument as one line, with control characters as codes; without arguments, an empty line.

    A terminal that is too narrow gets several lines, none of which ends within a word.
    """
    width = terminal_width(err)
    for text in map(line, lines or ("",)):
        for part in [text] if width is None else fitted(text, width):
            click.echo(part, err=err)


def echo_exactly(text: str | bytes, *, nl: bool = True) -> None:
    """Print a text for a program, unchanged: JSON, a script, a path. Its writer has escaped what comes from data."""
    click.echo(text, nl=nl)
