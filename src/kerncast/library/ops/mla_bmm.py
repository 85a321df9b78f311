"""The batched products around multi-head latent attention when text is generated: one per head.

`pre` takes the queries into the latent space (tokens × 128 by 128 × 512), `post` the result out of it (512 by 128).
"""

from __future__ import annotations

from collections.abc import Mapping

from kerncast.core.dtypes import bytes_per_element, dtype_parameter
from kerncast.core.expr import Expr, Namespace, log2, where
from kerncast.core.op import Op, Work
from kerncast.core.parameters import Categorical, Int
from kerncast.library.ops.attention_context import HEADS
from kerncast.library.ops.mla_context import LATENT, NOPE


class MlaBmm(Op):
    name = "mla_bmm"
    doc = "batched products into and out of the latent space of multi-head latent attention, one per head"
    parameters = {
        "tokens": Int(1, 2**31 - 1, doc="rows of each product"),
        "heads": HEADS,
        "stage": Categorical({"pre": 0, "post": 1}, doc="pre: queries into the latent space; post: the result out of it"),
        "dtype": dtype_parameter("fp16", "bf16", "fp8", "fp8_block", doc="element type of the operands"),
    }
    split_group = ("tokens", "heads")
    splits = {"heads": ("heads",)}

    def derive(self, p: Namespace) -> Mapping[str, Expr]:
        return {
            "M": 1 * p.tokens,
            "N": where(p.stage == "pre", LATENT, NOPE),
            "K": where(p.stage == "pre", NOPE, LATENT),
            "element_bytes": bytes_per_element(p.dtype),
        }

    def work(self, p: Namespace) -> Work:
        return Work(
            flops=2 * p.heads * p.M * p.N * p.K,
            bytes=p.heads * (p.M * p.K + p.K * p.N + p.M * p.N) * p.element_bytes,
        )

    def features(self, p: Namespace, hw: Namespace) -> Mapping[str, Expr]:
        work = self.work(p)
        roofline = work.roofline_ns(hw)
        return {
            "tokens": p.tokens,
            "heads": p.heads,
            "stage": p.stage,
            "dtype": p.dtype,
            "log2_tokens": log2(p.tokens),
            "log2_heads": log2(p.heads),
            "log2_flops": log2(work.flops),
            "arithmetic_intensity": work.flops / work.bytes,
            "roofline_ns": roofline,
            "log2_roofline_ns": log2(roofline),
        }


mla_bmm = MlaBmm()
