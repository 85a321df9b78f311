"""The columns of a measurement, and the one place where foreign values are checked against them."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import Any

import numpy as np
import polars as pl

from kerncast.core.op import Family, key_digests
from kerncast.core.parameters import Bool, Categorical, Choice, Int, Parameter, PowerOfTwo
from kerncast.core.space import Space
from kerncast.data.skipping import BadRows
from kerncast.errors import BadFile, InvalidValue


class Mislabelled(InvalidValue):
    """A row has the key of another one."""


class Status(StrEnum):
    """How an attempt ended."""

    OK = "ok"
    INVALID = "invalid"
    COMPILE_ERROR = "compile_error"
    LAUNCH_ERROR = "launch_error"
    OUT_OF_MEMORY = "out_of_memory"
    WRONG_RESULT = "wrong_result"
    TIMEOUT = "timeout"
    CRASH = "crash"
    UNSUPPORTED = "unsupported"
    NOT_RUN = "not_run"


# What identifies a row and how it ended: required of every import.
IDENTITY = {"op": pl.String, "family": pl.String, "device": pl.String}
# Everything else may be unknown. Times are nanoseconds of one launch.
MEASURED: dict[str, type[pl.DataType]] = {
    "backend": pl.String,
    "status": pl.String,
    "time_ns": pl.Float64,
    "time_ns_min": pl.Float64,
    "time_ns_mean": pl.Float64,
    "time_ns_std": pl.Float64,
    "time_ns_mad": pl.Float64,
    "samples": pl.Int64,
    "inner_loops": pl.Int64,
    "warmup_ns": pl.Float64,
    "cache": pl.String,
    "compile_ns": pl.Float64,
    "max_abs_err": pl.Float64,
    "order": pl.Int64,
    "block": pl.Int64,
    "sentinel_ns": pl.Float64,
    "worker": pl.String,
    "started_at": pl.String,
    "run_id": pl.String,
    "software": pl.String,
    "error": pl.String,
    "source": pl.String,
    "source_line": pl.Int64,
    "label": pl.String,
}
# Rows that are turned into text or into Python objects at a time.
PIECE_ROWS = 65_536
# What the kernel of a row is called in its source. Only data that name their kernels store this column.
LABEL = "label"
LONGEST_LABEL = 400
# Rows that agree in these are repeats of one measurement.
REPEAT_OF = ("key", "backend", "software", "cache")
POSITIVE_TIMES = ("time_ns", "time_ns_min", "time_ns_mean")
# A picosecond to thirty years: anything outside means a wrong unit.
POSSIBLE_NS = (1e-3, 1e18)


def column_type(parameter: Parameter) -> type[pl.DataType]:
    """How a parameter is stored."""
    if isinstance(parameter, Categorical):
        return pl.String
    return pl.Boolean if isinstance(parameter, Bool) else pl.Int64


def parameter_columns(family: Family) -> dict[str, tuple[Space, str]]:
    """The columns `problem.*` and `config.*` of a family, each with its space and parameter."""
    columns = {f"problem.{name}": (family.problem, name) for name in family.problem.parameters}
    return columns | {f"config.{name}": (family.config, name) for name in family.config.parameters}


def schema_of(family: Family) -> dict[str, type[pl.DataType]]:
    """The stored columns of a family's rows, in order."""
    parameters = {column: column_type(space.parameters[name]) for column, (space, name) in parameter_columns(family).items()}
    return {"key": pl.String, **IDENTITY, **parameters, **MEASURED}


def symbol_columns(family: Family, frame: pl.DataFrame, of: str = "") -> pl.DataFrame:
    """The parameters under their symbol names, ready for `Program.frame`; `of` may limit it to one half, "problem."."""
    names = {
        column: f"{space.namespace}.{name}"
        for column, (space, name) in parameter_columns(family).items()
        if column.startswith(of)
    }
    found = frame[list(names)]  # without a query to polars, which costs more than a few rows
    found.columns = list(names.values())
    return found


def with_optional(family: Family, frame: pl.DataFrame, of: str = "") -> pl.DataFrame:
    """The frame with empty columns for the optional parameters that it lacks: those of files that have no use for them.

    `of` may limit it to one half, "problem." or "config.".
    """
    added = [
        pl.lit(None, column_type(space.parameters[name])).alias(column)
        for column, (space, name) in parameter_columns(family).items()
        if name in space.optional and column.startswith(of) and column not in frame.columns
    ]
    return frame.with_columns(added) if added else frame


def without_unused(family: Family, frame: pl.DataFrame, columns: Mapping[str, tuple[Space, str]] | None = None) -> pl.DataFrame:
    """The frame without optional parameters that are nowhere given: most files have none of them.

    `columns` says which column holds which parameter of which space; unless given, they are named as stored.
    """
    named = (parameter_columns(family) if columns is None else columns).items()
    optional = [column for column, (space, name) in named if name in space.optional and column in frame.columns]
    return frame.drop([column for column in optional if frame[column].null_count() == frame.height])


def is_library(family: Family) -> pl.Expr:
    """Whether a row has the config that is the vendor library's own choice; for families that declare one."""
    named = [pl.col(f"config.{name}") == value for name, value in family.library.items()]
    # An optional parameter that is given makes it another config: the library's kernel on parts of K, say.
    usual = [pl.col(f"config.{name}").is_null() for name in family.config.optional if name not in family.library]
    return pl.all_horizontal(*named, *usual)


def _outside(parameter: Parameter, column: pl.Expr) -> pl.Expr:
    """Which cells are not one of the parameter's values (nulls are checked separately)."""
    match parameter:
        case Int(low=low, high=high, step=step):
            inside = (column >= low) & (column <= high) & ((column - low) % step == 0)
        case PowerOfTwo():
            inside = column.is_in([parameter.number(i) for i in range(parameter.size)])
        case Choice(values=values):
            inside = column.is_in(list(values))
        case Categorical(labels=labels):
            inside = column.is_in([label for label, _ in labels])
        case _:
            inside = pl.lit(True)
    return ~inside


def _refuse_first(
    frame: pl.DataFrame, bad: pl.Series, rule: str, column: str, suggestion: Callable[[Any], str] = lambda _: ""
) -> None:
    """Raise an error with the rule, the first offending value, what was probably meant, and its position."""
    if bad.any():
        bad = bad.fill_null(False)
        row = bad.arg_max() or 0
        line = frame["source_line"][row] if "source_line" in frame.columns else None
        where = f"line {line}" if line is not None else f"row {row + 1}"
        value = frame[column][row]
        said = f"{where}: {column} {rule}, got {value!r}{suggestion(value)}"
        raise BadRows(f"{said} ({int(bad.sum())} such rows)", f"{column} {rule}", bad, example=said)


def check_parameters(family: Family, frame: pl.DataFrame, of: str = "") -> None:
    """Refuse the first row whose problem or config is not in the declared space (constraints aside).

    `of` may limit it to one half, "problem." or "config.".
    """
    symbols, columns = None, {name: item for name, item in parameter_columns(family).items() if name.startswith(of)}
    # All at once: a query for each of fifty columns costs more than a small file.
    outside = frame.select(_outside(space.parameters[name], pl.col(x)).alias(x) for x, (space, name) in columns.items())
    for column, (space, name) in columns.items():
        parameter = space.parameters[name]
        values = frame[column]
        _refuse_first(frame, outside[column], f"must be {parameter.describe()}", column, parameter.suggestion)
        if name in space.active:
            symbols = symbol_columns(family, frame, of) if symbols is None else symbols
            applies = space.active[name].frame(symbols).to_series() != 0.0
            _refuse_first(frame, applies & values.is_null(), f"applies here and must be {parameter.describe()}", column)
            _refuse_first(frame, ~applies & values.is_not_null(), "does not apply here and must be empty", column)
        elif not parameter.optional and values.null_count():
            _refuse_first(frame, values.is_null(), f"must be {parameter.describe()}", column)


def _cast(frame: pl.DataFrame, column: str, dtype: type[pl.DataType]) -> pl.Expr:
    """A column in its stored type; what does not fit (2.5 as a size, text as a time) is refused."""
    values = frame[column]
    if values.dtype in (dtype, pl.Null):
        return pl.col(column).cast(dtype)
    rule = {pl.Boolean: "must be true or false", pl.Int64: "must be a whole number", pl.Float64: "must be a number"}.get(
        dtype, "must be text"
    )
    numeric, textual = values.dtype.is_numeric(), values.dtype in (pl.String, pl.Categorical, pl.Enum)
    if not (textual if dtype == pl.String else numeric or textual):
        _refuse_first(frame, values.is_not_null(), rule, column)
    if dtype == pl.Boolean:
        flags = {"true": True, "false": False, "1": True, "0": False, "1.0": True, "0.0": False}
        texts = pl.col(column).cast(pl.String).str.to_lowercase()
        _refuse_first(frame, ~frame.select(texts.is_in(list(flags))).to_series(), rule, column)
        return texts.replace_strict(flags, default=None, return_dtype=pl.Boolean).alias(column)
    if dtype == pl.Int64 and numeric and not values.dtype.is_integer():
        numbers = values.cast(pl.Float64)
        _refuse_first(frame, numbers != numbers.floor(), rule, column)
    cast = values.cast(dtype, strict=False)
    _refuse_first(frame, cast.is_null() & values.is_not_null(), rule, column)
    return pl.col(column).cast(dtype, strict=False)


def in_stored_types(frame: pl.DataFrame, wanted: Mapping[str, type[pl.DataType]]) -> pl.DataFrame:
    """Some columns in their stored types; a value that does not fit is refused by its row."""
    return frame.with_columns(_cast(frame, name, dtype) for name, dtype in wanted.items())


def conform(family: Family, frame: pl.DataFrame) -> pl.DataFrame:
    """`frame` as stored rows of `family`: columns in order, types, values checked, defaults and keys filled in.

    Rows that come with keys, as collected ones do, must have the keys of their own values.
    """
    wanted = schema_of(family)
    unknown = [name for name in frame.columns if name not in wanted]
    if unknown:
        raise InvalidValue(
            f"unknown column '{unknown[0]}' for {family.id}: rename it to one of {', '.join(wanted)}, or drop it"
        )
    frame = frame.with_columns(op=pl.lit(family.op.name), family=pl.lit(family.id))
    defaulted: list[str] = []
    for column, (space, name) in parameter_columns(family).items():
        rule = space.parameters[name]
        if column not in frame.columns and (rule.default is not None or rule.nullable):
            frame = frame.with_columns(pl.lit(rule.default, dtype=wanted[column]).alias(column))
            defaulted.append(column)
    missing = [name for name in ("device", *parameter_columns(family), "status", "time_ns") if name not in frame.columns]
    if missing:
        raise InvalidValue(f"{family.id} rows need the columns {', '.join(missing)}: none of them has a default")
    frame = frame.with_columns(pl.lit(None, dtype=wanted[name]).alias(name) for name in wanted if name not in frame.columns)
    frame = in_stored_types(frame, wanted).select(list(wanted))

    frame = _only_where_it_applies(family, frame, defaulted)
    _refuse_first(frame, frame["device"].is_null() | (frame["device"] == ""), "must name a device", "device")
    _refuse_first(frame, ~frame["status"].is_in(list(Status)), f"must be one of {', '.join(Status)}", "status")
    _refuse_first(frame, frame["status"].is_null(), f"must be one of {', '.join(Status)}", "status")
    ok = frame["status"] == Status.OK
    _refuse_first(frame, ok & frame["time_ns"].is_null(), "must be given when status is ok", "time_ns")
    _refuse_first(frame, ~ok & frame["time_ns"].is_not_null(), "must be empty when status is not ok", "time_ns")
    shortest, longest = POSSIBLE_NS
    for name in POSITIVE_TIMES:
        possible = (frame[name] >= shortest) & (frame[name] <= longest)
        _refuse_first(frame, ~possible, f"must be a positive number of nanoseconds ({shortest:g} to {longest:g})", name)
    check_parameters(family, frame)
    frame = family.problem.without_usual(frame, "problem.")
    frame = family.config.without_usual(frame, "config.")
    frame = _with_plain_labels(frame)
    keys = row_keys(family, frame)
    _refuse_mislabelled(frame["key"], keys)
    return frame.with_columns(keys)


def _with_plain_labels(frame: pl.DataFrame) -> pl.DataFrame:
    """Names of kernels go into files with one name per line and into C strings, so they are one line of text."""
    if frame[LABEL].null_count() == frame.height:
        return frame
    unprintable = frame[LABEL].str.contains(r"[\p{C}\p{Zl}\p{Zp}]") | (frame[LABEL].str.len_chars() > LONGEST_LABEL)
    _refuse_first(frame, unprintable, f"must be one line of printable text, at most {LONGEST_LABEL} characters", LABEL)
    return frame.with_columns(pl.col(LABEL).replace("", None))


def without_empty_labels(frame: pl.DataFrame) -> pl.DataFrame:
    """The rows as they are stored: a dataset that names no kernels has no column for their names."""
    return frame.drop(LABEL) if frame[LABEL].null_count() == frame.height else frame


def _refuse_mislabelled(given: pl.Series, own: pl.Series) -> None:
    """Refuse rows with a wrong key: their times would count for something that was not measured."""
    wrong = given != own
    if wrong.any():
        wrong = wrong.fill_null(False)
        row = wrong.arg_max() or 0
        raise Mislabelled(
            f"the row with the key {given[row]} has the device, problem and config of {own[row]} "
            f"({int(wrong.sum())} of {len(own)} rows are mislabelled)"
        )


def _only_where_it_applies(family: Family, frame: pl.DataFrame, columns: list[str]) -> pl.DataFrame:
    """Remove the defaults that were filled into conditional parameters where these do not apply."""
    stored = parameter_columns(family)
    for space in (family.problem, family.config):
        for name in space.condition_order:
            column = next((column for column in columns if stored[column] == (space, name)), None)
            if column is not None:
                applies = space.active[name].frame(symbol_columns(family, frame), trusted=True).to_series() != 0.0
                frame = frame.with_columns(pl.when(applies).then(pl.col(column)).alias(column))
    return frame


def distinct_rows(frame: pl.DataFrame) -> pl.DataFrame:
    """The first of those rows that are equal in every cell, in their order."""
    if not frame.width:
        return frame
    again = frame.hash_rows(seed=0).is_duplicated()
    if not again.any():
        return frame
    numbered = frame.filter(again).with_columns(pl.Series("__at", np.flatnonzero(again.to_numpy())))
    kept = numbered.unique(frame.columns, keep="first", maintain_order=True)["__at"].to_numpy()
    mask = ~again.to_numpy()
    mask[kept] = True
    return frame.filter(pl.Series(mask))


def row_keys(family: Family, frame: pl.DataFrame) -> pl.Series:
    """The key of every row: the vectorised form of `kerncast.core.op.key`."""
    by_symbol = {f"{space.namespace}.{name}": column for column, (space, name) in parameter_columns(family).items()}
    frame = with_optional(family, frame)
    symbols = (symbol for prefix in ("p.", "c.") for symbol in sorted(name for name in by_symbol if name.startswith(prefix)))
    # A null part is skipped, so an inactive parameter does not take part; nor is one looked at that is null in all rows.
    given = [symbol for symbol in symbols if frame[by_symbol[symbol]].null_count() < frame.height]
    own = [pl.lit(f"{symbol}=") + pl.col(by_symbol[symbol]).cast(pl.String) for symbol in given]
    parts = [pl.lit(family.id), pl.col("device"), *own]
    # Hashing every row costs less than finding the distinct ones and joining them back: 1 s per million rows, not 2.3 s.
    # It is done in slices because the texts take more memory than the rows.
    keys = pl.Series("key", [], dtype=pl.String)
    for rows in frame.iter_slices(PIECE_ROWS):
        texts = rows.select(pl.concat_str(parts, separator="|", ignore_nulls=True).alias("key")).to_series()
        keys.append(pl.Series("key", key_digests(texts.cast(pl.Binary).to_list()), dtype=pl.Binary).bin.encode("hex"))
    return keys.rechunk()


def content_digest(frames: Iterable[pl.DataFrame]) -> str:
    """A hash of cell values, the same whatever the file layout, compression or library version."""
    # In pieces: the text of a million rows takes half a gigabyte.
    return pieces_digest(frame.iter_slices(PIECE_ROWS) if frame.height else (frame,) for frame in frames)


def pieces_digest(frames: Iterable[Iterable[pl.DataFrame]]) -> str:
    """The same of frames that are given in pieces, each of which has at least one row unless the frame has none."""
    hasher = hashlib.blake2b(digest_size=16)
    for pieces in frames:
        header = True
        for piece in pieces:
            cells = io.BytesIO()
            piece.write_csv(cells, float_precision=None, include_header=header)
            hasher.update(cells.getbuffer())
            header = False
    return hasher.hexdigest()


def with_every_column(family: Family, frame: pl.LazyFrame, where: str) -> pl.LazyFrame:
    """A parameter that stored rows do not have gets its default; other differences are refused by name."""
    wanted = schema_of(family)
    stored = frame.collect_schema()
    if list(stored) == list(wanted):
        return frame
    unknown = [name for name in stored if name not in wanted]
    if unknown:
        raise BadFile(f"{where} has the column '{unknown[0]}', which {family.id} no longer declares: export the data again")
    added, columns = [], parameter_columns(family)
    for name, dtype in wanted.items():
        if name in stored:
            continue
        space, parameter = columns.get(name, (None, ""))
        rule = space.parameters[parameter] if space else None
        if rule is not None and rule.default is None and not rule.nullable:
            raise BadFile(f"{where} has no column '{name}', which {family.id} needs and has no default for: import it again")
        added.append(pl.lit(rule.default if rule else None, dtype=dtype).alias(name))
    defaulted = [column for column in columns if column not in stored]
    if all(space.parameters[name].optional for space, name in map(columns.__getitem__, defaulted)):
        return frame.with_columns(added).select(list(wanted))  # null is not in the key, so the keys stay
    rows = _only_where_it_applies(family, frame.with_columns(added).select(list(wanted)).collect(), defaulted)
    return rows.with_columns(row_keys(family, rows)).lazy()
