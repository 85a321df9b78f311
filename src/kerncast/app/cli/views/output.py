"""How results are shown: tables for people, plain text when not a terminal, JSON on request."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import click

from kerncast.app.api.printing import echo, echo_exactly, terminal_width
from kerncast.app.api.showing import shown
from kerncast.app.cli import json_printed
from kerncast.core.io.arguments import Help
from kerncast.core.io.terminal import TextTable
from kerncast.core.io.terminal import assignments as assignments
from kerncast.core.io.terminal import duration as duration

if TYPE_CHECKING:
    from kerncast.data.dataset import Dataset

Json: TypeAlias = Annotated[bool, Help("Print the result as JSON.", option="--json")]


def print_json(value: Any) -> None:
    """Print a result as JSON on stdout; NaN and infinity are refused."""
    echo_exactly(json.dumps(value, indent=2, allow_nan=False, default=_plain))
    json_printed.set(True)


def _plain(value: Any) -> Any:
    if hasattr(value, "item"):  # numpy scalars
        return value.item()
    raise TypeError(f"{type(value).__name__} has no JSON form")


def table(columns: Sequence[str], rows: Sequence[Sequence[Any]], title: str = "", right: Sequence[str] = ()) -> None:
    """Print a table on stdout: on a terminal as wide as it is, elsewhere as plain text with nothing left out."""
    draw(TextTable(columns, rows, title, right))


def draw(given: TextTable) -> None:
    """Print a table on stdout as `table` does."""
    width = terminal_width()
    if width is None:
        echo_exactly(str(given))  # its cells are lines already
        return
    if given.title:
        echo(given.title)
    found = given.laid_out(width)
    heads = found.head if os.environ.get("TERM") == "dumb" else [click.style(text, bold=True) for text in found.head]
    echo_exactly("\n".join([*found.above, *heads, *found.body]))


def say_unfinished(datasets: Iterable[Dataset], err: bool = False) -> None:
    """Print how far each unfinished collection came, and how to measure the rest."""
    for dataset in datasets:
        if (found := dataset.completeness) is not None:
            echo(f"! {dataset.path}: {found}" + (f"; {found.next_step}" if found.next_step else ""), err=err)


@contextmanager
def working(what: str) -> Iterator[None]:
    """Show a moving line on stderr during the work; nothing when stderr is not a terminal."""
    with shown(what=what):
        yield
