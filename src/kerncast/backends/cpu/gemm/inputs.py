"""Matrices to multiply, and what must come out: small integers, so that every sum is exact and the check is bit for bit."""

from __future__ import annotations

import contextlib
import hashlib
import math
import mmap
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kerncast.arrays import Array
from kerncast.backends.contract import OutOfMemory

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
ALIGNMENT = 64
PAGE = 4096
HUGE_PAGE = 2 * 2**20
CACHED_BYTES = 512 * 2**20
MEMORY_SHARE = 0.8


@dataclass(frozen=True)
class Inputs:
    """The buffers of one problem, shared by every kernel prepared for it."""

    a: Array
    b: Array
    c: Array
    reference: Array

    @property
    def pointers(self) -> tuple[int, int, int]:
        """Where A, B and C begin."""
        return self.a.ctypes.data, self.b.ctypes.data, self.c.ctypes.data

    @property
    def nbytes(self) -> int:
        """Their size in memory."""
        return self.a.nbytes + self.b.nbytes + self.c.nbytes + self.reference.nbytes

    def poison(self) -> None:
        """Fill C with a value that no product has."""
        self.c.fill({"i": LEAST_INT32, "u": NAN_BF16, "f": np.nan}[self.c.dtype.kind])

    def error(self) -> float:
        """The largest absolute difference of C from what it must be; infinite where nothing was written."""
        if np.array_equal(self.c, self.reference):
            return 0.0
        found, wanted = as_float(self.c), as_float(self.reference)
        difference = float(np.max(np.abs(found - wanted)))
        return difference if math.isfinite(difference) else math.inf


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


class Arena:
    """Room for the matrices of one problem in huge pages.

    With small pages the physical addresses, and with them the conflicts in the L2 cache, differ in every
    process: times of one kernel then differ by several per cent from run to run, however long it is timed.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        # A cache line more between neighbours, so that equal sizes do not begin in the same cache set.
        room = sum(-(-size // PAGE) * PAGE + ALIGNMENT for size in sizes)
        memory = mmap.mmap(-1, -(-room // HUGE_PAGE) * HUGE_PAGE + HUGE_PAGE)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            with contextlib.suppress(OSError):  # a kernel without huge pages
                memory.madvise(mmap.MADV_HUGEPAGE)
        self.bytes = np.frombuffer(memory, np.uint8)
        self.used = -self.bytes.ctypes.data % HUGE_PAGE

    def take(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
        """The next matrix; it begins at a cache line."""
        count = math.prod(shape) * np.dtype(dtype).itemsize
        found = self.bytes[self.used : self.used + count].view(dtype).reshape(shape)
        self.used += -(-count // PAGE) * PAGE + ALIGNMENT
        return found


def available_bytes() -> float:
    """Memory that is free, as the kernel counts it; infinite if it does not say."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return math.inf


def make(problem: Mapping[str, Any]) -> Inputs:
    """The inputs of a problem: always the same for the same problem."""
    m, n, k, batch, layout = (problem[name] for name in ("M", "N", "K", "batch", "layout"))
    name = problem["dtype"]
    dtype, output, exact = (np.dtype(types[name]) for types in (NUMPY_TYPES, OUTPUT_TYPES, EXACT_TYPES))
    # While they are made, one more copy of the inputs as whole numbers, and for narrow types one to multiply.
    widened = 0 if exact == dtype else exact.itemsize
    needed = batch * ((m * k + k * n) * (dtype.itemsize + 1 + widened) + m * n * (2 * output.itemsize + 2 * widened))
    if needed > MEMORY_SHARE * available_bytes():
        raise OutOfMemory(f"the matrices need {needed / 1e9:.1f} GB, more than {MEMORY_SHARE:.0%} of the memory that is free")
    seed = hashlib.blake2b(repr((m, n, k, batch, layout)).encode(), digest_size=8).digest()
    rng = np.random.default_rng(int.from_bytes(seed, "little"))
    bound = LARGEST_VALUES[name] if LARGEST_VALUES[name] ** 2 * k < EXACT[name] else 1

    def matrix(rows: int, columns: int, row_major: bool) -> tuple[Array, Array]:
        stored = arena.take((batch, rows, columns) if row_major else (batch, columns, rows), dtype)
        drawn = rng.integers(-bound, min(bound, 127) + 1, stored.shape, np.int8)
        stored[...] = to_bf16(drawn.astype(np.float32)) if name == "bf16" else drawn
        numbers = stored if exact == dtype else drawn.astype(exact)
        return stored, numbers if row_major else numbers.transpose(0, 2, 1)

    try:
        arena = Arena([batch * size for size in (m * k * dtype.itemsize, k * n * dtype.itemsize, m * n * output.itemsize)])
        a, a_numbers = matrix(m, k, layout[0] == "r")
        b, b_numbers = matrix(k, n, layout[1] == "r")
        c = arena.take((batch, m, n), output)
        product = np.matmul(a_numbers, b_numbers)
        return Inputs(a, b, c, to_bf16(product) if name == "bf16" else product.astype(output, copy=False))
    except (MemoryError, OSError) as error:
        raise OutOfMemory(f"the matrices need {needed / 1e9:.1f} GB: {error}") from error


class InputCache:
    """The inputs of the problems used last, bounded by bytes; what a prepared kernel holds stays alive anyway."""

    def __init__(self, limit: int = CACHED_BYTES) -> None:
        self.limit = limit
        self._kept: OrderedDict[tuple[Any, ...], Inputs] = OrderedDict()

    def get(self, problem: Mapping[str, Any]) -> Inputs:
        """The inputs of a problem; the number of threads makes no difference."""
        key = tuple(problem[name] for name in ("M", "N", "K", "batch", "layout", "dtype"))
        if key not in self._kept:
            self._kept[key] = make(problem)
        self._kept.move_to_end(key)
        while len(self._kept) > 1 and sum(item.nbytes for item in self._kept.values()) > self.limit:
            self._kept.popitem(last=False)
        return self._kept[key]
