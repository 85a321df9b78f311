"""Operands of one problem and the exact result: small integers, so that every sum is exact and the check is bit for bit.

They lie in huge pages, read-only once they are filled, with guard pages around them.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import mmap
import sys
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from kerncast.core.arrays import Array
from kerncast.measuring.backends.contract import OutOfMemory
from kerncast.measuring.backends.environment import available_bytes

ALIGNMENT = 64
PAGE = 4096
HUGE_PAGE = 2 * 2**20
_NONE, _READ, _WRITE = 0, 1, 2
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
CACHED_BYTES = 512 * 2**20
MEMORY_SHARE = 0.8


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


@contextlib.contextmanager
def memory_for(needed: int, what: str) -> Iterator[None]:
    """Make operands, unless they would take most of the memory that is free."""
    free = available_bytes()
    if free is not None and needed > MEMORY_SHARE * free:
        raise OutOfMemory(f"the {what} need {needed / 1e9:.1f} GB, more than {MEMORY_SHARE:.0%} of the memory that is free")
    try:
        yield
    except (MemoryError, OSError) as error:
        raise OutOfMemory(f"the {what} need {needed / 1e9:.1f} GB: {error}") from error


def largest_value(dtype: str, summed: int) -> int:
    """The largest number in the operands of sums of so many products, so that all of them are exact."""
    return LARGEST_VALUES[dtype] if LARGEST_VALUES[dtype] ** 2 * summed < EXACT[dtype] else 1


class _Sized(Protocol):
    @property
    def nbytes(self) -> int: ...


T = TypeVar("T", bound=_Sized)


class InputCache(Generic[T]):
    """The operands of the problems used last, bounded by bytes; what a prepared kernel holds stays alive anyway."""

    def __init__(self, make: Callable[..., T], limit: int = CACHED_BYTES) -> None:
        self.make, self.limit = make, limit
        self._kept: OrderedDict[Hashable, T] = OrderedDict()

    def get(self, problem: Mapping[str, Any], *more: Hashable) -> T:
        """The operands of a problem; the number of threads makes no difference."""
        key = (*more, *(value for name, value in problem.items() if name != "threads"))
        if key not in self._kept:
            self._kept[key] = self.make(problem, *more)
        self._kept.move_to_end(key)
        while len(self._kept) > 1 and sum(item.nbytes for item in self._kept.values()) > self.limit:
            self._kept.popitem(last=False)
        return self._kept[key]
