"""Matrices to multiply, and what must come out: small integers, so that every sum is exact and the check is bit for bit."""

from __future__ import annotations

import hashlib
import math
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kerncast.core.arrays import Array
from kerncast.measuring.backends.contract import OutOfMemory
from kerncast.measuring.backends.cpu.arena import Arena
from kerncast.measuring.backends.memory import available_bytes

# numpy has no bf16, so its bits are stored.
NUMPY_TYPES = {"fp32": np.float32, "fp64": np.float64, "bf16": np.uint16, "int8": np.int8}
OUTPUT_TYPES = {**NUMPY_TYPES, "int8": np.int32}
# The type in which numpy's product of the inputs is exact.
EXACT_TYPES = {"fp32": np.float32, "fp64": np.float64, "bf16": np.float32, "int8": np.float64}
# fp32 counts exactly up to 2^24, int32 up to 2^31.
EXACT = {"fp32": 2**24, "fp64": 2**24, "bf16": 2**24, "int8": 2**31}
# Small numbers for floats; the whole range of int8, so that a wrong sign or an overflow shows.
LARGEST_VALUES = {"fp32": 3, "fp64": 3, "bf16": 3, "int8": 128}
# What C is filled with before it is checked, a value that no sum has: NaN, or the least int32.
NAN_BF16, LEAST_INT32 = 0x7FC0, -(2**31)
# Smooth activations are computed by series, and a bf16 may then be rounded to its neighbour.
SMOOTH_ROUNDING = {"fp32": 2e-6, "fp64": 1e-13, "bf16": 2**-7}
CACHED_BYTES = 512 * 2**20
MEMORY_SHARE = 0.8


@dataclass(frozen=True)
class Inputs:
    """The buffers of one problem, shared by every kernel prepared for it."""

    a: Array
    b: Array
    c: Array
    reference: Array
    arena: Arena
    bias: Array | None = None
    between: Array | None = None
    """What lies between the rows of C, which nothing may be written to; None: C is packed."""
    rounding: float = 0.0
    """The share of a number (or of 1, if that is more) by which it may be off: more than 0 only for smooth activations."""

    @property
    def pointers(self) -> tuple[int, int, int]:
        """Where A, B and C begin."""
        return self.a.ctypes.data, self.b.ctypes.data, self.c.ctypes.data

    @property
    def bias_pointer(self) -> int:
        """Where the bias begins; 0: there is none."""
        return 0 if self.bias is None else self.bias.ctypes.data

    @property
    def nbytes(self) -> int:
        """Their size in memory."""
        return self.arena.nbytes

    def poison(self) -> None:
        """Fill C, and what lies between its rows, with a value that no product has."""
        for part in (self.c, self.between):
            if part is not None:
                part.fill({"i": LEAST_INT32, "u": NAN_BF16, "f": np.nan}[part.dtype.kind])

    def error(self) -> float:
        """The largest absolute difference of C from what it must be; infinite where nothing or too much was written."""
        if self.between is not None and np.isfinite(as_float(self.between)).any():
            return math.inf
        if np.array_equal(self.c, self.reference):
            return 0.0
        found, wanted = as_float(self.c), as_float(self.reference)
        difference = np.abs(found - wanted)
        if self.rounding and (difference <= self.rounding * np.maximum(np.abs(wanted), 1.0)).all():
            return 0.0
        largest = float(np.max(difference))
        return largest if math.isfinite(largest) else math.inf


def as_float(values: Array) -> Array:
    """The numbers that an array stands for: bf16 by its bits, an int32 that was never written as NaN."""
    if values.dtype == np.uint16:
        return (values.astype(np.uint32) << 16).view(np.float32)
    if values.dtype == np.int32:
        return np.where(values == LEAST_INT32, np.nan, values)
    return values


def to_bf16(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """The bits of the nearest bf16, ties to even; for finite numbers."""
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def refuse_too_large(needed: int, what: str) -> None:
    """Refuse operands that would take most of the memory that is free."""
    free = available_bytes()
    if free is not None and needed > MEMORY_SHARE * free:
        raise OutOfMemory(f"the {what} need {needed / 1e9:.1f} GB, more than {MEMORY_SHARE:.0%} of the memory that is free")


def make(problem: Mapping[str, Any]) -> Inputs:
    """The inputs of a problem: always the same for the same problem."""
    m, n, k, batch, layout = (problem[name] for name in ("M", "N", "K", "batch", "layout"))
    name = problem["dtype"]
    dtype, output, exact = (np.dtype(types[name]) for types in (NUMPY_TYPES, OUTPUT_TYPES, EXACT_TYPES))
    # While they are made, one more copy of the inputs as whole numbers, and for narrow types one to multiply.
    widened = 0 if exact == dtype else exact.itemsize
    by_rows = {"a": layout[0] == "r", "b": layout[1] == "r"}
    rows = {"a": m if by_rows["a"] else k, "b": k if by_rows["b"] else n, "c": m}
    row = {"a": k if by_rows["a"] else m, "b": n if by_rows["b"] else k, "c": n}
    apart = {matrix: problem.get(f"ld{matrix}") or length for matrix, length in row.items()}
    stored = {matrix: batch * rows[matrix] * apart[matrix] for matrix in rows}
    needed = (stored["a"] + stored["b"]) * dtype.itemsize + batch * (m * k + k * n) * (1 + widened)
    needed += stored["c"] * output.itemsize + batch * m * n * (output.itemsize + 2 * widened)
    refuse_too_large(needed, "matrices")
    seed = hashlib.blake2b(repr((m, n, k, batch, layout)).encode(), digest_size=8).digest()
    rng = np.random.default_rng(int.from_bytes(seed, "little"))
    bound = LARGEST_VALUES[name] if LARGEST_VALUES[name] ** 2 * k < EXACT[name] else 1

    def drawn(shape: tuple[int, ...]) -> Array:
        return rng.integers(-bound, min(bound, 127) + 1, shape, np.int8)

    def matrix(which: str) -> tuple[Array, Array]:
        whole = arena.operand((batch, rows[which], apart[which]), dtype)
        # Where a kernel reads what lies between the rows, its sums become nonsense.
        whole[..., row[which] :] = np.nan if dtype.kind == "f" else NAN_BF16 if name == "bf16" else 127
        values = drawn((batch, rows[which], row[which]))
        used = whole[..., : row[which]]
        used[...] = to_bf16(values.astype(np.float32)) if name == "bf16" else values
        numbers = used if exact == dtype else values.astype(exact)
        return whole, numbers if by_rows[which] else numbers.transpose(0, 2, 1)

    try:
        bytes_of = {"a": dtype.itemsize, "b": dtype.itemsize, "c": output.itemsize}
        sizes = {matrix: stored[matrix] * bytes_of[matrix] for matrix in stored}
        arena = Arena([sizes["a"], sizes["b"]], sizes["c"], [batch * m * n * output.itemsize, n * output.itemsize])
        (a, a_numbers), (b, b_numbers) = matrix("a"), matrix("b")
        whole_c = arena.result((batch, m, apart["c"]), output)
        sums = np.matmul(a_numbers, b_numbers)
        bias = drawn((n,)).astype(exact) if problem.get("bias") else None
        wanted = finished(sums, bias, problem.get("activation"))
        made = Inputs(
            a,
            b,
            whole_c[..., :n],
            arena.keep(to_bf16(wanted.astype(np.float32, copy=False)) if name == "bf16" else wanted.astype(output, copy=False)),
            arena,
            None if bias is None else arena.keep(to_bf16(bias) if name == "bf16" else bias.astype(output)),
            whole_c[..., n:] if apart["c"] > n else None,
            0.0 if problem.get("activation") in (None, "relu") else SMOOTH_ROUNDING[name],
        )
        arena.seal()
        return made
    except (MemoryError, OSError) as error:
        raise OutOfMemory(f"the matrices need {needed / 1e9:.1f} GB: {error}") from error


def finished(sums: Array, bias: Array | None, activation: str | None) -> Array:
    """Sums after the epilogue; of a smooth activation, computed in fp64."""
    values = sums if bias is None else sums + bias
    if activation == "relu":
        return np.maximum(values, 0)
    if activation is None:
        return values
    # The sums are whole numbers, so few are different.
    whole, place = np.unique(values.astype(np.float64), return_inverse=True)
    if activation == "silu":
        smooth = whole / (1 + np.exp(np.minimum(-whole, 700.0)))
    else:
        smooth = np.array([0.5 * x * math.erfc(-x * math.sqrt(0.5)) for x in whole.tolist()])
    found: Array = smooth[place].reshape(values.shape)
    return found


class InputCache:
    """The inputs of the problems used last, bounded by bytes; what a prepared kernel holds stays alive anyway."""

    def __init__(self, limit: int = CACHED_BYTES) -> None:
        self.limit = limit
        self._kept: OrderedDict[tuple[Any, ...], Inputs] = OrderedDict()

    def get(self, problem: Mapping[str, Any]) -> Inputs:
        """The inputs of a problem; the number of threads makes no difference."""
        key = tuple(value for name, value in problem.items() if name != "threads")
        if key not in self._kept:
            self._kept[key] = make(problem)
        self._kept.move_to_end(key)
        while len(self._kept) > 1 and sum(item.nbytes for item in self._kept.values()) > self.limit:
            self._kept.popitem(last=False)
        return self._kept[key]
