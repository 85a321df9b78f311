"""Grouped convolution kernels for CPUs, one family for each direction: tiles in registers, three ways to feed them.

    direct     a tile sums over taps and channels of the image itself, or of a copy padded with zeros
    im2col     the pixels that each result needs are copied side by side first, a block at a time
    depthwise  each channel has its own weights: for groups of one channel, or a few

Rows of a tile are pixels and its vectors run along channels where those come last; where they come first, rows are
channels and vectors run along a row of pixels. The gradient of the input is computed as a convolution of the
gradient of the output, in as many phases as the stride has. For the gradient of the weights a tile sums over pixels: its
rows are output channels and its vectors run along input channels, or along pixels in dot products where channels come
first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import ClassVar

from kerncast.core.expr import Expr, Namespace, ceil_div, log2, maximum, minimum, where
from kerncast.core.op import Family
from kerncast.core.parameters import Categorical, Choice, Int, Parameter
from kerncast.core.space import Constraint
from kerncast.library.families.conv_tiles import (
    LARGEST_DEPTHWISE,
    BackwardView,
    View,
    WeightView,
    has_blocks,
    is_depthwise,
    is_direct,
    is_im2col,
)
from kerncast.library.ops.grouped_conv import grouped_conv_bwd_data, grouped_conv_bwd_weight, grouped_conv_forward

DTYPES = ("fp32", "fp64")
# AVX-512 has 32 vector registers, whatever the width in use; SSE and AVX have 16.
REGISTERS, REGISTERS_AVX512, AVX512_BYTES = 16, 32, 64
# With fewer sums than this, most of the time is spent waiting for the latency of a product.
FEWEST_CHAINS = 4
# Smaller groups leave vectors (direct) or copies (im2col) mostly empty.
SMALLEST_DIRECT, SMALLEST_IM2COL = 4, 8
# Columns are written and read again: beyond twice L2 they come from L3.
L2_COLUMNS = 2


class GroupedConvCpu(Family):
    """What the three directions share; not a family itself."""

    view: ClassVar[type[View]] = View
    can_fail = False
    environment_parameters = {"threads": Int(1, 256, default=1, doc="threads that may be used; the kernels use one")}
    parameters: ClassVar[Mapping[str, Parameter]] = {
        "kernel": Categorical({"direct": 0, "im2col": 1, "depthwise": 2}, doc="how tiles are fed"),
        "vector_bytes": Choice(16, 32, 64, doc="vector width in use"),
        "mr": Choice(1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, doc="rows of a register tile"),
        "nv": Choice(1, 2, 3, 4, 6, doc="vectors of a register tile, or columns of dot products"),
        "k_unroll": Choice(1, 4, doc="steps of a sum per loop iteration"),
        "kc": Choice(32, 128, 512, 2048, when=has_blocks, doc="channels (direct) or columns (im2col) that one pass sums"),
        "nc": Choice(16, 64, 256, 1024, when=has_blocks, doc="pixels of a block"),
        "border": Categorical(
            {"copy": 0, "clip": 1}, when=is_depthwise, doc="zeros are copied around an image, or taps beyond it left out"
        ),
    }

    def constraints(self, p: Namespace, c: Namespace, hw: Namespace) -> Iterable[Constraint]:
        v = self.view(p, c)
        registers = where(hw.vector_bytes >= AVX512_BYTES, REGISTERS_AVX512, REGISTERS)
        known = f"{self.id} has kernels for {' and '.join(DTYPES)}"
        yield Constraint("dtype", known, (p.dtype == "fp32") | (p.dtype == "fp64"))
        yield Constraint("one_thread", "the convolution kernels run on one thread: leave threads at 1", p.threads == 1)
        yield Constraint(
            "vector_width", "vector_bytes must not be wider than the CPU's vectors", c.vector_bytes <= hw.vector_bytes
        )
        yield Constraint(
            "narrow_vectors",
            "a vector narrower than the CPU's must hold all elements along its axis (channels of a group, or a row)",
            (c.vector_bytes >= hw.vector_bytes) | (where(v.is_dot, v.row, v.vector_extent) <= v.lanes),
        )
        yield Constraint(
            "registers",
            f"the tile needs mr × nv + min(mr, nv) + 1 vector registers, of {REGISTERS} ({REGISTERS_AVX512} with AVX-512)",
            c.mr * c.nv + minimum(c.mr, c.nv) + 1 <= registers,
        )
        yield Constraint(
            "chains", f"mr × nv must be at least {FEWEST_CHAINS}: fewer sums wait for each other", c.mr * c.nv >= FEWEST_CHAINS
        )
        yield Constraint(
            "columns_fit",
            f"im2col: kc × nc elements must fit in {L2_COLUMNS} × L2",
            ~is_im2col(c) | (c.kc * c.nc * p.element_bytes <= L2_COLUMNS * hw.l2_cache_kb * 1024),
        )
        yield from self._group_constraints(p, c, v)

    def _group_constraints(self, p: Namespace, c: Namespace, v: View) -> Iterable[Constraint]:
        """Which kernels are allowed for small groups. Every problem keeps at least one."""
        yield Constraint(
            "small_group",
            f"a depthwise kernel takes at most {LARGEST_DEPTHWISE} source channels a group",
            ~is_depthwise(c) | (v.source <= LARGEST_DEPTHWISE),
        )
        yield Constraint(
            "direct_group",
            f"with several groups a direct kernel needs {SMALLEST_DIRECT} result channels in each (2 where channels "
            f"come first), unless they are too large for a depthwise one",
            ~is_direct(c) | (p.G == 1) | (v.source > LARGEST_DEPTHWISE) | (v.result >= where(v.last, SMALLEST_DIRECT, 2)),
        )
        yield Constraint(
            "im2col_group",
            f"with several groups an im2col kernel needs {SMALLEST_IM2COL} channels of each on both sides",
            ~is_im2col(c) | (p.G == 1) | (minimum(v.source, v.result) >= SMALLEST_IM2COL),
        )
        yield Constraint(
            "clip",
            "border=clip needs channels last, and groups that have one channel on both sides and fill whole vectors",
            (c.border != "clip") | (v.last & (v.source * v.result == 1) & (ceil_div(p.G, v.lanes) * v.lanes == p.G)),
        )

    def peak_share(self, p: Namespace, hw: Namespace) -> Expr:
        return 1.0 / hw.num_cus  # the kernels use one thread

    def features(self, p: Namespace, c: Namespace, hw: Namespace) -> Mapping[str, Expr]:
        v = self.view(p, c)
        return {**{f"c_{name}": getattr(c, name) for name in self.parameters}, **_tile_features(v), **_cache_features(v, hw)}


def _tile_features(v: View) -> dict[str, Expr]:
    """Register use, what is lost at the edges, and how short the loops are."""
    c = v.c
    (count_rows, rows), (count_vectors, vectors) = v.tile_rows, v.tile_vectors
    passes, depth = v.depth
    return {
        "rows_used": rows,
        "vectors_used": vectors,
        "chains": rows * vectors,
        "fma_per_load": rows * vectors / (rows + vectors),
        "tiles_along_rows": count_rows,
        "tiles_along_vectors": count_vectors,
        "row_fill": v.row_extent / (count_rows * rows),
        "vector_fill": v.vector_fill,
        "scattered": v.scattered,
        "sum_passes": passes,
        "sum_depth": depth,
        "passes_per_fma": passes / v.reduction,
        "log2_calls": log2(maximum(v.calls, 1)),
        "fma_per_call": v.multiplications / maximum(v.calls, 1),
        "row_pixels": v.row,
        "is_direct": 1 * is_direct(c),
    }


def _cache_features(v: View, hw: Namespace) -> dict[str, Expr]:
    """Footprints relative to each cache, what is copied, and the remaining arithmetic."""
    size = v.p.element_bytes
    core_peak = hw.peak_flops / hw.num_cus
    full = v.multiplications / v.vector_fill * hw.vector_bytes / v.c.vector_bytes
    compute_ns = 2 * full / core_peak * 1e9
    moved = v.copied + v.packed
    return {
        "strip_l1": v.strip * size / (hw.l1_cache_kb * 1024),
        "strip_l2": v.strip * size / (hw.l2_cache_kb * 1024),
        "block_l1": v.block * size / (hw.l1_cache_kb * 1024),
        "block_l2": v.block * size / (hw.l2_cache_kb * 1024),
        "panel_l2": v.panel * size / (hw.l2_cache_kb * 1024),
        "panel_l3": v.panel * size / (hw.l3_cache_kb * 1024),
        "copied_per_fma": v.copied / v.multiplications,
        "packed_per_fma": v.packed / v.multiplications,
        "moved_bytes": moved * size,
        "blocks": v.blocks,
        "panel_bytes_per_fma": v.panel * v.blocks * size / v.multiplications,
        "log2_compute_ns": log2(maximum(compute_ns, 1)),
        "log2_compute_and_moved_ns": log2(maximum(compute_ns + moved * size / hw.memory_bandwidth_gb_s, 1)),
    }


class Forward(GroupedConvCpu):
    id = "grouped_conv_forward/cpu"
    doc = "generated C kernels for CPUs: direct, im2col and depthwise convolutions in register tiles"
    op = grouped_conv_forward


class BwdData(GroupedConvCpu):
    id = "grouped_conv_bwd_data/cpu"
    doc = "generated C kernels for CPUs: the gradient of the input, as convolutions of the output's gradient"
    op = grouped_conv_bwd_data
    view = BackwardView

    def features(self, p: Namespace, c: Namespace, hw: Namespace) -> Mapping[str, Expr]:
        return {**super().features(p, c, hw), "phases": self.view(p, c).phases}


class BwdWeight(GroupedConvCpu):
    id = "grouped_conv_bwd_weight/cpu"
    doc = "generated C kernels for CPUs: the gradient of the weights, as sums over pixels"
    op = grouped_conv_bwd_weight
    view = WeightView
    parameters = {
        **{name: rule for name, rule in GroupedConvCpu.parameters.items() if name not in ("kc", "nc", "border")},
        "kc": Choice(64, 256, 1024, 4096, doc="output pixels that one pass sums"),
        "nc": Choice(64, 256, 1024, when=is_im2col, doc="columns of a block: taps times input channels"),
    }

    def features(self, p: Namespace, c: Namespace, hw: Namespace) -> Mapping[str, Expr]:
        return {**super().features(p, c, hw), "is_dot": 1 * self.view(p, c).is_dot}

    def _group_constraints(self, p: Namespace, c: Namespace, v: View) -> Iterable[Constraint]:
        one, largest = p.G == 1, LARGEST_DEPTHWISE
        yield Constraint(
            "small_group",
            f"a depthwise kernel takes at most {largest} input channels a group",
            ~is_depthwise(c) | (v.source <= largest),
        )
        yield Constraint(
            "direct_group",
            f"with several groups a direct kernel needs {SMALLEST_DIRECT} input channels of each (where channels come first: "
            f"as many pairs of channels)",
            ~is_direct(c) | one | (v.source * where(v.last, 1, v.result) >= SMALLEST_DIRECT),
        )
        yield Constraint(
            "im2col_group",
            f"with several groups an im2col kernel needs {SMALLEST_IM2COL} channels of each on both sides",
            ~is_im2col(c) | one | (minimum(v.source, v.result) >= SMALLEST_IM2COL),
        )


grouped_conv_forward_cpu = Forward()
grouped_conv_bwd_data_cpu = BwdData()
grouped_conv_bwd_weight_cpu = BwdWeight()
FAMILIES = (grouped_conv_forward_cpu, grouped_conv_bwd_data_cpu, grouped_conv_bwd_weight_cpu)
