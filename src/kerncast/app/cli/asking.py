"""Shared by `select`, `predict` and `export`: problems from the command line or a file, progress, table cells."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from kerncast.app.api.showing import shown
from kerncast.app.cli.views.output import assignments, duration
from kerncast.core.io.arguments import Help
from kerncast.core.io.terminal import three_digits
from kerncast.core.progress import Progress
from kerncast.errors import InvalidValue

if TYPE_CHECKING:
    from kerncast.core.op import Family, Problem
    from kerncast.models.answer import Answer
    from kerncast.models.model import Model

RATES = {"TFLOPS": "tflops", "GB/s": "bandwidth_gb_s"}
"""The columns of rates, and what an answer calls them."""
ProblemText: TypeAlias = Annotated[Sequence[str], Help(metavar="NAME=VALUE...|FILE")]
ConfigsOf: TypeAlias = Annotated[
    str | None,
    Help(
        "Choose from these instead of the configs that worked in training: kernels:FILE (names of kernels), build:DIR (a "
        "build folder of CK Tile), portfolio:FILE, a dataset, a benchmark file, all, sample:N.",
        metavar="SPEC")]  # fmt: skip


def steps() -> AbstractContextManager[Progress]:
    """Show each step in a moving line on stderr; in plain lines when stderr is not a terminal."""
    return shown(plain=True, what="loading")


def parse_assignments(pairs: Sequence[str], parameter_names: dict[str, Any]) -> dict[str, Any]:
    """`M=128 dtype=fp8` as values; numbers and flags are read as the parameter declares them."""
    values: dict[str, Any] = {}
    for pair in pairs:
        name, separator, text = pair.partition("=")
        if not separator:
            raise InvalidValue(f"expected NAME=VALUE, got '{pair}'")
        if name in values:
            raise InvalidValue(f"{name} is given twice: keep one")
        parameter = parameter_names.get(name)
        if parameter is None or parameter.codes:
            values[name] = text
        elif isinstance(parameter.value(0), bool):
            values[name] = {"true": True, "false": False}.get(text.lower(), text)
        else:
            try:
                values[name] = int(text)
            except ValueError:
                values[name] = text
    return values


def read_problems(given: Sequence[str], family: Family) -> tuple[list[dict[str, Any]], bool]:
    """Read the problems, and say whether they came from a file (then the result is a list)."""
    if len(given) == 1 and "=" not in given[0]:
        from kerncast.answering.inputs import read_problem_file

        return read_problem_file(Path(given[0]), family), True
    if not given:
        names = ", ".join(family.problem.parameters)
        raise InvalidValue(f"name the problem by its parameters ({names}), or give a .json or .parquet file of problems")
    return [parse_assignments(given, problem_parameters(family))], False


def device_of(problems: list[dict[str, Any]], given: str | None, family: Family) -> str | None:
    """The device that is given, or that all problems name; they have none afterwards."""
    if "device" in family.problem.parameters:
        return given
    named = [problem.pop("device", given) for problem in problems]
    wanted = given or next((str(name) for name in named if name is not None), None)
    for place, name in enumerate(named, 1):
        if wanted is not None and (not isinstance(name, str) or _device_name(name) != _device_name(wanted)):
            said = "no device" if name is None else f"the device {name}"
            raise InvalidValue(f"problem {place} of {len(named)} names {said}, not {wanted}: ask about one device at a time")
    return wanted


def _device_name(name: str) -> str:
    from kerncast.library import devices

    found = devices.find(name)
    return name if found is None else found.name


def problem_parameters(family: Family) -> dict[str, Any]:
    """What a problem may be given by, with the rule of each: its parameters, and products of its sizes."""
    products = {name: family.problem.parameters[factors[0]] for name, factors in family.op.products.items()}
    return {**family.problem.parameters, **products}


def checked_problems(
    asked: list[dict[str, Any]], model: Model, places: Sequence[int] | None = None, count: int | None = None
) -> list[Problem]:
    """Validate problems before anything is built or compiled; if there are several, the error says which is wrong.

    Parameters of which the model saw one value only may be left out. `places` say where the problems are in a list of
    `count`, if they are a part of it.
    """
    from kerncast.models.limits.trained import completed

    found, total = [], len(asked) if count is None else count
    for place, values in zip(range(total) if places is None else places, asked, strict=True):
        try:
            found.append(model.problem(completed(model, values)))
        except InvalidValue as error:
            raise InvalidValue(f"problem {place + 1} of {total}: {error}" if total > 1 else str(error)) from error
    return found


def answer_table(answers: Sequence[Answer], choice: bool = True) -> tuple[list[str], list[list[str]], list[str]]:
    """Answers as columns, rows and the columns with numbers; rates only if one is known, `choice` adds efficiency and tier."""
    rates = [name for name in RATES if any(getattr(item, RATES[name]) is not None for item in answers)]
    numbers = ["time", "90 % interval", *rates]
    columns = ["status", "config", *numbers]
    rows = [[*_answer_cells(item), *(three_digits(getattr(item, RATES[name])) for name in rates)] for item in answers]
    if not choice:
        return columns, rows, numbers
    for item, row in zip(answers, rows, strict=True):
        row += ["-" if item.efficiency is None else f"{item.efficiency:.1%}", str(item.tier or "-")]
    return [*columns, "expected efficiency", "tier"], rows, [*numbers, "expected efficiency"]


def _answer_cells(answer: Answer) -> list[str]:
    """Status, config, time and interval."""
    config = answer.config if answer.config is not None else answer.fallback
    shown = assignments({name: value for name, value in config.items() if value is not None}) if config is not None else "-"
    if answer.config is None and config is not None:
        shown = f"(fallback) {shown}"
    between = "-" if answer.lower_ns is None else f"{duration(answer.lower_ns)} to {duration(answer.upper_ns)}"
    return [str(answer.status), shown or "-", duration(answer.time_ns), between]
