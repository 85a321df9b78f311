"""Causal attention of a prompt: every new token of a sequence over the tokens up to it, and over those already in the cache.

A query at position i (counted from 1) reads the keys 1 to i; with a window only the last `window` of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kerncast.core.dtypes import bytes_per_element, dtype_parameter
from kerncast.core.expr import Expr, Namespace, log2, minimum, mod, where
from kerncast.core.op import Op, Work
from kerncast.core.parameters import Int
from kerncast.core.space import Constraint

BATCH = Int(1, 2**24, doc="sequences")
HEADS = Int(1, 2**16, doc="query heads on this device")
KV_HEADS = Int(1, 2**16, doc="key heads, and value heads, on this device")
HEAD_DIM = Int(1, 2**16, doc="elements of one query, key or value")
WINDOW = Int(0, 2**31 - 1, default=0, doc="keys that a query sees at most, itself included; 0: all")
PAST = Int(0, 2**31 - 1, default=0, doc="tokens of each sequence that are in the cache already")
KV_DTYPE = dtype_parameter("fp16", "bf16", "fp8", "int8", doc="element type of the key-value cache")


def grouped_heads(p: Namespace) -> Constraint:
    """Query heads share key heads in groups of one size."""
    return Constraint("grouped_heads", "heads must be a multiple of kv_heads", mod(p.heads, p.kv_heads) == 0)


def causal_pairs(seq_len: Expr, past_len: Expr, window: Expr) -> Expr:
    """How many keys the new queries of one sequence read in all, in one head: the sum of min(position, window)."""
    total = seq_len + past_len
    reach = where(window == 0, total, window)

    def up_to(position: Expr) -> Expr:
        ramp = minimum(position, reach)
        return ramp * (ramp + 1) / 2 + (position - ramp) * reach

    return up_to(total) - up_to(past_len)


def past_in_reach(past_len: Expr, window: Expr) -> Expr:
    """The tokens of the cache that any new query reads: the first one sees the furthest back."""
    return where(window == 0, past_len, minimum(past_len, window - 1))


class AttentionContext(Op):
    name = "attention_context"
    doc = "causal attention of a prompt (prefill), with grouped heads, a window and a cache"
    parameters = {
        "batch": BATCH,
        "seq_len": Int(1, 2**31 - 1, doc="new tokens of each sequence"),
        "past_len": PAST,
        "heads": HEADS,
        "kv_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "window": WINDOW,
        "dtype": dtype_parameter("fp16", "bf16", "fp8", doc="element type of the arithmetic, of Q, K, V and the result"),
        "kv_dtype": KV_DTYPE,
    }
    split_group = ("batch", "seq_len", "past_len", "heads", "kv_heads", "head_dim", "window")
    splits = {"heads": ("heads", "kv_heads", "head_dim"), "lengths": ("batch", "seq_len")}

    def constraints(self, p: Namespace) -> Iterable[Constraint]:
        return (grouped_heads(p),)

    def derive(self, p: Namespace) -> Mapping[str, Expr]:
        return {
            "element_bytes": bytes_per_element(p.dtype),
            "cache_bytes": bytes_per_element(p.kv_dtype),
            "pairs": causal_pairs(p.seq_len, p.past_len, p.window),
            "tokens": p.batch * p.seq_len,
        }

    def work(self, p: Namespace) -> Work:
        """Two products of each pair; Q, K, V and the result once, the new keys and values into the cache, the old out of it."""
        moved = 2 * p.tokens * (p.heads + p.kv_heads) * p.head_dim * p.element_bytes
        cached = 2 * p.batch * p.kv_heads * p.head_dim * p.cache_bytes * (p.seq_len + past_in_reach(p.past_len, p.window))
        return Work(flops=4 * p.batch * p.heads * p.pairs * p.head_dim, bytes=moved + cached)

    def features(self, p: Namespace, hw: Namespace) -> Mapping[str, Expr]:
        return {
            "batch": p.batch,
            "seq_len": p.seq_len,
            "past_len": p.past_len,
            "heads": p.heads,
            "kv_heads": p.kv_heads,
            "head_dim": p.head_dim,
            "window": p.window,
            "dtype": p.dtype,
            "kv_dtype": p.kv_dtype,
            "heads_per_kv_head": p.heads / p.kv_heads,
            "total_heads": p.batch * p.heads,
            "tokens": p.tokens,
            "log2_tokens": log2(p.tokens),
            "log2_seq_len": log2(p.seq_len),
            "log2_total_heads": log2(p.batch * p.heads),
            "log2_pairs": log2(p.pairs),
            "pairs_per_query": p.pairs / p.seq_len,
            **self.work(p).features(hw),
        }


attention_context = AttentionContext()
