"""Multi-head latent attention: all heads read the same latent vectors of the cache.

The projections of keys and values are absorbed into the query and the result (`mla_bmm`) when one token is generated, so a head
multiplies with latent vectors."""

from __future__ import annotations

from collections.abc import Mapping

from kerncast.core.dtypes import bytes_per_element, dtype_parameter
from kerncast.core.expr import Expr, Namespace, constant, log2, values_of, where
from kerncast.core.op import Op, Work
from kerncast.core.parameters import Categorical, Int
from kerncast.library.ops.attention import BATCH, HEADS, KV_DTYPE, PAST, causal_pairs

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
            **values_of(p, "batch", "seq_len", "past_len", "heads", "dtype", "kv_dtype"),
            "total_heads": p.batch * p.heads,
            "tokens": p.tokens,
            "log2_tokens": log2(p.tokens),
            "log2_seq_len": log2(p.seq_len),
            "log2_total_heads": log2(p.batch * p.heads),
            "pairs_per_query": p.pairs / p.seq_len,
            **self.work(p).features(hw),
        }


mla_context = MlaContext()


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
            **values_of(p, "batch", "context_len", "heads", "dtype", "kv_dtype"),
            "log2_batch": log2(p.batch),
            "log2_context_len": log2(p.context_len),
            "log2_total_keys": log2(p.batch * p.context_len),
            **self.work(p).features(hw),
        }


mla_generation = MlaGeneration()


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
            **values_of(p, "tokens", "heads", "stage", "dtype"),
            "log2_tokens": log2(p.tokens),
            "log2_heads": log2(p.heads),
            "log2_flops": log2(work.flops),
            "arithmetic_intensity": work.flops / work.bytes,
            "roofline_ns": roofline,
            "log2_roofline_ns": log2(roofline),
        }


mla_bmm = MlaBmm()
