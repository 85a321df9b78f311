"""Triton's tiled matmul, with the vendor library's kernel as one more candidate."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kerncast.expr import Expr, Namespace, ceil, ceil_div, log2, mod, where
from kerncast.op import Family
from kerncast.ops.gemm import gemm
from kerncast.parameters import Categorical, Int, PowerOfTwo
from kerncast.space import Constraint


def _is_triton(c: Namespace) -> Expr:
    return c.kind == "triton"


def _shared_memory_bytes(p: Namespace, c: Namespace) -> Expr:
    """What the software pipeline keeps: `num_stages` buffers of one tile of A and of B."""
    return (c.BLOCK_M + c.BLOCK_N) * c.BLOCK_K * p.element_bytes * c.num_stages


class Triton(Family):
    id = "gemm/triton"
    doc = "Triton matmul templates, and the vendor library's kernel"
    op = gemm
    parameters = {
        "kind": Categorical({"triton": 0, "library": 1}, doc="a Triton template, or the vendor library as it is"),
        "BLOCK_M": PowerOfTwo(16, 512, when=_is_triton, doc="rows of C that one program computes"),
        "BLOCK_N": PowerOfTwo(16, 512, when=_is_triton, doc="columns of C that one program computes"),
        "BLOCK_K": PowerOfTwo(16, 512, when=_is_triton, doc="depth of one step through K"),
        "num_stages": Int(1, 8, when=_is_triton, doc="depth of the software pipeline"),
        "num_warps": PowerOfTwo(1, 16, when=_is_triton),
    }

    def constraints(self, p: Namespace, c: Namespace, hw: Namespace) -> Iterable[Constraint]:
        yield Constraint(
            "shared_memory_fits",
            "num_stages × (BLOCK_M + BLOCK_N) × BLOCK_K elements must fit in the shared memory of one block",
            ~_is_triton(c) | (_shared_memory_bytes(p, c) <= hw.smem_per_block_bytes),
        )

    def features(self, p: Namespace, c: Namespace, hw: Namespace) -> Mapping[str, Expr]:
        triton = _is_triton(c)

        def only_triton(value: Expr) -> Expr:
            # 0 for the library's kernel, whose tiles nobody knows; `kind` tells the model which it is.
            return where(triton, value, 0)

        features: dict[str, Expr] = {name: getattr(c, name) for name in self.parameters}
        tiles_m, tiles_n = ceil_div(p.M, c.BLOCK_M), ceil_div(p.N, c.BLOCK_N)
        steps = ceil_div(p.K, c.BLOCK_K)
        blocks = tiles_m * tiles_n * p.batch
        waves = blocks / hw.num_cus
        shared = _shared_memory_bytes(p, c)
        padded = tiles_m * c.BLOCK_M * tiles_n * c.BLOCK_N * steps * c.BLOCK_K
        traffic = p.batch * (tiles_n * p.M * p.K + tiles_m * p.K * p.N + p.M * p.N) * p.element_bytes
        block_mn = c.BLOCK_M * c.BLOCK_N
        features |= {
            "num_tiles_m": tiles_m,
            "num_tiles_n": tiles_n,
            "k_steps": steps,
            "blocks": blocks,
            "block_mn": block_mn,
            "accumulator_per_thread": only_triton(block_mn / (c.num_warps * hw.wavefront_size)),
            "shared_memory_bytes": shared,
            "shared_memory_ratio": shared / hw.smem_per_block_bytes,
            "blocks_per_cu": only_triton(hw.lds_capacity_bytes // shared),
            "waves": waves,
            "wave_quantization": only_triton(waves / ceil(waves)),
            "true_utilization": p.M * p.N * p.K / padded,
            "operand_traffic_bytes": only_triton(traffic),
            "log2_traffic_ns": log2(1 + only_triton(traffic / hw.memory_bandwidth_gb_s)),
            "tile_intensity": only_triton(block_mn / (c.BLOCK_M + c.BLOCK_N)),
            "work_per_wave": block_mn * p.K * ceil(waves),
            "even_k": only_triton(1 * (mod(p.K, c.BLOCK_K) == 0)),
        }
        return features


triton = Triton()
