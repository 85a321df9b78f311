"""Kernels of serving frameworks (vLLM, SGLang, TensorRT-LLM …) for the ops of language models, by the code path that ran.

Like `gemm/library`: the config is the code path, `kernel_source`, as the framework that timed it calls it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from kerncast.core.expr import ConstantTable, Expr, Namespace, ceil, ceil_div, constant, log2, lookup, maximum
from kerncast.core.op import Family, Op
from kerncast.core.parameters import Categorical
from kerncast.core.space import Constraint
from kerncast.library.families.product_tiles import library_features
from kerncast.library.families.serving_tiles import (
    HIDDEN_NS,
    Cache,
    Prompt,
    cache_features,
    cache_misfits,
    causal_features,
    conv_features,
    expert_features,
    full_features,
    hardware_numbers,
    parts_of_time,
    prompt_misfits,
    state_features,
)
from kerncast.library.ops.attention import (
    CACHED,
    LATENT,
    QUERY,
    VALUE,
    attention_context,
    attention_encoder,
    attention_generation,
    mla_bmm,
    mla_context,
    mla_generation,
)
from kerncast.library.ops.serving import causal_conv, collective, linear_attention, moe, quantize

SOURCES: dict[str, dict[str, int]] = {
    "attention_context": {
        "other": 0,
        "torch_flow": 1,
        "torch_flow_flashinfer": 2,
        "trtllm_mha": 3,
        "triton": 4,
        "fa3": 5,
        "flashinfer": 6,
        "flash_attention": 7,
        "vllm_flash_attn": 8,
        "vllm_flash_attn_fa2": 9,
        "vllm_flash_attn_fa3": 10,
        "vllm_flash_attn_fa4": 11,
        "vllm_flashinfer": 12,
        "vllm_flashinfer_fiprefill": 13,
        "vllm_flashinfer_fidecode": 14,
        "vllm_flashinfer_trtllmprefill": 15,
        "vllm_flashinfer_trtllmdecode": 16,
        "vllm_triton_attn": 17,
    },
    "attention_generation": {
        "other": 0,
        "torch_flow": 1,
        "torch_flow_flashinfer": 2,
        "trtllm_mha": 3,
        "triton": 4,
        "fa3": 5,
        "flashinfer": 6,
        "flash_attention": 7,
        "vllm_flash_attn": 8,
        "vllm_flash_attn_fa2": 9,
        "vllm_flash_attn_fa3": 10,
        "vllm_flash_attn_fa4": 11,
        "vllm_flashinfer": 12,
        "vllm_flashinfer_fidecode": 13,
        "vllm_flashinfer_trtllmdecode": 14,
        "vllm_triton_attn": 15,
    },
    "attention_encoder": {
        "other": 0,
        "torch_flow": 1,
        "triton": 2,
        "flash_attention_v3": 3,
        "flash_attention_v4": 4,
        "vllm_vit_flash_attn_fa2": 5,
        "vllm_vit_flash_attn_fa3": 6,
        "vllm_vit_flash_attn_fa4": 7,
    },
    "mla_context": {
        "other": 0,
        "default": 1,
        "trtllm_mla": 2,
        "flash_attention": 3,
        "triton": 4,
    },
    "mla_generation": {
        "other": 0,
        "default": 1,
        "trtllm_mla": 2,
        "flash_attention": 3,
        "triton": 4,
    },
    "mla_bmm": {
        "other": 0,
        "default": 1,
        "sglang_torch_bmm": 2,
        "sglang_sgl_kernel_bmm_fp8": 3,
        "vllm_torch_bmm": 4,
        "trtllm_bmm_out": 5,
        "trtllm_bmm_out_dequant_bf16": 6,
        "trtllm_fp8_block_scaling_bmm_out": 7,
    },
    "moe": {
        "other": 0,
        "moe_torch_flow": 1,
        "moe_torch_flow_cutlass": 2,
        "moe_torch_flow_min_latency": 3,
        "moe_torch_flow_nongated": 4,
        "moe_torch_flow_triton_fp8_block": 5,
        "deepgemm": 6,
        "sglang_fused_moe_triton": 7,
        "sglang_fused_moe_triton_situ_as_silu": 8,
        "sglang_flashinfer_cutlass_moe": 9,
        "sglang_flashinfer_trtllm_moe": 10,
        "sglang_marlin_moe": 11,
        "sglang_marlin_moe_situ_as_silu": 12,
        "sglang_mxfp4_flashinfer_trtllm_moe": 13,
        "vllm_fused_moe": 14,
        "vllm_flashinfer_trtllm_moe_fp4": 15,
        "vllm_marlin_int4_moe": 16,
        "vllm_mxfp4_moe": 17,
        "vllm_xpu_moe": 18,
        "vllm_xpu_moe_mxfp4": 19,
        "vllm_unquantizedfusedmoe_triton_tritonexperts": 20,
        "vllm_unquantizedfusedmoe_flashinfer_cutlass_flashinferexperts": 21,
        "vllm_unquantizedfusedmoe_flashinfer_trtllm_trtllmbf16experts": 22,
        "vllm_fp8moe_triton_tritonexperts": 23,
        "vllm_fp8moe_flashinfer_cutlass_flashinferexperts": 24,
        "vllm_fp8moe_flashinfer_trtllm_trtllmfp8expertsmodular": 25,
        "vllm_fp8moe_flashinfer_trtllm_trtllmfp8expertsmonolithic": 26,
        "vllm_modeloptfp8moe_triton_tritonexperts": 27,
        "vllm_modeloptfp8moe_flashinfer_cutlass_flashinferexperts": 28,
        "vllm_modeloptfp8moe_flashinfer_trtllm_trtllmfp8expertsmonolithic": 29,
        "vllm_compressedtensorsw4a4nvfp4moe_flashinfer_cutlass_flashinferexperts": 30,
        "vllm_compressedtensorsw4a4nvfp4moe_flashinfer_trtllm_trtllmnvfp4expertsmodular": 31,
        "vllm_compressedtensorsw4a4nvfp4moe_flashinfer_trtllm_trtllmnvfp4expertsmonolithic": 32,
        "vllm_compressedtensorsw4a4mxfp4moe_marlin_marlinexperts": 33,
        "vllm_compressedtensorsw4a4mxfp4moe_marlin_marlinexperts_situ_as_silu": 34,
        "vllm_compressedtensorswna16marlinmoe_marlin_marlinexperts": 35,
        "vllm_gptossmxfp4moe_marlin_marlinexperts": 36,
        "vllm_gptossmxfp4moe_triton_oaitritonmxfp4expertsmonolithic": 37,
        "vllm_gptossmxfp4moe_flashinfer_trtllm_mxfp4_bf16_trtllmmxfp4expertsmonolithic": 38,
        "vllm_mxfp4moe_flashinfer_trtllm_mxfp4_mxfp8_trtllmmxfp4expertsmodular": 39,
    },
    "collective": {
        "other": 0,
        "NCCL": 1,
        "oneCCL": 2,
        "TRTLLM": 3,
        "TRTLLM_MNNVL_oneshot": 4,
        "TRTLLM_MNNVL_twoshot": 5,
        "SGLang_CustomAllReduce_eager": 6,
        "SGLang_CustomAllReduce_graph": 7,
        "vLLM_custom_eager": 8,
        "vLLM_custom_graph": 9,
    },
    "quantize": {
        "other": 0,
        "sglang": 1,
        "torch_ops": 2,
        "static_scaled_fp8_quant": 3,
        "dynamic_per_token_scaled_fp8_quant_minus_static_scaled_fp8_quant": 4,
    },
    "causal_conv": {
        "other": 0,
        "causal_conv1d_fn": 1,
        "causal_conv1d_fn_qkv3": 2,
        "causal_conv1d_update": 3,
    },
    "linear_attention": {
        "other": 0,
        "chunk_gated_delta_rule": 1,
        "chunk_gated_delta_rule_triton": 2,
        "chunk_gated_delta_rule_flashinfer": 3,
        "fused_recurrent_gated_delta_rule": 4,
        "fused_recurrent_gated_delta_rule_packed_decode": 5,
        "fused_sigmoid_gating_delta_rule_update": 6,
        "chunk_kda": 7,
        "chunk_kda_with_fused_gate": 8,
        "flashkda_fwd": 9,
        "fused_recurrent_kda": 10,
        "fused_recurrent_kda_packed_decode": 11,
        "fused_kda_decode": 12,
        "kda_fused_decode": 13,
        "fused_kda_decode_mtp_dspark": 14,
        "mamba_chunk_scan_combined": 15,
        "selective_state_update": 16,
    },
}

# Code paths that compute something else than the op, and what.
_WITH_CONVOLUTION = "the convolution before it as well"
OTHER_WORK = {
    "moe": {"moe_torch_flow_nongated": "experts without a gate: one projection less"},
    "linear_attention": dict.fromkeys(
        ("fused_kda_decode", "kda_fused_decode", "fused_kda_decode_mtp_dspark"), _WITH_CONVOLUTION
    ),
}

_PROMPT, _STEP, _DRAFT = ("context",), ("generation",), ("generation", "verify")
# Which problems a code path is for, where an op has several kinds: by parameter, the labels that it takes.
TAKES: dict[str, dict[str, dict[str, tuple[str, ...]]]] = {
    "causal_conv": {
        "causal_conv1d_fn": {"phase": _PROMPT},
        "causal_conv1d_fn_qkv3": {"phase": _PROMPT},
        "causal_conv1d_update": {"phase": _DRAFT},
    },
    "linear_attention": {
        "chunk_gated_delta_rule": {"kind": ("gdn",), "phase": _PROMPT},
        "chunk_gated_delta_rule_triton": {"kind": ("gdn",), "phase": _PROMPT},
        "chunk_gated_delta_rule_flashinfer": {"kind": ("gdn",), "phase": _PROMPT},
        "fused_recurrent_gated_delta_rule": {"kind": ("gdn",), "phase": _DRAFT},
        "fused_recurrent_gated_delta_rule_packed_decode": {"kind": ("gdn",), "phase": _STEP},
        "fused_sigmoid_gating_delta_rule_update": {"kind": ("gdn", "kda"), "phase": _DRAFT},
        "chunk_kda": {"kind": ("kda",), "phase": _PROMPT},
        "chunk_kda_with_fused_gate": {"kind": ("kda",), "phase": _PROMPT},
        "flashkda_fwd": {"kind": ("kda",), "phase": _PROMPT},
        "fused_recurrent_kda": {"kind": ("kda",), "phase": _DRAFT},
        "fused_recurrent_kda_packed_decode": {"kind": ("kda",), "phase": _STEP},
        "fused_kda_decode": {"kind": ("kda",), "phase": _STEP},
        "kda_fused_decode": {"kind": ("kda",), "phase": _STEP},
        "fused_kda_decode_mtp_dspark": {"kind": ("kda",), "phase": ("verify",)},
        "mamba_chunk_scan_combined": {"kind": ("mamba2",), "phase": _PROMPT},
        "selective_state_update": {"kind": ("mamba2",), "phase": _DRAFT},
    },
}


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
            lookup(ConstantTable.of(rows), c.kernel_source, getattr(p, name)) == 1,
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
