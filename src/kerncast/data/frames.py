"""Frames that users have, of polars or of pandas: read as polars', and given back as what they were.

pandas is no dependency: its frames are read by their columns, and a frame is given back by the methods of the one that came in.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import polars as pl

from kerncast.errors import InvalidValue

Frame: TypeAlias = Any
"""A frame of polars or pandas; their types cannot be told here, for pandas may not be installed."""


def is_frame(given: Any) -> bool:
    """Whether it is a frame of polars or of pandas."""
    return isinstance(given, pl.DataFrame) or _is_pandas(given)


def as_polars(given: Any) -> pl.DataFrame:
    """A frame as polars has it; NaN and NA of pandas are empty cells, and its index is left aside."""
    if isinstance(given, pl.DataFrame):
        return given
    names = [str(name) for name in given.columns]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidValue(f"the frame has two columns '{twice}': rename one of them")
    return pl.DataFrame([_column(name, given.iloc[:, place]) for place, name in enumerate(names)])


def with_columns(given: Any, columns: pl.DataFrame) -> Any:
    """The frame with further columns, in place of those of the same name; a pandas frame keeps its index."""
    if isinstance(given, pl.DataFrame):
        return given.with_columns(columns.get_columns())
    return given.assign(**{column.name: _values(column) for column in columns})


def _is_pandas(given: Any) -> bool:
    return type(given).__module__.partition(".")[0] == "pandas" and hasattr(given, "iloc") and hasattr(given, "columns")


def _column(name: str, values: Any) -> pl.Series:
    numbers = values.to_numpy()
    if numbers.dtype.kind in "iub":
        return pl.Series(name, numbers)
    if numbers.dtype.kind == "f":
        return pl.Series(name, numbers, nan_to_null=True)
    items = [None if empty else item for item, empty in zip(numbers.tolist(), values.isna().tolist(), strict=True)]
    try:
        return pl.Series(name, items)
    except (TypeError, pl.exceptions.PolarsError):  # of several types: each is read as text, like a cell of a table
        return pl.Series(name, [None if item is None else str(item) for item in items], dtype=pl.String)


def _values(column: pl.Series) -> Any:
    """As pandas has it: whole numbers with empty cells are floats, texts and flags objects."""
    if column.dtype.is_numeric():
        return column.to_numpy()
    return column.to_list() if column.null_count() or column.dtype != pl.Boolean else column.to_numpy()
