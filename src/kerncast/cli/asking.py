"""Shared by `select`, `predict` and `export`: problems from the command line or a file, progress, table cells."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kerncast.api.showing import shown
from kerncast.cli.views.output import assignments, duration
from kerncast.errors import InvalidValue
from kerncast.progress import Progress

if TYPE_CHECKING:
    from kerncast.models.answer import Answer
    from kerncast.op import Family, Problem

problems_argument = click.argument("problem", metavar="NAME=VALUE...|FILE", nargs=-1)


configs_option = click.option(
    "--configs",
    metavar="SPEC",
    help="Choose from these instead of the configs that worked in training: kernels:FILE (names of kernels), build:DIR (a "
    "build folder of CK Tile), portfolio:FILE, a dataset, a benchmark file, all, sample:N.",
)


def steps() -> AbstractContextManager[Progress]:
    """Show each step in a moving line on stderr; in plain lines when stderr is not a terminal."""
    return shown(plain=True, what="loading")


def read_problems(given: tuple[str, ...], family: Family) -> tuple[list[dict[str, Any]], bool]:
    """Read the problems, and say whether they came from a file (then the result is a list)."""
    from kerncast.cli.verbs.families import parse_assignments

    if len(given) == 1 and "=" not in given[0]:
        from kerncast.selecting.problem_files import read_problem_file

        return read_problem_file(Path(given[0]), family), True
    if not given:
        names = ", ".join(family.problem.parameters)
        raise InvalidValue(f"name the problem by its parameters ({names}), or give a .json or .parquet file of problems")
    return [parse_assignments(given, dict(family.problem.parameters))], False


def checked_problems(asked: list[dict[str, Any]], family: Family) -> list[Problem]:
    """Validate problems before anything is built or compiled; if there are several, the error says which is wrong."""
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
    config = answer.config if answer.config is not None else answer.fallback
    shown = assignments({name: value for name, value in config.items() if value is not None}) if config is not None else "-"
    if answer.config is None and config is not None:
        shown = f"(fallback) {shown}"
    between = "-" if answer.lower_ns is None else f"{duration(answer.lower_ns)} to {duration(answer.upper_ns)}"
    efficiency = "-" if answer.efficiency is None else f"{answer.efficiency:.1%}"
    return [str(answer.status), shown or "-", duration(answer.time_ns), between, efficiency, str(answer.tier or "-")]


ANSWER_COLUMNS = ("status", "config", "time", "90 % interval", "expected efficiency", "tier")
