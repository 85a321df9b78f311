"""Matrix multiplication: C[M, N] = A[M, K] · B[K, N], `batch` times; with an epilogue, activation(C + bias).

`lda`, `ldb` and `ldc` are the leading dimensions: how many elements lie between the beginnings of neighbouring rows (of a
matrix stored by columns: columns). A matrix without gaps is packed. Its leading dimension is then left out: it follows from
the sizes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kerncast.core.dtypes import bytes_per_element, dtype_parameter
from kerncast.core.expr import Expr, Namespace, log2, maximum, mod, power_of_two_in, values_of, where
from kerncast.core.op import Op, Work
from kerncast.core.parameters import Bool, Categorical, Computed, Int
from kerncast.core.space import Constraint


def a_by_rows(p: Namespace) -> Expr:
    """Whether A is stored by rows: contiguous along K."""
    return (p.layout == "rcr") | (p.layout == "rrr")


def b_by_rows(p: Namespace) -> Expr:
    """Whether B is stored by rows: contiguous along N."""
    return (p.layout == "rrr") | (p.layout == "crr")


def packed_a(p: Namespace) -> Expr:
    """The leading dimension of a packed A."""
    return where(a_by_rows(p), p.K, p.M)


def packed_b(p: Namespace) -> Expr:
    """The leading dimension of a packed B."""
    return where(b_by_rows(p), p.N, p.K)


def packed_c(p: Namespace) -> Expr:
    """The leading dimension of a packed C, which is always stored by rows."""
    return 1 * p.N


PACKED = {"lda": packed_a, "ldb": packed_b, "ldc": packed_c}
MATRIX = {"lda": "A", "ldb": "B", "ldc": "C"}
# Loads and cache lines care for no larger power of two.
LARGEST_ALIGNMENT = 128


def _leading(name: str) -> Int:
    apart = "rows of C" if name == "ldc" else f"rows (by columns: columns) of {MATRIX[name]}"
    return Int(0, 2**31 - 1, usual=Computed("packed", PACKED[name]), doc=f"elements from one to the next of the {apart}")


def packed_only(p: Namespace, family: str) -> Constraint:
    """For kernels that take matrices without gaps."""
    held = (p.lda == 0) & (p.ldb == 0) & (p.ldc == 0)
    return Constraint("packed", f"{family} takes packed matrices: leave out lda, ldb and ldc, or copy what has gaps", held)


def no_epilogue(p: Namespace, family: str) -> Constraint:
    """For kernels that compute the product alone."""
    alone = (p.bias == 0) & (p.activation == "none")
    return Constraint("epilogue", f"{family} computes the product alone: leave out bias and activation", alone)


class Gemm(Op):
    name = "gemm"
    doc = "matrix multiplication C[M, N] = A[M, K] · B[K, N]"
    parameters = {
        "M": Int(1, 2**31 - 1, doc="rows of A and C"),
        "N": Int(1, 2**31 - 1, doc="columns of B and C"),
        "K": Int(1, 2**31 - 1, doc="columns of A, rows of B"),
        "split_k": Int(1, 1024, default=1, doc="parts that K is split into, computed separately and summed"),
        "batch": Int(1, 2**24, default=1, doc="independent products of the same shape"),
        "dtype": dtype_parameter(
            "fp64", "fp32", "fp16", "bf16", "fp8", "bf8", "int8", "int4", "fp8_block", "nvfp4", doc="element type of A and B"
        ),
        # One letter per matrix A, B, C: r row-major, c column-major. Codes as in CK Tile's heuristics.
        "layout": Categorical({"rcr": 0, "rrr": 1, "crr": 2, "ccr": 3}, doc="storage order of A, B and C"),
        "lda": _leading("lda"),
        "ldb": _leading("ldb"),
        "ldc": _leading("ldc"),
        "bias": Bool(usual=False, doc="a vector of N elements is added to every row of C"),
        "activation": Categorical(
            {"none": 0, "relu": 1, "gelu": 2, "silu": 3}, usual="none", doc="applied to every element of C, after the bias"
        ),
    }
    # The names of PyTorch's operators. `linear` may have a bias or not, so only addmm implies one.
    aliases = {"addmm": {"bias": True}, "bmm": {}, "linear": {}}
    split_group = ("M", "N", "K", "batch")
    splits = {"nk": ("N", "K")}
    line_group = ("split_k", "dtype", "layout")
    bands = {
        "M": (("tiny (to 16)", 16), ("small (to 128)", 128), ("medium (to 1,024)", 1024), ("large", float("inf"))),
        "K": (("shallow (to 512)", 512), ("medium (to 4,096)", 4096), ("deep", float("inf"))),
    }

    def constraints(self, p: Namespace) -> Iterable[Constraint]:
        for name, packed in PACKED.items():
            given = getattr(p, name)
            least = "N" if name == "ldc" else "the length of a stored row or column"
            yield Constraint(f"least_{name}", f"{name} must be at least that of a packed {MATRIX[name]}, {least}",
                             (given == 0) | (given >= packed(p)))  # fmt: skip

    def derive(self, p: Namespace) -> Mapping[str, Expr]:
        return {"element_bytes": bytes_per_element(p.dtype)}

    def work(self, p: Namespace) -> Work:
        return Work(
            flops=2 * p.batch * p.M * p.N * p.K,
            bytes=p.batch * (p.M * p.K + p.K * p.N + p.M * p.N) * p.element_bytes,
        )

    def features(self, p: Namespace, hw: Namespace) -> Mapping[str, Expr]:
        work = self.work(p)
        roofline = work.roofline_ns(hw)
        return {
            # The thirteen problem features of CK Tile's heuristics, under their own names.
            **values_of(p, "M", "N", "K", "split_k"),
            "log2_M": log2(maximum(p.M, 1)),
            "log2_N": log2(maximum(p.N, 1)),
            "log2_K": log2(maximum(p.K, 1)),
            "log2_MNK": log2(maximum(p.M * p.N * p.K, 1)),
            "arithmetic_intensity": work.flops / work.bytes,
            "aspect_ratio_mn": p.M / p.N,
            "aspect_ratio_mk": p.M / p.K,
            "aspect_ratio_nk": p.N / p.K,
            "layout": p.layout,
            # kerncast's own.
            **values_of(p, "batch", "dtype", "element_bytes"),
            "roofline_ns": roofline,
            "log2_roofline_ns": log2(roofline),
            # Constant where everything is packed and has no epilogue, so models of such data do not read them.
            **{f"{name}_alignment": _alignment(p, name) for name in PACKED},
            **{
                f"log2_{name}_over_packed": log2(maximum(getattr(p, name), packed(p)) / packed(p))
                for name, packed in PACKED.items()
            },
            "bias": p.bias,
            "activation": p.activation,
        }


def _alignment(p: Namespace, name: str) -> Expr:
    """The largest power of two, in bytes, at whose multiples all rows begin; 0 where the matrix is packed."""
    given = getattr(p, name)
    return where(given == 0, 0, power_of_two_in(given * p.element_bytes, LARGEST_ALIGNMENT))


gemm = Gemm()


class MixedMm(Op):
    name = "mixed_mm"
    doc = "C[M, N] = A[M, K] · B[K, N] with B of a narrower type than A and C"
    parameters = {
        "M": Int(1, 2**31 - 1, doc="rows of A and C"),
        "N": Int(1, 2**31 - 1, doc="columns of B and C"),
        "K": Int(1, 2**31 - 1, doc="columns of A, rows of B"),
        # The rate is that of A's type: B is widened to it before it is multiplied.
        "dtype": dtype_parameter("fp32", "fp16", "bf16", doc="element type of A and C"),
        "b_dtype": dtype_parameter("int8", "int4", "uint8", doc="element type of B"),
        "layout": gemm.parameters["layout"],
    }
    split_group = ("M", "N", "K")

    def derive(self, p: Namespace) -> Mapping[str, Expr]:
        return {"element_bytes": bytes_per_element(p.dtype), "b_bytes": bytes_per_element(p.b_dtype)}

    def work(self, p: Namespace) -> Work:
        return Work(
            flops=2 * p.M * p.N * p.K,
            bytes=(p.M * p.K + p.M * p.N) * p.element_bytes + p.K * p.N * p.b_bytes,
        )

    def features(self, p: Namespace, hw: Namespace) -> Mapping[str, Expr]:
        work = self.work(p)
        roofline = work.roofline_ns(hw)
        return {
            **values_of(p, "M", "N", "K"),
            "log2_M": log2(p.M),
            "log2_N": log2(p.N),
            "log2_K": log2(p.K),
            "log2_MNK": log2(p.M * p.N * p.K),
            "arithmetic_intensity": work.flops / work.bytes,
            "aspect_ratio_mn": p.M / p.N,
            "aspect_ratio_mk": p.M / p.K,
            "aspect_ratio_nk": p.N / p.K,
            "weight_share": p.K * p.N * p.b_bytes / work.bytes,
            **values_of(p, "layout", "dtype", "b_dtype"),
            "roofline_ns": roofline,
            "log2_roofline_ns": log2(roofline),
        }


mixed_mm = MixedMm()


class PadMm(Op):
    name = "pad_mm"
    doc = "C[M, N] = A[M, K] · B[K, N] where some of M, N, K are not aligned, and padding them is possible"
    parameters = {
        "M": Int(1, 2**31 - 1, doc="rows of A and C"),
        "N": Int(1, 2**31 - 1, doc="columns of B and C"),
        "K": Int(1, 2**31 - 1, doc="columns of A, rows of B"),
        "pad_m": Int(0, 4095, doc="rows to add to A"),
        "pad_n": Int(0, 4095, doc="columns to add to B"),
        "pad_k": Int(0, 4095, doc="columns to add to A, rows to B"),
        "align": Int(1, 4096, doc="elements that an aligned size is a multiple of"),
        "dtype": dtype_parameter("fp64", "fp32", "fp16", "bf16", doc="element type of A and B"),
        "layout": gemm.parameters["layout"],
        "a_prepadded": Bool(doc="the op that makes A can write it padded, so padding A is free"),
        "b_prepadded": Bool(doc="the op that makes B can write it padded, so padding B is free"),
        "tf32": Bool(default=False, doc="fp32 operands may be rounded to TF32 for the tensor cores"),
    }
    split_group = ("M", "N", "K")

    def derive(self, p: Namespace) -> Mapping[str, Expr]:
        return {"element_bytes": bytes_per_element(p.dtype)}

    def work(self, p: Namespace) -> Work:
        return Work(flops=2 * p.M * p.N * p.K, bytes=(p.M * p.K + p.K * p.N + p.M * p.N) * p.element_bytes)

    def features(self, p: Namespace, hw: Namespace) -> Mapping[str, Expr]:
        work = self.work(p)
        roofline = work.roofline_ns(hw)
        a_rows, b_rows = a_by_rows(p), b_by_rows(p)
        return {
            **{name: getattr(p, name) for name in self.parameters},
            "log2_M": log2(p.M),
            "log2_N": log2(p.N),
            "log2_K": log2(p.K),
            "log2_MNK": log2(p.M * p.N * p.K),
            "arithmetic_intensity": work.flops / work.bytes,
            # The size along which an operand is contiguous decides how wide a load may be.
            "a_unaligned": (a_rows & (p.pad_k > 0)) | (~a_rows & (p.pad_m > 0)),
            "b_unaligned": (b_rows & (p.pad_n > 0)) | (~b_rows & (p.pad_k > 0)),
            "padded_dims": (p.pad_m > 0) + (p.pad_n > 0) + (p.pad_k > 0),
            **{f"{name}_odd": mod(getattr(p, name), 2) for name in ("M", "N", "K")},
            "roofline_ns": roofline,
            "log2_roofline_ns": log2(roofline),
        }


pad_mm = PadMm()
