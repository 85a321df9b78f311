"""Memory for the operands of one problem: in huge pages, read-only once it is filled, with guard pages around it."""

from __future__ import annotations

import contextlib
import ctypes
import math
import mmap
import sys
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from kerncast.core.arrays import Array

ALIGNMENT = 64
PAGE = 4096
HUGE_PAGE = 2 * 2**20
_NONE, _READ, _WRITE = 0, 1, 2


def _rounded(size: int, unit: int) -> int:
    return -(-size // unit) * unit


def _room(sizes: Sequence[int]) -> int:
    # A cache line more between neighbours, so that equal sizes do not begin in the same cache set.
    return sum(_rounded(size, PAGE) + ALIGNMENT for size in sizes)


class Arena:
    """Room for operands, then, behind a guard, for the result.

    Huge pages: with small ones the physical addresses, and with them the conflicts in the L2 cache, differ in every process.
    Times of one kernel then differ by several per cent from run to run, however long it is timed.

    Guards: every kernel of a problem shares its operands. One that writes where it must not would make the results of all
    others wrong, so it is stopped by the memory itself.
    """

    def __init__(self, operands: Sequence[int], result: int, kept: Sequence[int] = ()) -> None:
        """Sizes in bytes; `kept` is for what only the check reads."""
        # The result begins where it would behind the operands: what shares a cache set does not depend on the guard.
        offset = _room(operands) % HUGE_PAGE
        front = _rounded(_room(operands) + _room(kept), HUGE_PAGE)
        back = _rounded(offset + result, HUGE_PAGE)
        memory = mmap.mmap(-1, front + back + 4 * HUGE_PAGE)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            with contextlib.suppress(OSError):  # a kernel without huge pages
                memory.madvise(mmap.MADV_HUGEPAGE)
        self._bytes = np.frombuffer(memory, np.uint8)
        base = self._bytes.ctypes.data
        start = _rounded(base + PAGE, HUGE_PAGE) - base
        behind = start + front + HUGE_PAGE
        self._front = start, front
        self._used, self._result = start, behind + offset
        for at, size in ((start - PAGE, PAGE), (start + front, HUGE_PAGE), (behind + back, HUGE_PAGE)):
            self._protect(at, size, _NONE)
        self.nbytes = front + back
        self._operands: list[Array] = []

    def operand(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
        """The next operand, to be filled before `seal`; it begins at a cache line."""
        found = self._view(self._used, shape, dtype)
        self._used += _room([found.nbytes])
        self._operands.append(found)
        return found

    def keep(self, values: Array) -> Array:
        """A copy of something that only the check reads."""
        copy = self.operand(values.shape, values.dtype)
        copy[...] = values
        return copy

    def result(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
        """What kernels write to."""
        return self._view(self._result, shape, dtype)

    def seal(self) -> None:
        """From now on, a kernel that writes to an operand ends the process, and Python refuses to."""
        self._protect(*self._front, _READ)
        for operand in self._operands:
            operand.flags.writeable = False

    @contextlib.contextmanager
    def filling(self) -> Iterator[None]:
        """Give the operands other values; they are sealed again at the end."""
        self._protect(*self._front, _READ | _WRITE)
        for operand in self._operands:
            operand.flags.writeable = True
        try:
            yield
        finally:
            self.seal()

    def _view(self, at: int, shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
        count = math.prod(shape) * np.dtype(dtype).itemsize
        return self._bytes[at : at + count].view(dtype).reshape(shape)

    def _protect(self, at: int, size: int, access: int) -> None:
        if sys.platform != "win32":
            libc = ctypes.CDLL(None)
            libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
            libc.mprotect(self._bytes.ctypes.data + at, size, access)  # where it fails, nothing is guarded
