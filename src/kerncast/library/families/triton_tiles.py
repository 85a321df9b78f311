"""What Triton's matmul templates have in common: the parameters of a tile, its limits and its features."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kerncast.core.expr import Expr, Namespace, ceil, ceil_div, log2, maximum, minimum, mod, where
from kerncast.core.parameters import Categorical, Int, Parameter, PowerOfTwo
from kerncast.core.space import Constraint
from kerncast.library.ops.gemm import a_by_rows, b_by_rows


def is_triton(c: Namespace) -> Expr:
    """Whether a config is a Triton template rather than the library's kernel."""
    return c.kind == "triton"


PARAMETERS: dict[str, Parameter] = {
    "kind": Categorical({"triton": 0, "library": 1}, doc="a Triton template, or the vendor library as it is"),
    "BLOCK_M": PowerOfTwo(16, 512, when=is_triton, doc="rows of C that one program computes"),
    "BLOCK_N": PowerOfTwo(16, 512, when=is_triton, doc="columns of C that one program computes"),
    "BLOCK_K": PowerOfTwo(16, 512, when=is_triton, doc="depth of one step through K"),
    "num_stages": Int(1, 8, when=is_triton, doc="depth of the software pipeline"),
    "num_warps": PowerOfTwo(1, 16, when=is_triton),
}


@dataclass(frozen=True)
class Operands:
    """Bytes per element of A, B and C, which differ in a mixed product; `batch` products at once."""

    a: Expr
    b: Expr
    c: Expr
    batch: Expr | int = 1


def stage_bytes(c: Namespace, size: Operands) -> Expr:
    """One tile of A and one of B."""
    return (c.BLOCK_M * size.a + c.BLOCK_N * size.b) * c.BLOCK_K


def shared_memory_bytes(c: Namespace, size: Operands) -> Expr:
    """What the pipeline keeps: the tiles of all stages but the one that is being computed on.

    On an A100 this separates 230,026 measured template runs without exception: those that ran need up to 163,840 bytes,
    those that did not need 196,608 or more, and a block may have 166,912.
    """
    return stage_bytes(c, size) * maximum(c.num_stages - 1, 1)


def shared_memory_fits(c: Namespace, hw: Namespace, size: Operands) -> Constraint:
    """The only rule of a template."""
    return Constraint(
        "shared_memory_fits",
        "the tiles of A and B, (BLOCK_M + BLOCK_N) × BLOCK_K elements for num_stages − 1 stages (at least one), "
        "must fit in the shared memory of one block",
        ~is_triton(c) | (shared_memory_bytes(c, size) <= hw.smem_per_block_bytes),
    )


def tile_features(p: Namespace, c: Namespace, hw: Namespace, size: Operands) -> Mapping[str, Expr]:
    """Features of a config, and of its tiles on a product M × N × K."""
    triton = is_triton(c)

    def only_triton(value: Expr) -> Expr:
        # 0 for the library's kernel, whose tiles are unknown; `kind` tells the model which it is.
        return where(triton, value, 0)

    tiles_m, tiles_n = ceil_div(p.M, c.BLOCK_M), ceil_div(p.N, c.BLOCK_N)
    steps = ceil_div(p.K, c.BLOCK_K)
    blocks = tiles_m * tiles_n * size.batch
    waves = blocks / hw.num_cus
    shared = shared_memory_bytes(c, size)
    resident = maximum(hw.lds_capacity_bytes // shared, 1)
    resident_waves = blocks / (hw.num_cus * resident)
    padded = tiles_m * c.BLOCK_M * tiles_n * c.BLOCK_N * steps * c.BLOCK_K
    traffic = size.batch * (tiles_n * p.M * p.K * size.a + tiles_m * p.K * p.N * size.b + p.M * p.N * size.c)
    block_mn = c.BLOCK_M * c.BLOCK_N
    threads = c.num_warps * hw.wavefront_size
    return _residency(p, c, hw, size, only_triton) | {
        **{name: getattr(c, name) for name in PARAMETERS},
        "num_tiles_m": tiles_m,
        "num_tiles_n": tiles_n,
        "k_steps": steps,
        "blocks": blocks,
        "block_mn": block_mn,
        "accumulator_per_thread": only_triton(block_mn / threads),
        "loads_per_thread": only_triton(stage_bytes(c, size) / threads),
        "shared_memory_bytes": shared,
        "shared_memory_ratio": shared / hw.smem_per_block_bytes,
        "blocks_per_cu": only_triton(hw.lds_capacity_bytes // shared),
        "waves": waves,
        "wave_quantization": only_triton(waves / ceil(waves)),
        "resident_wave_quantization": only_triton(resident_waves / ceil(resident_waves)),
        "pipeline_fill": only_triton(minimum(c.num_stages, steps) / c.num_stages),
        "true_utilization": p.M * p.N * p.K / padded,
        "tile_fill_m": only_triton(p.M / (tiles_m * c.BLOCK_M)),
        "tile_fill_n": only_triton(p.N / (tiles_n * c.BLOCK_N)),
        "operand_traffic_bytes": only_triton(traffic),
        "log2_traffic_ns": log2(1 + only_triton(traffic / hw.memory_bandwidth_gb_s)),
        "tile_intensity": only_triton(block_mn / (c.BLOCK_M + c.BLOCK_N)),
        "work_per_wave": block_mn * p.K * ceil(waves),
        "log2_work_per_wave": log2(1 + block_mn * p.K * ceil(waves)),
        "even_k": only_triton(1 * (mod(p.K, c.BLOCK_K) == 0)),
    }


# Registers: accumulators, the tiles of one step in flight, and about forty more. Every GPU so far has 64 K words.
REGISTERS_PER_CU, OTHER_REGISTERS, MOST_REGISTERS = 65_536, 40, 255
# Triton's matmul walks tiles in groups of eight rows, so that blocks that run together share operands.
GROUP_ROWS = 8


def _residency(
    p: Namespace, c: Namespace, hw: Namespace, size: Operands, only_triton: Callable[[Expr], Expr]
) -> dict[str, Expr]:
    """What runs at the same time: blocks that fit a compute unit, the waves they make, the traffic they share."""
    tiles_m, tiles_n = ceil_div(p.M, c.BLOCK_M), ceil_div(p.N, c.BLOCK_N)
    threads = c.num_warps * hw.wavefront_size
    step = stage_bytes(c, size)
    registers = minimum(c.BLOCK_M * c.BLOCK_N / threads + step / (8 * threads) + OTHER_REGISTERS, MOST_REGISTERS)
    resident = maximum(
        minimum(
            hw.lds_capacity_bytes // (step * c.num_stages + 1024),
            REGISTERS_PER_CU // (registers * threads),
            hw.max_waves_per_cu // c.num_warps,
        ),
        1,
    )
    blocks = tiles_m * tiles_n * size.batch
    waves = blocks / (hw.num_cus * resident)
    together = minimum(blocks, hw.num_cus * resident)
    rows = minimum(GROUP_ROWS, tiles_m)
    columns = minimum(ceil_div(together, rows), tiles_n)
    strip = rows * c.BLOCK_M * size.a + columns * c.BLOCK_N * size.b
    fetched = maximum(1, blocks / together) * strip * p.K + p.M * p.N * size.c * size.batch
    compute_ns = ceil(waves) * resident * c.BLOCK_M * c.BLOCK_N * ceil_div(p.K, c.BLOCK_K) * c.BLOCK_K * 2 * hw.num_cus
    a_rows, b_rows = a_by_rows(p), b_by_rows(p)
    return {
        "resident_blocks": only_triton(resident),
        "resident_waves": only_triton(waves),
        "register_wave_fill": only_triton(waves / ceil(waves)),
        "empty_in_last_wave": only_triton(ceil(waves) - waves),
        "pipeline_turns": only_triton(ceil_div(p.K, c.BLOCK_K) / maximum(c.num_stages, 1)),
        "bytes_in_flight": only_triton(step * maximum(c.num_stages - 1, 0) * resident),
        # The run of contiguous bytes that one row of a tile is loaded in.
        "contiguous_a": only_triton(where(a_rows, c.BLOCK_K, c.BLOCK_M) * size.a),
        "contiguous_b": only_triton(where(b_rows, c.BLOCK_N, c.BLOCK_K) * size.b),
        "log2_fetched_ns": log2(1 + only_triton(fetched / hw.memory_bandwidth_gb_s)),
        "log2_wave_compute_ns": log2(1 + only_triton(compute_ns / hw.peak_flops * 1e9)),
    }
