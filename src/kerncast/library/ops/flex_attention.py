"""Attention with a user's own change to the scores: softmax(mod(Q · Kᵀ)) · V, one head per batch entry and head."""

from __future__ import annotations

from collections.abc import Mapping

from kerncast.core.dtypes import bytes_per_element, dtype_parameter
from kerncast.core.expr import Expr, Namespace, log2
from kerncast.core.op import Op, Work
from kerncast.core.parameters import Categorical, Int


class FlexAttention(Op):
    name = "flex_attention"
    doc = "attention whose scores a function changes before the softmax, forward"
    parameters = {
        "batch": Int(1, 2**24),
        "heads": Int(1, 2**16, doc="query heads"),
        "q_len": Int(1, 2**31 - 1, doc="queries of one head"),
        "kv_len": Int(1, 2**31 - 1, doc="keys and values of one head"),
        "head_dim": Int(1, 2**16, doc="elements of one query, key or value"),
        "dtype": dtype_parameter("fp32", "fp16", "bf16", doc="element type of Q, K, V and the result"),
        # Outermost first: b batch, h head, m position, d element of the head.
        "q_layout": Categorical({"bhmd": 0, "bmhd": 1}, doc="storage order of Q"),
        "mod_nodes": Int(0, 2**20, doc="nodes in the graph of the function, including its arguments and result"),
        "mod_args": Int(0, 2**10, doc="arguments of the function that it reads: score, batch, head, query, key"),
    }
    split_group = ("batch", "heads", "q_len", "kv_len", "head_dim")

    def derive(self, p: Namespace) -> Mapping[str, Expr]:
        return {"element_bytes": bytes_per_element(p.dtype)}

    def work(self, p: Namespace) -> Work:
        heads = p.batch * p.heads
        return Work(
            flops=4 * heads * p.q_len * p.kv_len * p.head_dim,
            bytes=2 * heads * (p.q_len + p.kv_len) * p.head_dim * p.element_bytes,
        )

    def features(self, p: Namespace, hw: Namespace) -> Mapping[str, Expr]:
        work = self.work(p)
        roofline = work.roofline_ns(hw)
        return {
            "batch": p.batch,
            "heads": p.heads,
            "q_len": p.q_len,
            "kv_len": p.kv_len,
            "head_dim": p.head_dim,
            "total_heads": p.batch * p.heads,
            "log2_total_heads": log2(p.batch * p.heads),
            "log2_q_len": log2(p.q_len),
            "log2_kv_len": log2(p.kv_len),
            "log2_queries": log2(p.batch * p.heads * p.q_len),
            "arithmetic_intensity": work.flops / work.bytes,
            "q_layout": p.q_layout,
            "mod_nodes": p.mod_nodes,
            "mod_args": p.mod_args,
            "dtype": p.dtype,
            "element_bytes": p.element_bytes,
            "roofline_ns": roofline,
            "log2_roofline_ns": log2(roofline),
        }


flex_attention = FlexAttention()
