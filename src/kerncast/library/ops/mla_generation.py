"""Multi-head latent attention of one new token per sequence: all heads read the same latent vectors of the cache.

The projections of keys and values are absorbed into the query and the result (`mla_bmm`), so a head multiplies with latent
vectors.
"""

from __future__ import annotations

from collections.abc import Mapping

from kerncast.core.dtypes import bytes_per_element
from kerncast.core.expr import Expr, Namespace, log2
from kerncast.core.op import Op, Work
from kerncast.core.parameters import Int
from kerncast.library.ops.attention_context import BATCH, HEADS, KV_DTYPE
from kerncast.library.ops.mla_context import CACHED, DTYPE, LATENT


class MlaGeneration(Op):
    name = "mla_generation"
    doc = "multi-head latent attention of one new token per sequence over the cache (decode), with DeepSeek's dimensions"
    parameters = {
        "batch": BATCH,
        "context_len": Int(1, 2**31 - 1, doc="tokens of each sequence, the new one included"),
        "heads": HEADS,
        "dtype": DTYPE,
        "kv_dtype": KV_DTYPE,
    }
    split_group = ("batch", "context_len", "heads")
    splits = {"heads": ("heads",), "lengths": ("batch", "context_len")}

    def derive(self, p: Namespace) -> Mapping[str, Expr]:
        return {
            "element_bytes": bytes_per_element(p.dtype),
            "cache_bytes": bytes_per_element(p.kv_dtype),
        }

    def work(self, p: Namespace) -> Work:
        """Every latent vector of the cache is read once for all heads."""
        return Work(
            flops=2 * p.batch * p.heads * p.context_len * (CACHED + LATENT),
            bytes=p.batch * p.context_len * CACHED * p.cache_bytes + p.batch * p.heads * (CACHED + LATENT) * p.element_bytes,
        )

    def features(self, p: Namespace, hw: Namespace) -> Mapping[str, Expr]:
        return {
            "batch": p.batch,
            "context_len": p.context_len,
            "heads": p.heads,
            "dtype": p.dtype,
            "kv_dtype": p.kv_dtype,
            "log2_batch": log2(p.batch),
            "log2_context_len": log2(p.context_len),
            "log2_total_keys": log2(p.batch * p.context_len),
            **self.work(p).features(hw),
        }


mla_generation = MlaGeneration()
