"""Products of a caller's own arrays: which problem two arrays make, and a plan that is pointed at them in each call.

The driver takes operands stored by rows or by columns with any distance between these, so slices and transposes
are used in place; other arrays are copied. C is written by rows, into `out` wherever its rows are. A third array is a bias,
and `activation=` is applied after it.
"""

from __future__ import annotations

import ctypes
import math
import os
import threading
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np

from kerncast.core.arrays import Array
from kerncast.errors import InvalidValue
from kerncast.library.ops.gemm import gemm
from kerncast.measuring.backends.contract import Bound, Call
from kerncast.measuring.backends.cpu.gemm.plan import CProductPlan
from kerncast.measuring.backends.cpu.inputs import NUMPY_TYPES, OUTPUT_TYPES

# numpy has no bf16, so no array can mean it for certain.
TYPES = {np.dtype(NUMPY_TYPES[name]): name for name in ("fp32", "fp64", "int8")}
KNOWN = ", ".join(str(dtype) for dtype in TYPES)


@dataclass(frozen=True)
class StoredMatrix:
    """How one matrix (of each product of a batch) is stored; distances in elements."""

    order: str
    """`r` by rows, `c` by columns."""
    stride: int
    """From one row (column) to the next."""
    batch_stride: int
    extent_bytes: int
    """From the first byte to the last; 0 when it is copied."""
    copied: bool = False

    @classmethod
    def of(cls, array: Array, along: int) -> StoredMatrix:
        """The storage of an array; `along` is the axis of K, along which a vector must have no gaps."""
        size = array.itemsize
        rows, columns = array.shape[-2:]
        steps = [step // size for step in array.strides]
        by_batch = steps[0] if array.ndim == 3 and array.shape[0] > 1 else 0
        usable = array.flags.aligned and by_batch >= 0 and not any(step % size for step in array.strides)
        extent = array.itemsize * (1 + sum((count - 1) * step for count, step in zip(array.shape, steps, strict=True)))
        row, column = steps[-2:]
        # A vector is one row or one column as the kernels see it, whatever the array calls it.
        if usable and array.shape[-2 if along == -1 else -1] == 1:
            if array.shape[along] == 1 or steps[along] == 1:
                return cls("r", array.shape[along], by_batch, extent)
        elif usable and (columns == 1 or column == 1) and (rows == 1 or row >= columns):
            return cls("r", row if rows > 1 else columns, by_batch, extent)
        elif usable and (rows == 1 or row == 1) and (columns == 1 or column >= rows):
            return cls("c", column if columns > 1 else rows, by_batch, extent)
        return cls("r", columns, rows * columns if array.ndim == 3 and array.shape[0] > 1 else 0, 0, copied=True)


@dataclass(frozen=True)
class MatrixProduct(Call):
    """`a @ b` of two matrices, or of as many pairs of them as a third axis has, broadcast as numpy does."""

    m: int
    n: int
    k: int
    batch: int
    dtype: str
    shape: tuple[int, ...]
    a: StoredMatrix
    b: StoredMatrix
    bias: bool = False
    activation: str | None = None

    @staticmethod
    def signature(*arrays: Array, **attributes: Hashable) -> Hashable:
        a, b, *more = arrays
        kinds: Hashable = type(a), type(b)
        if more or attributes:
            kinds = kinds, *((type(x), x.shape, x.dtype) for x in more), *attributes.items()
        return a.shape, b.shape, a.strides, b.strides, a.dtype, b.dtype, a.flags.aligned, b.flags.aligned, kinds

    @classmethod
    def of(cls, *arrays: Array, **attributes: Hashable) -> Self:
        a, b, bias = _checked(arrays, attributes)
        activation = attributes.get("activation")
        batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        shape = (*batch, a.shape[-2], b.shape[-1])
        if b.ndim == 2:
            a = _merged(a)
        m, k = a.shape[-2:]
        count = batch[0] if batch and (a.ndim == 3 or b.ndim == 3) else 1
        assert activation is None or isinstance(activation, str)
        stored = StoredMatrix.of(a, -1), StoredMatrix.of(b, -2)
        return cls(m, b.shape[-1], k, count, TYPES[a.dtype], shape, *stored, bias is not None, activation)

    @property
    def values(self) -> Mapping[str, int | bool | str]:
        layout = f"{self.a.order}{self.b.order}r"
        found: dict[str, int | bool | str] = {
            "M": self.m, "N": self.n, "K": self.k, "batch": self.batch, "dtype": self.dtype, "layout": layout,
            "lda": self._apart(self.a, self.m, self.k), "ldb": self._apart(self.b, self.k, self.n),
        }  # fmt: skip
        if self.bias:
            found["bias"] = True
        return found if self.activation is None else {**found, "activation": self.activation}

    @staticmethod
    def _apart(operand: StoredMatrix, rows: int, columns: int) -> int:
        """The leading dimension; 0 (packed) where there is only one row or column."""
        return 0 if 1 in (rows, columns) else operand.stride

    def without_kernel(self) -> Bound | None:
        if all((self.m, self.n, self.k, self.batch)):
            return None
        if self.n and (self.bias or self.activation) and math.prod(self.shape):
            raise InvalidValue("a product over K = 0 has no sums to add a bias to or to apply an activation to: do without")
        return Nothing(self.shape, self.dtype)


def _merged(a: Array) -> Array:
    """The rows of all matrices of a batch as one matrix, where they follow each other at equal distances.

    Only its shape and strides are used; it begins where `a` does.
    """
    if a.ndim == 2 or not a.size:
        return a
    count, m, k = a.shape
    if m > 1 and count > 1 and a.strides[0] != m * a.strides[1]:
        return a
    step = a.strides[0] if m == 1 else a.strides[1]
    return np.lib.stride_tricks.as_strided(a, (count * m, k), (step, a.strides[2]), writeable=False)


ACTIVATION = gemm.parameters["activation"]


def _checked(arrays: tuple[Array, ...], attributes: Mapping[str, Hashable]) -> tuple[Array, Array, Array | None]:
    """The two operands, if they are matrices that can be multiplied, and the bias."""
    if len(arrays) not in (2, 3) or set(attributes) - {"activation"}:
        given = ", ".join([f"{len(arrays)} arrays", *attributes])
        raise InvalidValue(
            f"a product takes two arrays, a third as its bias, and activation=, got {given}: call run(a, b), "
            'run(a, b, bias, activation="relu") or run(a, b, out=c)'
        )
    a, b, *more = arrays
    if "activation" in attributes and ACTIVATION.index(attributes["activation"]) is None:
        raise InvalidValue(f"activation must be {ACTIVATION.describe()}, got {attributes['activation']!r}")
    for name, array in (("a", a), ("b", b)):
        check_array(name, array)
        if array.ndim not in (2, 3):
            raise InvalidValue(
                f"{name} must have 2 axes, or 3 for a batch of matrices, got shape {array.shape}: reshape it "
                f"(a vector is {name}[None, :] or {name}[:, None])"
            )
        if array.dtype not in TYPES:
            raise InvalidValue(f"{name} must be of type {KNOWN}, got {array.dtype}: convert it with {name}.astype(…)")
    if a.dtype != b.dtype:
        raise InvalidValue(f"a and b must be of one type, got {a.dtype} and {b.dtype}: convert one with astype")
    if a.shape[-1] != b.shape[-2]:
        raise InvalidValue(
            f"a must have as many columns as b has rows, got shapes {a.shape} and {b.shape}: transpose or reshape one"
        )
    if a.ndim == b.ndim == 3 and 1 not in (a.shape[0], b.shape[0]) and a.shape[0] != b.shape[0]:
        raise InvalidValue(
            f"a and b must hold equally many matrices (or one), got shapes {a.shape} and {b.shape}: "
            "give as many of each, or one for all"
        )
    for bias in more:
        check_array("the bias", bias)
        kind = np.dtype(OUTPUT_TYPES[TYPES[a.dtype]])
        if bias.shape != b.shape[-1:] or bias.dtype != kind:
            raise InvalidValue(
                f"the bias must be {kind} of shape {b.shape[-1:]}, one element for each column of b, got {bias.dtype} of "
                f"shape {bias.shape}: convert or reshape it"
            )
        return a, b, bias
    return a, b, None


def check_array(name: str, array: object) -> None:
    """Refuse what is not a plain numpy array."""
    if type(array) is np.ndarray:
        return
    # Masked arrays and matrices mean something else by their elements or their products.
    if not isinstance(array, np.ndarray) or isinstance(array, np.ma.MaskedArray | np.matrix):
        raise InvalidValue(f"{name} must be a plain numpy array, got {type(array).__name__}: convert it with numpy.asarray")


def _head_bytes() -> int | None:
    """The offset of the data address in an array object, after the head of every Python object; None if not there."""
    probe = np.empty(8)
    size = object.__basicsize__
    found = ctypes.c_void_p.from_address(id(probe) + size).value
    return size if found == probe.ctypes.data and found == probe.__array_interface__["data"][0] else None


def _quick_address(array: Array) -> int:
    return _word_at(id(array) + _HEAD).value


def _plain_address(array: Array) -> int:
    return int(array.ctypes.data)


# A call needs three addresses. `array.ctypes` makes several objects and takes five times as long as reading the address
# at its place in numpy's ABI. If the address is not there, `array.ctypes` is used.
_word_at = ctypes.c_size_t.from_address
_HEAD = _head_bytes() or 0
address: Callable[[Array], int] = _quick_address if _HEAD else _plain_address


class IntoOut(Bound):
    """The base of all bound kernels: where the result goes."""

    def __init__(self, shape: tuple[int, ...], dtype: str) -> None:
        self.shape, self.dtype = shape, np.dtype(OUTPUT_TYPES[dtype])

    def check_out(self, out: Array) -> None:
        """Refuse what cannot take the result."""
        check_array("out", out)
        if out.shape != self.shape or out.dtype != self.dtype:
            raise InvalidValue(
                f"out must be {self.dtype} of shape {self.shape}, got {out.dtype} of shape {out.shape}: "
                "change it, or leave it out"
            )
        if not out.flags.writeable:
            raise InvalidValue("out must be writeable, got a read-only array: copy it, or leave it out")


class Nothing(IntoOut):
    """A result without elements, or of sums without terms: zeros, as in numpy."""

    def __call__(self, *arrays: Array, out: Array | None = None) -> Array:
        if out is None:
            return np.zeros(self.shape, self.dtype)
        self.check_out(out)
        out[...] = 0
        return out


class BoundProduct(IntoOut):
    """One plan, pointed at the arrays of each call. Calls from several threads take turns, as in the driver itself."""

    def __init__(
        self, product: MatrixProduct, plan: CProductPlan, swapped: bool, launch: Callable[..., int], reserve: Callable[[], None]
    ) -> None:
        super().__init__(product.shape, product.dtype)
        self.product = product
        # The driver computes a product with one column as its transpose: then A is its right operand.
        self._a, self._b = (plan.b, plan.a) if swapped else (plan.a, plan.b)
        for home, operand in ((self._a, product.a), (self._b, product.b)):
            home.stride, home.batch_stride = operand.stride, operand.batch_stride
        self._plan, self._place = plan, ctypes.byref(plan)
        self._swapped, self._c_strides = swapped, (plan.c_stride, plan.c_batch_stride)
        self._copies = product.a.copied or product.b.copied
        self._launch, self._reserve = launch, reserve
        self._lock = threading.Lock()
        self._process = os.getpid() if plan.threads > 1 else 0

    def __call__(self, *arrays: Array, out: Array | None = None) -> Array:
        a, b = arrays[:2]
        bias = np.ascontiguousarray(arrays[2]) if self.product.bias else None
        if self._copies:
            a = a.copy() if self.product.a.copied else a
            b = b.copy() if self.product.b.copied else b
        at_a, at_b = address(a), address(b)
        if out is not None:
            self.check_out(out)
        made, strides = np.empty(self.shape, self.dtype) if out is None else out, self._c_strides
        if out is not None:
            found = self._rows_of(out, at_a, at_b, bias)
            if found is None:
                made = np.empty(self.shape, self.dtype)
            else:
                strides = found
        with self._lock:
            if self._process and self._process != os.getpid():
                # Threads do not survive a fork: the child needs its own.
                self._reserve()
                self._process = os.getpid()
            self._a.base, self._b.base, self._plan.c = at_a, at_b, address(made)
            self._plan.c_stride, self._plan.c_batch_stride = strides
            if bias is not None:
                self._plan.after.bias = address(bias)
            self._launch(self._place, 1)
        if out is None or made is out:
            return made
        out[...] = made
        return out

    def _rows_of(self, out: Array, at_a: int, at_b: int, bias: Array | None) -> tuple[int, int] | None:
        """The strides of rows and of matrices, if the driver may write there: by rows, not overlapping what it reads."""
        flags = out.flags
        if flags.c_contiguous and flags.aligned:
            strides, end = self._c_strides, out.nbytes
        else:
            found = _row_strides(out, self.product, self._swapped)
            if found is None:
                return None
            strides, end = found
        begin, product = address(out), self.product
        end += begin
        if not (end <= at_a or at_a + product.a.extent_bytes <= begin):
            return None
        if not (end <= at_b or at_b + product.b.extent_bytes <= begin):
            return None
        return None if bias is not None and np.may_share_memory(bias, out) else strides


def _row_strides(out: Array, product: MatrixProduct, swapped: bool) -> tuple[tuple[int, int], int] | None:
    """The strides of rows and of matrices of an array with gaps between its rows, and its extent in bytes."""
    size = out.itemsize
    if swapped or not out.flags.aligned or any(step < 0 or step % size for step in out.strides):
        return None
    row, column = (step // size for step in out.strides[-2:])
    between = out.strides[0] // size if out.ndim == 3 else 0
    if (product.n > 1 and column != 1) or (out.shape[-2] > 1 and row < product.n):
        return None
    if out.ndim == 3 and product.batch == 1:  # the rows of all matrices are computed as one matrix's
        if out.shape[0] > 1 and out.shape[1] > 1 and between != out.shape[1] * row:
            return None
        row = row if out.shape[1] > 1 else between
        if product.m > 1 and row < product.n:
            return None
    elif product.batch > 1 and between < (out.shape[-2] - 1) * row + product.n:
        return None
    extent = size * (1 + sum((count - 1) * step // size for count, step in zip(out.shape, out.strides, strict=True)))
    return (row, between), extent
