"""The columns of CK Tile's own models of grouped convolutions, as CK computes them.

CK's engine (ROCm composable_kernel, dispatcher/heuristics) reads a kernel's name `…_16x64x128_…` as block size, rows and
columns; it is rows, columns and depth of the tile. It takes the matrix product of the forward direction for all three
directions, and over all groups. A forest that was trained on these columns must be given these columns, so they are here next
to the family's own features, which are the corrected ones. Columns that mean the same in both are not repeated here.
https://github.com/ROCm/composable_kernel
"""

from __future__ import annotations

from kerncast.core.expr import Expr, Namespace, ceil_div, maximum, minimum, mod, where
from kerncast.library.families.gemm_ck_tile import COMPV4_LDS_BYTES
from kerncast.library.ops.grouped_conv import SMALL_GROUP

PREFIX = "ck_"

# CK's name of a column → the feature here, in the order of CK's engine.
COLUMNS: dict[str, str] = {
    **{name: name for name in ("N", "C", "K", "G", "Hi", "Wi", "Y", "X", "stride_h", "stride_w", "pad_h", "pad_w", "Ho", "Wo")},
    **{name: name for name in ("log2_N", "log2_C", "log2_K", "log2_G", "log2_Hi", "log2_Wi", "log2_spatial", "log2_filter")},
    **{name: name for name in ("log2_output", "arithmetic_intensity", "filter_area", "is_1x1_conv")},
    "is_3x3_conv": "ck_is_3x3_conv",
    **{name: name for name in ("channels_per_group", "aspect_ratio_hw", "aspect_ratio_filter")},
    "is_3d": "ck_is_3d",
    **{name: name for name in ("Di", "Z", "Do", "stride_d", "pad_d", "dilation_h", "dilation_w")},
    "log2_channels_per_group": "log2_C_per_group",
    "log2_output_channels_per_group": "log2_K_per_group",
    "is_depthwise": "ck_is_depthwise",
    "group_density": "group_density",
    "is_small_group": "ck_is_small_group",
    **{name: name for name in ("channels_product_per_group", "batch_group_product", "is_small_batch_grouped")},
    "block_size": "ck_block_size",
    "gemm_m_per_block": "ck_gemm_m_per_block",
    "gemm_n_per_block": "ck_gemm_n_per_block",
    "pipeline": "pipeline",
    "num_warps": "ck_num_warps",
    "tile_volume": "tile_volume",
    **{
        name: PREFIX + name
        for name in (
            "tile_mn", "lds_usage_estimate", "lds_usage_ratio", "block_tile_ratio_m", "block_tile_ratio_n", "block_efficiency",
        )
    },
    **{name: name for name in ("is_compv3", "is_compv4", "is_compv5", "is_intrawave", "has_dsb", "has_si", "is_basic")},
    **{name: name for name in ("is_compv6", "is_mem")},
    **{f"gemm_{x}_output": f"ck_gemm_{x}_output" for x in "mnk"},
    **{f"num_tiles_{x}": f"ck_num_tiles_{x}" for x in "mnk"},
    "total_output_tiles": "ck_total_output_tiles",
    **{f"tile_eff_{x}": f"ck_tile_eff_{x}" for x in "mnk"},
    "overall_tile_efficiency": "ck_overall_tile_efficiency",
    "cu_utilization": "ck_cu_utilization",
    **{f"ratio_gemm_{x}_to_tile_{x}": f"ck_ratio_gemm_{x}_to_tile_{x}" for x in "mnk"},
    **{f"problem_smaller_than_tile_{x}": f"ck_problem_smaller_than_tile_{x}" for x in "mnk"},
    **{
        name: name
        for name in (
            "hw_num_cus", "hw_simds_per_cu", "hw_total_simds", "hw_shader_engines", "hw_max_clock_mhz", "hw_max_waves_per_cu",
            "hw_wavefront_size", "hw_lds_capacity", "hw_l1_cache_kb", "hw_l2_cache_kb", "hw_l3_cache_kb", "hw_num_xcd",
        )
    },
}  # fmt: skip


def ck_columns(p: Namespace, c: Namespace, hw: Namespace) -> dict[str, Expr]:
    """The columns whose meaning in CK differs from the feature of that name here, under names of their own."""
    block, rows, columns = c.gemm_m_per_block, c.gemm_n_per_block, c.gemm_k_per_block
    lds = (rows + columns) * block * p.element_bytes
    deep = (p.Di > 1) | (p.Z > 1) | (p.pad_d > 0)
    found: dict[str, Expr] = {
        "is_3x3_conv": 1 * ((p.Y == 3) & (p.X == 3) & ((p.Z == 3) | ~deep)),
        "is_3d": 1 * deep,
        "is_depthwise": 1 * ((p.G == p.C) & (p.G == p.K)),
        "is_small_group": 1 * ((p.C_per_group < SMALL_GROUP) | (p.K_per_group < SMALL_GROUP)),
        "block_size": 1 * block,
        "gemm_m_per_block": 1 * rows,
        "gemm_n_per_block": 1 * columns,
        "num_warps": block / 4,
        "tile_mn": rows * columns,
        "lds_usage_estimate": lds,
        "lds_usage_ratio": lds / where(c.pipeline == "compv4", COMPV4_LDS_BYTES, hw.lds_capacity_bytes),
        "block_tile_ratio_m": rows / block,
        "block_tile_ratio_n": columns / block,
        "block_efficiency": minimum(rows, columns) / maximum(rows, columns),
    }
    tiles = {"m": rows, "n": columns, "k": block}
    sizes = {"m": p.N * p.Do * p.Ho * p.Wo, "n": 1 * p.K, "k": p.C_per_group * p.Z * p.Y * p.X}
    fill: dict[str, Expr] = {}
    for x, tile in tiles.items():
        rest = mod(sizes[x], tile)
        fill[x] = where(rest > 0, rest / tile, 1)
        found |= {
            f"gemm_{x}_output": sizes[x],
            f"num_tiles_{x}": ceil_div(sizes[x], tile),
            f"tile_eff_{x}": fill[x],
            f"ratio_gemm_{x}_to_tile_{x}": sizes[x] / tile,
            f"problem_smaller_than_tile_{x}": 1 * (sizes[x] < tile),
        }
    total = found["num_tiles_m"] * found["num_tiles_n"]
    found |= {
        "total_output_tiles": total,
        "overall_tile_efficiency": fill["m"] * fill["n"] * fill["k"],
        "cu_utilization": total / hw.num_cus,
    }
    return {PREFIX + name: expr for name, expr in found.items()}
