"""Points of a space as a frame: read from JSON, parquet or CSV, defaults filled in, every value checked."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import polars as pl

from kerncast.core.io.foreign import CHARACTER, COLUMN, JSON, load_json
from kerncast.core.io.parquet import read_parquet
from kerncast.core.parameters import Bool, Categorical, Int, Parameter
from kerncast.core.space import Space
from kerncast.errors import BadFile, InvalidValue, KerncastError, NotFound
from kerncast.library.problems.axes import required, sizes

SUFFIXES = (".json", ".parquet", ".csv")


def column_type(parameter: Parameter) -> type[pl.DataType]:
    """How the values of a parameter are held in a frame."""
    if isinstance(parameter, Categorical):
        return pl.String
    return pl.Boolean if isinstance(parameter, Bool) else pl.Int64


def is_table(text: str) -> bool:
    """Whether a specification names a file."""
    return text.endswith(SUFFIXES)


def read_points(path: Path, space: Space, prefix: str) -> pl.DataFrame:
    """The points of `space` that a file lists: the columns it gives, named like parameters, each value checked.

    Columns may carry `prefix` (`problem.M`); where any does, the others belong to something else and are
    ignored, so a dataset's rows or a sweep's parts serve as lists too.
    """
    try:
        columns = _unprefixed(_read(path, space, prefix), prefix, list(space.parameters))
        if not columns or not all(columns.values()):
            raise BadFile(f"it lists nothing: a list of {prefix.rstrip('.')}s needs at least one")
        for name in columns:
            if name not in space.parameters:
                raise NotFound.named(f"parameter of {space.owner}", name, space.parameters)
        return pl.DataFrame([_column(space.parameters[name], name, values) for name, values in columns.items()])
    except KerncastError as error:
        raise BadFile(f"{path}: {error}") from error
    except OSError as error:
        raise BadFile(f"cannot read {path} ({error.strerror or error}): check the path") from error


def _unprefixed(columns: dict[str, list[Any]], prefix: str, parameters: list[str]) -> dict[str, list[Any]]:
    own = {name.removeprefix(prefix): values for name, values in columns.items() if name.startswith(prefix)}
    if not own and columns and any("." in name for name in columns) and not set(columns) & set(parameters):
        raise BadFile(f"it has no column {prefix}*: its columns are {', '.join(columns)}")
    return own or columns


def _read(path: Path, space: Space, prefix: str) -> dict[str, list[Any]]:
    """The raw columns of a file as Python values."""
    try:
        if path.suffix == ".json":
            return _json_columns(load_json(JSON.read(path)), space, prefix)
        if path.suffix == ".csv":
            frame = _csv(path)
            names = {name: name.removeprefix(prefix) for name in frame.columns}
            rules = {name: space.parameters.get(bare) for name, bare in names.items()}
            return {name: [_from_text(text, rules[name]) for text in frame[name]] for name in frame.columns}
        if not path.is_file():
            raise FileNotFoundError(2, "no such file")
        return {column.name: _whole(column).to_list() for column in read_parquet(path)}
    except (pl.exceptions.PolarsError, ValueError) as error:
        if isinstance(error, KerncastError):
            raise
        raise BadFile(f"it is not a readable {path.suffix[1:]} file ({str(error).splitlines()[0]})") from error


def _csv(path: Path) -> pl.DataFrame:
    """A CSV table as text; a header that would take polars minutes is refused."""
    with path.open("rb") as file:
        header = file.readline(CHARACTER.most + 1)
    CHARACTER.refuse(len(header), "line 1")
    COLUMN.refuse(header.count(b",") + 1, "line 1")
    return pl.read_csv(path, infer_schema=False, glob=False)


def _whole(column: pl.Series) -> pl.Series:
    """Floats that are all whole numbers as integers: how other tools store integers in columns with empty cells."""
    if column.dtype.is_float() and ((column == column.floor()) | column.is_null()).all():
        return column.cast(pl.Int64)
    return column


def _from_text(text: str | None, parameter: Parameter | None) -> object:
    if text is None or not text.strip():
        return None
    if isinstance(parameter, Bool):
        return {"true": True, "false": False}.get(text.strip().lower(), text)
    if isinstance(parameter, Categorical) or not re.fullmatch(r"[+-]?\d+", text.strip()):
        return text.strip()
    return int(text)


def _json_columns(data: object, space: Space, prefix: str) -> dict[str, list[Any]]:
    """A list of lists (the sizes, or all whole numbers, in order), of objects, or of {"problem": {…}, "config": {…}}."""
    if not isinstance(data, list):
        raise BadFile(f"the top level must be a list, it is {type(data).__name__}")
    if all(isinstance(row, list) for row in data):
        names = sizes(space)
        every = [name for name, item in space.parameters.items() if isinstance(item, Int) and not item.optional]
        if data and len(data[0]) == len(every):
            names = every
        wrong = next((row for row in data if len(row) != len(names)), None)
        if wrong is not None:
            raise BadFile(f"each entry must be [{', '.join(names)}], got {wrong}")
        return {name: [row[index] for row in data] for index, name in enumerate(names)}
    if not all(isinstance(row, dict) for row in data):
        raise BadFile(f"the entries must be all objects or all [{', '.join(sizes(space))}]")
    key = prefix.rstrip(".")
    rows = [row[key] for row in data] if all(isinstance(row.get(key), dict) for row in data) else data
    names = list(dict.fromkeys(name for row in rows for name in row))
    return {name: [row.get(name) for row in rows] for name in names}


def _column(parameter: Parameter, name: str, values: list[Any]) -> pl.Series:
    """Checked values in their stored type; an absent one takes the default."""
    seen: set[tuple[type, Any]] = set()
    for row, value in enumerate(values):
        if value is None or (isinstance(value, int | str) and (type(value), value) in seen):
            continue
        if not isinstance(value, int | str) or parameter.index(value) is None:
            raise InvalidValue(f"entry {row + 1}: {name} {parameter.refusal(value)}")
        seen.add((type(value), value))
    series = pl.Series(name, values, dtype=column_type(parameter))
    return series if parameter.default is None else series.fill_null(parameter.default)


def complete(space: Space, frame: pl.DataFrame, source: str, *, strict: bool) -> pl.DataFrame:
    """Every parameter in declared order, defaults filled in, repeats dropped; `source` is named in errors.

    `strict` refuses a point that breaks a rule of the space alone (a file lists points on purpose); otherwise the
    point is dropped (a grid lists every combination).
    """
    absent = [name for name in space.parameters if name not in frame.columns]
    missing = [name for name in absent if name in required(space)]
    if missing:
        raise InvalidValue(
            f"{source} does not give {', '.join(missing)}, which {space.owner} has no default for: "
            f"add {missing[0]}, {space.parameters[missing[0]].describe()}"
        )
    defaults = {name: (space.parameters[name].default, column_type(space.parameters[name])) for name in absent}
    frame = frame.with_columns(pl.lit(value, dtype=dtype).alias(name) for name, (value, dtype) in defaults.items())
    frame = space.without_usual(_inactive(space, frame.select(list(space.parameters)), source, strict))
    for constraint in space.constraints:
        if all(symbol.name.startswith(f"{space.namespace}.") for symbol in constraint.program.symbols):
            holds = constraint.program.frame(_symbols(space, frame)).to_series() != 0.0
            if strict:
                _refuse(frame, ~holds, f"{source}: {constraint.sentence}")
            frame = frame.filter(holds)
    return frame.unique(maintain_order=True)


def _inactive(space: Space, frame: pl.DataFrame, source: str, strict: bool) -> pl.DataFrame:
    """Conditional parameters: empty where they do not apply, refused where they apply and are empty."""
    for name, parameter in space.parameters.items():
        absent = frame[name].is_null()
        if name in space.active:
            applies = space.active[name].frame(_symbols(space, frame), trusted=True).to_series() != 0.0
            if strict:
                _refuse(frame, ~applies & ~absent, f"{source}: {name} does not apply here and must be left out")
            frame = frame.with_columns(pl.when(applies).then(pl.col(name)).alias(name))
            absent &= applies
        if parameter.optional:
            continue
        _refuse(frame, absent, f"{source}: {space.owner} needs {name}, {parameter.describe()}")
    return frame


def _refuse(frame: pl.DataFrame, bad: pl.Series, rule: str) -> None:
    """Refuse the first bad point with its values."""
    if bad.any():
        point = frame.row(bad.arg_max() or 0, named=True)
        values = ", ".join(f"{name}={value}" for name, value in point.items() if value is not None)
        raise InvalidValue(f"{rule}; got {values} ({int(bad.sum())} such entries)")


def _symbols(space: Space, frame: pl.DataFrame) -> pl.DataFrame:
    return frame.rename(lambda name: f"{space.namespace}.{name}")


def rows_of(shapes: Iterable[tuple[int, ...]], names: Iterable[str]) -> pl.DataFrame:
    """Shapes as a frame, repeats dropped."""
    return pl.DataFrame(list(shapes), schema=dict.fromkeys(names, pl.Int64), orient="row").unique(maintain_order=True)
