"""Functions of arrays, to the last bit as C's libm computes them.

numpy has its own code for them on CPUs with AVX-512, and one result in twenty is off by the last bit there. Exported C must
give what Python gives, so what both compute is computed by these. polars calls libm for each element.
"""

from __future__ import annotations

import math

import numpy as np
import polars as pl

from kerncast.arrays import Floats

# The largest number with a finite exponential.
_MOST = math.log(np.finfo(np.float64).max)


def exp(x: Floats) -> Floats:
    """e to the power of each element."""
    return pl.Series(np.ravel(x)).exp().to_numpy().reshape(np.shape(x))


def expm1(x: Floats) -> Floats:
    """e to the power of each element, minus 1."""
    flat = np.ravel(x)
    found = (math.expm1(value) if value <= _MOST else math.inf for value in flat.tolist())
    return np.fromiter(found, np.float64, len(flat)).reshape(np.shape(x))


def log(x: Floats) -> Floats:
    """The natural logarithm of each element."""
    return pl.Series(np.ravel(x)).log().to_numpy().reshape(np.shape(x))


def log1p(x: Floats) -> Floats:
    """The natural logarithm of each element plus 1."""
    return pl.Series(np.ravel(x)).log1p().to_numpy().reshape(np.shape(x))
