"""Blocked GEMM kernels for CPUs: register tiles in vector registers, packed or direct operands, cache blocks, threads.

`outer` kernels add a column of A times a row of B to a tile of C; `dot` kernels multiply rows of A by columns of B
that are both contiguous along K (an operand with few rows or columns is copied first if it is not). A product with one
column is computed as its transpose (C is a vector either way), so "columns" below are those of the product that is really
computed.

Operands and C may have gaps between rows (lda, ldb, ldc). A bias is added and an activation applied to every tile with its
last block of K. After that, bf16, which is summed in fp32, is rounded once to the nearest, ties to even; int8 is summed in
int32, and so is C.

`outer` and `dot` kernels widen both to 32 bits and run on any CPU (`dot` for int8 to 16). Grouped kernels take several steps
of K as one product, and always pack: `pairs` (bf16 with AVX512-BF16; int8 widened to 16 bits, on any CPU), `quads` (int8 with
VNNI), `amx` (both, in tile registers of 16 × 16 sums).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from kerncast.core.expr import Expr, Namespace, minimum
from kerncast.core.op import Family
from kerncast.core.parameters import Bool, Categorical, Choice, Int
from kerncast.core.space import Constraint
from kerncast.errors import NotFound
from kerncast.library.families.gemm_cpu_tiles import (
    AVX512_BYTES,
    REGISTERS,
    REGISTERS_AVX512,
    TILE_REGISTERS,
    TILE_ROWS,
    Geometry,
    config_features,
    is_dot,
    is_grouped,
    is_outer,
)
from kerncast.library.ops.gemm import a_by_rows, b_by_rows, gemm

if TYPE_CHECKING:
    import polars as pl

    from kerncast.core.device import Device

DTYPES = ("fp32", "fp64", "bf16", "int8")
# A strip of B is read once per tile while the tile of C stays in registers; beyond this L1 prefetching fails.
L1_STRIPS = 4
# Up to this many rows of A or columns of B are copied to be contiguous along K: they are small next to the other operand.
FEW = 32


class Cpu(Family):
    id = "gemm/cpu"
    doc = "generated C kernels for CPUs: register tiles, packing, cache blocks, threads"
    op = gemm
    can_fail = False
    environment_parameters = {"threads": Int(1, 256, default=1, doc="threads that may be used")}
    parameters = {
        "kernel": Categorical(
            {"outer": 0, "dot": 1, "pairs": 2, "quads": 3, "amx": 4},
            doc="rank-one updates; dot products along K; updates with 2 or 4 steps of K at once; tile registers",
        ),
        "vector_bytes": Choice(16, 32, 64, doc="vector width in use"),
        "mr": Choice(1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 24, doc="rows of a register tile (amx: 16 rows each)"),
        "nv": Choice(1, 2, 3, 4, 5, 6, 8, 12, doc="vectors (outer) or columns (dot) along N of a register tile"),
        "k_unroll": Choice(1, 2, 4, doc="steps of K per loop iteration"),
        "prefetch": Choice(0, 8, 32, doc="steps of K that operands are prefetched ahead; 0: not at all"),
        "pack_a": Bool(when=is_outer, doc="A is copied into strips first"),
        "pack_b": Bool(when=is_outer, doc="B is copied into strips first"),
        "mc": Choice(24, 48, 96, 192, 384, 768, 1536, doc="rows of a cache block"),
        "kc": Choice(8, 16, 32, 64, 128, 192, 256, 384, 512, 768, 1024, 2048, doc="depth of a cache block"),
        "nc": Choice(64, 128, 256, 512, 1024, 2048, 4096, doc="columns of a cache block"),
        "loop_order": Categorical({"nkm": 0, "mkn": 1}, doc="block loops, outermost first"),
        "tile_order": Categorical({"nm": 0, "mn": 1}, doc="tile loops within a block, outermost first"),
        "split": Categorical({"none": 0, "m": 1, "n": 2, "k": 3}, doc="what the threads divide; k sums partial results"),
    }

    def constraints(self, p: Namespace, c: Namespace, hw: Namespace) -> Iterable[Constraint]:
        g = Geometry(p, c)
        size = g.packed_bytes
        known = f"gemm/cpu has kernels for {', '.join(DTYPES[:-1])} and {DTYPES[-1]}"
        yield Constraint("dtype", known, (p.dtype == "fp32") | (p.dtype == "fp64") | (p.dtype == "bf16") | (p.dtype == "int8"))
        yield from _instruction_constraints(p, c, hw)
        yield Constraint("split_k", "gemm/cpu divides K by its own parameter split: leave split_k at 1", p.split_k == 1)
        yield Constraint(
            "vectors",
            "gemm/cpu takes vectors without gaps: where M is 1, lda of a column-major A must be left out, and where N is 1, "
            "ldb of a row-major B and ldc",
            ((p.M != 1) | a_by_rows(p) | (p.lda == 0)) & ((p.N != 1) | ((~b_by_rows(p) | (p.ldb == 0)) & (p.ldc == 0))),
        )
        yield Constraint(
            "int8_activation",
            "gemm/cpu leaves sums of int8 as int32: gelu and silu need a floating-point dtype",
            (p.dtype != "int8") | (p.activation == "none") | (p.activation == "relu"),
        )
        yield Constraint(
            "vector_width", "vector_bytes must not be wider than the CPU's vectors", c.vector_bytes <= hw.vector_bytes
        )
        yield Constraint(
            "registers",
            f"the tile needs mr × nv + min(mr, nv) + 1 vector registers (dot: mr × nv + mr + 1; quads: nv + 1 more), of "
            f"{REGISTERS} ({REGISTERS_AVX512} with AVX-512; amx: {TILE_REGISTERS} tile registers)",
            g.registers <= g.register_limit(hw),
        )
        yield Constraint(
            "l1_fits", "kc × nr elements must fit in 4 × L1", c.kc * g.nr * size <= L1_STRIPS * hw.l1_cache_kb * 1024
        )
        yield Constraint("l2_fits", "mc × kc elements must fit in L2", c.mc * c.kc * size <= hw.l2_cache_kb * 1024)
        yield Constraint(
            "l3_fits",
            "kc × nc elements for each thread must fit in the last-level cache",
            c.kc * c.nc * size * p.threads <= hw.l3_cache_kb * 1024,
        )
        yield Constraint(
            "tile_in_block", "mc must hold a tile of mr rows, nc one of nr columns", (g.mr <= c.mc) & (g.nr <= c.nc)
        )
        yield Constraint(
            "direct_b",
            "an outer kernel reads B unpacked only where B is row-major",
            ~is_outer(c) | (c.pack_b == 1) | ~g.b_rows,
        )
        yield Constraint(
            "dot_layout",
            f"a dot kernel needs A and B contiguous along K (layout rcr, or vectors); one of them may be copied for that, "
            f"with at most {FEW} rows of A or columns of B",
            ~is_dot(c) | (g.a_rows & (g.b_rows | (g.n <= FEW))) | (g.b_rows & (g.m <= FEW)),
        )
        yield Constraint("one_thread", "one thread has nothing to split", (p.threads > 1) | (c.split == "none"))

    def peak_share(self, p: Namespace, hw: Namespace) -> Expr:
        return minimum(p.threads / hw.num_cus, 1.0)

    def features(self, p: Namespace, c: Namespace, hw: Namespace) -> Mapping[str, Expr]:
        return {
            "threads": p.threads,
            **{f"c_{name}": getattr(c, name) for name in self.parameters},
            **config_features(Geometry(p, c), hw),
        }


def _instruction_constraints(p: Namespace, c: Namespace, hw: Namespace) -> Iterable[Constraint]:
    """Which kernels exist for a dtype, and what they need from the CPU."""
    bf16, int8, amx = p.dtype == "bf16", p.dtype == "int8", c.kernel == "amx"
    yield Constraint(
        "kernel_dtype",
        "pairs and amx kernels multiply bf16 or int8, quads kernels int8",
        ~is_grouped(c) | int8 | (bf16 & (c.kernel != "quads")),
    )
    yield Constraint("bf16_pairs", "pairs of bf16 need AVX512-BF16", (c.kernel != "pairs") | ~bf16 | (hw.bf16_group >= 2))
    yield Constraint("int8_quads", "quads of int8 need VNNI", (c.kernel != "quads") | (hw.int8_group >= 4))
    yield Constraint("tile_registers", "an amx kernel needs AMX", ~amx | (hw.matrix_tile_rows >= TILE_ROWS))
    yield Constraint(
        "tile_steps",
        "an amx kernel takes 64 bytes of K at a time: vector_bytes must be 64, k_unroll 1 and prefetch 0",
        ~amx | ((c.vector_bytes == AVX512_BYTES) & (c.k_unroll == 1) & (c.prefetch == 0)),
    )


gemm_cpu = Cpu()

# -- named sets of configs -----------------------------------------------------------------------------

SETS = {"quick": 256, "default": 1_000, "full": 4_000}
# Drawn before choosing: enough that every tile occurs with every way of packing, blocking and splitting.
DRAWN = 60_000
TYPICAL_SIZE = 1024
SEED = 0
# How promising a value is: its share of a set. Every valid value keeps a chance.
WEIGHTS: dict[str, dict[Any, float]] = {
    # Grouped kernels do more with each instruction; pairs of bf16 and quads are not valid where they are not native.
    "kernel": {"outer": 1.0, "dot": 0.8, "pairs": 3.0, "quads": 4.0, "amx": 8.0},
    "k_unroll": {1: 1.0, 2: 1.0, 4: 1.0},
    "prefetch": {0: 1.0, 8: 0.5, 32: 0.25},
    "kc": {8: 0.1, 16: 0.1, 32: 0.1, 64: 0.2, 128: 0.5, 192: 0.5, 256: 1.0, 384: 1.0, 512: 1.0, 768: 0.5, 1024: 0.5, 2048: 0.5},
    "mc": {24: 0.3, 48: 0.5, 96: 1.0, 192: 1.0, 384: 1.0, 768: 0.5, 1536: 0.3},
    "nc": {64: 0.2, 128: 0.3, 256: 0.6, 512: 1.0, 1024: 1.0, 2048: 1.0, 4096: 0.6},
    "split": {"none": 0.3, "m": 1.0, "n": 1.0, "k": 0.5},
}
# A register tile's share grows with its arithmetic per load; vectors half as wide get a quarter.
LOAD_POWER = 2.0
WIDTH_POWER = 2.0
# A tile with more rows than the product runs as a smaller one: it adds little to a set.
OVERSIZE = 0.1
TILE = ("kernel", "vector_bytes", "mr", "nv")


def config_set(name: str, problem: Mapping[str, Any], device: Device) -> pl.DataFrame:
    """A named set of valid configs for a problem (or a part of one: dtype, layout, threads …) on a device.

    Always the same for the same arguments. Register tiles take turns, promising ones more often, and within a tile the
    values with large WEIGHTS come first. `quick` is a part of `default`, which is a part of `full`.
    """
    import polars as pl

    if name not in SETS:
        raise NotFound.named("config set", name, SETS)
    # Without sizes, assume a matrix: for a vector the layout would not matter.
    values = {**dict.fromkeys(("M", "N", "K"), TYPICAL_SIZE), **problem}
    # Only what matters for validity, so that one draw serves every size.
    drawn_for = {key: value for key, value in values.items() if key not in ("M", "N", "K", "batch", *gemm.problem.optional)}
    drawn_for |= {size: next(x for x in (1, FEW, FEW + 1) if values[size] <= x or x > FEW) for size in ("M", "N")}
    drawn = _draw(tuple(sorted(drawn_for.items())), device)
    weight = pl.lit(1.0)
    for parameter in ("k_unroll", "prefetch", "kc", "mc", "nc", "split"):
        weight = weight * pl.col(parameter).replace_strict(WEIGHTS[parameter], return_dtype=pl.Float64)
    rows = 1 if values["N"] == 1 else values["M"]
    mr, nv = pl.min_horizontal(pl.col("mr"), rows).cast(pl.Float64), pl.col("nv").cast(pl.Float64)
    served = (
        (mr * nv / (mr + nv)).pow(LOAD_POWER)
        * pl.col("vector_bytes").cast(pl.Float64).pow(WIDTH_POWER)
        * pl.col("kernel").replace_strict(WEIGHTS["kernel"], return_dtype=pl.Float64)
        * pl.when(pl.col("mr") > rows).then(OVERSIZE).otherwise(1.0)
    )
    # Weighted drawing without replacement (Efraimidis and Spirakis): the largest luck^(1/weight) win.
    turn = (-pl.col("__luck").log() / weight).rank("ordinal").over(TILE) / served
    ordered = drawn.with_columns(turn.alias("__turn")).sort("__turn", *TILE)
    return ordered.head(SETS[name]).drop("__turn", "__luck")


@lru_cache(maxsize=16)
def _draw(problem: tuple[tuple[str, Any], ...], device: Device) -> pl.DataFrame:
    """Valid configs, uniformly drawn, each with its luck."""
    import numpy as np
    import polars as pl

    drawn = gemm_cpu.config.sample(DRAWN, SEED, gemm_cpu.bindings(dict(problem), device))
    return drawn.with_columns(pl.Series("__luck", np.random.default_rng(SEED).random(drawn.height)))
