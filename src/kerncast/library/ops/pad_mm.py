"""A product whose operands may be padded to aligned sizes first: is the copy worth it?"""

from __future__ import annotations

from collections.abc import Mapping

from kerncast.core.dtypes import bytes_per_element, dtype_parameter
from kerncast.core.expr import Expr, Namespace, log2, mod
from kerncast.core.op import Op, Work
from kerncast.core.parameters import Bool, Int
from kerncast.library.ops.gemm import a_by_rows, b_by_rows, gemm


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
