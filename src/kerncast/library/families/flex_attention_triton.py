"""Triton's flex attention template: a block of queries is kept while blocks of keys and values are streamed."""

from __future__ import annotations

from collections.abc import Mapping

from kerncast.core.expr import Expr, Namespace, ceil, ceil_div, mod
from kerncast.core.op import Family
from kerncast.core.parameters import Int, PowerOfTwo
from kerncast.library.families.triton_tiles import PARAMETERS
from kerncast.library.ops.flex_attention import flex_attention


class FlexAttentionTriton(Family):
    id = "flex_attention/triton"
    doc = "Triton's flex attention template"
    op = flex_attention
    parameters = {
        "BLOCK_M": PowerOfTwo(16, 512, doc="queries that one program computes"),
        "BLOCK_N": PowerOfTwo(16, 512, doc="keys and values of one step"),
        "num_stages": Int(1, 8, doc=PARAMETERS["num_stages"].doc),
        "num_warps": PowerOfTwo(1, 16),
    }

    def features(self, p: Namespace, c: Namespace, hw: Namespace) -> Mapping[str, Expr]:
        blocks = ceil_div(p.q_len, c.BLOCK_M) * p.batch * p.heads
        waves = blocks / hw.num_cus
        steps = ceil_div(p.kv_len, c.BLOCK_N)
        query = c.BLOCK_M * p.head_dim * p.element_bytes
        key_value = 2 * c.BLOCK_N * p.head_dim * p.element_bytes
        threads = c.num_warps * hw.wavefront_size
        return {
            **{name: getattr(c, name) for name in self.parameters},
            "blocks": blocks,
            "kv_steps": steps,
            "waves": waves,
            "wave_quantization": waves / ceil(waves),
            "query_fill": p.q_len / (ceil_div(p.q_len, c.BLOCK_M) * c.BLOCK_M),
            "key_fill": p.kv_len / (steps * c.BLOCK_N),
            "even_kv": 1 * (mod(p.kv_len, c.BLOCK_N) == 0),
            # Scores and the running result live in registers, in fp32.
            "scores_per_thread": c.BLOCK_M * c.BLOCK_N / threads,
            "accumulator_per_thread": c.BLOCK_M * p.head_dim / threads,
            "pipeline_bytes": query + key_value * c.num_stages,
            "pipeline_ratio": (query + key_value * c.num_stages) / hw.smem_per_block_bytes,
            "kv_traffic_bytes": blocks * 2 * p.kv_len * p.head_dim * p.element_bytes,
            "work_per_wave": c.BLOCK_M * p.kv_len * p.head_dim * ceil(waves),
        }


flex_attention_triton = FlexAttentionTriton()
