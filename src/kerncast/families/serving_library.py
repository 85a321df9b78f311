"""Kernels of serving frameworks (vLLM, SGLang, TensorRT-LLM …) for the ops of language models, by the code path that ran.

Like `gemm/library`: the config is the code path, `kernel_source`, as the framework that timed it calls it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kerncast.expr import Expr, Namespace, ceil_div, constant
from kerncast.families.serving_sources import SOURCES
from kerncast.families.serving_tiles import Cache, Prompt, cache_features, expert_features, hardware_numbers, prompt_features
from kerncast.op import Family, Op
from kerncast.ops.attention_context import attention_context
from kerncast.ops.attention_encoder import attention_encoder
from kerncast.ops.attention_generation import attention_generation
from kerncast.ops.collective import collective
from kerncast.ops.mla_bmm import mla_bmm
from kerncast.ops.mla_context import CACHED, QUERY, VALUE, mla_context
from kerncast.ops.mla_generation import mla_generation
from kerncast.ops.moe import moe
from kerncast.ops.quantize import quantize
from kerncast.parameters import Categorical


def _context(p: Namespace, hw: Namespace) -> Mapping[str, Expr]:
    prompt = Prompt(p.batch, p.heads, p.kv_heads, p.seq_len, p.past_len, p.window, 4 * p.head_dim, p.pairs)
    return prompt_features(prompt, hw, attention_context.work(p))


def _encoder(p: Namespace, hw: Namespace) -> Mapping[str, Expr]:
    none = constant(0)
    prompt = Prompt(p.batch, p.heads, p.heads, p.seq_len, none, none, 4 * p.head_dim, p.pairs, causal=False)
    return prompt_features(prompt, hw, attention_encoder.work(p))


def _latent_context(p: Namespace, hw: Namespace) -> Mapping[str, Expr]:
    per_pair = constant(2 * (QUERY + VALUE))
    prompt = Prompt(p.batch, p.heads, p.heads, p.seq_len, p.past_len, constant(0), per_pair, p.pairs)
    return prompt_features(prompt, hw, mla_context.work(p))


def _generation(p: Namespace, hw: Namespace) -> Mapping[str, Expr]:
    shared = p.heads / p.kv_heads
    groups = {"kv": p.batch * p.kv_heads, "heads": p.batch * p.heads}
    groups |= {f"packed_{rows}": p.batch * p.kv_heads * ceil_div(shared, rows) for rows in (16, 64)}
    return cache_features(Cache(groups, p.keys, 2 * p.head_dim * p.cache_bytes), hw, attention_generation.work(p))


def _latent_generation(p: Namespace, hw: Namespace) -> Mapping[str, Expr]:
    groups = {f"packed_{rows}": p.batch * ceil_div(p.heads, rows) for rows in (16, 64, 128)}
    return cache_features(Cache(groups, p.context_len, CACHED * p.cache_bytes), hw, mla_generation.work(p))


def _experts(p: Namespace, hw: Namespace) -> Mapping[str, Expr]:
    return expert_features(p, hw, moe.work(p))


def _links(p: Namespace, hw: Namespace) -> Mapping[str, Expr]:
    return {"device_link_gb_s": 1 * hw.link_bandwidth_gb_s}


# By op: how plausible tiles of its kernels would fill the device.
TILES: dict[str, Callable[[Namespace, Namespace], Mapping[str, Expr]]] = {
    "attention_context": _context,
    "attention_encoder": _encoder,
    "attention_generation": _generation,
    "mla_context": _latent_context,
    "mla_generation": _latent_generation,
    "moe": _experts,
    "collective": _links,
}


class ServingLibrary(Family):
    """A framework's own kernels for one op."""

    def features(self, p: Namespace, c: Namespace, hw: Namespace) -> Mapping[str, Expr]:
        tiles = TILES.get(self.op.name)
        return {
            "kernel_source": c.kernel_source,
            **({} if tiles is None else tiles(p, hw)),
            **hardware_numbers(hw, arithmetic=self.op.name != "collective"),
        }


def _library(op: Op, doc: str) -> Family:
    name = "".join(word.capitalize() for word in op.name.split("_"))
    source = Categorical(SOURCES[op.name], doc="the code path that ran; other: one that has no name here")
    members = {"id": f"{op.name}/library", "doc": doc, "op": op, "parameters": {"kernel_source": source}}
    made: type[Family] = type(f"{name}Library", (ServingLibrary,), members)
    return made()


attention_context_library = _library(attention_context, "a framework's own attention of a prompt, by the code path that ran")
attention_generation_library = _library(attention_generation, "a framework's own attention over the cache, by the code path")
attention_encoder_library = _library(attention_encoder, "a framework's own attention without a mask, by the code path that ran")
mla_context_library = _library(mla_context, "a framework's own latent attention of a prompt, by the code path")
mla_generation_library = _library(mla_generation, "a framework's own latent attention over the cache, by the code path")
mla_bmm_library = _library(mla_bmm, "a framework's own batched products of latent attention, by the code path that ran")
moe_library = _library(moe, "a framework's own experts, by the code path that ran")
collective_library = _library(collective, "a library's own communication, by the code path that ran")
quantize_library = _library(quantize, "a framework's own quantisation, by the code path that ran")
