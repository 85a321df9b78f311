"""A product as PyTorch calls it → the parameters of op gemm: sizes, storage order, leading dimensions, type."""

from __future__ import annotations

from kerncast.core import dtypes
from kerncast.core.op import Problem
from kerncast.core.parameters import Value
from kerncast.errors import InvalidValue
from kerncast.library.ops.gemm import gemm
from kerncast.torch.shape_tracing import Call, Matrix

# Whether A and B are stored by rows → the letters of gemm's layout. C always is.
LAYOUTS = {(True, False): "rcr", (True, True): "rrr", (False, True): "crr", (False, False): "ccr"}


def problem_of(call: Call) -> dict[str, Value] | str:
    """The problem of a call; a sentence where gemm has no such problem."""
    (*batch, m, k), n = call.a.size, call.b.size[-1]
    if 0 in (*batch, m, n, k):
        return "an empty product"
    dtype = dtypes.named(call.a.dtype)
    if call.a.dtype != call.b.dtype or dtype is None or gemm.problem.parameters["dtype"].index(dtype) is None:
        return f"gemm has no dtype {' × '.join(dict.fromkeys((call.a.dtype, call.b.dtype)))}"
    (a_rows, lda), (b_rows, ldb) = storage(call.a), storage(call.b)
    sizes: dict[str, Value] = {"M": m, "N": n, "K": k, "batch": batch[0] if batch else 1}
    given = {"lda": lda, "ldb": ldb, "bias": call.bias or None}
    values = {**sizes, "dtype": dtype, "layout": LAYOUTS[a_rows, b_rows]}
    values |= {name: value for name, value in given.items() if value is not None}
    try:
        Problem(gemm, values)
    except InvalidValue as error:
        return str(error)
    return values


def storage(matrix: Matrix) -> tuple[bool, int | None]:
    """Whether a matrix is stored by rows, and its leading dimension if it has gaps.

    A matrix whose elements are not adjacent in either direction, or whose rows overlap, is copied before any kernel can read
    it: it counts as packed by rows.
    """
    (rows, columns), (down, along) = matrix.size[-2:], matrix.stride[-2:]
    # A side of one element has no stride that matters; what the strides say comes first (Linear's weights are by columns).
    if along == 1 or (columns == 1 and down != 1):
        return _leading(True, rows, columns, down)
    if down == 1 or rows == 1:
        return _leading(False, columns, rows, along)
    return True, None


def _leading(by_rows: bool, lines: int, length: int, apart: int) -> tuple[bool, int | None]:
    """`lines` rows (or columns) of `length` elements, `apart` elements from one to the next."""
    if lines == 1 or apart == length:
        return by_rows, None
    return (by_rows, apart) if apart > length else (True, None)
