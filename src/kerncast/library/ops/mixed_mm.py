"""A product of two element types: C[M, N] = A[M, K] · B[K, N], B stored in a narrower type and widened when it is loaded.

Weight-only quantisation: activations in 16 bits, weights in 8 or 4.
"""

from __future__ import annotations

from collections.abc import Mapping

from kerncast.core.dtypes import bytes_per_element, dtype_parameter
from kerncast.core.expr import Expr, Namespace, log2
from kerncast.core.op import Op, Work
from kerncast.core.parameters import Int
from kerncast.library.ops.gemm import gemm


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
            "M": p.M,
            "N": p.N,
            "K": p.K,
            "log2_M": log2(p.M),
            "log2_N": log2(p.N),
            "log2_K": log2(p.K),
            "log2_MNK": log2(p.M * p.N * p.K),
            "arithmetic_intensity": work.flops / work.bytes,
            "aspect_ratio_mn": p.M / p.N,
            "aspect_ratio_mk": p.M / p.K,
            "aspect_ratio_nk": p.N / p.K,
            "weight_share": p.K * p.N * p.b_bytes / work.bytes,
            "layout": p.layout,
            "dtype": p.dtype,
            "b_dtype": p.b_dtype,
            "roofline_ns": roofline,
            "log2_roofline_ns": log2(roofline),
        }


mixed_mm = MixedMm()
