"""How a config of gemm/cpu computes a product: register tiles, cache blocks, strides; and features that describe it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kerncast.core.expr import Expr, Namespace, ceil_div, floor_div, log2, maximum, minimum, mod, power_of_two_in, where

# Sums are of 32 bits at least.
SUM_BYTES = 4
# AVX-512 has 32 vector registers, whatever the width in use; SSE and AVX have 16.
REGISTERS, REGISTERS_AVX512, AVX512_BYTES = 16, 32, 64
PAGE_BYTES = 4096
# AMX: eight registers of 16 rows.
TILE_REGISTERS, TILE_ROWS = 8, 16
# Two multiply-adds and two loads a cycle, and a sum can be added to again after four: x86 cores of the last ten years.
FMAS_PER_CYCLE, LOADS_PER_CYCLE, FMA_LATENCY = 2, 2, 4
# Tiles with at most this many sums (dot kernels, others) keep two sets of them, because sums would wait for each other.
FEW_DOTS, FEW_SUMS = 4, 6
# Approximate overhead of a micro-kernel call, and the cost of copying one element into a strip.
CALL_CYCLES, PACK_CYCLES = 30, 0.5
# Addresses a multiple of this apart share the few lines of one set: of L1, a page; of L2, its size over its ways.
L2_WAY_BYTES = 65536


def is_outer(c: Namespace) -> Expr:
    """Whether the kernel adds columns of A times rows of B."""
    return c.kernel == "outer"


def is_dot(c: Namespace) -> Expr:
    """Whether the kernel computes dot products along K."""
    return c.kernel == "dot"


def is_grouped(c: Namespace) -> Expr:
    """Whether the kernel takes several steps of K as one product."""
    return (c.kernel != "outer") & (c.kernel != "dot")


@dataclass(frozen=True)
class Geometry:
    """The product as it is computed, and the tiles that a config cuts it into."""

    p: Namespace
    c: Namespace

    @property
    def swapped(self) -> Expr:
        return self.p.N == 1

    @property
    def m(self) -> Expr:
        return where(self.swapped, 1, self.p.M)

    @property
    def n(self) -> Expr:
        return where(self.swapped, self.p.M, self.p.N)

    @property
    def _given_a_rows(self) -> Expr:
        return (self.p.layout == "rcr") | (self.p.layout == "rrr") | (self.p.M == 1)

    @property
    def a_rows(self) -> Expr:
        """Whether the left operand is contiguous along K."""
        return self.swapped | self._given_a_rows

    @property
    def b_rows(self) -> Expr:
        """Whether the right operand is contiguous along K."""
        return where(self.swapped, self._given_a_rows, (self.p.layout == "rcr") | (self.p.layout == "ccr"))

    @property
    def lanes(self) -> Expr:
        """Sums of one vector."""
        return self.c.vector_bytes / maximum(self.p.element_bytes, SUM_BYTES)

    @property
    def mr(self) -> Expr:
        """Rows of a tile."""
        return self.c.mr * where(self.c.kernel == "amx", TILE_ROWS, 1)

    @property
    def nr(self) -> Expr:
        """Columns of a tile."""
        return self.c.nv * where(is_dot(self.c), 1, self.lanes)

    @property
    def group(self) -> Expr:
        """Steps of K that are one product."""
        quads = (self.c.kernel == "quads") | ((self.c.kernel == "amx") & (self.p.dtype == "int8"))
        return where(is_grouped(self.c), where(quads, 4, 2), 1)

    @property
    def packed_bytes(self) -> Expr:
        """Bytes of an element that the kernel reads: widened for outer kernels and pairs of int8."""
        wide = where(self.c.kernel == "pairs", SUM_BYTES / 2, SUM_BYTES)
        widens = is_outer(self.c) | (self.c.kernel == "pairs")
        return where(widens, maximum(self.p.element_bytes, wide), self.p.element_bytes)

    @property
    def packs_a(self) -> Expr:
        return where(is_dot(self.c), where(self.a_rows, 0, 1), maximum(self.c.pack_a, is_grouped(self.c)))

    @property
    def packs_b(self) -> Expr:
        return where(is_dot(self.c), where(self.b_rows, 0, 1), maximum(self.c.pack_b, is_grouped(self.c)))

    @property
    def registers(self) -> Expr:
        """Registers for a tile of C, for the operand that is kept (the shorter one; A for dot), and one for the other.

        For quads also the sums of B, which correct for the unsigned operand, and a vector of ones.
        """
        held = where(is_dot(self.c), self.c.mr, minimum(self.c.mr, self.c.nv))
        return self.c.mr * self.c.nv + held + 1 + where(self.c.kernel == "quads", self.c.nv + 1, 0)

    def register_limit(self, hw: Namespace) -> Expr:
        """Registers that are available."""
        vectors = where(hw.vector_bytes >= AVX512_BYTES, REGISTERS_AVX512, REGISTERS)
        return where(self.c.kernel == "amx", TILE_REGISTERS, vectors)

    @property
    def computed_n(self) -> Expr:
        """Columns that are computed: whole vectors."""
        lanes = where(is_dot(self.c), 1, self.lanes)
        return ceil_div(self.n, lanes) * lanes

    def blocks(self, dimension: str) -> tuple[Expr, Expr]:
        """Number of cache blocks along m, n or k, and the length of each: the driver makes them nearly equal."""
        extent, limit = {"m": (self.m, self.c.mc), "n": (self.n, self.c.nc), "k": (self.p.K, self.c.kc)}[dimension]
        count = ceil_div(extent, limit)
        return count, ceil_div(extent, count)

    @property
    def packed(self) -> Expr:
        """Elements copied into strips; one operand is copied again for each block of the other's rows or columns."""
        (count_m, _), (count_n, _) = self.blocks("m"), self.blocks("n")
        a = self.packs_a * self.m * self.p.K * where(self.n_outermost, count_n, 1)
        return a + self.packs_b * self.p.K * self.n * where(self.n_outermost, 1, count_m)

    @property
    def n_outermost(self) -> Expr:
        return self.c.loop_order == "nkm"


def config_features(g: Geometry, hw: Namespace) -> Mapping[str, Expr]:
    """All features of a product and a config on a CPU."""
    return {
        **_tile_features(g, hw),
        **_cycle_features(g),
        **_cache_features(g, hw),
        **_traffic_features(g, hw),
        **_thread_features(g, hw),
    }


def _tile_features(g: Geometry, hw: Namespace) -> dict[str, Expr]:
    """Register use, and what is lost at the edges."""
    c, p = g.c, g.p
    tiles_m, tiles_n = ceil_div(g.m, g.mr), ceil_div(g.n, g.nr)
    rest_m, rest_n = mod(g.m, g.mr), mod(g.n, g.nr)
    return {
        "nr": g.nr,
        "registers": g.registers,
        "register_share": g.registers / g.register_limit(hw),
        "vector_share": c.vector_bytes / hw.vector_bytes,
        "chains": c.mr * c.nv,
        "fma_per_load": c.mr * c.nv / (c.mr + c.nv),
        "tiles_m": tiles_m,
        "tiles_n": tiles_n,
        "log2_tiles": log2(tiles_m * tiles_n),
        "fill_m": g.m / (tiles_m * g.mr),
        "fill_n": g.n / (tiles_n * g.nr),
        "edge_waste": 1 - g.n / g.computed_n,
        "edge_share": 1 - (g.m - rest_m) * (g.n - rest_n) / (g.m * g.n),
        "k_tail": mod(p.K, where(is_dot(c), g.lanes, c.k_unroll * g.group)) / p.K,
        "a_rows": 1 * g.a_rows,
        "b_rows": 1 * g.b_rows,
        "direct_a_by_rows": 1 * (g.a_rows & (g.packs_a == 0)),
    }


def _cycle_features(g: Geometry) -> dict[str, Expr]:
    """The fewest cycles that the micro-kernels need; edge tiles count as the smaller kernels that run there."""
    c, p = g.c, g.p
    amx = c.kernel == "amx"
    m, n = ceil_div(g.m, where(amx, TILE_ROWS, 1)), ceil_div(g.n, where(is_dot(c), 1, g.lanes))
    whole_m, rest_m, whole_n, rest_n = floor_div(m, c.mr), mod(m, c.mr), floor_div(n, c.nv), mod(n, c.nv)
    edge_m, edge_n = 1 * (rest_m > 0), 1 * (rest_n > 0)

    def step(rows: Expr, vectors: Expr) -> Expr:
        """Cycles per step of a tile of this size."""
        sums = rows * vectors
        # A kernel with few sums alternates between two sets of them.
        sets = where((sums <= where(is_dot(c), FEW_DOTS, FEW_SUMS)) & (c.kernel != "quads") & ~amx, 2, 1)
        arithmetic = sums * where(amx, TILE_ROWS, 1) / FMAS_PER_CYCLE
        return maximum(arithmetic, (rows + vectors) / LOADS_PER_CYCLE, FMA_LATENCY / sets)

    cycles = (
        whole_m * (whole_n * step(c.mr, c.nv) + edge_n * step(c.mr, rest_n))
        + edge_m * (whole_n * step(rest_m, c.nv) + edge_n * step(rest_m, rest_n))
    )  # fmt: skip
    steps = ceil_div(p.K, g.group * where(is_dot(c), g.lanes, 1))
    count_k, _ = g.blocks("k")
    calls = (whole_m + edge_m) * (whole_n + edge_n) * count_k
    estimate = cycles * steps + calls * (CALL_CYCLES + g.mr * c.nv) + g.packed * PACK_CYCLES
    used_m, used_n = minimum(m, c.mr), minimum(n, c.nv)
    fmas = g.m * g.n * p.K / g.lanes
    return {
        "chains_used": used_m * used_n,
        "fma_per_load_used": used_m * used_n / (used_m + used_n),
        "cycles_per_fma": cycles * steps / fmas,
        "calls_per_fma": calls / fmas,
        "estimate_per_fma": estimate / fmas,
        "log2_estimate": log2(estimate),
    }


def _cache_features(g: Geometry, hw: Namespace) -> dict[str, Expr]:
    """Footprints against each cache, and what packing and repeated passes move."""
    c, p = g.c, g.p
    size = g.packed_bytes
    (count_m, mc), (count_n, nc), (count_k, kc) = g.blocks("m"), g.blocks("n"), g.blocks("k")
    return {
        "mc_used": mc,
        "nc_used": nc,
        "kc_used": kc,
        "blocks_m": count_m,
        "blocks_n": count_n,
        "blocks_k": count_k,
        "a_strip_l1": kc * g.mr * size / (hw.l1_cache_kb * 1024),
        "b_strip_l1": kc * g.nr * size / (hw.l1_cache_kb * 1024),
        "a_block_l2": mc * kc * size / (hw.l2_cache_kb * 1024),
        "b_block_l2": nc * kc * size / (hw.l2_cache_kb * 1024),
        "b_block_l3": nc * kc * size / (hw.l3_cache_kb * 1024),
        "c_block_l2": mc * nc * maximum(p.element_bytes, SUM_BYTES) / (hw.l2_cache_kb * 1024),
        "packed_bytes": g.packed * size,
        "packed_per_fma": g.packed / (g.m * g.n * p.K),
        "c_passes_per_fma": count_k / p.K,
        "inner_reuse": where(c.tile_order == "nm", ceil_div(mc, g.mr), ceil_div(nc, g.nr)),
    }


def _traffic_features(g: Geometry, hw: Namespace) -> dict[str, Expr]:
    """How often operands are read and written, and how unpacked operands are placed in the caches."""
    p = g.p
    (count_m, _), (count_n, _), (count_k, kc) = g.blocks("m"), g.blocks("n"), g.blocks("k")
    l2 = hw.l2_cache_kb * 1024
    a, b = g.m * p.K * p.element_bytes, g.n * p.K * p.element_bytes
    sums = g.m * g.n * maximum(p.element_bytes, SUM_BYTES)
    read = a * where(g.n_outermost, count_n, 1) + b * where(g.n_outermost, 1, count_m)
    features = {
        "a_bytes_l2": a / l2,
        "b_bytes_l2": b / l2,
        "moved_per_byte": (read + sums * (2 * count_k - 1)) / (a + b + sums),
    }
    operands = (("a", g.a_rows, g.packs_a, g.mr, g.m), ("b", g.b_rows, g.packs_b, g.nr, g.n))
    for name, along_k, packs, width, extent in operands:
        # Number of contiguous runs that a tile reads: one for each of its rows or columns, or one for each step of K.
        runs = where(along_k, minimum(width, extent), kc) * (1 - packs)
        apart = where(along_k, p.K, extent) * p.element_bytes
        features[f"{name}_runs"] = runs
        features[f"{name}_pages"] = runs * minimum(1, apart / PAGE_BYTES)
        # Runs that are a large power of two apart evict each other from the cache, however short they are.
        for level, way in (("l1", PAGE_BYTES), ("l2", L2_WAY_BYTES)):
            features[f"{name}_on_{level}_set"] = runs * power_of_two_in(apart, way) / way
    return features


def _thread_features(g: Geometry, hw: Namespace) -> dict[str, Expr]:
    """How many threads have work, how evenly, and the arithmetic that the busiest one does."""
    c, p = g.c, g.p
    tiles_m, tiles_n = ceil_div(g.m, g.mr), ceil_div(g.n, g.nr)
    units = where(c.split == "m", tiles_m, where(c.split == "n", tiles_n, where(c.split == "k", p.K, 1)))
    useful = minimum(p.threads, units)
    busiest = ceil_div(units, useful)
    padded = 2 * p.batch * g.m * g.computed_n * p.K * busiest / units
    core_peak = hw.peak_flops / hw.num_cus
    repacked = where(c.split == "m", g.packs_b * p.K * g.n, where(c.split == "n", g.packs_a * g.m * p.K, 0))
    compute_ns = padded / core_peak * (hw.vector_bytes / c.vector_bytes) * 1e9
    return {
        "threads_used": useful,
        "thread_balance": units / (useful * busiest),
        "repacked_per_fma": (useful - 1) * repacked / (g.m * g.n * p.K),
        "reduced_bytes": where(c.split == "k", (useful - 1) * g.m * g.n * p.batch * maximum(p.element_bytes, SUM_BYTES), 0),
        "log2_compute_ns": log2(maximum(compute_ns, 1)),
    }
