"""Quantising a matrix of activations to eight bits: find its scale, then write it in the narrow type."""

from __future__ import annotations

from collections.abc import Mapping

from kerncast.core.dtypes import bytes_per_element, dtype_parameter
from kerncast.core.expr import Expr, Namespace, constant, log2, where
from kerncast.core.op import Op, Work
from kerncast.core.parameters import Categorical, Int

# Activations come in 16 bits.
READ_BYTES = 2


class Quantize(Op):
    name = "quantize"
    doc = "one part of quantising a matrix: compute its scale, or write it in the narrow type"
    parameters = {
        "M": Int(1, 2**31 - 1, doc="rows"),
        "K": Int(1, 2**31 - 1, doc="columns"),
        "dtype": dtype_parameter("fp8", "int8", "fp8_block", "nvfp4", doc="the narrow type"),
        "part": Categorical({"compute_scale": 0, "scale_matrix": 1}, doc="find the scale, or write the scaled matrix"),
    }
    split_group = ("M", "K")
    splits = {"K": ("K",)}

    def derive(self, p: Namespace) -> Mapping[str, Expr]:
        return {"written_bytes": where(p.part == "scale_matrix", bytes_per_element(p.dtype), 0)}

    def work(self, p: Namespace) -> Work:
        """The matrix is read once; only the second part writes it."""
        return Work(flops=constant(0), bytes=p.M * p.K * (READ_BYTES + p.written_bytes))

    def features(self, p: Namespace, hw: Namespace) -> Mapping[str, Expr]:
        work = self.work(p)
        roofline = work.roofline_ns(hw)
        return {
            "M": p.M,
            "K": p.K,
            "dtype": p.dtype,
            "part": p.part,
            "log2_M": log2(p.M),
            "log2_K": log2(p.K),
            "log2_MK": log2(p.M * p.K),
            "roofline_ns": roofline,
            "log2_roofline_ns": log2(roofline),
        }


quantize = Quantize()
