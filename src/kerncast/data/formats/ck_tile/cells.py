"""Typed cells of CK Tile's tables. A row with a cell that cannot be read is skipped; the rest is kept."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from kerncast.core.parameters import Int, Parameter
from kerncast.data.skipping import Skips
from kerncast.data.text_table import as_type

KINDS = {pl.Int64: "a whole number", pl.Float64: "a number", pl.Boolean: "true or false"}


def typed(table: pl.DataFrame, types: Mapping[str, type[pl.DataType]], skips: Skips) -> pl.DataFrame:
    """Convert the columns that `types` names; rows with a cell that does not fit are skipped."""
    for name in (name for name in types if name in table.columns):
        values = table[name]
        if values.dtype == pl.String and types[name] != pl.String:
            values = values.set(values == "", None)
        lost = as_type(values, types[name]).is_null() & values.is_not_null()
        kind = f"{name.rpartition('.')[2]} must be {KINDS.get(types[name], 'text')}"
        table = skips.drop(table.with_columns(values), lost, kind, name)
    return table.select(as_type(table[name], dtype) for name, dtype in types.items() if name in table.columns)


def in_range(table: pl.DataFrame, sizes: Mapping[str, Parameter], skips: Skips) -> pl.DataFrame:
    """Keep rows whose sizes are present and valid for their parameters."""
    for name, size in sizes.items():
        if isinstance(size, Int):
            outside = ~pl.col(name).is_between(size.low, size.high).fill_null(False)
            table = skips.drop(table, outside, f"{name} must be {size.describe()}", name)
    return table
