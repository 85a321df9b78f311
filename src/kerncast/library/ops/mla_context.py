"""Multi-head latent attention of a prompt, with the dimensions of DeepSeek's models.

Keys and values of all heads come from one latent vector per token, which is what the cache holds. A prompt is computed with
keys and values written out for every head.
"""

from __future__ import annotations

from collections.abc import Mapping

from kerncast.core.dtypes import bytes_per_element, dtype_parameter
from kerncast.core.expr import Expr, Namespace, constant, log2
from kerncast.core.op import Op, Work
from kerncast.core.parameters import Int
from kerncast.library.ops.attention_context import BATCH, HEADS, KV_DTYPE, PAST, causal_pairs

# DeepSeek V2, V3 and R1, Kimi K2: elements of the latent vector, of its part with positions, of a head's query, key and value.
LATENT, ROPE, NOPE, VALUE = 512, 64, 128, 128
QUERY = NOPE + ROPE
CACHED = LATENT + ROPE

DTYPE = dtype_parameter("fp16", "bf16", "fp8", "fp8_block", doc="element type of the arithmetic, of the query and the result")


class MlaContext(Op):
    name = "mla_context"
    doc = "multi-head latent attention of a prompt (prefill), with DeepSeek's dimensions"
    parameters = {
        "batch": BATCH,
        "seq_len": Int(1, 2**31 - 1, doc="new tokens of each sequence"),
        "past_len": PAST,
        "heads": HEADS,
        "dtype": DTYPE,
        "kv_dtype": KV_DTYPE,
    }
    split_group = ("batch", "seq_len", "past_len", "heads")
    splits = {"heads": ("heads",), "lengths": ("batch", "seq_len")}

    def derive(self, p: Namespace) -> Mapping[str, Expr]:
        return {
            "element_bytes": bytes_per_element(p.dtype),
            "cache_bytes": bytes_per_element(p.kv_dtype),
            "pairs": causal_pairs(p.seq_len, p.past_len, constant(0)),
            "tokens": p.batch * p.seq_len,
        }

    def work(self, p: Namespace) -> Work:
        """Two products of each pair; queries, keys, values and the result of every head once, latent vectors into the cache."""
        keys = p.tokens + p.batch * p.past_len
        heads = p.heads * (p.tokens * (QUERY + VALUE) + keys * (QUERY + VALUE)) * p.element_bytes
        return Work(
            flops=2 * p.batch * p.heads * p.pairs * (QUERY + VALUE),
            bytes=heads + keys * CACHED * p.cache_bytes,
        )

    def features(self, p: Namespace, hw: Namespace) -> Mapping[str, Expr]:
        return {
            "batch": p.batch,
            "seq_len": p.seq_len,
            "past_len": p.past_len,
            "heads": p.heads,
            "dtype": p.dtype,
            "kv_dtype": p.kv_dtype,
            "total_heads": p.batch * p.heads,
            "tokens": p.tokens,
            "log2_tokens": log2(p.tokens),
            "log2_seq_len": log2(p.seq_len),
            "log2_total_heads": log2(p.batch * p.heads),
            "pairs_per_query": p.pairs / p.seq_len,
            **self.work(p).features(hw),
        }


mla_context = MlaContext()
