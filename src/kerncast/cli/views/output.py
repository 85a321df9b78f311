"""How results are shown: tables for people, plain text when not a terminal, JSON on request."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click

json_option = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
where_option = click.option(
    "--where",
    multiple=True,
    metavar="CONDITION",
    help="Keep only some rows: problem.dtype=fp8, config.kind=triton, time_ns<1e6, problem.M=1,2,4. May be repeated.",
)


def print_json(value: Any) -> None:
    """A result as JSON on stdout; NaN and infinity have no place in it."""
    click.echo(json.dumps(value, indent=2, allow_nan=False, default=_plain))


def _plain(value: Any) -> Any:
    if hasattr(value, "item"):  # numpy scalars
        return value.item()
    raise TypeError(f"{type(value).__name__} has no JSON form")


def table(columns: Sequence[str], rows: Sequence[Sequence[Any]], title: str = "", right: Sequence[str] = ()) -> None:
    """A table on stdout: ruled on a terminal, aligned plain text (nothing cut) elsewhere."""
    cells = [["" if cell is None else str(cell) for cell in row] for row in rows]
    if not sys.stdout.isatty():
        if title:
            click.echo(title)
        widths = [max(len(text) for text in column) for column in zip(columns, *cells, strict=True)]
        align: list[Callable[[str, int], str]] = [str.rjust if name in right else str.ljust for name in columns]
        for row in [list(columns), *cells]:
            click.echo("  ".join(place(text, width) for place, text, width in zip(align, row, widths, strict=True)).rstrip())
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    ruled = Table(title=title or None, title_justify="left", header_style="bold", pad_edge=False)
    for name in columns:
        ruled.add_column(name, justify="right" if name in right else "left", overflow="fold")
    for row in cells:
        ruled.add_row(*(Text(cell) for cell in row))
    Console().print(ruled)


@contextmanager
def working(what: str) -> Iterator[None]:
    """A moving line on stderr while something takes its time; nothing when stderr is not a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(what):
        yield


def duration(nanoseconds: float | None) -> str:
    """A time that a person can read."""
    if nanoseconds is None:
        return "-"
    for factor, unit in ((1e9, "s"), (1e6, "ms"), (1e3, "us")):
        if nanoseconds >= factor:
            return f"{nanoseconds / factor:.3g} {unit}"
    return f"{nanoseconds:.3g} ns"


def assignments(values: dict[str, Any]) -> str:
    """`M=128 N=256`: parameters in one line."""
    return " ".join(f"{name}={value}" for name, value in values.items())
