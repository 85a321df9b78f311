"""Typed cells of CK Tile's tables. A row with a cell that cannot be read is left out and counted; the rest is kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import polars as pl

from kerncast.data.text_table import LINE, as_type, refuse_cells
from kerncast.parameters import Int, Parameter

KINDS = {pl.Int64: "a whole number", pl.Float64: "a number", pl.Boolean: "true or false"}


def typed(table: pl.DataFrame, types: Mapping[str, type[pl.DataType]], left_out: Counter[str]) -> pl.DataFrame:
    """Convert the columns that `types` names; rows with a cell that does not fit are left out and counted."""
    columns, unread = [], pl.repeat(False, table.height, dtype=pl.Boolean, eager=True)
    first: dict[int, str] = {}
    for name in (name for name in types if name in table.columns):
        values, rule = table[name], f"must be {KINDS.get(types[name], 'text')}"
        if values.dtype not in (pl.String, pl.Categorical, pl.Boolean, pl.Null) and not values.dtype.is_numeric():
            refuse_cells(table, values.is_not_null(), name, rule)
        if values.dtype == pl.String and types[name] != pl.String:
            values = values.set(values == "", None)
        read = as_type(values, types[name])
        lost = read.is_null() & values.is_not_null()
        if lost.any():
            row = lost.arg_max() or 0
            given = " ".join(str(values[row])[:40].split())
            first.setdefault(row, f"line {table[LINE][row]}: {name.rpartition('.')[2]} {rule}, got '{given}'")
        unread |= lost
        columns.append(read)
    if first:
        left_out[f"rows with a cell that cannot be read (first: {first[min(first)]})"] += int(unread.sum())
    return pl.DataFrame(columns).filter(~unread)


def in_range(table: pl.DataFrame, sizes: Mapping[str, Parameter], left_out: Counter[str]) -> pl.DataFrame:
    """Keep rows whose sizes are present and valid for their parameters."""
    bounds = {name: (size.low, size.high) for name, size in sizes.items() if isinstance(size, Int)}
    outside = table.select((~pl.col(name).is_between(*ends).fill_null(False)).alias(name) for name, ends in bounds.items())
    bad = outside.select(pl.any_horizontal(pl.all())).to_series()
    if bad.any():
        row = bad.arg_max() or 0
        name = next(name for name in bounds if outside[name][row])
        given = "an empty cell" if table[name][row] is None else table[name][row]
        rule = f"line {table[LINE][row]}: {name} must be {sizes[name].describe()}, got {given}"
        left_out[f"rows with a size out of range (first: {rule})"] += int(bad.sum())
    return table.filter(~bad)
