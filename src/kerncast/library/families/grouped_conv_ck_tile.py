"""AMD's CK Tile kernels for grouped convolution, all three directions: ten block tiles, thirty variants of each.

Tiles, their warps and the variants are those that CK's own dispatcher builds and benchmarks (ROCm composable_kernel,
dispatcher/codegen/grouped_config_rules.py). Kernel and interaction features have the names of CK's heuristics, with
three differences in meaning: the matrix product is that of the direction and of one group (in CK it is the forward one,
over all groups), `block_size` counts threads (in CK it is the first number in the name, gemm_m_per_block), and therefore
`num_warps` counts warps. https://github.com/ROCm/composable_kernel
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import ClassVar

from kerncast.core.expr import Expr, Namespace, ceil, ceil_div, floor_div, log2, maximum, minimum, mod, where
from kerncast.core.op import Family
from kerncast.core.parameters import Bool, Categorical, Choice, Value
from kerncast.core.space import Constraint
from kerncast.errors import InvalidValue
from kerncast.library.families.gemm_ck_tile import COMPV4_LDS_BYTES, WARP_TILES, WAVEFRONT
from kerncast.library.ops.grouped_conv import SMALL_GROUP, grouped_conv_bwd_data, grouped_conv_bwd_weight, grouped_conv_forward

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


# Elements of one load or store, the same for every tile (TILE_TO_VECTOR in the rules above): 4 of the first operand, 8 of the
# second and of the result. A kernel refuses channels of a group that are not a multiple of these (IsSupportedArgument in
# include/ck_tile/ops/grouped_convolution/kernel).
FIRST_VECTOR, VECTOR = 4, 8
# Block tile (m, n, k) → warps (m, n) and warp tile (m, n, k).
TILES: dict[tuple[int, int, int], tuple[tuple[int, int], tuple[int, int, int]]] = {
    (16, 64, 64): ((1, 4), (16, 16, 16)),
    (32, 64, 64): ((2, 2), (16, 16, 16)),
    (64, 64, 64): ((4, 1), (16, 16, 16)),
    (32, 128, 64): ((1, 4), (32, 32, 16)),
    (64, 128, 64): ((2, 2), (32, 32, 16)),
    (128, 128, 64): ((4, 4), (32, 32, 16)),
    (16, 64, 128): ((1, 4), (16, 16, 32)),
    (32, 64, 128): ((2, 2), (16, 16, 32)),
    (64, 64, 128): ((4, 1), (16, 16, 32)),
    (128, 64, 128): ((8, 2), (16, 16, 32)),
}
WAVE_MODES = {"intrawave": 0, "interwave": 1}
# Codes as in gemm/ck_tile.
PIPELINES = {"compv3": 0, "compv4": 1, "compv5": 2, "mem": 3, "basic_v1": 5, "compv6": 6}
INTERWAVE = ("basic_v1", "mem")
DTYPES = ("fp32", "fp16", "bf16", "fp8", "bf8", "int8")


def _variants() -> Iterator[tuple[str, str, bool, bool]]:
    for pipeline in PIPELINES:
        for wave_mode in WAVE_MODES if pipeline in INTERWAVE else ("intrawave",):
            for double_buffer in (True,) if pipeline == "compv4" else (False, True):
                yield from ((pipeline, wave_mode, double_buffer, split_image) for split_image in (False, True))


VARIANTS = tuple(_variants())
"""(pipeline, wave mode, double LDS buffer, split image): the thirty that are built for every tile."""


def tile_values(tile: tuple[int, int, int]) -> dict[str, int]:
    """The parameters that follow from a block tile."""
    (warp_m, warp_n), warp_tile = TILES[tile]
    return {
        "block_size": WAVEFRONT * warp_m * warp_n,
        **dict(zip(("gemm_m_per_block", "gemm_n_per_block", "gemm_k_per_block"), tile, strict=True)),
        "warp_m": warp_m,
        "warp_n": warp_n,
        **dict(zip(("warp_tile_m", "warp_tile_n", "warp_tile_k"), warp_tile, strict=True)),
    }


def _any(tests: Iterable[Expr]) -> Expr:
    return reduce(lambda a, b: a | b, tests)


def _all(tests: Iterable[Expr]) -> Expr:
    return reduce(lambda a, b: a & b, tests)


def _is(c: Namespace, values: Mapping[str, int]) -> Expr:
    return _all(getattr(c, name) == value for name, value in values.items())


def _lds_bytes(p: Namespace, c: Namespace) -> Expr:
    """One buffer of both operands."""
    return (c.gemm_m_per_block + c.gemm_n_per_block) * c.gemm_k_per_block * p.element_bytes


class ConvCkTile(Family):
    """What the three directions share; not a family itself."""

    # The output is the result of the forward direction and the first operand of the others.
    output_vector: ClassVar[int] = FIRST_VECTOR

    parameters = {
        "block_size": Choice(256, 1024, doc="threads of a block"),
        "gemm_m_per_block": Choice(16, 32, 64, 128, doc="rows of the product that one block computes"),
        "gemm_n_per_block": Choice(64, 128, doc="columns of the product that one block computes"),
        "gemm_k_per_block": Choice(64, 128, doc="depth of one step through the sum"),
        "warp_m": Choice(1, 2, 4, 8, doc="warps along the rows of a block"),
        "warp_n": Choice(1, 2, 4, doc="warps along the columns of a block"),
        "warp_tile_m": Choice(16, 32, doc="rows of one matrix instruction"),
        "warp_tile_n": Choice(16, 32, doc="columns of one matrix instruction"),
        "warp_tile_k": Choice(16, 32, doc="depth of one matrix instruction"),
        "pipeline": Categorical(PIPELINES, doc="how loads and arithmetic overlap"),
        "wave_mode": Categorical(WAVE_MODES, doc="whether the warps of a block take turns"),
        "double_smem_buffer": Bool(doc="LDS holds two buffers of each operand"),
        "split_image": Bool(doc="large images are cut into parts that 32-bit offsets reach"),
    }

    def constraints(self, p: Namespace, c: Namespace, hw: Namespace) -> Iterable[Constraint]:
        names = ", ".join("x".join(map(str, tile)) for tile in TILES)
        yield Constraint(
            "tile",
            f"the block tile must be one of {names}, each with the warps and the warp tile that it is built with",
            _any(_is(c, tile_values(tile)) for tile in TILES),
        )
        yield Constraint(
            "wave_mode",
            f"only {' and '.join(INTERWAVE)} have an interwave mode",
            (c.wave_mode == "intrawave") | _any(c.pipeline == name for name in INTERWAVE),
        )
        yield Constraint(
            "double_buffer", "compv4 always has two LDS buffers", (c.pipeline != "compv4") | (c.double_smem_buffer == 1)
        )
        yield Constraint("layout", "CK Tile convolves channels-last tensors", p.layout == "nhwc")
        yield Constraint(
            "input_channels",
            f"a load takes {VECTOR} input channels of a group: C / G must be a multiple of {VECTOR}",
            mod(p.C_per_group, VECTOR) == 0,
        )
        width = self.output_vector
        yield Constraint(
            "output_channels",
            f"a load or store takes {width} output channels of a group: K / G must be a multiple of {width}",
            mod(p.K_per_group, width) == 0,
        )
        yield Constraint(
            "matrix_instruction",
            "warp_tile_m × warp_tile_n × warp_tile_k must be a matrix instruction of the dtype",
            _any((p.dtype == dtype) & _any(_is(c, _warp_tile(tile)) for tile in WARP_TILES[dtype]) for dtype in DTYPES),
        )
        yield Constraint(
            "lds_fits",
            "the tiles of both operands must fit in LDS, twice with a double buffer",
            _lds_bytes(p, c) * (1 + c.double_smem_buffer) <= hw.lds_capacity_bytes,
        )

    def features(self, p: Namespace, c: Namespace, hw: Namespace) -> Mapping[str, Expr]:
        features: dict[str, Expr] = {
            name: getattr(c, name) for name in self.parameters if name not in ("wave_mode", "double_smem_buffer", "split_image")
        }
        tile_m, tile_n, tile_k = c.gemm_m_per_block, c.gemm_n_per_block, c.gemm_k_per_block
        lds = _lds_bytes(p, c)
        features |= {
            "num_warps": c.block_size / WAVEFRONT,
            "tile_volume": tile_m * tile_n * tile_k,
            "tile_mn": tile_m * tile_n,
            "lds_usage_estimate": lds,
            "lds_usage_ratio": lds / where(c.pipeline == "compv4", COMPV4_LDS_BYTES, hw.lds_capacity_bytes),
            "block_tile_ratio_m": tile_m / c.block_size,
            "block_tile_ratio_n": tile_n / c.block_size,
            "block_efficiency": minimum(tile_m, tile_n) / maximum(tile_m, tile_n),
            **{f"is_{name.partition('_')[0]}": 1 * (c.pipeline == name) for name in PIPELINES},
            "is_intrawave": 1 * (c.wave_mode == "intrawave"),
            "has_dsb": c.double_smem_buffer,
            "has_si": c.split_image,
        }
        hardware = ("num_cus", "simds_per_cu", "shader_engines", "max_clock_mhz", "max_waves_per_cu", "wavefront_size",
                    "l1_cache_kb", "l2_cache_kb", "l3_cache_kb", "num_xcd")  # fmt: skip
        features |= {f"hw_{name}": getattr(hw, name) for name in hardware}
        features |= {"hw_total_simds": hw.num_cus * hw.simds_per_cu, "hw_lds_capacity": hw.lds_capacity_bytes}
        tiles = {x: ceil_div(getattr(p, f"gemm_{x}"), getattr(c, f"gemm_{x}_per_block")) for x in "mnk"}
        return features | _tiling(p, c, hw, tiles) | _beyond_the_reference(p, c, hw, tiles)

    def foreign_features(self, p: Namespace, c: Namespace, hw: Namespace) -> Mapping[str, Expr]:
        return ck_columns(p, c, hw)


def _warp_tile(tile: tuple[int, int, int]) -> dict[str, int]:
    return dict(zip(("warp_tile_m", "warp_tile_n", "warp_tile_k"), tile, strict=True))


def _tiling(p: Namespace, c: Namespace, hw: Namespace, tiles: Mapping[str, Expr]) -> dict[str, Expr]:
    """The interaction features of CK's heuristics, later additions included."""
    features: dict[str, Expr] = {}
    for x in "mnk":
        size, tile = getattr(p, f"gemm_{x}"), getattr(c, f"gemm_{x}_per_block")
        rest = mod(size, tile)
        features |= {
            f"num_tiles_{x}": tiles[x],
            # Of the last tile only; true_utilization is that of all tiles.
            f"tile_eff_{x}": where(rest > 0, rest / tile, 1),
            f"ratio_gemm_{x}_to_tile_{x}": size / tile,
            f"problem_smaller_than_tile_{x}": 1 * (size < tile),
        }
    total = tiles["m"] * tiles["n"] * p.gemm_count
    waves = ceil(total / hw.num_cus)
    return features | {
        "overall_tile_efficiency": features["tile_eff_m"] * features["tile_eff_n"] * features["tile_eff_k"],
        "total_output_tiles": total,
        "log2_total_output_tiles": log2(total),
        "cu_utilization": total / hw.num_cus,
        "waves_per_max_occ": total / (hw.num_cus * hw.max_waves_per_cu),
        "wave_quant_efficiency": total / (waves * hw.num_cus),
        "k_tiles_over_mn_tiles": tiles["k"] / total,
        "log2_k_per_active_cu": log2(tiles["k"] / minimum(total, hw.num_cus)),
        "is_subwave": 1 * (total < hw.num_cus),
    }


def _beyond_the_reference(p: Namespace, c: Namespace, hw: Namespace, tiles: Mapping[str, Expr]) -> dict[str, Expr]:
    """True utilisation, occupancy by LDS, traffic, and what channels do to wide loads."""
    tile_m, tile_n, tile_k = c.gemm_m_per_block, c.gemm_n_per_block, c.gemm_k_per_block
    held = _lds_bytes(p, c) * (1 + c.double_smem_buffer)
    # Blocks that a compute unit holds at a time, limited by LDS and wave slots; at least the one that runs.
    slots = floor_div(hw.max_waves_per_cu * WAVEFRONT, c.block_size)
    resident = maximum(minimum(floor_div(hw.lds_capacity_bytes, held), slots), 1)
    total = tiles["m"] * tiles["n"] * p.gemm_count
    waves = total / (hw.num_cus * resident)
    # Each block reads its strips of both operands once and writes its part of the result.
    read = tiles["n"] * p.gemm_m * p.gemm_k + tiles["m"] * p.gemm_k * p.gemm_n
    traffic = p.gemm_count * (read + p.gemm_m * p.gemm_n) * p.element_bytes
    return {
        "lds_held_bytes": held,
        "resident_blocks": resident,
        "resident_waves": waves,
        "resident_wave_fill": waves / ceil(waves),
        "true_utilization": p.gemm_m * p.gemm_n * p.gemm_k
        / (tiles["m"] * tile_m * tiles["n"] * tile_n * tiles["k"] * tile_k),
        "work_per_cu": ceil(total / hw.num_cus) * tile_m * tile_n * tiles["k"] * tile_k,
        "operand_traffic_bytes": traffic,
        "log2_traffic_ns": log2(traffic / hw.memory_bandwidth_gb_s),
        "tile_intensity": tile_m * tile_n / (tile_m + tile_n),
        "work_per_warp": tile_m * tile_n * tile_k / (c.warp_m * c.warp_n),
        "instructions_per_step": tile_m * tile_n * tile_k / (c.warp_tile_m * c.warp_tile_n * c.warp_tile_k),
        "input_channels_vector": 1 * (mod(p.C_per_group, VECTOR) == 0),
        "output_channels_vector": 1 * (mod(p.K_per_group, VECTOR) == 0),
        # Splitting the image is for tensors whose offsets exceed 2³¹ bytes.
        "image_offset_share": maximum(p.Di * p.Hi * p.Wi * p.C, p.Do * p.Ho * p.Wo * p.K) * p.N * p.element_bytes / 2.0**31,
    }  # fmt: skip


class ForwardCkTile(ConvCkTile):
    id = "grouped_conv_forward/ck_tile"
    doc = "CK Tile kernels for AMD GPUs"
    op = grouped_conv_forward
    output_vector = VECTOR


class BwdDataCkTile(ConvCkTile):
    id = "grouped_conv_bwd_data/ck_tile"
    doc = "CK Tile kernels for AMD GPUs"
    op = grouped_conv_bwd_data


class BwdWeightCkTile(ConvCkTile):
    id = "grouped_conv_bwd_weight/ck_tile"
    doc = "CK Tile kernels for AMD GPUs"
    op = grouped_conv_bwd_weight


forward_ck_tile = ForwardCkTile()
bwd_data_ck_tile = BwdDataCkTile()
bwd_weight_ck_tile = BwdWeightCkTile()
FAMILY_OF: dict[str, ConvCkTile] = {
    "forward": forward_ck_tile,
    "bwd_data": bwd_data_ck_tile,
    "bwd_weight": bwd_weight_ck_tile,
}
_NAME = re.compile(
    rf"grouped_conv_({'|'.join(FAMILY_OF)})_({'|'.join(DTYPES)})_([23])d_(\d+)x(\d+)x(\d+)_({'|'.join(PIPELINES)})"
    r"(?:_(intrawave|interwave))?(_dsb)?(_si)?"
)
NAME_FORM = "grouped_conv_{variant}_{dtype}_{2|3}d_{m}x{n}x{k}_{pipeline}[_intrawave|_interwave][_dsb][_si]"


@dataclass(frozen=True)
class ConvKernel:
    """The parts of a kernel's name."""

    family: ConvCkTile
    dtype: str
    dimensions: int
    config: Mapping[str, Value]

    @property
    def name(self) -> str:
        """The kernel's name as CK writes it."""
        c = self.config
        tile = "x".join(str(c[f"gemm_{x}_per_block"]) for x in "mnk")
        flags = ("_dsb" if c["double_smem_buffer"] else "") + ("_si" if c["split_image"] else "")
        return f"{self.family.op.name}_{self.dtype}_{self.dimensions}d_{tile}_{c['pipeline']}_{c['wave_mode']}{flags}"


def parse_conv_kernel(name: str) -> ConvKernel:
    """The kernel with this name; a name that is not one of the 300 is refused.

    Names without a wave mode are from before there was a choice: those kernels were intrawave, and compv4 had two buffers.
    """
    found = _NAME.fullmatch(name)
    if found is None:
        raise InvalidValue(f"a kernel name must be {NAME_FORM}, got '{name}'")
    variant, dtype, dimensions, m, n, k, pipeline, wave_mode, double, split = found.groups()
    tile = (int(m), int(n), int(k))
    kind = (pipeline, wave_mode or "intrawave", bool(double) or (wave_mode is None and pipeline == "compv4"), bool(split))
    if tile not in TILES or kind not in VARIANTS:
        what = f"tile {m}x{n}x{k}" if tile not in TILES else f"variant {name.partition(f'{m}x{n}x{k}_')[2]}"
        raise InvalidValue(f"'{name}' is not one of the {len(TILES) * len(VARIANTS)} known kernels: there is no {what}")
    choices: dict[str, Value] = dict(zip(("pipeline", "wave_mode", "double_smem_buffer", "split_image"), kind, strict=True))
    return ConvKernel(FAMILY_OF[variant], dtype, int(dimensions), {**tile_values(tile), **choices})
