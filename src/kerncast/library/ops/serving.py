"""What a server does between products: quantising activations, and talking to other devices."""

from __future__ import annotations

from collections.abc import Mapping

from kerncast.core.dtypes import bytes_per_element, dtype_parameter
from kerncast.core.expr import Expr, Namespace, constant, log2, values_of, where
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
            **values_of(p, "M", "K", "dtype", "part"),
            "log2_M": log2(p.M),
            "log2_K": log2(p.K),
            "log2_MK": log2(p.M * p.K),
            "roofline_ns": roofline,
            "log2_roofline_ns": log2(roofline),
        }


quantize = Quantize()


KINDS = {"all_reduce": 0, "all_gather": 1, "reduce_scatter": 2, "all_to_all": 3}


class Collective(Op):
    name = "collective"
    doc = "communication between the GPUs of a node: all_reduce, all_gather, reduce_scatter, all_to_all"
    parameters = {
        "kind": Categorical(KINDS, doc="what is done with the message"),
        "elements": Int(1, 2**40, doc="elements of the message: what a GPU has at the end (reduce_scatter: at the start)"),
        "gpus": Int(2, 2**16, doc="GPUs that take part"),
        "dtype": dtype_parameter("fp32", "fp16", "bf16", "fp8", "int8", doc="element type of the message"),
    }
    aliases = {kind: {"kind": kind} for kind in KINDS}
    split_group = ("elements", "gpus")
    splits = {"gpus": ("gpus",), "sizes": ("elements",)}

    def derive(self, p: Namespace) -> Mapping[str, Expr]:
        message = p.elements * bytes_per_element(p.dtype)
        # A ring passes every part on to all others once: to gather, to scatter, or (all_reduce) first one, then the other.
        rounds = where(p.kind == "all_reduce", 2, 1)
        return {
            "message_bytes": message,
            "steps": rounds * (p.gpus - 1),
            "link_bytes": rounds * message * (p.gpus - 1) / p.gpus,
        }

    def work(self, p: Namespace) -> Work:
        """The bytes that leave a GPU over its links; in its own memory the message is read and written once."""
        return Work(flops=constant(0), bytes=2 * p.message_bytes, link_bytes=p.link_bytes)

    def features(self, p: Namespace, hw: Namespace) -> Mapping[str, Expr]:
        work = self.work(p)
        roofline = work.roofline_ns(hw)
        return {
            **values_of(p, "kind", "elements", "gpus", "dtype", "steps", "message_bytes"),
            "log2_message_bytes": log2(p.message_bytes),
            "log2_link_bytes": log2(p.link_bytes),
            "log2_bytes_per_step": log2(p.message_bytes / p.gpus),
            "link_ns": work.link_ns(hw),
            "roofline_ns": roofline,
            "log2_roofline_ns": log2(roofline),
        }


collective = Collective()
