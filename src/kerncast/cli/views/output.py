"""How results are shown: tables for people, plain text when not a terminal, JSON on request."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from kerncast.api.printing import echo, echo_exactly, terminal_width
from kerncast.api.showing import shown
from kerncast.cli import completing, json_printed
from kerncast.errors import InvalidValue
from kerncast.writing.terminal import TextTable
from kerncast.writing.terminal import assignments as assignments
from kerncast.writing.terminal import duration as duration

if TYPE_CHECKING:
    from kerncast.data.dataset import Dataset

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

json_option = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
where_option = click.option(
    "--where",
    multiple=True,
    metavar="CONDITION",
    shell_complete=completing.conditions,
    help="Keep only some rows: dtype=fp8 (or problem.dtype=fp8), config.kind=triton, time_ns<1e6 (rows that "
    "failed have no time, and stay), M=1,2,4. May be repeated.",
)
software_option = click.option(
    "--software",
    metavar="NAME",
    help="Keep only rows of this software: vllm (the newest version of each device), vllm==0.24.0, commit=3f2a91c.",
)


def datasets_argument(name: str = "datasets", required: bool = True) -> Callable[[Decorated], Decorated]:
    """One dataset or several, or a folder of them."""
    return click.argument(
        name,
        metavar="DATASET..." if required else "[DATASET...]",
        nargs=-1,
        required=required,
        type=click.Path(path_type=Path),
        shell_complete=completing.dataset_folders,
    )


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


def above_zero(context: click.Context, option: click.Parameter, value: float | None) -> float | None:
    """Refuse a limit that is not above zero; NaN is refused too."""
    if value is not None and not value > 0:
        raise InvalidValue(f"{option.opts[0]} must be a number above 0, got {value:g}")
    return value
