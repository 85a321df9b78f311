"""Families with few configs: a library's code paths, and what Inductor's AutoHeuristic chooses among."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kerncast.core.expr import Expr, Namespace, ceil, ceil_div, log2, mod, where
from kerncast.core.op import Family
from kerncast.core.parameters import Categorical, Int, PowerOfTwo
from kerncast.core.space import Constraint
from kerncast.library.families.library_tiles import kernel_source_parameter, library_features, library_hints
from kerncast.library.families.serving_tiles import hardware_numbers
from kerncast.library.families.triton_tiles import PARAMETERS, Operands, shared_memory_fits, tile_features
from kerncast.library.ops.attention import flex_attention
from kerncast.library.ops.gemm import gemm, mixed_mm, pad_mm


class GemmLibrary(Family):
    id = "gemm/library"
    doc = "a framework's or library's own GEMM, by the code path that ran"
    op = gemm
    parameters = {"kernel_source": kernel_source_parameter()}

    def features(self, p: Namespace, c: Namespace, hw: Namespace) -> Mapping[str, Expr]:
        tiles = library_features(p, hw, gemm.work(p), p.batch)
        return {"kernel_source": c.kernel_source, **tiles, **hardware_numbers(hw)}


gemm_library = GemmLibrary()


class MixedMmLibrary(Family):
    id = "mixed_mm/library"
    doc = "a framework's or library's own weight-only product, by the code path that ran"
    op = mixed_mm
    parameters = {"kernel_source": kernel_source_parameter()}

    def features(self, p: Namespace, c: Namespace, hw: Namespace) -> Mapping[str, Expr]:
        tiles = library_features(p, hw, mixed_mm.work(p))
        return {"kernel_source": c.kernel_source, **tiles, **hardware_numbers(hw)}


mixed_mm_library = MixedMmLibrary()


def _operands(p: Namespace) -> Operands:
    return Operands(p.element_bytes, p.b_bytes, p.element_bytes)


class MixedMmTriton(Family):
    id = "mixed_mm/triton"
    doc = "Triton matmul templates that widen B as they load it, and the library's product of a widened copy"
    op = mixed_mm
    parameters = PARAMETERS
    library = {"kind": "library"}

    def constraints(self, p: Namespace, c: Namespace, hw: Namespace) -> Iterable[Constraint]:
        yield shared_memory_fits(c, hw, _operands(p))

    def features(self, p: Namespace, c: Namespace, hw: Namespace) -> Mapping[str, Expr]:
        # The library reads B, writes a copy in A's type and reads that: three passes where a template has one.
        widened = p.K * p.N * (p.b_bytes + 2 * p.element_bytes)
        return {
            **tile_features(p, c, hw, _operands(p)),
            **library_hints(p, hw),
            "library_widening_bytes": (c.kind == "library") * widened,
        }


mixed_mm_triton = MixedMmTriton()


class PadMmInductor(Family):
    id = "pad_mm/inductor"
    doc = "multiply as it is, or pad, multiply and slice"
    op = pad_mm
    parameters = {"choice": Categorical({"orig": 0, "pad": 1}, doc="orig multiplies as it is, pad pads first")}

    def features(self, p: Namespace, c: Namespace, hw: Namespace) -> Mapping[str, Expr]:
        pad = c.choice == "pad"
        m, n, k = p.M + p.pad_m, p.N + p.pad_n, p.K + p.pad_k
        a_padded, b_padded = (p.pad_m + p.pad_k) > 0, (p.pad_n + p.pad_k) > 0
        # A copy reads the old operand and writes the new one.
        copied = (a_padded & ~p.a_prepadded) * (p.M * p.K + m * k) + (b_padded & ~p.b_prepadded) * (p.K * p.N + k * n)
        cut = (p.pad_m + p.pad_n > 0) * 2 * p.M * p.N
        copy_ns = (copied + cut) * p.element_bytes / hw.memory_bandwidth_gb_s
        return {
            "choice": c.choice,
            "copied_bytes": where(pad, (copied + cut) * p.element_bytes, 0),
            "log2_copy_ns": log2(1 + where(pad, copy_ns, 0)),
            "work_ratio": where(pad, m * n * k / (p.M * p.N * p.K), 1),
            "unaligned_k": where(pad, 0, p.pad_k > 0),
            "unaligned_n": where(pad, 0, p.pad_n > 0),
            "unaligned_m": where(pad, 0, p.pad_m > 0),
        }


pad_mm_inductor = PadMmInductor()


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
