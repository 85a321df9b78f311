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

from kerncast.backends.contract import OutOfMemory

Array = npt.NDArray[Any]
NUMPY_TYPES = {"fp32": np.float32, "fp64": np.float64}
# fp32 counts exactly up to 2^24.
EXACT = 2**24
LARGEST_VALUE = 3
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
        """What they take in memory."""
        return self.a.nbytes + self.b.nbytes + self.c.nbytes + self.reference.nbytes

    def error(self) -> float:
        """The largest absolute difference of C from what it must be; infinite where nothing was written."""
        if np.array_equal(self.c, self.reference):
            return 0.0
        difference = float(np.max(np.abs(self.c - self.reference)))
        return difference if math.isfinite(difference) else math.inf


class _Arena:
    """Room for the matrices of one problem in huge pages.

    With small pages the physical addresses, and with them the conflicts in the L2 cache, are another draw in every
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


def _available_bytes() -> float:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return math.inf


def make(problem: Mapping[str, Any]) -> Inputs:
    """The inputs of a problem: always the same for the same problem."""
    m, n, k, batch, layout = (problem[name] for name in ("M", "N", "K", "batch", "layout"))
    dtype = np.dtype(NUMPY_TYPES[problem["dtype"]])
    # One more copy of the inputs as whole numbers while they are drawn.
    needed = batch * ((m * k + k * n) * (dtype.itemsize + 1) + 2 * m * n * dtype.itemsize)
    if needed > MEMORY_SHARE * _available_bytes():
        raise OutOfMemory(f"the matrices need {needed / 1e9:.1f} GB, more than {MEMORY_SHARE:.0%} of the memory that is free")
    seed = hashlib.blake2b(repr((m, n, k, batch, layout)).encode(), digest_size=8).digest()
    rng = np.random.default_rng(int.from_bytes(seed, "little"))
    bound = LARGEST_VALUE if LARGEST_VALUE**2 * k < EXACT else 1

    def matrix(rows: int, columns: int, row_major: bool) -> tuple[Array, Array]:
        stored = arena.take((batch, rows, columns) if row_major else (batch, columns, rows), dtype)
        stored[...] = rng.integers(-bound, bound + 1, stored.shape, np.int8)
        return stored, stored if row_major else stored.transpose(0, 2, 1)

    try:
        arena = _Arena([batch * size * dtype.itemsize for size in (m * k, k * n, m * n)])
        a, a_view = matrix(m, k, layout[0] == "r")
        b, b_view = matrix(k, n, layout[1] == "r")
        c = arena.take((batch, m, n), dtype)
        return Inputs(a, b, c, np.matmul(a_view, b_view))
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
