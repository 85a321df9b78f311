"""A tiled GEMM in OpenCL for CPUs and GPUs: work-group tiles, vectors, local memory, strided access, guarded edges.

A work-group of MDIMC × NDIMC items computes MWG × NWG of C in steps along K; each item computes MWG/MDIMC rows of
NWG/NDIMC columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kerncast.core.expr import Expr, Namespace, ceil, ceil_div, log2, maximum, mod, where
from kerncast.core.op import Family
from kerncast.core.parameters import Bool, Choice, PowerOfTwo
from kerncast.core.space import Constraint
from kerncast.library.ops.gemm import a_by_rows, b_by_rows, gemm, no_epilogue, packed_only

DTYPES = ("fp16", "fp32", "fp64")
# fp16 is summed, and kept in local memory, as fp32.
SUM_BYTES = 4
# Limits on the sums that one item keeps (8 × 8 in fp32) and on the operations in its innermost loop, to bound compile time.
LARGEST_ITEM_BYTES = 256
LARGEST_CODE = 256


def _uses_local(c: Namespace) -> Expr:
    return (c.local_a == 1) | (c.local_b == 1)


def _rows_apart(c: Namespace) -> Expr:
    """Whether striding rows makes a difference: several items, and several groups of VWM rows for each."""
    return (c.MDIMC > 1) & (c.MWG > c.MDIMC * c.VWM)


def _columns_apart(c: Namespace) -> Expr:
    return (c.NDIMC > 1) & (c.NWG > c.NDIMC * c.VWN)


@dataclass(frozen=True)
class _Geometry:
    """The tiles that a config cuts a product into."""

    p: Namespace
    c: Namespace

    @property
    def items(self) -> Expr:
        return self.c.MDIMC * self.c.NDIMC

    @property
    def rows(self) -> Expr:
        return self.c.MWG / self.c.MDIMC

    @property
    def columns(self) -> Expr:
        return self.c.NWG / self.c.NDIMC

    @property
    def unrolled(self) -> Expr:
        """Multiplications of vectors in the body of the innermost loop."""
        return self.rows * self.columns / self.c.VWN * self.c.KWI

    @property
    def sum_bytes(self) -> Expr:
        return maximum(self.p.element_bytes, SUM_BYTES)

    @property
    def local_bytes(self) -> Expr:
        c = self.c
        return (c.local_a * c.MWG + c.local_b * c.NWG) * c.KWG * self.sum_bytes

    @property
    def depth(self) -> Expr:
        """Steps of K between two barriers, or per iteration where there are none."""
        return where(_uses_local(self.c), self.c.KWG, self.c.KWI)

    @property
    def a_by_rows(self) -> Expr:
        return a_by_rows(self.p)

    @property
    def b_by_rows(self) -> Expr:
        return b_by_rows(self.p)


class OpenCl(Family):
    id = "gemm/opencl"
    doc = "a tiled GEMM in OpenCL: work-group tiles, vectors, local memory, strided access, guarded edges"
    op = gemm
    can_fail = False
    parameters = {
        "MWG": PowerOfTwo(8, 256, doc="rows of C that a work-group computes"),
        "NWG": PowerOfTwo(8, 256, doc="columns of C that a work-group computes"),
        "MDIMC": PowerOfTwo(1, 32, doc="items of a work-group along M"),
        "NDIMC": PowerOfTwo(1, 32, doc="items of a work-group along N"),
        "VWM": Choice(1, 2, 4, 8, doc="vector width of reads along M"),
        "VWN": Choice(1, 2, 4, 8, 16, doc="vector width of arithmetic, reads and writes along N"),
        "local_a": Bool(doc="A goes through local memory"),
        "local_b": Bool(doc="B goes through local memory"),
        "KWG": PowerOfTwo(8, 64, when=_uses_local, doc="depth of a tile in local memory"),
        "KWI": Choice(1, 2, 4, 8, 16, doc="steps of K that are unrolled"),
        "strided_m": Bool(when=_rows_apart, doc="an item's rows are MDIMC × VWM apart instead of adjacent"),
        "strided_n": Bool(when=_columns_apart, doc="an item's columns are NDIMC × VWN apart instead of adjacent"),
        "guard": Bool(doc="edges are checked, so that any size may be computed"),
    }

    def constraints(self, p: Namespace, c: Namespace, hw: Namespace) -> Iterable[Constraint]:
        g = _Geometry(p, c)
        names = ", ".join(DTYPES[:-1]) + f" and {DTYPES[-1]}"
        yield Constraint(
            "dtype", f"gemm/opencl has kernels for {names}", (p.dtype == "fp16") | (p.dtype == "fp32") | (p.dtype == "fp64")
        )
        yield Constraint("split_k", "gemm/opencl does not divide K: leave split_k at 1", p.split_k == 1)
        yield Constraint("batch", "gemm/opencl computes one product: leave batch at 1", p.batch == 1)
        yield packed_only(p, "gemm/opencl")
        yield no_epilogue(p, "gemm/opencl")
        yield Constraint("whole_rows", "MWG must be a multiple of MDIMC × VWM", mod(c.MWG, c.MDIMC * c.VWM) == 0)
        yield Constraint("whole_columns", "NWG must be a multiple of NDIMC × VWN", mod(c.NWG, c.NDIMC * c.VWN) == 0)
        yield Constraint("whole_steps", "KWG must be a multiple of KWI", ~_uses_local(c) | (mod(c.KWG, c.KWI) == 0))
        yield Constraint(
            "code_fits",
            f"MWG/MDIMC × NWG/NDIMC / VWN × KWI, the unrolled operations, must not be more than {LARGEST_CODE}",
            g.unrolled <= LARGEST_CODE,
        )
        yield Constraint(
            "item_fits",
            f"an item's sums, MWG/MDIMC × NWG/NDIMC, must fit in {LARGEST_ITEM_BYTES} bytes of registers",
            g.rows * g.columns * g.sum_bytes <= LARGEST_ITEM_BYTES,
        )
        yield Constraint(
            "work_group",
            "MDIMC × NDIMC items must not be more than the device allows in a work-group",
            g.items <= hw.max_work_group_size,
        )
        yield Constraint(
            "local_fits",
            "(MWG if local_a, NWG if local_b) × KWG sums must fit in the device's local memory",
            g.local_bytes <= hw.smem_per_block_bytes,
        )
        yield Constraint(
            "equal_loads",
            "all items must load the same number of vectors of a tile in local memory: MWG × KWG a multiple of "
            "MDIMC × NDIMC × VWM (local_a), NWG × KWG of MDIMC × NDIMC × VWN (local_b)",
            ((c.local_a == 0) | (mod(c.MWG * c.KWG, g.items * c.VWM) == 0))
            & ((c.local_b == 0) | (mod(c.NWG * c.KWG, g.items * c.VWN) == 0)),
        )
        yield Constraint(
            "vector_rows",
            "A that is row-major and not in local memory has no vectors along M: VWM must be 1",
            (c.VWM == 1) | (c.local_a == 1) | ~g.a_by_rows,
        )
        yield Constraint(
            "unguarded",
            "without guard M must be a multiple of MWG, N of NWG, and K of KWG (of KWI where there is no local memory)",
            (c.guard == 1) | ((mod(p.M, c.MWG) == 0) & (mod(p.N, c.NWG) == 0) & (mod(p.K, g.depth) == 0)),
        )

    def features(self, p: Namespace, c: Namespace, hw: Namespace) -> Mapping[str, Expr]:
        g = _Geometry(p, c)
        return {**{name: getattr(c, name) for name in self.parameters}, **_item_features(g, hw), **_tile_features(g, hw)}


def _item_features(g: _Geometry, hw: Namespace) -> dict[str, Expr]:
    """What one item and one work-group do, independent of the problem's sizes."""
    c = g.c
    return {
        "items": g.items,
        "work_group_ratio": g.items / hw.max_work_group_size,
        "item_rows": g.rows,
        "item_columns": g.columns,
        "item_sums": g.rows * g.columns,
        "item_sum_bytes": g.rows * g.columns * g.sum_bytes,
        "unrolled": g.unrolled,
        "fma_per_load": g.rows * g.columns / (g.rows + g.columns),
        "vector_share": c.VWN * g.sum_bytes / hw.vector_bytes,
        "local_bytes": g.local_bytes,
        "local_ratio": g.local_bytes / hw.smem_per_block_bytes,
        "tile_mn": c.MWG * c.NWG,
        "tile_intensity": c.MWG * c.NWG / (c.MWG + c.NWG),
        # A read is along contiguous rows or columns, or gathers single elements across them.
        "gathers_a": 1 * (g.a_by_rows & (c.local_a == 0)),
        "gathers_b": 1 * (~g.b_by_rows & (c.local_b == 0)),
        "transposes_a": 1 * (g.a_by_rows & (c.local_a == 1)),
        "transposes_b": 1 * (~g.b_by_rows & (c.local_b == 1)),
    }


def _tile_features(g: _Geometry, hw: Namespace) -> dict[str, Expr]:
    """Tiles, waves, waste at the edges and traffic of a config on a problem."""
    p, c = g.p, g.c
    tiles_m, tiles_n, steps = ceil_div(p.M, c.MWG), ceil_div(p.N, c.NWG), ceil_div(p.K, g.depth)
    # Only local memory rounds K up to whole tiles; without it the remainder is done step by step.
    computed_k = where(_uses_local(c), steps * c.KWG, p.K)
    groups = tiles_m * tiles_n
    waves = groups / hw.num_cus
    # Each work-group reads its strip of A and of B; without local memory each row or column of items does.
    reads_a = tiles_n * p.M * p.K * where(c.local_a == 1, 1, c.NDIMC)
    reads_b = tiles_m * p.K * p.N * where(c.local_b == 1, 1, c.MDIMC)
    group_traffic = (tiles_n * p.M * p.K + tiles_m * p.K * p.N + p.M * p.N) * p.element_bytes
    strip_bytes = (c.MWG + c.NWG) * p.K * p.element_bytes
    return {
        "tiles_m": tiles_m,
        "tiles_n": tiles_n,
        "log2_groups": log2(groups),
        "k_steps": steps,
        "barriers": where(_uses_local(c), 2 * steps * groups, 0),
        "fill_m": p.M / (tiles_m * c.MWG),
        "fill_n": p.N / (tiles_n * c.NWG),
        "true_utilization": p.M * p.N * p.K / (groups * c.MWG * c.NWG * computed_k),
        "edge_share": 1 - (p.M - mod(p.M, c.MWG)) * (p.N - mod(p.N, c.NWG)) / (p.M * p.N),
        "k_tail": mod(p.K, g.depth) / p.K,
        "waves": waves,
        "wave_quantization": waves / ceil(waves),
        "log2_work_per_wave": log2(c.MWG * c.NWG * computed_k * ceil(waves)),
        "item_work": g.rows * g.columns * computed_k,
        "operand_traffic_bytes": group_traffic,
        "traffic_ratio": group_traffic / gemm.work(p).bytes,
        "log2_reads": log2(reads_a + reads_b),
        "reads_per_fma": (reads_a + reads_b) / (p.M * p.N * p.K),
        "strips_l2": strip_bytes / (hw.l2_cache_kb * 1024),
        "b_l2": p.K * p.N * p.element_bytes / (hw.l2_cache_kb * 1024),
    }


gemm_opencl = OpenCl()
