"""From a problem and a config to what conv.c takes: which taps meet which pixels, how operands are staged, which tiles are
needed, how much memory."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from kerncast.measuring.backends.cpu.conv.codegen import Tile
from kerncast.measuring.backends.cpu.gemm.codegen import C_TYPES

KERNELS = {"direct": 0, "im2col": 1, "depthwise": 2}
COLUMN_PAD = 16  # as in conv.c
# Result pixels of a depthwise block: values between 16 and 256 make no difference.
DEPTHWISE_PIXELS = 64
# Words of a `pixel` of staging.h.
PIXEL_WORDS = 6
# Read, and not used, beyond the end of what is staged: one vector.
SLACK_BYTES = 64
FORMS = {
    ("direct", True): "rows", ("direct", False): "columns", ("im2col", True): "rows", ("im2col", False): "columns",
    ("depthwise", True): "lanes", ("depthwise", False): "scaled",
}  # fmt: skip
WEIGHT_FORMS = {
    ("direct", True): "columns", ("direct", False): "dot", ("im2col", True): "columns", ("im2col", False): "columns",
    ("depthwise", True): "lanes", ("depthwise", False): "dot",
}  # fmt: skip
Long = ctypes.c_int64
Longs = ctypes.POINTER(Long)
Triple = tuple[int, int, int]


@dataclass(frozen=True)
class Phase:
    """Result pixels `start + step · j` that meet the same taps: each at the source pixel `source_step · j + at`."""

    start: Triple
    step: Triple
    count: Triple
    at: tuple[Triple, ...]
    taps: tuple[int, ...]
    """Their numbers in the filter."""


@dataclass(frozen=True)
class ConvGeometry:
    """One problem. The result of a gradient of the weights is seen from the output: its pixels are those of `phases`."""

    direction: str
    channels_last: bool
    images: int
    groups: int
    source_channels: int
    """The channels of one group."""
    result_channels: int
    source_size: Triple
    result_size: Triple
    source_step: Triple
    filter: Triple
    phases: tuple[Phase, ...]

    @classmethod
    def of(cls, direction: str, p: Mapping[str, Any]) -> ConvGeometry:
        """The geometry of a problem's values."""
        last, groups = p["layout"] == "nhwc", p["G"]
        size, filters = [p["Di"], p["Hi"], p["Wi"]], (p["Z"], p["Y"], p["X"])
        stride, pad, dilation = ([p[f"{name}_{axis}"] for axis in "dhw"] for name in ("stride", "pad", "dilation"))
        made = [
            (i + 2 * a - (t - 1) * d - 1) // s + 1 for i, a, t, d, s in zip(size, pad, filters, dilation, stride, strict=True)
        ]
        if filters == (1, 1, 1) and stride == [1, 1, 1] and pad == [0, 0, 0] and (not last or direction == "bwd_weight"):
            # Rows of pixels that follow each other without a gap are one row: vectors, or sums, end once, not at each row.
            size = made = [1, 1, size[0] * size[1] * size[2]]
        inner, outer = p["C"] // groups, p["K"] // groups
        source, result = _triple(size), _triple(made)
        if direction == "bwd_data":
            phases = _phases(size, filters, stride, pad, dilation)
            return cls(direction, last, p["N"], groups, outer, inner, result, source, (1, 1, 1), filters, phases)
        at = itertools.product(*([t * d - a for t in range(n)] for n, d, a in zip(filters, dilation, pad, strict=True)))
        count = filters[0] * filters[1] * filters[2]
        phase = Phase((0, 0, 0), (1, 1, 1), result, tuple(at), tuple(range(count)))
        return cls(direction, last, p["N"], groups, inner, outer, source, result, _triple(stride), filters, (phase,))

    @property
    def taps(self) -> int:
        """The number of taps of the filter."""
        return self.filter[0] * self.filter[1] * self.filter[2]

    @property
    def pixels(self) -> int:
        """The pixels of one result image, or of the output."""
        return self.result_size[0] * self.result_size[1] * self.result_size[2]

    @cached_property
    def reach(self) -> tuple[Triple, Triple]:
        """The first source pixel that a tap meets, and the one after the last; beyond the image there are zeros."""
        low, high = [], []
        for axis in range(3):
            met = [
                (tap[axis], tap[axis] + (phase.count[axis] - 1) * self.source_step[axis] + 1)
                for phase in self.phases
                for tap in phase.at
            ]
            low.append(min(first for first, _ in met))
            high.append(max(end for _, end in met))
        return _triple(low), _triple(high)

    @property
    def within(self) -> bool:
        """Whether no tap reaches beyond the image."""
        low, high = self.reach
        return min(low) >= 0 and all(end <= size for end, size in zip(high, self.source_size, strict=True))


def _triple(values: list[int]) -> Triple:
    depth, height, width = values
    return depth, height, width


def _phases(size: list[int], filters: Triple, stride: list[int], pad: list[int], dilation: list[int]) -> tuple[Phase, ...]:
    """Input pixel i is met by tap t of output pixel (i + pad - t · dilation) / stride, where that is whole."""
    axes = []
    for i, n, s, a, d in zip(size, filters, stride, pad, dilation, strict=True):
        met = [[(t, (start + a - t * d) // s) for t in range(n) if (start + a - t * d) % s == 0] for start in range(min(s, i))]
        axes.append([(start, -(-(i - start) // s), found) for start, found in enumerate(met)])
    phases = []
    for depth, height, width in itertools.product(*axes):
        taps = list(itertools.product(depth[2], height[2], width[2]))
        phases.append(
            Phase(
                (depth[0], height[0], width[0]),
                _triple(stride),
                (depth[1], height[1], width[1]),
                tuple((z[1], y[1], x[1]) for z, y, x in taps),
                tuple((z[0] * filters[1] + y[0]) * filters[2] + x[0] for z, y, x in taps),
            )
        )
    return tuple(phases)


class CPhase(ctypes.Structure):
    """`phase` of conv.c."""

    _fields_ = [
        *((name, Long * 3) for name in ("start", "step", "count")),
        *((name, Long) for name in ("taps", "packed")),
        *((name, Longs) for name in ("at", "tap", "offset", "shift")),
        *((name, Long * 3) for name in ("first", "last")),
    ]


class CStrides(ctypes.Structure):
    """`strides` of conv.c."""

    _fields_ = [(name, Long) for name in ("pixel", "row", "slice", "channel", "image")]


class CConvPlan(ctypes.Structure):
    """`plan` of conv.c."""

    keep: tuple[Any, ...]
    """Keeps alive what its pointers point to."""
    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("source", "other", "result")),
        ("tiles", ctypes.POINTER(ctypes.c_void_p)),
        ("phases", ctypes.POINTER(CPhase)),
        *((name, Long) for name in ("phase_count", "direction", "kernel", "channels_last", "double_precision")),
        *((name, Long) for name in ("images", "groups", "cs", "cd")),
        *((name, Long * 3) for name in ("source_size", "result_size", "source_step", "filter")),
        *((name, Long) for name in ("tap_result", "tap_source", "tap_tap")),
        *((name, Long * 3) for name in ("low", "staged_size")),
        *((name, Long) for name in ("copies", "split", "clips", "copies_output")),
        *((name, CStrides) for name in ("from_", "staged", "to", "output")),
        *((name, Long) for name in ("plane", "mr", "nv", "lanes", "kc", "nc")),
        *((name, Long) for name in ("packed_at", "staged_at", "columns_at", "tile_at", "lists_at", "bytes")),
    ]


def _up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


def _split(extents: Iterable[int], limit: int) -> set[int]:
    """The sizes of nearly equal parts, as `in_parts` of conv.c makes them."""
    sizes: set[int] = set()
    for extent in extents:
        count = max(1, -(-extent // limit))
        sizes |= {extent // count, -(-extent // count)}
    return sizes - {0}


def _strides(channels_last: bool, channels: int, size: tuple[int, int, int]) -> CStrides:
    depth, height, width = size
    if channels_last:
        row = width * channels
        return CStrides(channels, row, height * row, 1, depth * height * row)
    return CStrides(1, width, height * width, depth * height * width, channels * depth * height * width)


class ConvLayout:
    """A config on a problem: everything that follows from both without looking at memory."""

    def __init__(self, g: ConvGeometry, dtype: str, config: Mapping[str, Any]) -> None:
        self.g, self.dtype, self.config = g, dtype, config
        self.kernel = str(config["kernel"])
        """Direct, im2col or depthwise."""
        self.weight = g.direction == "bwd_weight"
        """Whether the gradient of the weights is computed."""
        self.lanes = int(config["vector_bytes"]) // C_TYPES[dtype][1]
        self.kc = int(config["kc"] or 1)
        """Depth of a pass; kernels without the parameter take all at once."""
        self.nc = int(config["nc"] or DEPTHWISE_PIXELS)
        """Width of a block."""
        self.together = min(g.images, max(1, self.kc // g.pixels))
        """Images that a pass over the gradient of the output takes."""
        self.all_channels = g.groups * g.result_channels
        """The channels of the result, or of the output."""
        self.clips = config.get("border") == "clip"
        """Whether taps beyond the image are skipped, so that nothing is copied."""
        self.copies = self._copies()
        self.copies_output = self._copies_output()

    def _vectors(self, extent: int) -> int:
        return -(-extent // self.lanes)

    @cached_property
    def tiles(self) -> dict[tuple[int, int], Tile]:
        """All tiles that occur, by rows and vectors (dot: columns)."""
        row_extents, vector_extents = self._weight_extents() if self.weight else self._gather_extents()
        c, forms = self.config, WEIGHT_FORMS if self.weight else FORMS
        form = forms[self.kernel, self.g.channels_last]
        whole = Tile(form, self.dtype, c["vector_bytes"], c["mr"], c["nv"], int(c["k_unroll"] or 1))
        rows, vectors = _split(row_extents, c["mr"]), _split(vector_extents, c["nv"])
        return {(i, j): whole.cut(i, j) for i in rows for j in vectors}

    def _gather_extents(self) -> tuple[set[int], set[int]]:
        """What is cut into rows, and into vectors."""
        g, last = self.g, self.g.channels_last
        widths = {phase.count[2] for phase in g.phases}
        if self.kernel == "depthwise":
            if last:
                # At an edge that is clipped, each pixel is a separate tile.
                rows = {1, *(self._inner(phase) for phase in g.phases)} if self.clips else widths
                return rows, {self._vectors(self.all_channels)}
            return {phase.count[1] for phase in g.phases}, {self._vectors(width) for width in widths}
        if self.kernel == "im2col":
            pixels = [g.images * phase.count[0] * phase.count[1] * phase.count[2] for phase in g.phases]
            blocks = _split(pixels, self.nc)
            across = blocks if last else {self._vectors(block) for block in blocks}
        elif last:
            across = _split(widths, self.nc)
        else:
            across = _split({self._vectors(width) for width in widths}, max(1, self.nc // self.lanes))
        return (across, {self._vectors(g.result_channels)}) if last else ({g.result_channels}, across)

    def _inner(self, phase: Phase) -> int:
        """Pixels of a row of which every tap is within the width of the source, as `inner_pixels` of gather.h has them."""
        step, width = self.g.source_step[2], self.g.source_size[2]
        first = max((max(0, -(tap[2] // step)) for tap in phase.at), default=0)
        end = min((max(0, (width - 1 - tap[2]) // step + 1) for tap in phase.at), default=phase.count[2])
        return max(0, min(end, phase.count[2]) - first)

    def _weight_extents(self) -> tuple[set[int], set[int]]:
        g = self.g
        if self.kernel == "im2col":
            columns = self._vectors(g.taps * g.source_channels)
            return {g.result_channels}, _split({columns}, max(1, self.nc // self.lanes))
        if self.kernel == "depthwise":
            if g.channels_last:
                return {g.filter[2]}, {self._vectors(self.all_channels)}
            return {g.result_channels}, {g.filter[1]}
        return {g.result_channels}, {self._vectors(g.source_channels) if g.channels_last else g.source_channels}

    def _copies(self) -> bool:
        """Whether the source is copied: for zeros around it, for whole vectors, or because its order differs."""
        g = self.g
        if self.kernel == "im2col":
            # One tap, at the pixel itself: columns are the image. A gradient's pixels may be shifted by a pad.
            plain = g.source_size == g.result_size and [phase.at for phase in g.phases] == [((0, 0, 0),)]
            return self.weight or not (g.channels_last and plain)
        if self.clips:
            return False
        if not g.within:
            return True
        if g.channels_last:
            if self.kernel == "depthwise":
                return (g.source_channels, g.result_channels) != (1, 1) or self.all_channels % self.lanes > 0
            return self.weight and g.source_channels % self.lanes > 0
        return g.source_step[2] > 1 or any(phase.count[2] % self.lanes for phase in g.phases)

    def _copies_output(self) -> bool:
        """Whether the gradient of the output is copied, for whole vectors."""
        if not self.weight or self.kernel == "im2col":
            return False
        if self.g.channels_last:
            return self.kernel == "depthwise" and self.all_channels % self.lanes > 0
        return self.g.result_size[2] % self.lanes > 0

    # -- for C ---------------------------------------------------------------------------------------

    def plan(self) -> CConvPlan:
        """The plan, without operands and tiles."""
        g, last = self.g, self.g.channels_last
        plan = CConvPlan(images=g.images, groups=g.groups, cs=g.source_channels, cd=g.result_channels)
        plan.direction, plan.kernel, plan.channels_last = int(self.weight), KERNELS[self.kernel], last
        plan.double_precision, plan.lanes = self.dtype == "fp64", self.lanes
        plan.copies, plan.clips, plan.copies_output = self.copies, self.clips, self.copies_output
        plan.mr, plan.nv, plan.kc, plan.nc = self.config["mr"], self.config["nv"], self.kc, self.nc
        for name in ("source_size", "result_size", "source_step", "filter"):
            setattr(plan, name, (Long * 3)(*getattr(g, name)))
        # The weights are K × taps × C/G, or K × C/G × taps; the result is K's side forward, C's side backward.
        inner = g.result_channels if g.direction == "bwd_data" else g.source_channels
        by_outer, by_inner = g.taps * inner, 1 if last else g.taps
        plan.tap_tap = inner if last else 1
        plan.tap_result, plan.tap_source = (by_inner, by_outer) if g.direction == "bwd_data" else (by_outer, by_inner)
        self._strides(plan)
        self._phases(plan)
        self._memory(plan)
        return plan

    def _strides(self, plan: CConvPlan) -> None:
        g, last = self.g, self.g.channels_last
        plan.from_ = _strides(last, g.groups * g.source_channels, g.source_size)
        plan.to = plan.output = _strides(last, self.all_channels, g.result_size)
        if self.copies_output and not last:
            depth, height, width = g.result_size
            plan.output = _strides(last, self.all_channels, (depth, height, _up(width, self.lanes)))
        plan.staged = plan.from_
        if not self.copies or self.kernel == "im2col":
            return
        low, high = g.reach
        size = tuple(end - first for first, end in zip(low, high, strict=True))
        plan.low, plan.staged_size = (Long * 3)(*low), (Long * 3)(*size)
        if last:
            planes = g.source_channels if self.kernel == "depthwise" else 1
            channels = self.all_channels if self.kernel == "depthwise" else g.groups * g.source_channels
            plan.staged = _strides(True, channels, (size[0], size[1], size[2]))
            plan.plane = plan.staged.image
            plan.staged.image *= planes
        else:
            plan.split = -(-size[2] // g.source_step[2])
            plan.staged = _strides(False, g.groups * g.source_channels, (size[0], size[1], plan.split * g.source_step[2]))

    def _phases(self, plan: CConvPlan) -> None:
        g, staged = self.g, plan.staged
        made, packed = [], 0
        # With the padding of the last strip, of each group where these are computed one by one.
        unit = self.lanes if g.channels_last else 1
        channels = _up(self.all_channels, self.lanes) if self.kernel == "depthwise" else g.groups * _up(g.result_channels, unit)
        for phase in g.phases:
            offsets = []
            for tap in phase.at:
                z, y, x = (at - first for at, first in zip(tap, plan.low, strict=True))
                step = g.source_step[2]
                across = x * staged.pixel if g.channels_last or not plan.split else x % step * plan.split + x // step
                offsets.append(z * staged.slice + y * staged.row + across)
            count = len(phase.taps)
            phase_c = CPhase(taps=count, packed=packed)
            for name in ("start", "step", "count"):
                setattr(phase_c, name, (Long * 3)(*getattr(phase, name)))
            phase_c.at = (Long * (3 * count))(*(value for tap in phase.at for value in tap))
            phase_c.tap, phase_c.offset = (Long * count)(*phase.taps), (Long * count)(*offsets)
            lies = plan.from_
            phase_c.shift = (Long * count)(*(z * lies.slice + y * lies.row + x * lies.pixel for z, y, x in phase.at))
            phase_c.first = (Long * 3)(*(min((tap[axis] for tap in phase.at), default=0) for axis in range(3)))
            phase_c.last = (Long * 3)(*(max((tap[axis] for tap in phase.at), default=0) for axis in range(3)))
            made.append(phase_c)
            packed += channels * count * g.source_channels
        plan.phases, plan.phase_count = (CPhase * len(made))(*made), len(made)
        plan.keep = tuple(made)
        plan.packed_at = packed

    def _memory(self, plan: CConvPlan) -> None:
        """Parts of the workspace; `packed_at` still holds the elements of the packed weights."""
        g, size = self.g, C_TYPES[self.dtype][1]
        packed, columns, lists = plan.packed_at, 0, 4 * max(len(phase.taps) for phase in g.phases)
        if self.weight and self.kernel == "im2col":
            packed, columns = g.result_channels * self.kc, self.kc * _up(max(self.nc, self.lanes), self.lanes)
            lists = self.kc * (1 + PIXEL_WORDS)
        elif self.weight:
            columns = self.together * plan.output.image if self.copies_output else 0
            lists = 2 * self.together * g.result_size[0] * g.result_size[1]
        elif self.kernel == "im2col":
            columns = _up(self.nc, self.lanes) * (self.kc + COLUMN_PAD)
            lists = self.config["nv"] * self.lanes + self.nc * PIXEL_WORDS
        staged = plan.staged.image * (self.together if self.weight else 1) if self.copies and self.kernel != "im2col" else 0
        tile = self.config["mr"] * self.config["nv"] * self.lanes
        at = 0
        parts = {"packed": packed * size, "staged": staged * size, "columns": columns * size, "tile": tile * size}
        for name, room in {**parts, "lists": lists * 8}.items():
            setattr(plan, f"{name}_at", at)
            at += _up(room + SLACK_BYTES, 64) + 64
        plan.bytes = at
