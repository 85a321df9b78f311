"""CUTLASS GEMM kernels of the 2.x kind for NVIDIA GPUs, by the parameters that its profiler selects and reports.

A threadblock computes a tile of C in steps of tile_k, `stages` buffers deep; its warps divide the tile, and each
computes its part with one tensor-core instruction shape (or, `simt`, with plain arithmetic).
https://docs.nvidia.com/cutlass/
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kerncast.core.expr import Expr, Namespace, ceil, ceil_div, log2, maximum, mod, where
from kerncast.core.op import Family
from kerncast.core.parameters import Categorical, Choice, Int
from kerncast.core.space import Constraint
from kerncast.library.ops.gemm import a_by_rows, gemm

# m, n, k of each instruction shape, and the dtypes that have it.
INSTRUCTIONS: dict[str, tuple[int, int, int, tuple[str, ...]]] = {
    "simt": (1, 1, 1, ("fp64", "fp32", "fp16", "int8")),
    "8x8x4": (8, 8, 4, ("fp64",)),
    "8x8x16": (8, 8, 16, ("int8",)),
    "16x8x8": (16, 8, 8, ("fp16", "bf16")),
    "16x8x16": (16, 8, 16, ("fp16", "bf16")),
    "16x8x32": (16, 8, 32, ("int8", "fp8", "bf8")),
}
WARP_LANES = 32
WIDEST_LOAD_BYTES = 16


def _dimension(c: Namespace, which: int) -> Expr:
    """m, n or k of the instruction."""
    value: Expr = 0 * c.tile_m + 1
    for name, shape in INSTRUCTIONS.items():
        value = where(c.instruction == name, int(str(shape[which])), value)
    return value


def _shared_memory_bytes(p: Namespace, c: Namespace) -> Expr:
    return c.stages * (c.tile_m + c.tile_n) * c.tile_k * p.element_bytes


def _row_lengths(p: Namespace) -> tuple[Expr, Expr]:
    """The dimensions along which A and B are contiguous; C is contiguous along N."""
    a = where(a_by_rows(p), p.K, p.M)
    b = where((p.layout == "rcr") | (p.layout == "ccr"), p.K, p.N)
    return a, b


class Cutlass(Family):
    id = "gemm/cutlass"
    doc = "CUTLASS GEMM kernels for NVIDIA GPUs"
    op = gemm
    parameters = {
        "tile_m": Choice(32, 64, 128, 256, doc="rows of C that one threadblock computes"),
        "tile_n": Choice(32, 64, 128, 256, doc="columns of C that one threadblock computes"),
        "tile_k": Choice(8, 16, 32, 64, 128, doc="depth of one step through K"),
        "stages": Int(2, 10, doc="buffers of the software pipeline"),
        "warps_m": Choice(1, 2, 4, doc="warps along M in a threadblock"),
        "warps_n": Choice(1, 2, 4, doc="warps along N in a threadblock"),
        "instruction": Categorical(
            {name: code for code, name in enumerate(INSTRUCTIONS)},
            doc="tensor-core instruction, m × n × k, or plain arithmetic",
        ),
        "alignment": Choice(1, 2, 4, 8, 16, doc="elements that one load of A and B takes"),
        "split_k_mode": Categorical({"serial": 0, "parallel": 1}, doc="how the parts of K are summed"),
    }

    def constraints(self, p: Namespace, c: Namespace, hw: Namespace) -> Iterable[Constraint]:
        # C is row-major in every layout of the op, and CUTLASS's library computes it as its transpose: the
        # instruction's n is along M.
        for x, inner, which in (("m", "n", 1), ("n", "m", 0)):
            tile, warps = getattr(c, f"tile_{x}"), getattr(c, f"warps_{x}")
            yield Constraint(
                f"whole_tile_{x}",
                f"tile_{x} must be warps_{x} × the instruction's {inner} × a whole number",
                mod(tile, warps * _dimension(c, which)) == 0,
            )
        yield Constraint(
            "whole_tile_k", "tile_k must be a multiple of the instruction's k", mod(c.tile_k, _dimension(c, 2)) == 0
        )
        listed = [
            (p.dtype == dtype) & (c.instruction == name) for name, (_, _, _, dtypes) in INSTRUCTIONS.items() for dtype in dtypes
        ]
        has = listed[0]
        for item in listed[1:]:
            has = has | item
        yield Constraint("instruction", "the dtype must support the instruction", has)
        yield Constraint(
            "shared_memory_fits",
            "stages × (tile_m + tile_n) × tile_k elements must fit in the shared memory of one block",
            _shared_memory_bytes(p, c) <= hw.smem_per_block_bytes,
        )
        yield Constraint(
            "load_width",
            "a load takes at most 16 bytes: alignment × element size",
            c.alignment * p.element_bytes <= WIDEST_LOAD_BYTES,
        )
        a, b = _row_lengths(p)
        yield Constraint(
            "aligned",
            "the contiguous dimensions of A, B and C must be multiples of alignment",
            (mod(a, c.alignment) == 0) & (mod(b, c.alignment) == 0) & (mod(p.N, c.alignment) == 0),
        )
        yield Constraint(
            "aligned_rows",
            "lda, ldb and ldc must be multiples of alignment",
            (mod(p.lda, c.alignment) == 0) & (mod(p.ldb, c.alignment) == 0) & (mod(p.ldc, c.alignment) == 0),
        )
        yield Constraint(
            "simt_alignment", "plain arithmetic loads single elements", ~(c.instruction == "simt") | (c.alignment == 1)
        )
        yield Constraint(
            "split_k", "with split_k = 1 there is nothing to sum: serial", (p.split_k > 1) | (c.split_k_mode == "serial")
        )

    def features(self, p: Namespace, c: Namespace, hw: Namespace) -> Mapping[str, Expr]:
        features: dict[str, Expr] = {name: getattr(c, name) for name in self.parameters}
        tiles_m, tiles_n = ceil_div(p.M, c.tile_m), ceil_div(p.N, c.tile_n)
        k_part = ceil_div(p.K, p.split_k)
        steps = ceil_div(k_part, c.tile_k)
        blocks = tiles_m * tiles_n * p.split_k * p.batch
        shared, warps = _shared_memory_bytes(p, c), c.warps_m * c.warps_n
        per_cu = maximum(1, hw.lds_capacity_bytes // shared)
        waves = blocks / (hw.num_cus * per_cu)
        traffic = p.batch * (tiles_n * p.M * p.K + tiles_m * p.K * p.N + p.split_k * p.M * p.N) * p.element_bytes
        return features | {
            "num_tiles_m": tiles_m,
            "num_tiles_n": tiles_n,
            "k_steps": steps,
            "blocks": blocks,
            "num_warps": warps,
            "tile_mn": c.tile_m * c.tile_n,
            "accumulator_per_thread": c.tile_m * c.tile_n / (warps * WARP_LANES),
            "instruction_volume": _dimension(c, 0) * _dimension(c, 1) * _dimension(c, 2),
            "shared_memory_bytes": shared,
            "shared_memory_ratio": shared / hw.smem_per_block_bytes,
            "blocks_per_cu": per_cu,
            "waves": waves,
            "wave_quantization": waves / ceil(waves),
            "true_utilization": p.M * p.N * p.K / (tiles_m * c.tile_m * tiles_n * c.tile_n * steps * p.split_k * c.tile_k),
            "pipeline_fill": steps / (steps + c.stages),
            "operand_traffic_bytes": traffic,
            "log2_traffic_ns": log2(traffic / hw.memory_bandwidth_gb_s),
            "tile_intensity": c.tile_m * c.tile_n / (c.tile_m + c.tile_n),
            "work_per_wave": c.tile_m * c.tile_n * k_part * ceil(waves),
            "load_bytes": c.alignment * p.element_bytes,
        }


cutlass = Cutlass()
