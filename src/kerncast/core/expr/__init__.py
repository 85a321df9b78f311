"""Arithmetic written once: traced from plain Python, evaluated on dataframe columns, as C99 and as Python scalars.

    >>> from kerncast.core.expr import Symbol, ceil_div, symbol
    >>> m, tile = symbol(Symbol("p.M")), symbol(Symbol("c.tile_m"))
    >>> program = Program({"tiles": ceil_div(m, tile)})
    >>> program.scalar({"p.M": 100, "c.tile_m": 32})
    {'tiles': 4.0}

The files are the pipeline: `nodes` (the graph, and what each operation means, as Python scalars), `trace` (what a feature
may read and call), `to_columns` and `to_c` (the two compilers), `program` (a named set of outputs with all three evaluators).
"""

from __future__ import annotations

from kerncast.core.expr.nodes import ConstantTable, Expr, Symbol, constant, substitute, symbol
from kerncast.core.expr.program import Program
from kerncast.core.expr.trace import (
    Namespace,
    absolute,
    ceil,
    ceil_div,
    floor,
    floor_div,
    log1p,
    log2,
    lookup,
    maximum,
    minimum,
    mod,
    power_of_two_in,
    sqrt,
    values_of,
    where,
)

__all__ = [
    "ConstantTable",
    "Expr",
    "Namespace",
    "Program",
    "Symbol",
    "absolute",
    "ceil",
    "ceil_div",
    "constant",
    "floor",
    "floor_div",
    "log1p",
    "log2",
    "lookup",
    "maximum",
    "minimum",
    "mod",
    "power_of_two_in",
    "sqrt",
    "substitute",
    "symbol",
    "values_of",
    "where",
]
