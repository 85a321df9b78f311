"""Attention of one new token per sequence over the keys and values in the cache: what generating text does at every step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kerncast.core.dtypes import bytes_per_element, dtype_parameter
from kerncast.core.expr import Expr, Namespace, log2, minimum, where
from kerncast.core.op import Op, Work
from kerncast.core.parameters import Int
from kerncast.core.space import Constraint
from kerncast.library.ops.attention_context import BATCH, HEAD_DIM, HEADS, KV_DTYPE, KV_HEADS, WINDOW, grouped_heads


class AttentionGeneration(Op):
    name = "attention_generation"
    doc = "attention of one new token per sequence over the key-value cache (decode), with grouped heads and a window"
    parameters = {
        "batch": BATCH,
        "context_len": Int(1, 2**31 - 1, doc="tokens of each sequence, the new one included"),
        "heads": HEADS,
        "kv_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "window": WINDOW,
        "dtype": dtype_parameter("fp16", "bf16", "fp8", doc="element type of the arithmetic, of the query and the result"),
        "kv_dtype": KV_DTYPE,
    }
    split_group = ("batch", "context_len", "heads", "kv_heads", "head_dim", "window")
    splits = {"heads": ("heads", "kv_heads", "head_dim"), "lengths": ("batch", "context_len")}

    def constraints(self, p: Namespace) -> Iterable[Constraint]:
        return (grouped_heads(p),)

    def derive(self, p: Namespace) -> Mapping[str, Expr]:
        return {
            "element_bytes": bytes_per_element(p.dtype),
            "cache_bytes": bytes_per_element(p.kv_dtype),
            "visible_keys": where(p.window == 0, p.context_len, minimum(p.context_len, p.window)),
        }

    def work(self, p: Namespace) -> Work:
        """Every visible key and value of the cache is read once; the query and the result are small."""
        cached = 2 * p.batch * p.kv_heads * p.visible_keys * p.head_dim * p.cache_bytes
        return Work(
            flops=4 * p.batch * p.heads * p.visible_keys * p.head_dim,
            bytes=cached + 2 * p.batch * p.heads * p.head_dim * p.element_bytes,
        )

    def features(self, p: Namespace, hw: Namespace) -> Mapping[str, Expr]:
        work = self.work(p)
        roofline = work.roofline_ns(hw)
        return {
            "batch": p.batch,
            "context_len": p.context_len,
            "heads": p.heads,
            "kv_heads": p.kv_heads,
            "head_dim": p.head_dim,
            "window": p.window,
            "dtype": p.dtype,
            "kv_dtype": p.kv_dtype,
            "keys": p.visible_keys,
            "heads_per_kv_head": p.heads / p.kv_heads,
            "kv_pairs": p.batch * p.kv_heads,
            "log2_keys": log2(p.visible_keys),
            "log2_context_len": log2(p.context_len),
            "log2_kv_pairs": log2(p.batch * p.kv_heads),
            "log2_total_keys": log2(p.batch * p.kv_heads * p.visible_keys),
            "log2_bytes": log2(work.bytes),
            "arithmetic_intensity": work.flops / work.bytes,
            "roofline_ns": roofline,
            "log2_roofline_ns": log2(roofline),
        }


attention_generation = AttentionGeneration()
