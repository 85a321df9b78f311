"""What each operation means, on Python floats. The column and C compilers reproduce this bit for bit.

The arithmetic is total and never leaves the finite numbers, because a model must never see a NaN:

- overflow saturates at ±1.797e308; NaN as an input reads as 0, infinities as the saturated number;
- anything divided by zero is 0 (and so are `floor_div`, `ceil_div`; `mod` by zero is its first argument);
- a root of a negative number is 0; a log clamps its argument to the smallest positive normal number,
  `log1p` to the number just above -1;
- a table index is rounded down and clamped to the table.

The sign of a zero cannot be observed through any of these, and is not part of the meaning.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable

from kerncast.errors import InvalidValue

LARGEST = sys.float_info.max
SMALLEST = sys.float_info.min
ABOVE_MINUS_ONE = math.nextafter(-1.0, 0.0)
LN2 = math.log(2.0)


def saturate(x: float) -> float:
    """`x`, or the nearest finite number."""
    if x > LARGEST:
        return LARGEST
    return -LARGEST if x < -LARGEST else x


def read_number(x: float) -> float:
    """A number from outside, as every evaluator sees it."""
    try:
        value = float(x)
    except OverflowError:  # an integer beyond the float range
        return LARGEST if x > 0 else -LARGEST
    except (TypeError, ValueError) as error:
        raise InvalidValue(f"a formula reads numbers, got {x!r}") from error
    return 0.0 if math.isnan(value) else saturate(value)


def _divide(a: float, b: float) -> float:
    return 0.0 if b == 0.0 else saturate(a / b)


# log2 is ln(x) / ln 2 in all three evaluators: dataframe engines have no log2 of their own.
OPERATIONS: dict[str, Callable[..., float]] = {
    "add": lambda a, b: saturate(a + b),
    "sub": lambda a, b: saturate(a - b),
    "mul": lambda a, b: saturate(a * b),
    "div": _divide,
    "min": lambda a, b: b if b < a else a,
    "max": lambda a, b: b if b > a else a,
    "abs": abs,
    "floor": lambda a: float(math.floor(a)),
    "ceil": lambda a: float(math.ceil(a)),
    "sqrt": lambda a: math.sqrt(a) if a > 0.0 else 0.0,
    "log2": lambda a: math.log(max(a, SMALLEST)) / LN2,
    "log1p": lambda a: math.log1p(max(a, ABOVE_MINUS_ONE)),
    "lt": lambda a, b: float(a < b),
    "le": lambda a, b: float(a <= b),
    "eq": lambda a, b: float(a == b),
    "and": lambda a, b: float(a != 0.0 and b != 0.0),
    "or": lambda a, b: float(a != 0.0 or b != 0.0),
    "not": lambda a: float(a == 0.0),
    "where": lambda test, a, b: a if test != 0.0 else b,
}


def table_offset(shape: tuple[int, ...], indices: tuple[float, ...]) -> int:
    """Where a lookup reads: row-major, each index rounded down and clamped to its side."""
    offset = 0
    for size, index in zip(shape, indices, strict=True):
        clamped = min(max(math.floor(index), 0), size - 1)
        offset = offset * size + clamped
    return offset
