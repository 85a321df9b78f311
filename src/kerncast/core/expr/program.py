"""A named set of outputs with its three evaluators."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING

from kerncast.core.expr import nodes as meaning
from kerncast.core.expr import to_c
from kerncast.core.expr.nodes import (
    ConstantTable,
    Expr,
    Operand,
    Symbol,
    as_expr,
    constant,
    substitute,
    symbols_of,
    topological,
)
from kerncast.errors import InvalidValue

if TYPE_CHECKING:
    import polars as pl

    from kerncast.core.arrays import Floats
    from kerncast.core.expr.to_columns import ColumnProgram

# So many rows are computed one by one in the time that the calls of numpy would take.
FEW_ROWS = 4
Value = float | int | bool | str | None


def encode(declared: Symbol, value: Value) -> float:
    """A parameter's value as the number every evaluator computes with."""
    if value is None:
        if declared.inactive is None:
            raise InvalidValue(f"{declared.name} is missing, and it always applies: give it a value")
        return declared.inactive
    if isinstance(value, str):
        codes = dict(declared.codes)
        if value not in codes:
            raise InvalidValue(f"{declared.name} has no label '{value}' (its labels: {', '.join(codes) or 'none'})")
        return float(codes[value])
    return meaning.read_number(value)


class Program:
    """Outputs by name, in order. `digest` is the same on every machine for the same arithmetic."""

    def __init__(self, outputs: Mapping[str, Operand]) -> None:
        self.outputs: dict[str, Expr] = {name: as_expr(value) for name, value in outputs.items()}
        self.symbols: list[Symbol] = symbols_of(list(self.outputs.values()))

    @cached_property
    def digest(self) -> str:
        """A stable hash of the names, their order and their arithmetic."""
        hasher = hashlib.blake2b(digest_size=16)
        for name, expr in self.outputs.items():
            hasher.update(len(name).to_bytes(4, "little") + name.encode() + expr.digest)
        return hasher.hexdigest()

    def bind(self, values: Mapping[str, Value | Expr]) -> Program:
        """The same program with some symbols fixed (to a value or an expression), folded."""
        declared = {item.name: item for item in self.symbols}
        fixed = {
            name: value if isinstance(value, Expr) else constant(encode(declared[name], value))
            for name, value in values.items()
            if name in declared
        }
        return Program(dict(zip(self.outputs, substitute(list(self.outputs.values()), fixed), strict=True)))

    @cached_property
    def _steps(self) -> list[tuple[Callable[..., float] | None, tuple[int, ...], Expr]]:
        order = topological(list(self.outputs.values()))
        place = {expr.digest: index for index, expr in enumerate(order)}
        return [(meaning.OPERATIONS.get(expr.kind), tuple(place[arg.digest] for arg in expr.args), expr) for expr in order]

    @cached_property
    def _places(self) -> dict[str, int]:
        place = {expr.digest: index for index, (_, _, expr) in enumerate(self._steps)}
        return {name: place[expr.digest] for name, expr in self.outputs.items()}

    def scalar(self, values: Mapping[str, Value]) -> dict[str, float]:
        """The outputs for one set of symbol values."""
        missing = [declared.name for declared in self.symbols if declared.name not in values]
        if missing:
            raise InvalidValue(f"no value was given for {', '.join(missing)}")
        results: list[float] = []
        for operation, places, expr in self._steps:
            args = [results[place] for place in places]
            if operation is not None:
                results.append(operation(*args))
            elif isinstance(expr.payload, Symbol):
                results.append(encode(expr.payload, values[expr.payload.name]))
            elif isinstance(expr.payload, ConstantTable):
                results.append(expr.payload.values[meaning.table_offset(expr.payload.shape, tuple(args))])
            else:
                assert isinstance(expr.payload, float)
                results.append(expr.payload)
        return {name: results[place] for name, place in self._places.items()}

    @cached_property
    def _columns(self) -> ColumnProgram:
        from kerncast.core.expr.to_columns import ColumnProgram

        return ColumnProgram(self.outputs, self.symbols)

    def frame(self, frame: pl.DataFrame, *, trusted: bool = False) -> pl.DataFrame:
        """The outputs for every row; columns are named like the symbols (`p.M`, `c.tile_m`).

        `trusted` skips the search for empty cells and undeclared labels in values that a space produced.
        """
        missing = [declared.name for declared in self.symbols if declared.name not in frame.columns]
        if missing:
            raise InvalidValue(f"the expressions read columns that the frame does not have: {', '.join(missing)}")
        return self._columns.run(frame, trusted)

    def columns(self, frame: pl.DataFrame) -> Floats:
        """The same as an array, a column for each output, for values that a space produced."""
        import numpy as np  # as above, not for a process that computes nothing by columns

        if 0 < frame.height <= FEW_ROWS:
            names = [declared.name for declared in self.symbols]
            rows = [dict(zip(names, row, strict=True)) for row in frame[names].rows()] if names else [{}] * frame.height
            return np.array([list(self.scalar(row).values()) for row in rows], np.float64)
        return self._columns.arrays(frame)

    def c_source(self, function: str) -> str:
        """C99 text of `void function(const double *symbols, double *outputs)`, prelude included."""
        return to_c.prelude() + to_c.generate(function, self.outputs, self.symbols)
