"""What this package prints for people, line by line. Nothing else here or in the command line writes to a terminal."""

from __future__ import annotations

import click

from kerncast.writing.terminal import line


def echo(*lines: object, err: bool = False) -> None:
    """Print each argument as one line, with control characters as codes; without arguments, an empty line."""
    for text in lines or ("",):
        click.echo(line(text), err=err)


def echo_exactly(text: str | bytes, *, nl: bool = True) -> None:
    """Print a text for a program, unchanged: JSON, a script, a path. Its writer has escaped what comes from data."""
    click.echo(text, nl=nl)
