"""AMD's CK Tile GEMM kernels: block tile, warps, warp tile, pipeline.

The first 55 features are those of CK Tile's own heuristics, under their own names and codes (ROCm
composable_kernel, dispatcher heuristics); the others add what they lack: wave quantisation, true utilisation
and traffic. https://github.com/ROCm/composable_kernel
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import reduce

from kerncast.core.expr import Expr, Namespace, ceil, ceil_div, log2, maximum, mod, where
from kerncast.core.op import Family
from kerncast.core.parameters import Bool, Categorical, Choice
from kerncast.core.space import Constraint
from kerncast.library.ops.gemm import a_by_rows, b_by_rows, gemm

WAVEFRONT = 64  # threads of a warp on every GPU that these kernels are built for
# compv4 keeps two buffers of each operand in LDS and CK caps one of them at 32 KiB.
COMPV4_LDS_BYTES = 32 * 1024

# Warp tiles (m, n, k) that the matrix instructions of CDNA2, CDNA3 or CDNA4 offer, by dtype
# (composable_kernel, dispatcher/codegen/arch_specs.json).
_HALF = [(32, 32, 8), (16, 16, 16), (32, 32, 16), (16, 16, 32), (4, 64, 16), (64, 4, 16)]
_EIGHT_BIT = [(32, 32, 16), (32, 32, 32), (16, 16, 32), (16, 16, 64), (16, 16, 128), (32, 32, 64)]
WARP_TILES: dict[str, list[tuple[int, int, int]]] = {
    "fp32": [(16, 16, 4), (16, 16, 8), (16, 16, 16), (32, 32, 4), (32, 32, 8)],
    "fp16": _HALF,
    "bf16": _HALF,
    "fp8": _EIGHT_BIT,
    "bf8": _EIGHT_BIT,
    "int8": [(32, 32, 16), (16, 16, 32), (16, 16, 64), (32, 32, 32)],
}


def _lds_bytes(p: Namespace, c: Namespace) -> Expr:
    return (c.tile_m * c.tile_k + c.tile_n * c.tile_k) * p.element_bytes


def _lds_limit(c: Namespace, hw: Namespace) -> Expr:
    return where(c.pipeline == "compv4", COMPV4_LDS_BYTES, hw.lds_capacity_bytes)


def _any(tests: Iterable[Expr]) -> Expr:
    return reduce(lambda a, b: a | b, tests)


def _matrix_instruction_exists(p: Namespace, c: Namespace) -> Expr:
    """The warp tile is one that the dtype's instructions offer; dtypes without a list are not restricted."""

    def is_tile(m: int, n: int, k: int) -> Expr:
        return (c.warp_tile_m == m) & (c.warp_tile_n == n) & (c.warp_tile_k == k)

    listed = _any((p.dtype == dtype) & _any(is_tile(*tile) for tile in tiles) for dtype, tiles in WARP_TILES.items())
    return listed | ~_any(p.dtype == dtype for dtype in WARP_TILES)


def _runs_without_padding(p: Namespace, c: Namespace) -> Iterable[Constraint]:
    """Which sizes a kernel without padding computes. CK tests a size only where a matrix is contiguous along it.

    These are the tests of `IsSupportedArgument` (composable_kernel, include/ck_tile/ops/gemm/kernel/universal_gemm_kernel.hpp),
    for C by rows. Of A by rows, M needs no padding whatever the tile is; of A by columns and B by rows, K needs none.
    """
    a_rows, b_rows = a_by_rows(p), b_by_rows(p)
    whole = {"m": c.tile_m, "n": c.tile_n, "k": c.tile_k * p.split_k}
    # C by rows is contiguous along N, whatever B is.
    free = {"m": a_rows, "k": ~a_rows & b_rows}
    words = {
        "m": "without pad_m and with A by columns, M must be a multiple of tile_m",
        "n": "without pad_n, N must be a multiple of tile_n",
        "k": "without pad_k, K must be a multiple of tile_k × split_k, unless A is by columns and B by rows",
    }
    for x, tile in whole.items():
        divides = mod(getattr(p, x.upper()), tile) == 0
        holds = (getattr(c, f"pad_{x}") == 1) | divides
        yield Constraint(f"padding_{x}", words[x], holds | free[x] if x in free else holds)


class CkTile(Family):
    id = "gemm/ck_tile"
    doc = "CK Tile GEMM kernels for AMD GPUs"
    op = gemm
    parameters = {
        "tile_m": Choice(16, 32, 64, 96, 128, 192, 256, 512, doc="rows of C that one block computes"),
        "tile_n": Choice(16, 32, 64, 96, 128, 192, 256, 512, doc="columns of C that one block computes"),
        "tile_k": Choice(16, 32, 64, 128, 192, 256, 512, doc="depth of one step through K"),
        "warp_m": Choice(1, 2, 4, 8, 16, doc="warps along M in a block"),
        "warp_n": Choice(1, 2, 4, 8, 16, doc="warps along N in a block"),
        "warp_k": Choice(1, 2, 4, doc="warps along K in a block"),
        "warp_tile_m": Choice(4, 16, 32, 64, doc="rows of one matrix instruction"),
        "warp_tile_n": Choice(4, 16, 32, 64, doc="columns of one matrix instruction"),
        "warp_tile_k": Choice(4, 8, 16, 32, 64, 128, doc="depth of one matrix instruction"),
        "pipeline": Categorical(
            {"compv3": 0, "compv4": 1, "compv5": 2, "mem": 3, "preshufflev2": 4, "basic_v1": 5, "compv6": 6},
            doc="how loads and arithmetic overlap",
        ),
        "scheduler": Categorical({"intrawave": 0, "interwave": 1}),
        "epilogue": Categorical({"default": 0, "cshuffle": 1}, doc="how C is written"),
        "pad_m": Bool(doc="M need not be a multiple of tile_m, also where A is by columns"),
        "pad_n": Bool(doc="N need not be a multiple of tile_n"),
        "pad_k": Bool(doc="K need not be a multiple of tile_k × split_k"),
        "persistent": Bool(doc="one block per compute unit walks over the tiles"),
    }

    def constraints(self, p: Namespace, c: Namespace, hw: Namespace) -> Iterable[Constraint]:
        for x in "mnk":
            tile, span = getattr(c, f"tile_{x}"), getattr(c, f"warp_{x}") * getattr(c, f"warp_tile_{x}")
            yield Constraint(
                f"whole_tile_{x}",
                f"tile_{x} must be warp_{x} × warp_tile_{x} × a whole number",
                mod(tile, span) == 0,
            )
        warps = c.warp_m * c.warp_n * c.warp_k
        yield Constraint("warps", "a block has 2 to 16 warps (warp_m × warp_n × warp_k)", (warps >= 2) & (warps <= 16))
        yield Constraint(
            "lds_fits",
            "(tile_m + tile_n) × tile_k elements must fit in LDS (32 KiB for compv4, else the device's)",
            _lds_bytes(p, c) <= _lds_limit(c, hw),
        )
        yield Constraint(
            "matrix_instruction",
            "warp_tile_m × warp_tile_n × warp_tile_k must be a matrix instruction of the dtype",
            _matrix_instruction_exists(p, c),
        )
        yield from _runs_without_padding(p, c)
        yield Constraint(
            "scheduler",
            "compv3 and compv4 have no interwave scheduler",
            ~((c.scheduler == "interwave") & ((c.pipeline == "compv3") | (c.pipeline == "compv4"))),
        )

    def features(self, p: Namespace, c: Namespace, hw: Namespace) -> Mapping[str, Expr]:
        features: dict[str, Expr] = {name: getattr(c, name) for name in self.parameters}
        lds = _lds_bytes(p, c)
        tile_mn = c.tile_m * c.tile_n
        features |= {
            "num_warps": c.warp_m * c.warp_n * c.warp_k,
            "tile_volume": tile_mn * c.tile_k,
            "tile_mn": tile_mn,
            "lds_usage_estimate": lds,
            "lds_usage_ratio": lds / _lds_limit(c, hw),
        }

        tiles = {x: ceil_div(getattr(p, x.upper()), getattr(c, f"tile_{x}")) for x in "mnk"}
        # The reference's "efficiency" looks at the last tile alone; true_utilization below is the real one.
        last_fill = {}
        for x in "mnk":
            rest = mod(getattr(p, x.upper()), getattr(c, f"tile_{x}"))
            last_fill[x] = where(rest > 0, rest / getattr(c, f"tile_{x}"), 1)
        output_tiles = tiles["m"] * tiles["n"]
        features |= {f"num_tiles_{x}": tiles[x] for x in "mnk"}
        features["total_output_tiles"] = output_tiles
        features |= {f"tile_eff_{x}": last_fill[x] for x in "mnk"}
        features["overall_tile_efficiency"] = last_fill["m"] * last_fill["n"] * last_fill["k"]
        features["cu_utilization"] = output_tiles / hw.num_cus

        features |= {
            "hw_num_cus": hw.num_cus,
            "hw_simds_per_cu": hw.simds_per_cu,
            "hw_total_simds": hw.num_cus * hw.simds_per_cu,
            "hw_shader_engines": hw.shader_engines,
            "hw_max_clock_mhz": hw.max_clock_mhz,
            "hw_max_waves_per_cu": hw.max_waves_per_cu,
            "hw_wavefront_size": hw.wavefront_size,
            "hw_lds_capacity": hw.lds_capacity_bytes,
            "hw_l1_cache_kb": hw.l1_cache_kb,
            "hw_l2_cache_kb": hw.l2_cache_kb,
            "hw_l3_cache_kb": hw.l3_cache_kb,
            "hw_num_xcd": hw.num_xcd,
        }
        return features | self._beyond_the_reference(p, c, hw, tiles)

    def _beyond_the_reference(self, p: Namespace, c: Namespace, hw: Namespace, tiles: Mapping[str, Expr]) -> dict[str, Expr]:
        """Wave quantisation, true utilisation, traffic, and what padding does to this problem."""
        blocks = tiles["m"] * tiles["n"] * p.split_k * p.batch
        waves = blocks / hw.num_cus
        padded = {x: tiles[x] * getattr(c, f"tile_{x}") for x in "mnk"}
        # Each block reads its strip of A and of B once; C is written once per part of K.
        traffic = p.batch * (tiles["n"] * p.M * p.K + tiles["m"] * p.K * p.N + p.split_k * p.M * p.N) * p.element_bytes
        features = {
            "blocks": blocks,
            "waves": waves,
            "wave_quantization": waves / ceil(waves),
            "true_utilization": p.M * p.N * p.K / (padded["m"] * padded["n"] * padded["k"]),
            "work_per_wave": c.tile_m * c.tile_n * ceil_div(p.K, p.split_k) * ceil(waves),
            "k_steps": ceil_div(ceil_div(p.K, p.split_k), c.tile_k),
            "operand_traffic_bytes": traffic,
            "traffic_ratio": traffic / gemm.work(p).bytes,
            "log2_traffic_ns": log2(traffic / hw.memory_bandwidth_gb_s),
            "tile_intensity": c.tile_m * c.tile_n / (c.tile_m + c.tile_n),
            "work_per_warp": c.tile_m * c.tile_n * c.tile_k / (c.warp_m * c.warp_n * c.warp_k),
        }
        for x in "mnk":
            size, tile = getattr(p, x.upper()), getattr(c, f"tile_{x}")
            needs = (mod(size, tile) > 0) * 1
            features[f"ratio_{x.upper()}_to_tile_{x}"] = size / tile
            features[f"needs_padding_{x}"] = needs
            features[f"missing_required_padding_{x}"] = needs * (1 - getattr(c, f"pad_{x}"))
            features[f"has_padding_when_needed_{x}"] = needs * getattr(c, f"pad_{x}")
            features[f"problem_smaller_than_tile_{x}"] = 1 * (size < tile)
        features["missing_any_required_padding"] = maximum(*(features[f"missing_required_padding_{x}"] for x in "mnk"))
        features["any_dim_too_small"] = maximum(*(1 * (getattr(p, x.upper()) < getattr(c, f"tile_{x}")) for x in "mnk"))
        return features


ck_tile = CkTile()
