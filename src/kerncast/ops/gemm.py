"""Matrix multiplication: C[M, N] = A[M, K] · B[K, N], `batch` times."""

from __future__ import annotations

from collections.abc import Mapping

from kerncast.dtypes import bytes_per_element, dtype_parameter
from kerncast.expr import Expr, Namespace, log2, maximum
from kerncast.op import Op, Work
from kerncast.parameters import Categorical, Int


def a_by_rows(p: Namespace) -> Expr:
    """Whether A is stored by rows: contiguous along K."""
    return (p.layout == "rcr") | (p.layout == "rrr")


def b_by_rows(p: Namespace) -> Expr:
    """Whether B is stored by rows: contiguous along N."""
    return (p.layout == "rrr") | (p.layout == "crr")


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
    }
    split_group = ("M", "N", "K", "batch")
    splits = {"nk": ("N", "K")}
    line_group = ("split_k", "dtype", "layout")
    bands = {
        "M": (("tiny (to 16)", 16), ("small (to 128)", 128), ("medium (to 1,024)", 1024), ("large", float("inf"))),
        "K": (("shallow (to 512)", 512), ("medium (to 4,096)", 4096), ("deep", float("inf"))),
    }

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
            "M": p.M,
            "N": p.N,
            "K": p.K,
            "split_k": p.split_k,
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
            "batch": p.batch,
            "dtype": p.dtype,
            "element_bytes": p.element_bytes,
            "roofline_ns": roofline,
            "log2_roofline_ns": log2(roofline),
        }


gemm = Gemm()
