"""The convolution as the C side computes it: which tensor is read, which is made, and which taps meet which pixels."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

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
class Geometry:
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
    def of(cls, direction: str, p: Mapping[str, Any]) -> Geometry:
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
