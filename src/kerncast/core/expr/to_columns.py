"""The column compiler: millions of rows at once, polars frame in, polars frame out, numpy in between.

Polars expressions are not used: polars divides a column by a constant by multiplying with its reciprocal,
which rounds differently from C on two values in five (seen in polars 2.1). Numpy rounds as IEEE 754 says.
Logarithms go through polars all the same, because numpy swaps libm for a vector library on some CPUs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import polars as pl

from kerncast.core import arrays
from kerncast.core.arrays import Flags, Floats, Ints
from kerncast.core.expr import nodes as meaning
from kerncast.core.expr.nodes import ConstantTable, Expr, Symbol, topological
from kerncast.errors import InvalidValue

Operand = Floats | float

# Rows are taken this many at a time, so that the temporaries stay in the cache.
BATCH_ROWS = 16_384
# Labels of so many rows are looked up one by one in the time in which polars prepares a query.
FEW_ROWS = 200


def _saturate(x: Floats) -> Floats:
    return np.minimum(np.maximum(x, -meaning.LARGEST, out=x), meaning.LARGEST, out=x)


def _divide(a: Operand, b: Operand) -> Floats:
    quotient = _saturate(np.asarray(np.divide(a, b)))
    return np.where(np.equal(b, 0.0), 0.0, quotient)


def _truth(x: Operand) -> Flags:
    return np.asarray(np.not_equal(x, 0.0))


def _where(test: Operand, a: Operand, b: Operand) -> Floats:
    return np.where(_truth(test), np.asarray(a), np.asarray(b))


_OPERATIONS: dict[str, Callable[..., Floats]] = {
    "add": lambda a, b: _saturate(np.add(a, b)),
    "sub": lambda a, b: _saturate(np.subtract(a, b)),
    "mul": lambda a, b: _saturate(np.multiply(a, b)),
    "div": _divide,
    "min": np.minimum,
    "max": np.maximum,
    "abs": np.abs,
    "floor": np.floor,
    "ceil": np.ceil,
    "sqrt": lambda a: np.sqrt(np.maximum(a, 0.0)),
    "log2": lambda a: arrays.log(np.maximum(a, meaning.SMALLEST)) / meaning.LN2,
    "log1p": lambda a: arrays.log1p(np.maximum(a, meaning.ABOVE_MINUS_ONE)),
    "lt": lambda a, b: np.less(a, b).astype(np.float64),
    "le": lambda a, b: np.less_equal(a, b).astype(np.float64),
    "eq": lambda a, b: np.equal(a, b).astype(np.float64),
    "and": lambda a, b: (_truth(a) & _truth(b)).astype(np.float64),
    "or": lambda a, b: (_truth(a) | _truth(b)).astype(np.float64),
    "not": lambda a: np.equal(a, 0.0).astype(np.float64),
    "where": _where,
}


def _lookup(table: ConstantTable, values: Floats, indices: Sequence[Operand]) -> Floats:
    offset: Ints = np.zeros((), dtype=np.int64)
    for size, index in zip(table.shape, indices, strict=True):
        offset = offset * size + np.clip(np.floor(np.asarray(index)), 0, size - 1).astype(np.int64)
    return values[offset]


def read_column(declared: Symbol, column: pl.Series) -> Floats:
    """A column as numbers: labels as their codes, null as the declared inactive number."""
    inactive = 0.0 if declared.inactive is None else float(declared.inactive)
    if column.dtype == pl.String and len(column) <= FEW_ROWS:
        known = {label: float(code) for label, code in declared.codes}
        return np.array([known.get(label, inactive) for label in column.to_list()], dtype=np.float64)
    if column.dtype in (pl.String, pl.Categorical, pl.Enum):
        labels, codes = [label for label, _ in declared.codes], [float(code) for _, code in declared.codes]
        column = column.cast(pl.String).replace_strict(labels, codes, default=None, return_dtype=pl.Float64)
    elif column.dtype.is_float() and column.null_count():
        column = column.fill_null(inactive)
    # Now a NaN that was none before is a null. Methods of a series that are queries to polars cost more than a few rows.
    column, missing = column.cast(pl.Float64), column.null_count()
    numbers = column.to_numpy()
    if missing:
        return np.where(np.isnan(numbers), inactive, numbers)
    if np.isfinite(numbers).all():
        return numbers
    return _saturate(np.nan_to_num(numbers, nan=0.0, posinf=np.inf, neginf=-np.inf))


def refuse_unreadable(declared: Symbol, column: pl.Series) -> None:
    """Refuse a null in a parameter that always applies and an undeclared label: both would become numbers."""
    if declared.inactive is None and column.null_count():
        raise InvalidValue(
            f"column {declared.name} has {column.null_count()} empty cells, but the parameter always applies: fill them"
        )
    if column.dtype in (pl.String, pl.Categorical, pl.Enum):
        known = {label for label, _ in declared.codes}
        unknown = sorted(set(column.drop_nulls().cast(pl.String).unique()) - known)
        if unknown:
            raise InvalidValue(
                f"column {declared.name} has the undeclared label '{unknown[0]}' "
                f"(declared: {', '.join(sorted(known)) or 'none, it is a number'})"
            )


class ColumnProgram:
    """Steps over arrays, each result computed once per batch of rows."""

    def __init__(self, outputs: Mapping[str, Expr], symbols: Sequence[Symbol]) -> None:
        order = topological(list(outputs.values()))
        place = {expr.digest: index for index, expr in enumerate(order)}
        self.symbols = symbols
        self.steps = [(expr, [place[arg.digest] for arg in expr.args]) for expr in order]
        self.tables = {expr.payload: np.array(expr.payload.values) for expr in order if isinstance(expr.payload, ConstantTable)}
        self.outputs = {name: place[expr.digest] for name, expr in outputs.items()}

    def _batch(self, columns: Mapping[str, Floats]) -> list[Operand]:
        results: list[Operand] = []
        for expr, places in self.steps:
            args = [results[place] for place in places]
            if isinstance(expr.payload, Symbol):
                results.append(columns[expr.payload.name])
            elif isinstance(expr.payload, ConstantTable):
                results.append(_lookup(expr.payload, self.tables[expr.payload], args))
            elif isinstance(expr.payload, float):
                results.append(expr.payload)
            else:
                results.append(_OPERATIONS[expr.kind](*args))
        return results

    def run(self, frame: pl.DataFrame, trusted: bool) -> pl.DataFrame:
        """The outputs for every row of `frame`, whose columns are named like the symbols."""
        if not trusted:
            for declared in self.symbols:
                refuse_unreadable(declared, frame[declared.name])
        # Write into polars' memory batch by batch: one array per feature would touch fresh pages each time.
        return pl.concat([pl.DataFrame(dict(zip(self.outputs, part, strict=True))) for part in self._batches(frame)])

    def arrays(self, frame: pl.DataFrame) -> Floats:
        """The same as one array, a row for each row of the frame: quicker for a few rows, which are many columns."""
        found = np.empty((frame.height, len(self.outputs)))
        for place, part in enumerate(self._batches(frame)):
            found[place * BATCH_ROWS : (place + 1) * BATCH_ROWS] = np.array(part).T
        return found

    def _batches(self, frame: pl.DataFrame) -> Iterator[list[Floats]]:
        with np.errstate(all="ignore"):
            for start in range(0, max(frame.height, 1), BATCH_ROWS):
                batch = frame.slice(start, BATCH_ROWS)
                values = self._batch({item.name: read_column(item, batch[item.name]) for item in self.symbols})
                yield [np.broadcast_to(values[place], batch.height) for place in self.outputs.values()]
