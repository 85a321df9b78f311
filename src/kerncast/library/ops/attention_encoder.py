"""Attention without a mask: every token over every token of its sequence, as encoders of images and text do."""

from __future__ import annotations

from collections.abc import Mapping

from kerncast.core.dtypes import bytes_per_element, dtype_parameter
from kerncast.core.expr import Expr, Namespace, log2
from kerncast.core.op import Op, Work
from kerncast.core.parameters import Int
from kerncast.library.ops.attention_context import BATCH, HEAD_DIM, HEADS


class AttentionEncoder(Op):
    name = "attention_encoder"
    doc = "attention of every token over all tokens of its sequence, without mask and cache"
    parameters = {
        "batch": BATCH,
        "seq_len": Int(1, 2**31 - 1, doc="tokens of each sequence"),
        "heads": HEADS,
        "head_dim": HEAD_DIM,
        "dtype": dtype_parameter("fp16", "bf16", "fp8", doc="element type of Q, K, V and the result"),
    }
    split_group = ("batch", "seq_len", "heads", "head_dim")
    splits = {"heads": ("heads", "head_dim"), "lengths": ("batch", "seq_len")}

    def derive(self, p: Namespace) -> Mapping[str, Expr]:
        return {
            "element_bytes": bytes_per_element(p.dtype),
            "pairs": p.seq_len * p.seq_len,
            "tokens": p.batch * p.seq_len,
        }

    def work(self, p: Namespace) -> Work:
        """Two products of each pair; Q, K, V and the result once."""
        return Work(
            flops=4 * p.batch * p.heads * p.pairs * p.head_dim,
            bytes=4 * p.tokens * p.heads * p.head_dim * p.element_bytes,
        )

    def features(self, p: Namespace, hw: Namespace) -> Mapping[str, Expr]:
        return {
            "batch": p.batch,
            "seq_len": p.seq_len,
            "heads": p.heads,
            "head_dim": p.head_dim,
            "dtype": p.dtype,
            "total_heads": p.batch * p.heads,
            "tokens": p.tokens,
            "log2_tokens": log2(p.tokens),
            "log2_seq_len": log2(p.seq_len),
            "log2_total_heads": log2(p.batch * p.heads),
            **self.work(p).features(hw),
        }


attention_encoder = AttentionEncoder()
