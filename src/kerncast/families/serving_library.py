"""Kernels of serving frameworks (vLLM, SGLang, TensorRT-LLM …) for the ops of language models, by the code path that ran.

Like `gemm/library`: the config is the code path, `kernel_source`, as the framework that timed it calls it.
"""

from __future__ import annotations

from collections.abc import Mapping

from kerncast.expr import Expr, Namespace
from kerncast.families.serving_sources import SOURCES
from kerncast.op import Family, Op
from kerncast.ops.attention_context import attention_context
from kerncast.ops.attention_encoder import attention_encoder
from kerncast.ops.attention_generation import attention_generation
from kerncast.ops.collective import collective
from kerncast.ops.mla_bmm import mla_bmm
from kerncast.ops.mla_context import mla_context
from kerncast.ops.mla_generation import mla_generation
from kerncast.ops.moe import moe
from kerncast.ops.quantize import quantize
from kerncast.parameters import Categorical


class ServingLibrary(Family):
    """A framework's own kernels for one op."""

    def features(self, p: Namespace, c: Namespace, hw: Namespace) -> Mapping[str, Expr]:
        return {"kernel_source": c.kernel_source}


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
