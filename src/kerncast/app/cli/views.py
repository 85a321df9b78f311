"""What the verbs read and show: problems, tables for people, plain text when not a terminal, JSON on request."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import click
import msgspec

from kerncast.app.api.showing import echo, echo_exactly, shown, terminal_width
from kerncast.app.cli import json_printed
from kerncast.app.cli.verb import in_options
from kerncast.core.io.arguments import Help
from kerncast.core.io.terminal import TextTable, known, printable, three_digits
from kerncast.core.io.terminal import assignments as assignments
from kerncast.core.io.terminal import duration as duration
from kerncast.core.progress import Progress
from kerncast.data.skipping import KINDS_SHOWN, Skipped
from kerncast.errors import InvalidValue

if TYPE_CHECKING:
    from kerncast.answering.prediction import Prediction
    from kerncast.core.op import Family, Problem
    from kerncast.data.dataset import Dataset
    from kerncast.models.answer import Answer
    from kerncast.models.model import Model


Json: TypeAlias = Annotated[bool, Help("Print the result as JSON.", option="--json")]


def print_json(value: Any) -> None:
    """Print a result as JSON on stdout; NaN and infinity are refused."""
    # Numpy's scalars have `item`.
    echo_exactly(json.dumps(value, indent=2, allow_nan=False, default=lambda scalar: scalar.item()))
    json_printed.set(True)


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


def working(what: str) -> AbstractContextManager[Progress]:
    """Show a moving line on stderr during the work; nothing when stderr is not a terminal."""
    return shown(what=what)


def say(*lines: str, err: bool = False) -> None:
    """Print lines in which arguments are said as options of the command that runs."""
    command = click.get_current_context().command
    echo(*(in_options(line, command) for line in lines), err=err)


def show_predictions(found: Sequence[Prediction], listed: bool) -> None:
    """Print predictions: one as lines of names and texts, several as a table with what is to be said below it."""
    if not listed and len(found) == 1:
        width = max(len(name) for name, _ in found[0].lines())
        for name, text in found[0].lines():
            say(f"{name:<{width}}  {text}")
        return
    _show_as_table([(assignments(known(item.problem)), item) for item in found], "problem")
    _say_remarks(found)


def show_devices(found: Sequence[Prediction]) -> None:
    """Print one problem on several devices, the fastest first."""
    first = found[0]
    echo(f"{first.op} {assignments(known(first.problem))}")
    _show_as_table([(item.device, item) for item in found], "device")
    _say_remarks(found)


def _show_as_table(rows: Sequence[tuple[str, Prediction]], what: str) -> None:
    columns = (what, "status", "time", "90 % interval", "roofline", "basis", "config")

    def between(item: Prediction) -> str:
        return "-" if item.lower_ns is None else f"{duration(item.lower_ns)} to {duration(item.upper_ns)}"

    cells = [
        (label, item.status, duration(item.time_ns), between(item), duration(item.roofline_ns), item.model or item.basis,
         assignments(known(item.config)) if item.config else "-")
        for label, item in rows
    ]  # fmt: skip
    table(columns, cells, right=("time", "90 % interval", "roofline"))


def _say_remarks(found: Sequence[Prediction]) -> None:
    said = []
    for item in found:
        if item.filled:
            said.append(f"filled in, for the model saw no other value: {assignments(known(item.filled))}")
        if item.card and item.basis == "roofline":
            said.append(item.card)
        said += [text for text in (item.reason, item.note) if text]
    for text in dict.fromkeys([*said, *_cards(found)]):
        say(text)


def _cards(found: Sequence[Prediction]) -> list[str]:
    """A line for each model, with its error on each of the devices that it was asked about."""
    own: dict[str, dict[str, None]] = {}
    for item in found:
        if item.card and item.basis == "model":
            card, on, error = item.card.rpartition(" (") if item.card.endswith(f" on {item.device})") else (item.card, "", "")
            errors = own.setdefault(f"{item.model}: {card}", {})
            if on:
                errors[error.removesuffix(")")] = None
    return [f"{card} ({', '.join(errors)})" if errors else card for card, errors in own.items()]


# Of the measurements that ended differently in different rows, this many are named.
SHOWN = 3


def disagreement_lines(found: Mapping[str, Any]) -> Iterator[str]:
    """A sentence about times that are far apart and one about statuses that differ, where there are such repeats."""
    if found["measurements"]:
        worst = found["worst"][0]
        yield (
            f"{found['measurements']:,} measurements have repeats more than {found['factor']}x apart "
            f"(worst: {duration(worst['fastest_ns'])} and {duration(worst['slowest_ns'])}, key {worst['key']})"
        )
    if found["mixed_statuses"]:
        count, examples = found["mixed_statuses"], found["mixed_examples"][:SHOWN]
        more = f"; and {count - len(examples):,} more" if count > len(examples) else ""
        said = "; ".join(map(_mixed, examples))
        yield f"{count:,} measurements have different statuses in different rows: {said}{more}"


def _mixed(item: Mapping[str, Any]) -> str:
    """`M=128 … on a100: 2 ok, 1 timeout (key …)`."""
    statuses = ", ".join(f"{count:,} {status}" for status, count in item["statuses"].items())
    return f"{assignments({**item['problem'], **item['config']})} on {item['device']}: {statuses} (key {item['key']})"


def hardware_lines(found: Mapping[str, Any]) -> Iterator[str]:
    """A line for each tool, or for each device that it lists; and one for each contradiction of the profile."""
    for tool in found["tools"]:
        listed = [item for item in found["reported"] if item["tool"] == tool["name"]]
        if not listed:
            yield f"hardware, {tool['name']}: {tool['error'] or 'nothing could be read from what it printed'}"
        for number, item in enumerate(listed):
            numbers = assignments({name: f"{value:g}" for name, value in item["numbers"].items()})
            which = f"{number} " if len(listed) > 1 else ""
            yield f"hardware, {tool['name']}: {which}{item['name']}: {numbers}"
    for said in found["contradictions"]:
        yield f"! {said}"


def skipped_facts(skipped: Skipped) -> dict[str, Any]:
    """For `--json`."""
    path = None if skipped.path is None else str(skipped.path)
    return {"rows": skipped.rows, "file": path, "kinds": [msgspec.to_builtins(kind) for kind in skipped.kinds]}


def skipped_lines(skipped: Skipped) -> Iterator[str]:
    """One line for each kind, with its first row."""
    if not skipped.rows:
        return
    yield f"skipped {skipped.rows:,} rows that cannot be represented (kept in {skipped.path}):"
    for kind in skipped.kinds[:KINDS_SHOWN]:
        # The example quotes a file: control characters are escaped.
        yield f"  {kind.rows:,} × {printable(kind.example)}"
    if len(skipped.kinds) > KINDS_SHOWN:
        yield f"  and {len(skipped.kinds) - KINDS_SHOWN} more kinds"


def show_blocks(blocks: Iterable[str | TextTable]) -> None:
    """Print lines and tables on stdout."""
    for block in blocks:
        if isinstance(block, TextTable):
            draw(block)
        else:
            say(*block.split("\n"))


RATES = {"TFLOPS": "tflops", "GB/s": "bandwidth_gb_s"}
"""The columns of rates, and what an answer calls them."""
ProblemText: TypeAlias = Annotated[Sequence[str], Help(metavar="NAME=VALUE...|FILE")]
ConfigsOf: TypeAlias = Annotated[
    str | None,
    "Choose from these instead of the configs that worked in training: kernels:FILE (names of kernels), build:DIR (a "
    "build folder of CK Tile), portfolio:FILE, a dataset, a benchmark file, all, sample:N.",
    Help(metavar="SPEC"),
]


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


def checked_problems(asked: list[dict[str, Any]], model: Model) -> list[Problem]:
    """Validate problems before anything is built or compiled; if there are several, the error says which is wrong.

    Parameters of which the model saw one value only may be left out.
    """
    from kerncast.models.limits.envelope import completed

    found, total = [], len(asked)
    for place, values in enumerate(asked):
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

    def cells(answer: Answer) -> list[str]:
        config = answer.config if answer.config is not None else answer.fallback
        text = "-" if config is None else assignments(known(config)) or "-"
        if answer.config is None and config is not None:
            text = f"(fallback) {text}"
        between = "-" if answer.lower_ns is None else f"{duration(answer.lower_ns)} to {duration(answer.upper_ns)}"
        return [str(answer.status), text, duration(answer.time_ns), between]

    rows = [[*cells(item), *(three_digits(getattr(item, RATES[name])) for name in rates)] for item in answers]
    if not choice:
        return columns, rows, numbers
    for item, row in zip(answers, rows, strict=True):
        row += ["-" if item.efficiency is None else f"{item.efficiency:.1%}", str(item.tier or "-")]
    return [*columns, "expected efficiency", "tier"], rows, [*numbers, "expected efficiency"]
