"""Kernels of serving frameworks (vLLM, SGLang, TensorRT-LLM …) for the ops of language models, by the code path that ran.

Like `gemm/library`: the config is the code path, `kernel_source`, as the framework that timed it calls it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kerncast.expr import Expr, Namespace, constant
from kerncast.families.attention_tiles import causal_features, full_features, parts_of_time
from kerncast.families.serving_sources import SOURCES
from kerncast.op import Family, Op
from kerncast.ops.attention_context import attention_context
from kerncast.ops.attention_encoder import attention_encoder
from kerncast.ops.attention_generation import attention_generation
from kerncast.ops.collective import collective
from kerncast.ops.mla_bmm import mla_bmm
from kerncast.ops.mla_context import QUERY, VALUE, mla_context
from kerncast.ops.mla_generation import mla_generation
from kerncast.ops.moe import moe
from kerncast.ops.quantize import quantize
from kerncast.parameters import Categorical


Physics = Callable[[Namespace, Namespace], Mapping[str, Expr]]


def _library(op: Op, doc: str, physics: Physics) -> Family:
    """The family of a framework's own kernels for one op, with what `physics` knows of a problem and a device."""
    name = "".join(word.capitalize() for word in op.name.split("_"))
    source = Categorical(SOURCES[op.name], doc="the code path that ran; other: one that has no name here")

    def features(self: Family, p: Namespace, c: Namespace, hw: Namespace) -> Mapping[str, Expr]:
        return {"kernel_source": c.kernel_source, **physics(p, hw)}

    members = {"id": f"{op.name}/library", "doc": doc, "op": op, "parameters": {"kernel_source": source}, "features": features}
    made: type[Family] = type(f"{name}Library", (Family,), members)
    return made()


def _context(p: Namespace, hw: Namespace) -> Mapping[str, Expr]:
    return {**parts_of_time(hw, attention_context.work(p)), **causal_features(p, hw, p.window, 2 * p.head_dim)}


def _encoder(p: Namespace, hw: Namespace) -> Mapping[str, Expr]:
    return {**parts_of_time(hw, attention_encoder.work(p)), **full_features(p, hw, 2 * p.head_dim)}


def _mla_context(p: Namespace, hw: Namespace) -> Mapping[str, Expr]:
    return {**parts_of_time(hw, mla_context.work(p)), **causal_features(p, hw, constant(0), QUERY + VALUE)}


def _nothing(p: Namespace, hw: Namespace) -> Mapping[str, Expr]:
    return {}


attention_context_library = _library(
    attention_context, "a framework's own attention of a prompt, by the code path that ran", _context
)
attention_generation_library = _library(
    attention_generation, "a framework's own attention over the cache, by the code path", _nothing
)
attention_encoder_library = _library(
    attention_encoder, "a framework's own attention without a mask, by the code path that ran", _encoder
)
mla_context_library = _library(mla_context, "a framework's own latent attention of a prompt, by the code path", _mla_context)
mla_generation_library = _library(
    mla_generation, "a framework's own latent attention over the cache, by the code path", _nothing
)
mla_bmm_library = _library(
    mla_bmm, "a framework's own batched products of latent attention, by the code path that ran", _nothing
)
moe_library = _library(moe, "a framework's own experts, by the code path that ran", _nothing)
collective_library = _library(collective, "a library's own communication, by the code path that ran", _nothing)
quantize_library = _library(quantize, "a framework's own quantisation, by the code path that ran", _nothing)
