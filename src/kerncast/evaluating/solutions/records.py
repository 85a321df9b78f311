"""A lookup table with a row for each choice: CSV, parquet, or JSON objects without nesting.

Columns have the names of the problem and config parameters, with `problem.` or `config.` before them where a name is
both. Case does not matter. Several rows for a problem are in order of preference. A problem parameter without a column
takes its default, or is left open if it has none; an empty cell means no value. Columns `op`, `family` and `device` say
what a row is for: rows for others are left out. Any other column is ignored.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kerncast.core.op import Family
from kerncast.core.parameters import Parameter
from kerncast.errors import BadFile, InvalidValue
from kerncast.evaluating.solutions.solution import LeftOut, Solution, Target, partial
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
    rows: Sequence[Mapping[str, Any]], columns: Columns, places: Sequence[str], target: Target
) -> Iterator[Solution | LeftOut]:
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
            value = _value(spaces[part].parameters[name], row.get(column))
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


def _not_ours(row: Mapping[str, Any], columns: Columns, target: Target) -> LeftOut | None:
    """Why a row is not for this model; None: it is."""
    for column, scope in columns.scopes.items():
        said = str(row.get(column) or "").strip()
        if not said:
            continue
        ours = {"op": lambda text: text == target.family.op.name, "family": lambda text: text == target.family.id,
                "device": target.is_on}[scope](said)  # fmt: skip
        if not ours:
            return LeftOut(scope, said)
    return None


def _value(parameter: Parameter, cell: Any) -> Any:
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
