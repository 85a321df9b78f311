"""Features of products' tiles: those of Triton's templates, which are known, and plausible ones of a library, which are not.

A library picks its tile by shape and device. Its times jump where the tiles of some shape fill a wave, so the model gets
the jumps of several tile shapes and learns which ones the library follows. Extend `TILES` to offer it more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kerncast.core.expr import Expr, Namespace, ceil, ceil_div, floor_div, log2, maximum, minimum, mod, power_of_two_in, where
from kerncast.core.op import Work
from kerncast.core.parameters import Categorical, Int, Parameter, PowerOfTwo
from kerncast.core.space import Constraint
from kerncast.library.ops.gemm import a_by_rows, b_by_rows

# Rows × columns of C that one block computes, in vendor libraries of the last GPU generations.
TILES = ((64, 64), (64, 128), (128, 64), (128, 128), (128, 192), (192, 128), (128, 256), (256, 64), (256, 128), (256, 256))
ALIGNMENTS = (8, 16, 64, 128)
# More tile shapes, including thin and odd ones, that are only compared by the time that each would take.
RIVALS = (*TILES, (64, 256), (64, 32), (32, 64), (64, 16), (192, 192), (256, 192), (192, 256), (320, 128))
# Tile shapes for which a library splits K when they leave compute units idle.
SPLIT = ((64, 32), (32, 64), (64, 64), (128, 64), (128, 128), (256, 128), (128, 256))
# No part of K is shorter than this: summing the parts would take longer than it saves.
LEAST_PART = 512
# A benchmark may rotate through several copies of the operands so that they are not in the cache; each copy then has its
# share of the cache.
COPIES = (1, 2, 4, 8)
# Typical of recent GPUs, for comparing tiles with each other, not for predicting times: the share of the peak that a tile
# reaches, L2 bandwidth over memory bandwidth, the overhead of a wave and of a launch.
REACHED, L2_OVER_MEMORY, WAVE_NS, LAUNCH_NS = 0.8, 1.6, 300, 1500

# Which code path ran, as the framework that timed it calls it. Append, never renumber.
KERNEL_SOURCES = {
    "other": 0,
    "torch.nn.functional.linear": 1,
    "torch_flow": 2,
    "deepgemm": 3,
    "sglang": 4,
    "sglang_torch_linear": 5,
    "sglang_sgl_kernel_fp8_scaled_mm": 6,
    "sglang_deepgemm_gemm_nt_f8f8bf16": 7,
    "sglang_flashinfer_cutedsl_nvfp4": 8,
    "sglang_flashinfer_cutlass_nvfp4": 9,
    "vllm_default": 10,
    "CutlassFP8ScaledMMLinearKernel": 11,
    "CutlassFp8BlockScaledMMKernel": 12,
    "DeepGemmFp8BlockScaledMMKernel": 13,
    "FlashInferFp8BlockScaledMMKernel": 14,
    "TritonFp8BlockScaledMMKernel": 15,
    "FlashInferCuteDslNvFp4LinearKernel": 16,
    "FlashInferCutlassNvFp4LinearKernel": 17,
    "trt_flow_/smooth_quant_gemm_L96/PLUGIN_V2_SmoothQuantGemm_0": 18,
    "trt_flow_/weight_only_quant_matmul_L257/PLUGIN_V2_WeightOnlyQuantMatmul_0": 19,
}


def kernel_source_parameter() -> Categorical:
    """The config of a library family."""
    return Categorical(KERNEL_SOURCES, doc="the code path that ran; other: one that has no name here")


def library_features(p: Namespace, hw: Namespace, work: Work, batch: Expr | int = 1) -> Mapping[str, Expr]:
    """Features of a product M × N × K that a library computes."""
    compute_ns = work.flops / hw.peak_flops * 1e9
    memory_ns = work.bytes / hw.memory_bandwidth_gb_s
    features: dict[str, Expr] = {
        "compute_ns": compute_ns,
        "memory_ns": memory_ns,
        "compute_share": compute_ns / (compute_ns + memory_ns),
        **_sides(p),
    }
    for name in ("M", "N", "K"):
        for size in ALIGNMENTS:
            features[f"{name}_aligned_{size}"] = 1 * (mod(getattr(p, name), size) == 0)
    for rows, columns in TILES:
        features |= _tile(p, hw, work, batch, rows, columns)
    return {**features, **_traffic(p, hw, work), **_parts(p, hw, batch), **_rivals(p, hw, work, batch)}


# Tiles that a library might use, for families in which it is one candidate among known tiles.
HINTS = ((256, 128), (128, 256), (128, 128), (64, 64))
# The widest load of a GPU, in bytes: rows that do not begin at multiples of it are loaded in pieces.
LONGEST_LOAD = 16


def library_hints(p: Namespace, hw: Namespace, batch: Expr | int = 1) -> Mapping[str, Expr]:
    """Features that show when the library is slow: a wave is half empty, or a size is not a multiple of a load."""
    features: dict[str, Expr] = {}
    for rows, columns in HINTS:
        waves = _tiles(p, batch, rows, columns) / hw.num_cus
        features[f"wave_fill_{rows}x{columns}"] = waves / ceil(waves)
    for name in ("M", "N", "K"):
        # How often it is divisible by two, up to eight times.
        features[f"powers_of_two_in_{name}"] = sum((1 * (mod(getattr(p, name), 2**power) == 0) for power in range(2, 9)),
                                                   1 * (mod(getattr(p, name), 2) == 0))  # fmt: skip
    return features


def storage_hints(p: Namespace, hw: Namespace, batch: Expr | int = 1) -> Mapping[str, Expr]:
    """`library_hints`, and more for A and B in either storage order: how rows are placed in memory, how every tile fits."""
    by_rows = {"a": a_by_rows(p), "b": b_by_rows(p)}
    # The stride between stored rows; a vector has only one row.
    apart = {
        "a": where(by_rows["a"] | (p.M == 1), p.K, p.M),
        "b": where(by_rows["b"] & (p.N > 1), p.N, p.K),
        "c": where(p.N == 1, p.M, p.N),
    }
    whole = {name: power_of_two_in(size * p.element_bytes, LONGEST_LOAD) for name, size in apart.items()}
    features: dict[str, Expr] = {
        **library_hints(p, hw, batch),
        **{f"load_bytes_{name}": size for name, size in whole.items()},
        "load_bytes_least": minimum(minimum(whole["a"], whole["b"]), whole["c"]),
        **{f"rows_of_{name}": 1 * by_rows[name] for name in by_rows},
        **{f"log2_row_of_{name}": log2(apart[name]) for name in by_rows},
        **_areas(p),
        **_sides(p),
    }
    for rows, columns in TILES:
        tiles, at = _tiles(p, batch, rows, columns), f"{rows}x{columns}"
        features[f"log2_waves_{at}"] = log2(tiles / hw.num_cus)
        features |= _fill(p, hw, batch, tiles, rows, columns)
    return features


def _tiles(p: Namespace, batch: Expr | int, rows: int, columns: int) -> Expr:
    """How many tiles of a shape cover C."""
    return ceil_div(p.M, rows) * ceil_div(p.N, columns) * batch


def _fill(p: Namespace, hw: Namespace, batch: Expr | int, tiles: Expr, rows: int, columns: int) -> Mapping[str, Expr]:
    """How full the waves of these tiles are, and the tiles themselves."""
    waves, at = tiles / hw.num_cus, f"{rows}x{columns}"
    return {
        f"wave_fill_{at}": waves / ceil(waves),
        f"tile_fill_{at}": p.M * p.N * batch / (tiles * rows * columns),
    }


def _areas(p: Namespace) -> Mapping[str, Expr]:
    return {"log2_MN": log2(p.M * p.N), "log2_MK": log2(p.M * p.K), "log2_NK": log2(p.N * p.K)}


def _sides(p: Namespace) -> Mapping[str, Expr]:
    return {"log2_smaller_side": log2(minimum(p.M, p.N)), "log2_larger_side": log2(maximum(p.M, p.N))}


def _tile(p: Namespace, hw: Namespace, work: Work, batch: Expr | int, rows: int, columns: int) -> Mapping[str, Expr]:
    """How well one tile shape would do."""
    tiles = _tiles(p, batch, rows, columns)
    waves = tiles / hw.num_cus
    # One tile of C is one block's work; a block has its share of the device's rate.
    tile_ns = 2 * rows * columns * p.K * hw.num_cus / hw.peak_flops * 1e9
    at = f"{rows}x{columns}"
    return {
        f"tiles_{at}": tiles,
        f"waves_{at}": ceil(waves),
        **_fill(p, hw, batch, tiles, rows, columns),
        f"last_wave_{at}": mod(tiles, hw.num_cus) / hw.num_cus,
        f"log2_waves_ns_{at}": log2(ceil(waves) * tile_ns),
    }


def _traffic(p: Namespace, hw: Namespace, work: Work) -> Mapping[str, Expr]:
    """The sizes of the matrices, and the time to load what the cache does not hold."""
    features = {
        **_areas(p),
        "log2_bytes": log2(work.bytes),
    }
    for copies in COPIES:
        missing = maximum(0, work.bytes - hw.l2_cache_kb * 1024 / copies)
        # Below a microsecond it is hidden by the launch.
        features[f"log2_missing_ns_{copies}"] = log2(missing / hw.memory_bandwidth_gb_s + 1000)
    return features


def _parts(p: Namespace, hw: Namespace, batch: Expr | int) -> Mapping[str, Expr]:
    """The depth of each part when K is split over the idle units, and how full that wave is."""
    features: dict[str, Expr] = {}
    for rows, columns in SPLIT:
        tiles = _tiles(p, batch, rows, columns)
        parts = minimum(maximum(1, floor_div(hw.num_cus, tiles)), maximum(1, floor_div(p.K, LEAST_PART)))
        waves = tiles * parts / hw.num_cus
        at = f"{rows}x{columns}"
        # Starting and ending take about as long as a hundred steps of K.
        features[f"log2_part_{at}"] = log2(p.K / parts + 100)
        features[f"split_fill_{at}"] = waves / ceil(waves)
    return features


def _rivals(p: Namespace, hw: Namespace, work: Work, batch: Expr | int) -> Mapping[str, Expr]:
    """The time of each tile shape relative to the fastest: how clear the library's choice is."""
    element = work.bytes / (batch * (p.M * p.K + p.K * p.N + p.M * p.N))
    took: dict[str, Expr] = {}
    for rows, columns in RIVALS:
        waves = ceil(_tiles(p, batch, rows, columns) / hw.num_cus)
        maths_ns = 2 * rows * columns * p.K * hw.num_cus / (hw.peak_flops * REACHED) * 1e9
        loads_ns = (rows + columns) * p.K * element * hw.num_cus / (hw.memory_bandwidth_gb_s * L2_OVER_MEMORY)
        took[f"{rows}x{columns}"] = log2(waves * (maximum(maths_ns, loads_ns) + WAVE_NS) + LAUNCH_NS)
    first, *rest = took.values()
    best, second = minimum(first, rest[0]), maximum(first, rest[0])
    for other in rest[1:]:
        best, second = minimum(best, other), minimum(second, maximum(best, other))
    # Times are learned relative to the softened roofline, so what a tile takes relative to it says nearly what is learned.
    expected = log2(work.expected_ns(hw, LAUNCH_NS))
    features = {"log2_best_ns": best, "log2_second_over_best": second - best, "log2_best_over_expected": best - expected}
    for rows, columns in TILES:
        features[f"log2_over_expected_{rows}x{columns}"] = took[f"{rows}x{columns}"] - expected
    return {**features, **{f"log2_over_best_{at}": ns - best for at, ns in took.items()}}


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
