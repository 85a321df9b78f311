"""A file of another system's choices: which format it has, and the choices in it. Its content tells, not its name.

kerncast's own list is `[{"problem": {…}, "config": {…}}]`, or with `"configs": [{…}, …]` in order of preference.

A lookup table has a row for each choice: CSV, parquet, or JSON objects without nesting. Columns have the names of the problem
and config parameters, with `problem.` or `config.` before them where a name is both. Case does not matter. Several rows for a
problem are in order of preference. A problem parameter without a column takes its default, or is left open if it has none; an
empty cell means no value. Columns `op`, `family` and `device` say what a row is for: rows for others are left out. Any other
column is ignored."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from kerncast.core.io.foreign import JSON, is_msgpack_map, key_rule, load_document
from kerncast.core.op import Config, Family, Problem
from kerncast.core.parameters import Parameter
from kerncast.data.choices import ChoiceTarget, LeftOutChoices, Solution, Solutions, gathered, partial
from kerncast.data.formats.inductor.choices import LOG, TABLE, is_lookup_table, read_log, read_lookup_table
from kerncast.data.formats.inductor.logs import is_list
from kerncast.data.formats.torch_diode import DIODE, is_diode, read_diode
from kerncast.data.tables import LINE, read_csv_text, read_parquet_table
from kerncast.errors import BadFile, InvalidValue, KerncastError
from kerncast.library.families.torch_products import dtype_of

SCOPES = ("op", "family", "device")


@dataclass(frozen=True)
class Columns:
    """Which column holds which parameter (problem or config, name), and which columns say what a row is for."""

    parameters: Mapping[str, tuple[str, str]]
    scopes: Mapping[str, str]
    unread: tuple[str, ...]


def columns_of(names: Sequence[str], family: Family) -> Columns:
    """The meaning of the columns; two columns for one parameter, or one column for two, are refused."""
    meanings: dict[str, list[tuple[str, str]]] = {}
    for part, space in (("problem", family.problem), ("config", family.config)):
        for name in space.parameters:
            for spelling in (name.lower(), f"{part}.{name}".lower()):
                meanings.setdefault(spelling, []).append((part, name))
    parameters: dict[str, tuple[str, str]] = {}
    for column in names:
        # An exact match takes precedence over one that differs in case.
        found = meanings.get(column.lower(), [])
        found = [one for one in found if column.split(".")[-1] == one[1]] or found
        if len(found) > 1:
            raise BadFile(f"the column '{column}' may be {' or '.join('.'.join(one) for one in found)}: rename it")
        if found:
            twice = next((other for other, meaning in parameters.items() if meaning == found[0]), None)
            if twice is not None:
                raise BadFile(f"the columns '{twice}' and '{column}' both mean {'.'.join(found[0])}: keep one")
            parameters[column] = found[0]
    scopes = {column: column.lower() for column in names if column not in parameters and column.lower() in SCOPES}
    if not any(part == "config" for part, _ in parameters.values()):
        raise BadFile(
            f"none of its columns ({', '.join(names)[:200]}) is a config parameter of {family.id} "
            f"({', '.join(family.config.parameters) or 'it has none'}): rename the columns"
        )
    return Columns(parameters, scopes, tuple(name for name in names if name not in parameters and name not in scopes))


def read_records(
    rows: Sequence[Mapping[str, Any]], columns: Columns, places: Sequence[str], target: ChoiceTarget
) -> Iterator[Solution | LeftOutChoices]:
    """The choices in some rows; `places` say where each row is, for errors."""
    family = target.family
    spaces = {"problem": family.problem, "config": family.config}
    for row, place in zip(rows, places, strict=True):
        other = _not_ours(row, columns, target)
        if other is not None:
            yield other
            continue
        said: dict[str, dict[str, Any]] = {"problem": {}, "config": {}}
        for column, (part, name) in columns.parameters.items():
            value = _cell_value(spaces[part].parameters[name], row.get(column))
            if value is not None:
                said[part][name] = value
        if not said["config"]:
            raise BadFile(f"{place}: no config parameter has a value: fill in one, or drop the row")
        try:
            # A row that names no problem is for all problems, so defaults must not narrow it.
            problem = partial(family.problem, said["problem"], family.environment.parameters) if said["problem"] else {}
            yield Solution(problem, partial(family.config, said["config"]))
        except InvalidValue as error:
            raise BadFile(f"{place}: {error}") from error


def _not_ours(row: Mapping[str, Any], columns: Columns, target: ChoiceTarget) -> LeftOutChoices | None:
    """Why a row is not for this model; None: it is."""
    for column, scope in columns.scopes.items():
        said = str(row.get(column) or "").strip()
        if not said:
            continue
        ours = {"op": lambda text: text == target.family.op.name, "family": lambda text: text == target.family.id,
                "device": target.is_on}[scope](said)  # fmt: skip
        if not ours:
            return LeftOutChoices(scope, said)
    return None


def _cell_value(parameter: Parameter, cell: Any) -> Any:
    """A cell as the parameter takes it; None: empty. Invalid values are left for the check to refuse."""
    if isinstance(cell, float):  # integer columns with empty cells are often stored as floats
        return None if math.isnan(cell) else int(cell) if cell.is_integer() else cell
    if not isinstance(cell, str):
        return cell
    text = cell.strip()
    if not text:
        return None
    if parameter.codes:
        return text if parameter.index(text) is not None else dtype_of(text) or text
    if isinstance(parameter.value(0), bool):
        return {"true": True, "false": False, "1": True, "0": False}.get(text.lower(), text)
    return int(text) if re.fullmatch(r"[+-]?\d{1,19}", text) else text


LISTED = "list of problems and configs"


class Listed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The choice or choices for one problem."""

    problem: dict[str, Any]
    config: dict[str, Any] | None = None
    configs: list[dict[str, Any]] | None = None


def read_listed(data: Any, target: ChoiceTarget) -> Iterator[Solution]:
    """The choices, every problem and config whole and valid; two different choices for a problem are refused."""
    try:
        entries = msgspec.convert(data, list[Listed])
    except msgspec.ValidationError as error:
        form = '[{"problem": {"M": 128, …}, "config": {…}}, …]'
        raise BadFile(f"this is not a list of solutions ({key_rule(error)}): expected {form}") from error
    chosen: dict[tuple[Any, ...], tuple[int, list[dict[str, Any]]]] = {}
    for place, entry in enumerate(entries, 1):
        try:
            problem = Problem(target.family, entry.problem).as_dict()
            configs = [Config(target.family, config).as_dict() for config in _configs(entry)]
        except InvalidValue as error:
            raise BadFile(f"solution {place}: {error}") from error
        before, same = chosen.setdefault(tuple(problem.values()), (place, configs))
        if same != configs:
            raise BadFile(f"solution {place}: solution {before} has another choice for this problem: keep one of them")
        if before == place:
            for config in configs:
                yield Solution(problem, config)


def _configs(entry: Listed) -> list[dict[str, Any]]:
    if (entry.config is None) == (entry.configs is None):
        raise InvalidValue("a solution has either `config` or `configs`: give one of them")
    configs = [entry.config] if entry.config is not None else entry.configs
    if not configs:
        raise InvalidValue("`configs` is empty: list the preferred config first, or drop the solution")
    return configs


PARQUET_MAGIC = b"PAR1"
LONGEST_SENTENCE = 600
KNOWN = (
    "a list of problems and configs, a torch-diode file, a PyTorch Inductor lookup table or max-autotune log, "
    "or a table with parameters as columns"
)


def read_solutions(path: Path, family: Family, devices: Sequence[str]) -> Solutions:
    """The choices of a file for a family on the devices of a model; errors say where the file is malformed."""
    target = ChoiceTarget(family, tuple(devices))
    try:
        data = JSON.read(path)
    except OSError as error:
        raise BadFile(f"cannot read {path}: {error.strerror}") from error
    try:
        return _read(path, data, target)
    except KerncastError as error:
        # Errors are one line, even if they quote text of the file.
        said = " ".join(str(error).splitlines())
        raise type(error)(f"{path}, {said if len(said) <= LONGEST_SENTENCE else said[:LONGEST_SENTENCE] + ' …'}") from error


def _read(path: Path, data: bytes, target: ChoiceTarget) -> Solutions:
    if data.startswith(PARQUET_MAGIC):
        frame = read_parquet_table(path)
        return _table(path, "parquet table", frame.drop(LINE).to_dicts(), [f"row {line}" for line in frame[LINE]], target)
    if (binary := is_msgpack_map(data)) or data.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] in (b"[", b"{"):
        try:
            # Not a strict parser: PyTorch writes Infinity for what did not run, which is not valid JSON.
            content = load_document(data)
        except ValueError as error:
            what = "the msgpack file cannot be read" if binary else "this is neither a list of solutions nor other JSON"
            raise BadFile(f"{what} ({error}): is it truncated?") from error
        return _parsed(path, content, target)
    frame = read_csv_text(path)
    return _table(path, "CSV table", frame.drop(LINE).to_dicts(), [f"line {line}" for line in frame[LINE]], target)


def _table(path: Path, name: str, rows: Sequence[Mapping[str, Any]], places: Sequence[str], target: ChoiceTarget) -> Solutions:
    names = list(dict.fromkeys(column for row in rows for column in row))
    if not rows:
        raise BadFile(f"the {name} has no rows: give at least one choice")
    columns = columns_of(names, target.family)
    return gathered(path, name, read_records(rows, columns, places, target), target, columns.unread)


def _parsed(path: Path, data: Any, target: ChoiceTarget) -> Solutions:
    """The choices in a file of objects and lists."""
    if isinstance(data, dict):
        inside = next((data[name] for name in ("solutions", "configs") if isinstance(data.get(name), list)), None)
        if inside is not None:
            return _parsed(path, inside, target)
        if is_lookup_table(data):
            return gathered(path, TABLE, read_lookup_table(data, target), target)
        if is_diode(data):
            return gathered(path, DIODE, read_diode(data, target), target)
        raise BadFile(
            f"this is neither a list of solutions nor another known format ({', '.join(map(str, data))[:200]}): give {KNOWN}"
        )
    if is_list(data):
        return gathered(path, LOG, read_log(data, target), target)
    if isinstance(data, list) and data and all(_is_record(item) for item in data):
        return _table(path, "list of records", data, [f"record {number}" for number in range(1, len(data) + 1)], target)
    return gathered(path, LISTED, read_listed(data, target), target)


def _is_record(item: Any) -> bool:
    """An object without nesting: a row of a table."""
    return (
        isinstance(item, dict)
        and bool(item)
        and all(isinstance(name, str) and not isinstance(value, dict | list) for name, value in item.items())
    )
