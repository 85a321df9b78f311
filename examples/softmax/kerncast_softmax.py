"""Softmax over the rows of a matrix, computed by numpy a few rows at a time.

An op declares what is computed and its minimum work. A family declares the variants and how they differ.
Everything else (datasets, inspection, training, serving) follows from these two.
"""

from collections.abc import Iterable, Mapping

from kerncast.core.dtypes import bytes_per_element, dtype_parameter
from kerncast.core.expr import Expr, Namespace, ceil_div, log2
from kerncast.core.op import Family, Op, Work
from kerncast.core.space import Bool, Constraint, Int, PowerOfTwo


class Softmax(Op):
    name = "softmax"
    doc = "softmax over each row of a matrix"
    parameters = {
        "rows": Int(1, 2**24),
        "columns": Int(1, 2**24, doc="length of one softmax"),
        "dtype": dtype_parameter("fp64", "fp32"),
    }
    # A shape in another dtype is nearly the same problem: keep both on one side of a split.
    split_group = ("rows", "columns")

    def derive(self, p: Namespace) -> Mapping[str, Expr]:
        return {"elements": p.rows * p.columns}

    def work(self, p: Namespace) -> Work:
        # maximum, subtract, exp, sum, divide: five operations per element; one read and one write.
        return Work(flops=5 * p.elements, bytes=2 * p.elements * bytes_per_element(p.dtype))

    def features(self, p: Namespace, hw: Namespace) -> Mapping[str, Expr]:
        return {
            "log2_rows": log2(p.rows),
            "log2_columns": log2(p.columns),
            "log2_bytes": log2(self.work(p).bytes),
            "dtype": p.dtype,
        }


softmax = Softmax()


class SoftmaxNumpy(Family):
    id = "softmax/numpy"
    doc = "numpy, `chunk` rows at a time"
    op = softmax
    parameters = {
        "chunk": PowerOfTwo(1, 4096, doc="rows computed together"),
        "in_place": Bool(doc="reuse one buffer for the temporaries"),
    }

    def constraints(self, p: Namespace, c: Namespace, hw: Namespace) -> Iterable[Constraint]:
        yield Constraint("chunk_fits", "a chunk has no more rows than the matrix", c.chunk <= p.rows)

    def features(self, p: Namespace, c: Namespace, hw: Namespace) -> Mapping[str, Expr]:
        chunk_bytes = c.chunk * p.columns * bytes_per_element(p.dtype)
        return {
            "chunk": c.chunk,
            "in_place": c.in_place,
            "calls": ceil_div(p.rows, c.chunk),
            "chunk_bytes": chunk_bytes,
            # Left out, and reported, if the device's cache size is unknown.
            "chunk_in_l2": chunk_bytes / (hw.l2_cache_kb * 1024),
        }


softmax_numpy = SoftmaxNumpy()
