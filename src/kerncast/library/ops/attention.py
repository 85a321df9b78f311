"""Attention: of a prompt, of one new token, without a mask, with a function of the scores, and with latent vectors.

A query of a causal attention at position i (counted from 1) reads the keys 1 to i; with a window only the last `window` of
them. Multi-head latent attention reads the same latent vectors of the cache for all heads: the projections of keys and values
are absorbed into the query and the result (`mla_bmm`) when one token is generated.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kerncast.core.dtypes import bytes_per_element, dtype_parameter
from kerncast.core.expr import Expr, Namespace, constant, log2, minimum, mod, values_of, where
from kerncast.core.op import Op, Work
from kerncast.core.parameters import Categorical, Int
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
            **values_of(p, "batch", "seq_len", "past_len", "heads", "kv_heads", "head_dim", "window", "dtype", "kv_dtype"),
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
            **values_of(p, "batch", "seq_len", "heads", "head_dim", "dtype"),
            "total_heads": p.batch * p.heads,
            "tokens": p.tokens,
            "log2_tokens": log2(p.tokens),
            "log2_seq_len": log2(p.seq_len),
            "log2_total_heads": log2(p.batch * p.heads),
            **self.work(p).features(hw),
        }


attention_encoder = AttentionEncoder()


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
            **values_of(p, "batch", "context_len", "heads", "kv_heads", "head_dim", "window", "dtype", "kv_dtype"),
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
            **values_of(p, "batch", "heads", "q_len", "kv_len", "head_dim"),
            "total_heads": p.batch * p.heads,
            "log2_total_heads": log2(p.batch * p.heads),
            "log2_q_len": log2(p.q_len),
            "log2_kv_len": log2(p.kv_len),
            "log2_queries": log2(p.batch * p.heads * p.q_len),
            "arithmetic_intensity": work.flops / work.bytes,
            **values_of(p, "q_layout", "mod_nodes", "mod_args", "dtype", "element_bytes"),
            "roofline_ns": roofline,
            "log2_roofline_ns": log2(roofline),
        }


flex_attention = FlexAttention()


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
