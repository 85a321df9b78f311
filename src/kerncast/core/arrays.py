"""Arrays by what they hold, and functions of them, to the last bit as C's libm computes them.

numpy has its own code for them on CPUs with AVX-512, and one result in twenty is off by the last bit there. Exported C must
give what Python gives, so what both compute is computed by these. polars calls libm for each element.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


# Alignment beyond this power of two makes no difference: 2 ** 7 = 128.
MOST_ALIGNED = 7
# The largest number with a finite exponential.
_MOST = math.log(np.finfo(np.float64).max)
# So many elements are computed one by one in the time in which polars prepares a query.
_FEW = 200


def _each(function: Callable[[float], float], x: Floats) -> Floats:
    return np.fromiter(map(function, np.ravel(x).tolist()), np.float64, np.size(x)).reshape(np.shape(x))


def exp(x: Floats) -> Floats:
    """e to the power of each element."""
    if np.size(x) <= _FEW and (np.asarray(x) <= _MOST).all():
        return _each(math.exp, x)
    import polars as pl  # a worker has no use for it

    return pl.Series(np.ravel(x)).exp().to_numpy().reshape(np.shape(x))


def expm1(x: Floats) -> Floats:
    """e to the power of each element, minus 1."""
    return _each(lambda value: math.expm1(value) if value <= _MOST else math.inf, x)


def log(x: Floats) -> Floats:
    """The natural logarithm of each element."""
    if np.size(x) <= _FEW and (np.asarray(x) > 0.0).all():
        return _each(math.log, x)
    import polars as pl  # a worker has no use for it

    return pl.Series(np.ravel(x)).log().to_numpy().reshape(np.shape(x))


def log1p(x: Floats) -> Floats:
    """The natural logarithm of each element plus 1."""
    if np.size(x) <= _FEW and (np.asarray(x) > -1.0).all():
        return _each(math.log1p, x)
    import polars as pl  # a worker has no use for it

    return pl.Series(np.ravel(x)).log1p().to_numpy().reshape(np.shape(x))


def alignment(values: Ints) -> Ints:
    """The largest power of two that divides each value, as its exponent, up to `MOST_ALIGNED`; zero is aligned."""
    found = np.full(values.shape, MOST_ALIGNED, np.int64)
    for power in reversed(range(MOST_ALIGNED)):
        found[values % (2 << power) != 0] = power
    return found
