"""`--where 'problem.dtype=fp8'`: a row filter in one line of text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import polars as pl

from kerncast.errors import InvalidValue, NotFound

_PATTERN = re.compile(r"\s*([A-Za-z_][\w.]*)\s*(!=|<=|>=|=|<|>)\s*(.*?)\s*")


def _literal(text: str, column: str, dtype: pl.DataType) -> object:
    try:
        if dtype == pl.Boolean:
            return {"true": True, "false": False}[text.lower()]
        if dtype.is_integer():
            return int(text)
        return float(text) if dtype.is_float() else text
    except (KeyError, ValueError):
        raise InvalidValue(f"`where` compares {column} ({dtype}) with '{text}', which is not a value of that type") from None


def parse_filter(text: str, schema: Mapping[str, pl.DataType]) -> pl.Expr:
    """One condition: `column=value`, `column=a,b` (any of them), `!=`, `<`, `<=`, `>`, `>=`."""
    match = _PATTERN.fullmatch(text)
    if not match:
        raise InvalidValue(f"`where` takes column=value (also !=, <, <=, >, >=), got '{text}'")
    name, operator, right = match.groups()
    name = column_named(name, schema)
    column, dtype = pl.col(name), schema[name]
    if operator in ("=", "!="):
        # `software` is JSON and contains commas, so it is not split.
        items = [right] if right.startswith("{") else right.split(",")
        found = column.is_in([_literal(item.strip(), name, dtype) for item in items]).fill_null(False)
        return found if operator == "=" else ~found
    value = pl.lit(_literal(right, name, dtype))
    return {"<": column < value, "<=": column <= value, ">": column > value, ">=": column >= value}[operator]


def column_named(name: str, columns: Iterable[str]) -> str:
    """The column that a condition means: `dtype` is `problem.dtype`, unless `config.dtype` exists too."""
    known = list(columns)
    found = [name] if name in known else [column for column in (f"problem.{name}", f"config.{name}") if column in known]
    if len(found) > 1:
        raise InvalidValue(f"`where` {name} may be {' or '.join(found)}: write one of them")
    if not found:
        raise NotFound.named("column", name, known)
    return found[0]


def combine(texts: Iterable[str], schema: Mapping[str, pl.DataType]) -> pl.Expr:
    """All conditions together; no conditions keep every row."""
    return pl.all_horizontal([pl.lit(True), *(parse_filter(text, schema) for text in texts)])
