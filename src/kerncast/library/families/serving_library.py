"""Kernels of serving frameworks (vLLM, SGLang, TensorRT-LLM …) for the ops of language models, by the code path that ran.

Like `gemm/library`: the config is the code path, `kernel_source`, as the framework that timed it calls it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from kerncast.core.expr import Expr, Namespace, Table, ceil, ceil_div, constant, log2, lookup, maximum
from kerncast.core.op import Family, Op
from kerncast.core.parameters import Categorical
from kerncast.core.space import Constraint
from kerncast.library.families.attention_tiles import HIDDEN_NS, cache_features, causal_features, full_features, parts_of_time
from kerncast.library.families.expert_tiles import expert_features
from kerncast.library.families.library_tiles import library_features
from kerncast.library.families.recurrent_tiles import conv_features, state_features
from kerncast.library.families.serving_sources import OTHER_WORK, SOURCES, TAKES
from kerncast.library.families.serving_tiles import Cache, Prompt, cache_misfits, hardware_numbers, prompt_misfits
from kerncast.library.ops.attention_context import attention_context
from kerncast.library.ops.attention_encoder import attention_encoder
from kerncast.library.ops.attention_generation import attention_generation
from kerncast.library.ops.causal_conv import causal_conv
from kerncast.library.ops.collective import collective
from kerncast.library.ops.linear_attention import linear_attention
from kerncast.library.ops.mla_bmm import mla_bmm
from kerncast.library.ops.mla_context import CACHED, LATENT, QUERY, VALUE, mla_context
from kerncast.library.ops.mla_generation import mla_generation
from kerncast.library.ops.moe import moe
from kerncast.library.ops.quantize import quantize

Physics = Callable[[Namespace, Namespace], Mapping[str, Expr]]


def _library(op: Op, what: str, physics: Physics) -> Family:
    """The family of a framework's own kernels for one op, with what `physics` knows of a problem and a device."""
    name = "".join(word.capitalize() for word in op.name.split("_"))
    source = Categorical(SOURCES[op.name], doc="the code path that ran; other: one that has no name here")

    def features(self: Family, p: Namespace, c: Namespace, hw: Namespace) -> Mapping[str, Expr]:
        numbers = hardware_numbers(hw, arithmetic=op is not collective)
        return {"kernel_source": c.kernel_source, **physics(p, hw), **numbers}

    def constraints(self: Family, p: Namespace, c: Namespace, hw: Namespace) -> Iterable[Constraint]:
        return _paths_of_problems(op, p, c)

    doc = f"a framework's or library's own {what}, by the code path that ran"
    members = {"id": f"{op.name}/library", "doc": doc, "op": op, "parameters": {"kernel_source": source}, "features": features,
               "constraints": constraints}  # fmt: skip
    other = {"kernel_source": OTHER_WORK[op.name]} if op.name in OTHER_WORK else {}
    made: type[Family] = type(f"{name}Library", (Family,), {**members, "other_work": other})
    return made()


def _paths_of_problems(op: Op, p: Namespace, c: Namespace) -> Iterable[Constraint]:
    """A code path is asked only about the problems that it is for."""
    takes = TAKES.get(op.name, {})
    for name in dict.fromkeys(parameter for path in takes.values() for parameter in path):
        rule = op.parameters[name]
        assert isinstance(rule, Categorical)
        rows = [
            [float(label in takes.get(path, {}).get(name, (label,))) for label, _ in rule.labels] for path in SOURCES[op.name]
        ]
        yield Constraint(
            f"path_of_{name}",
            f"kernel_source must be one for this {name}",
            lookup(Table.of(rows), c.kernel_source, getattr(p, name)) == 1,
        )


def _context(p: Namespace, hw: Namespace) -> Mapping[str, Expr]:
    work = attention_context.work(p)
    prompt = Prompt(p.batch, p.heads, p.kv_heads, p.seq_len, p.past_len, p.window, 4 * p.head_dim, p.pairs)
    features = {**parts_of_time(hw, work), **causal_features(p, hw, p.window, 2 * p.head_dim)}
    return {**features, **prompt_misfits(prompt, hw, work)}


def _encoder(p: Namespace, hw: Namespace) -> Mapping[str, Expr]:
    work, none = attention_encoder.work(p), constant(0)
    prompt = Prompt(p.batch, p.heads, p.heads, p.seq_len, none, none, 4 * p.head_dim, p.pairs, causal=False)
    return {**parts_of_time(hw, work), **full_features(p, hw, 2 * p.head_dim), **prompt_misfits(prompt, hw, work)}


def _mla_context(p: Namespace, hw: Namespace) -> Mapping[str, Expr]:
    work, none = mla_context.work(p), constant(0)
    prompt = Prompt(p.batch, p.heads, p.heads, p.seq_len, p.past_len, none, constant(2 * (QUERY + VALUE)), p.pairs)
    features = {**parts_of_time(hw, work), **causal_features(p, hw, none, QUERY + VALUE)}
    return {**features, **prompt_misfits(prompt, hw, work)}


def _generation(p: Namespace, hw: Namespace) -> Mapping[str, Expr]:
    work, blocks, sharing = attention_generation.work(p), p.batch * p.kv_heads, p.heads / p.kv_heads
    flops = 4 * p.visible_keys * p.head_dim
    groups = {"kv": blocks, "heads": p.batch * p.heads}
    groups |= {f"packed_{rows}": blocks * ceil_div(sharing, rows) for rows in (16, 64)}
    cache = Cache(groups, p.visible_keys, 2 * p.head_dim * p.cache_bytes)
    features = {**parts_of_time(hw, work), **cache_features(p, hw, work, blocks, p.visible_keys, sharing, flops)}
    return {**features, **cache_misfits(cache, hw, work)}


def _mla_generation(p: Namespace, hw: Namespace) -> Mapping[str, Expr]:
    work, flops = mla_generation.work(p), 2 * p.context_len * (CACHED + LATENT)
    cache = Cache({f"packed_{rows}": p.batch * ceil_div(p.heads, rows) for rows in (16, 64, 128)}, 1 * p.context_len,
                  CACHED * p.cache_bytes)  # fmt: skip
    features = {**parts_of_time(hw, work), **cache_features(p, hw, work, 1 * p.batch, p.context_len, p.heads, flops)}
    return {**features, **cache_misfits(cache, hw, work)}


def _mla_bmm(p: Namespace, hw: Namespace) -> Mapping[str, Expr]:
    return library_features(p, hw, mla_bmm.work(p), p.heads)


def _moe(p: Namespace, hw: Namespace) -> Mapping[str, Expr]:
    return expert_features(p, hw, moe.work(p))


def _collective(p: Namespace, hw: Namespace) -> Mapping[str, Expr]:
    """A ring sends parts step by step; for short messages every GPU reads the whole message of every other one at once."""
    ring, once = collective.work(p).link_ns(hw), p.message_bytes * (p.gpus - 1) / hw.link_bandwidth_gb_s
    return {
        "log2_ring_ns": log2(ring + HIDDEN_NS),
        "log2_step_ns": log2(ring / p.steps + HIDDEN_NS),
        "log2_once_ns": log2(once + HIDDEN_NS),
        "device_link_gb_s": 1 * hw.link_bandwidth_gb_s,
    }


def _quantize(p: Namespace, hw: Namespace) -> Mapping[str, Expr]:
    """A block takes a row, or a part of the matrix; what the cache holds need not be read."""
    work, waves = quantize.work(p), p.M / hw.num_cus
    missing = maximum(0, work.bytes - hw.l2_cache_kb * 1024)
    return {
        "row_waves": ceil(waves),
        "row_wave_fill": waves / ceil(waves),
        "log2_memory_ns": log2(work.parts_ns(hw)[1] + HIDDEN_NS),
        "log2_missing_ns": log2(missing / hw.memory_bandwidth_gb_s + HIDDEN_NS),
    }


def _causal_conv(p: Namespace, hw: Namespace) -> Mapping[str, Expr]:
    return conv_features(p, hw, causal_conv.work(p))


def _linear_attention(p: Namespace, hw: Namespace) -> Mapping[str, Expr]:
    return state_features(p, hw, linear_attention.work(p))


attention_context_library = _library(attention_context, "attention of a prompt", _context)
attention_generation_library = _library(attention_generation, "attention over the cache", _generation)
attention_encoder_library = _library(attention_encoder, "attention without a mask", _encoder)
mla_context_library = _library(mla_context, "latent attention of a prompt", _mla_context)
mla_generation_library = _library(mla_generation, "latent attention over the cache", _mla_generation)
mla_bmm_library = _library(mla_bmm, "batched products of latent attention", _mla_bmm)
moe_library = _library(moe, "experts", _moe)
collective_library = _library(collective, "communication", _collective)
quantize_library = _library(quantize, "quantisation", _quantize)
causal_conv_library = _library(causal_conv, "convolution before linear attention", _causal_conv)
linear_attention_library = _library(linear_attention, "linear attention", _linear_attention)
