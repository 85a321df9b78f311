"""Problem sets from files: shape lists of other tools, and tables."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from kerncast.core import dtypes
from kerncast.core.io.foreign import CHARACTER, COLUMN, JSON, decode_json, guarded, load_document, load_json
from kerncast.core.io.parquet import read_parquet
from kerncast.core.parameters import Bool, Categorical, Int, Parameter, Value
from kerncast.core.space import Space
from kerncast.errors import BadFile, InvalidValue, KerncastError, NotFound
from kerncast.library.problems.axes import column_type, required, sizes

SUFFIXES = (".json", ".parquet", ".csv")


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


KIND = "shapeset"
# Operation → what it computes beyond the product. Others scale, mask or quantise.
OPERATIONS: dict[str, dict[str, Value]] = {"mm": {}, "bmm": {}, "baddbmm": {}, "addmm": {"bias": True}}
ANY = "shapes"
# What torch-diode puts around a dtype in msgpack.
MARKED_DTYPE = "__torch_dtype__"
SIZES = {"M": "M", "N": "N", "K": "K", "B": "batch"}


@dataclass(frozen=True)
class ShapeSet:
    """The problems of a file, and how many of its shapes are none, by reason."""

    problems: tuple[Mapping[str, Value], ...]
    left_out: Mapping[str, int]

    def __str__(self) -> str:
        reasons = "; ".join(f"{count:,} {why}" for why, count in self.left_out.items())
        unused = sum(self.left_out.values())
        return f"{unused:,} of {len(self.problems) + unused:,} shapes left out: {reasons}"


def read_shapeset(text: str, space: Space) -> ShapeSet:
    """`FILE` or `FILE;op=mm,addmm`."""
    name, separator, listed = text.partition(";")
    wanted = [item.strip() for item in listed.removeprefix("op=").split(",")]
    if not name or (separator and (not listed.startswith("op=") or not all(wanted))):
        raise InvalidValue(f"a shape set is {KIND}:FILE or {KIND}:FILE;op=mm,addmm, got '{KIND}:{text}'")
    if space.owner.partition("/")[0] != "gemm":
        raise InvalidValue(f"a shape set holds matrix products, and {space.owner} is none: give a named set or a file")
    path = Path(name)
    try:
        sets = _sets(_content(JSON.read(path)))
        if separator and (unknown := [item for item in wanted if item not in sets]):
            raise BadFile(f"it has no operation {unknown[0]}, only {', '.join(sets)}")
        return _problems(sets, wanted if separator else list(sets), space)
    except KerncastError as error:
        raise BadFile(f"{path}: {error}") from error
    except OSError as error:
        raise BadFile(f"cannot read {path} ({error.strerror or error}): check the path") from error


def shapeset_points(found: ShapeSet, space: Space) -> pl.DataFrame:
    """The problems as columns; what only some of them say is empty in the others."""
    names = [name for name in space.parameters if any(name in problem for problem in found.problems)]
    return pl.DataFrame(
        [
            pl.Series(name, [problem.get(name) for problem in found.problems], dtype=column_type(space.parameters[name]))
            for name in names
        ]
    )


def _content(data: bytes) -> Any:
    with guarded("it", "check how it was made", "is neither JSON nor msgpack"):
        return load_document(data)


def _sets(content: Any) -> dict[str, list[Any]]:
    """The shapes by operation."""
    rule = 'a shape set is {"operations": {"mm": {"shapes": […]}}} or {"shapes": […]}'
    if not isinstance(content, dict):
        raise BadFile(f"{rule}, it is {type(content).__name__}")
    by_name = content.get("operations", {ANY: content})
    if not isinstance(by_name, dict):
        raise BadFile(f"{rule}; `operations` is {type(by_name).__name__}")
    found = {}
    for name, part in by_name.items():
        shapes = part.get("shapes") if isinstance(part, dict) else part
        if not isinstance(shapes, list):
            raise BadFile(f"{rule}; there is no list of shapes for '{name!s:.50}'")
        found[str(name)] = shapes
    if not any(found.values()):
        raise BadFile("it lists no shape")
    return found


def _problems(sets: Mapping[str, list[Any]], wanted: list[str], space: Space) -> ShapeSet:
    problems: list[dict[str, Value]] = []
    left_out: Counter[str] = Counter()
    for name in dict.fromkeys(wanted):
        if name != ANY and name not in OPERATIONS:
            left_out[f"of {name:.50}, which is more than a product"] += len(sets[name])
            continue
        for problem in _of(sets[name], space):
            if isinstance(problem, str):
                left_out[problem] += 1
            else:
                problems.append({**problem, **OPERATIONS.get(name, {})})
    # A type that only some shapes give cannot be filled in for the others.
    typed = [problem for problem in problems if "dtype" in problem]
    if typed and len(typed) < len(problems):
        left_out["without a dtype"] += len(problems) - len(typed)
        problems = typed
    if not problems:
        raise BadFile(f"no shape can be used: {'; '.join(f'{count:,} {why}' for why, count in left_out.items())}")
    return ShapeSet(tuple(problems), dict(left_out))


def _of(shapes: list[Any], space: Space) -> Iterator[dict[str, Value] | str]:
    """Each shape as a problem, or why it is none."""
    for shape in shapes:
        if isinstance(shape, str):
            try:
                shape = decode_json(shape)
            except msgspec.DecodeError:
                shape = None
        if not isinstance(shape, dict) or not all(name in shape for name in "MNK"):
            yield "without M, N and K"
            continue
        sizes = {ours: shape.get(theirs, 1) for theirs, ours in SIZES.items()}
        if any(type(size) is not int or space.parameters[name].index(size) is None for name, size in sizes.items()):
            yield "with a size that is unknown or out of range"
            continue
        spelled = {_dtype_text(shape[side]) for side in ("M_dtype", "K_dtype") if shape.get(side) is not None}
        named = {dtypes.named(text) for text in spelled}
        dtype = next(iter(named), None)
        if len(named) > 1 or (spelled and (dtype is None or space.parameters["dtype"].index(dtype) is None)):
            yield "with a dtype that gemm does not have"
        else:
            yield {**sizes, "dtype": dtype} if dtype is not None else dict(sizes)


def _dtype_text(value: Any) -> str:
    """The name of a dtype; msgpack files of torch-diode have it in an object."""
    return str(value.get(MARKED_DTYPE, value) if isinstance(value, dict) else value)
