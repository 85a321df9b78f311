"""Kernels of serving frameworks (vLLM, SGLang, TensorRT-LLM …) for the ops of language models, by the code path that ran.

Like `gemm/library`: the config is the code path, `kernel_source`, as the framework that timed it calls it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kerncast.expr import Expr, Namespace, constant
from kerncast.families.attention_tiles import cache_features, causal_features, full_features, parts_of_time
from kerncast.families.library_tiles import library_features
from kerncast.families.serving_sources import SOURCES
from kerncast.op import Family, Op
from kerncast.ops.attention_context import attention_context
from kerncast.ops.attention_encoder import attention_encoder
from kerncast.ops.attention_generation import attention_generation
from kerncast.ops.collective import collective
from kerncast.ops.mla_bmm import mla_bmm
from kerncast.ops.mla_context import CACHED, LATENT, QUERY, VALUE, mla_context
from kerncast.ops.mla_generation import mla_generation
from kerncast.ops.moe import moe
from kerncast.ops.quantize import quantize
from kerncast.parameters import Categorical

Physics = Callable[[Namespace, Namespace], Mapping[str, Expr]]


def _library(op: Op, what: str, physics: Physics) -> Family:
    """The family of a framework's own kernels for one op, with what `physics` knows of a problem and a device."""
    name = "".join(word.capitalize() for word in op.name.split("_"))
    source = Categorical(SOURCES[op.name], doc="the code path that ran; other: one that has no name here")

    def features(self: Family, p: Namespace, c: Namespace, hw: Namespace) -> Mapping[str, Expr]:
        return {"kernel_source": c.kernel_source, **physics(p, hw)}

    doc = f"a framework's or library's own {what}, by the code path that ran"
    members = {"id": f"{op.name}/library", "doc": doc, "op": op, "parameters": {"kernel_source": source}, "features": features}
    made: type[Family] = type(f"{name}Library", (Family,), members)
    return made()


def _context(p: Namespace, hw: Namespace) -> Mapping[str, Expr]:
    return {**parts_of_time(hw, attention_context.work(p)), **causal_features(p, hw, p.window, 2 * p.head_dim)}


def _encoder(p: Namespace, hw: Namespace) -> Mapping[str, Expr]:
    return {**parts_of_time(hw, attention_encoder.work(p)), **full_features(p, hw, 2 * p.head_dim)}


def _mla_context(p: Namespace, hw: Namespace) -> Mapping[str, Expr]:
    return {**parts_of_time(hw, mla_context.work(p)), **causal_features(p, hw, constant(0), QUERY + VALUE)}


def _generation(p: Namespace, hw: Namespace) -> Mapping[str, Expr]:
    work, blocks, sharing = attention_generation.work(p), p.batch * p.kv_heads, p.heads / p.kv_heads
    flops = 4 * p.visible_keys * p.head_dim
    return {**parts_of_time(hw, work), **cache_features(p, hw, work, blocks, p.visible_keys, sharing, flops)}


def _mla_generation(p: Namespace, hw: Namespace) -> Mapping[str, Expr]:
    work, flops = mla_generation.work(p), 2 * p.context_len * (CACHED + LATENT)
    return {**parts_of_time(hw, work), **cache_features(p, hw, work, 1 * p.batch, p.context_len, p.heads, flops)}


def _mla_bmm(p: Namespace, hw: Namespace) -> Mapping[str, Expr]:
    return library_features(p, hw, mla_bmm.work(p), p.heads)


def _moe(p: Namespace, hw: Namespace) -> Mapping[str, Expr]:
    return {}


def _collective(p: Namespace, hw: Namespace) -> Mapping[str, Expr]:
    return {}


def _quantize(p: Namespace, hw: Namespace) -> Mapping[str, Expr]:
    return {}


attention_context_library = _library(attention_context, "attention of a prompt", _context)
attention_generation_library = _library(attention_generation, "attention over the cache", _generation)
attention_encoder_library = _library(attention_encoder, "attention without a mask", _encoder)
mla_context_library = _library(mla_context, "latent attention of a prompt", _mla_context)
mla_generation_library = _library(mla_generation, "latent attention over the cache", _mla_generation)
mla_bmm_library = _library(mla_bmm, "batched products of latent attention", _mla_bmm)
moe_library = _library(moe, "experts", _moe)
collective_library = _library(collective, "communication", _collective)
quantize_library = _library(quantize, "quantisation", _quantize)
