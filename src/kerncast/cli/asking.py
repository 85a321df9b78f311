"""What `select`, `predict` and `export` share: problems from the command line or a file, a selector with its progress."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kerncast.cli.views.output import assignments, duration
from kerncast.errors import BadFile, InvalidValue

if TYPE_CHECKING:
    from kerncast.compiling.answer import Answer
    from kerncast.op import Family, Problem

problems_argument = click.argument("problem", metavar="NAME=VALUE...|FILE", nargs=-1)


@contextmanager
def steps() -> Iterator[Callable[[str], None]]:
    """A moving line on stderr that says what is being done; plain lines when stderr is not a terminal."""
    if not sys.stderr.isatty():
        yield lambda what: click.echo(f"{what} ...", err=True)
        return
    from rich.console import Console

    with Console(stderr=True).status("loading") as status:
        yield lambda what: status.update(what)


def read_problems(given: tuple[str, ...], family: Family) -> tuple[list[dict[str, Any]], bool]:
    """The problems asked about, and whether they came from a file (a list in, a list out)."""
    from kerncast.cli.verbs.families import parse_assignments

    if len(given) == 1 and "=" not in given[0]:
        return _from_file(Path(given[0]), family), True
    if not given:
        names = ", ".join(family.problem.parameters)
        raise InvalidValue(f"name the problem by its parameters ({names}), or give a .json or .parquet file of problems")
    return [parse_assignments(given, dict(family.problem.parameters))], False


def _from_file(path: Path, family: Family) -> list[dict[str, Any]]:
    import json

    import polars as pl

    if not path.is_file():
        raise InvalidValue(f"'{path}' is neither NAME=VALUE nor a file of problems (.json or .parquet)")
    try:
        if path.suffix == ".parquet":
            frame = pl.read_parquet(path)
            known = [name for name in frame.columns if name.removeprefix("problem.") in family.problem.parameters]
            rows = frame.select(known).unique(maintain_order=True).to_dicts()
        else:
            rows = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_once)
    except (OSError, ValueError, RecursionError, pl.exceptions.PolarsError) as error:
        raise BadFile(
            f"{path} cannot be read as problems ({error}): give a JSON list of objects, or a parquet table"
        ) from error
    rows = [rows] if isinstance(rows, dict) else rows
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise BadFile(f'{path} is not a list of problems: give a JSON list of objects like {{"M": 128, …}}, or a parquet table')
    rows = [row["problem"] if isinstance(row.get("problem"), dict) else row for row in rows]
    found = [{name.removeprefix("problem."): value for name, value in row.items() if value is not None} for row in rows]
    if not found:
        raise BadFile(f"{path} holds no problem")
    return found


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose keys are all different: of two values nobody can say which was meant."""
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(name for place, (name, _) in enumerate(pairs) if name in dict(pairs[:place]))
        raise ValueError(f"the key '{twice}' is given twice")
    return found


def checked_problems(asked: list[dict[str, Any]], family: Family) -> list[Problem]:
    """Validated before anything is built or compiled; of several, the refusal says which."""
    from kerncast.op import Problem

    found = []
    for number, values in enumerate(asked, 1):
        try:
            found.append(Problem(family, values))
        except InvalidValue as error:
            raise InvalidValue(f"problem {number} of {len(asked)}: {error}" if len(asked) > 1 else str(error)) from error
    return found


def answer_cells(answer: Answer) -> list[str]:
    """An answer as cells of a table: status, config, time, interval, efficiency, tier."""
    config = answer.config or answer.fallback
    shown = assignments({name: value for name, value in config if value is not None}) if config is not None else "-"
    if answer.config is None and config is not None:
        shown = f"(fallback) {shown}"
    between = "-" if answer.lower_ns is None else f"{duration(answer.lower_ns)} to {duration(answer.upper_ns)}"
    efficiency = "-" if answer.efficiency is None else f"{answer.efficiency:.1%}"
    return [str(answer.status), shown or "-", duration(answer.time_ns), between, efficiency, str(answer.tier or "-")]


ANSWER_COLUMNS = ("status", "config", "time", "90 % interval", "expected efficiency", "tier")
