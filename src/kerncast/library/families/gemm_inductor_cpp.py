"""The C++ matmul of PyTorch Inductor on CPUs, over more configs than Inductor tries, with ATen's kernel as one more candidate.

Inductor offers one C++ kernel for each product whose right operand is a constant (a frozen weight): it takes the register tile
and the cache blocks from rules. Here both are parameters. Weights are packed when a model is compiled, so how they are stored
does not matter; `rcr` is what `nn.Linear` has.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kerncast.core.expr import Expr, Namespace, ceil_div, log2, maximum, minimum, where
from kerncast.core.op import Family
from kerncast.core.parameters import Categorical, Choice, Int
from kerncast.core.space import Constraint
from kerncast.library.ops.gemm import gemm

# Vector registers of AVX2 and of AVX-512; a row of the tile needs one more for the element of A.
REGISTERS, REGISTERS_AVX512, AVX512_BYTES = 16, 32, 64
LANE_BYTES = 4  # sums are fp32, whatever the operands are
# How much of L1 and of L2 Inductor's own blocks fill.
L1_SHARE, L2_SHARE = 0.8, 0.5


def is_tiled(c: Namespace) -> Expr:
    """Whether a config is a tile given here, rather than Inductor's default or ATen's kernel."""
    return c.kind == "tile"


def lanes(hw: Namespace) -> Expr:
    """Sums in one vector register."""
    return hw.vector_bytes / LANE_BYTES


class InductorCpp(Family):
    id = "gemm/inductor_cpp"
    doc = (
        "PyTorch Inductor's C++ matmul with a constant right operand, its epilogue included: register tiles, cache blocks, "
        "threads, and ATen's kernel"
    )
    op = gemm
    can_fail = False
    environment_parameters = {"threads": Int(1, 256, default=1, doc="threads that torch may use")}
    parameters = {
        "kind": Categorical({"tile": 0, "default": 1, "aten": 2}, doc="a given tile, Inductor's own choice, or ATen's kernel"),
        "mr": Choice(1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, when=is_tiled, doc="rows of a register tile"),
        "nr": Choice(8, 16, 24, 32, 48, 64, when=is_tiled, doc="columns of a register tile, whole vectors"),
        "mc": Choice(0, 16, 64, 256, when=is_tiled, doc="rows of a cache block; 0: as Inductor computes it"),
        "kc": Choice(0, 64, 128, 256, 512, 1024, when=is_tiled, doc="depth of a cache block; 0: as Inductor computes it"),
        "split": Categorical(
            {"default": 0, "m": 1, "n": 2, "k": 3}, when=is_tiled, doc="what the threads divide; default: as Inductor decides"
        ),
    }
    library = {"kind": "aten"}
    always = ({"kind": "default"}, {"kind": "aten"})

    def constraints(self, p: Namespace, c: Namespace, hw: Namespace) -> Iterable[Constraint]:
        vectors = lanes(hw)
        columns = c.nr / vectors
        limit = where(hw.vector_bytes >= AVX512_BYTES, REGISTERS_AVX512, REGISTERS)
        yield Constraint("dtype", "gemm/inductor_cpp has kernels for fp32 and bf16", (p.dtype == "fp32") | (p.dtype == "bf16"))
        yield Constraint("layout", "weights are packed beforehand: layout must be rcr, as nn.Linear has it", p.layout == "rcr")
        yield Constraint("one_product", "gemm/inductor_cpp computes one product: leave batch and split_k at 1",
                         (p.batch == 1) & (p.split_k == 1))  # fmt: skip
        yield Constraint("packed", "weights and results are packed: leave out ldb and ldc", (p.ldb == 0) & (p.ldc == 0))
        yield Constraint(
            "whole_vectors", "nr must be whole vectors", ~is_tiled(c) | (c.nr == vectors * ceil_div(c.nr, vectors))
        )
        yield Constraint(
            "registers",
            f"the tile needs mr × nr / lanes + nr / lanes + 1 registers, of {REGISTERS} ({REGISTERS_AVX512} with AVX-512)",
            ~is_tiled(c) | (c.mr * columns + columns + 1 <= limit),
        )
        yield Constraint("rows", "mr must not exceed M", ~is_tiled(c) | (c.mr <= p.M))
        yield Constraint(
            "block", "mc must hold a tile and kc must not exceed K; 0 is always allowed",
            ~is_tiled(c) | (((c.mc == 0) | ((c.mc >= c.mr) & (c.mc <= p.M))) & ((c.kc == 0) | (c.kc <= p.K))),
        )  # fmt: skip
        yield Constraint(
            "one_thread", "one thread has nothing to split", ~is_tiled(c) | (p.threads > 1) | (c.split == "default")
        )

    def peak_share(self, p: Namespace, hw: Namespace) -> Expr:
        return minimum(p.threads / hw.num_cus, 1.0)

    def features(self, p: Namespace, c: Namespace, hw: Namespace) -> Mapping[str, Expr]:
        def tiled(value: Expr) -> Expr:
            # 0 for kernels whose tile is not given; `kind` tells the model which they are.
            return where(is_tiled(c), value, 0)

        rows, columns = ceil_div(p.M, c.mr), ceil_div(p.N, c.nr)
        # As Inductor decides: a strip of B in L1, then rows of A in L2.
        strip = hw.l1_cache_kb * 1024 * L1_SHARE / (c.nr * p.element_bytes)
        depth = minimum(p.K, where(c.kc == 0, maximum(strip, 1), c.kc))
        height = minimum(p.M, where(c.mc == 0, maximum(hw.l2_cache_kb * 1024 * L2_SHARE / (p.K * p.element_bytes), c.mr), c.mc))
        blocks_k, blocks_m = ceil_div(p.K, depth), ceil_div(p.M, height)
        sums = p.M * columns * c.nr * blocks_k
        vectors = c.nr / lanes(hw)
        # Left to Inductor, threads divide the longer side of the result.
        by_columns = (c.split == "n") | ((c.split == "default") & (p.N >= p.M))
        divided = where(c.split == "k", p.K, where(by_columns, columns, rows))
        each = ceil_div(divided, p.threads)
        # What the slowest thread computes, in tiles of the result.
        per_thread = where(c.split == "k", rows * columns * each / p.K, each * where(by_columns, rows, columns))
        return {
            "threads": p.threads,
            **{f"c_{name}": getattr(c, name) for name in self.parameters},
            "registers": tiled(c.mr * vectors + vectors + 1),
            "loads_per_product": tiled(1 / c.mr + 1 / c.nr),
            "row_fill": tiled(p.M / (rows * c.mr)),
            "column_fill": tiled(p.N / (columns * c.nr)),
            "last_rows": tiled(p.M - (rows - 1) * c.mr),
            "row_tiles": tiled(rows),
            "column_tiles": tiled(columns),
            "k_blocks": tiled(blocks_k),
            "m_blocks": tiled(blocks_m),
            "block_depth": tiled(depth),
            "block_height": tiled(height),
            "strip_of_l1": tiled(depth * c.nr * p.element_bytes / (hw.l1_cache_kb * 1024)),
            "rows_of_l2": tiled(height * p.K * p.element_bytes / (hw.l2_cache_kb * 1024)),
            "weights_of_l2": p.N * p.K * p.element_bytes / (hw.l2_cache_kb * 1024),
            "weights_of_l3": p.N * p.K * p.element_bytes / (hw.l3_cache_kb * 1024),
            "log2_sums_written": log2(1 + tiled(sums)),
            "weights_read": tiled(blocks_m * p.N * p.K),
            "splits_columns": tiled(1 * by_columns),
            "thread_fill": tiled(divided / (each * p.threads)),
            "log2_tiles_per_thread": log2(1 + tiled(per_thread)),
            # Lower bounds of the slowest thread's work: multiplications in whole tiles, and loads of vectors for them.
            "log2_tile_steps": log2(1 + tiled(per_thread * p.K * c.mr * vectors)),
            "log2_tile_loads": log2(1 + tiled(per_thread * p.K * (vectors + c.mr))),
        }


gemm_inductor_cpp = InductorCpp()
