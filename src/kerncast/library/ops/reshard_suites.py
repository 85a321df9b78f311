"""The reshard sweeps: every shape, pair of grids and pair of strategies that cards can run, thinned out per pair of grids.

The rules are those of the published Wormhole sweep, so that its results can be joined: among shapes the height changes
fastest, among a suite's vectors the shape does, and a suite over the limit drops its first, third, fifth … vector until
it is within the limit. For bf16 and row-major shards 4,044,040 problems are valid and 2,885,010 remain.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from kerncast.core.arrays import Flags, Ints
from kerncast.core.dtypes import BYTES
from kerncast.core.op import Suite
from kerncast.core.parameters import Value
from kerncast.library.ops.ttnn import TILE

GRIDS = ("in_x", "in_y", "out_x", "out_y")
SHARDING = ("in_strategy", "out_strategy", "in_orientation", "out_orientation")
LONGEST_SIDE = 249
SUITE_LIMIT = 1_600
# Bytes per core that the published sweep allows the tensor on either side, of the 1,499,136 bytes of L1.
SIDE_BYTES = 2**20
# Bytes that the input and the output shard may take together: above it real cards run out of memory.
BOTH_BYTES = 1_399_000
DEFAULTS: Mapping[str, Sequence[Value]] = {
    "height_tiles": range(1, LONGEST_SIDE + 1),
    "width_tiles": range(1, LONGEST_SIDE + 1),
    **dict.fromkeys(GRIDS, range(1, 9)),
    "in_strategy": ("block", "width", "height"),
    "out_strategy": ("block", "width", "height"),
    "in_orientation": ("row_major",),
    "out_orientation": ("row_major",),
    "dtype": ("bf16",),
}


def divisors(x: int, y: int, strategy: str, orientation: str) -> tuple[int, int]:
    """The numbers of parts into which a sharding cuts the height and the width."""
    if strategy == "block":
        return (x, y) if orientation == "col_major" else (y, x)
    return (x * y, 1) if strategy == "height" else (1, x * y)


def thin(indices: Ints, limit: int = SUITE_LIMIT) -> Ints:
    """Delete every other one, starting with the first, until at most `limit` remain."""
    while len(indices) > limit:
        indices = indices[1::2]
    return indices


@dataclass(frozen=True, eq=False)
class _Shapes:
    """All shapes of a sweep, the height fastest, and which of them a sharding can hold."""

    heights: Ints
    widths: Ints
    masks: dict[tuple[Any, ...], Flags]

    @classmethod
    def of(cls, heights: Sequence[Value], widths: Sequence[Value]) -> _Shapes:
        high, wide = np.array(heights, np.int64), np.array(widths, np.int64)
        return cls(np.tile(high, len(wide)), np.repeat(wide, len(high)), {})

    @cached_property
    def tiles(self) -> Ints:
        """Tiles of each shape."""
        return self.heights * self.widths

    def held(self, x: int, y: int, strategy: str, orientation: str, dtype: str) -> Flags:
        """Which shapes a side can hold: whole tiles on every core, and no more bytes than allowed."""
        rows, columns = divisors(x, y, strategy, orientation)
        cores = x * y
        key = (rows, columns, cores, dtype)
        if key not in self.masks:
            fits = self.tiles * (TILE * TILE * BYTES[dtype]) <= SIDE_BYTES * cores
            self.masks[key] = fits & (self.heights % rows == 0) & (self.widths % columns == 0)
        return self.masks[key]

    def held_together(self, in_cores: int, out_cores: int, dtype: str) -> Flags:
        """Which shapes leave room for both shards on a core."""
        key = ("both", *sorted((in_cores, out_cores)), dtype)
        if key not in self.masks:
            bytes_ = self.tiles * (TILE * TILE * BYTES[dtype])
            self.masks[key] = bytes_ / in_cores + bytes_ / out_cores <= BOTH_BYTES
        return self.masks[key]


def suites(axes: Mapping[str, Sequence[Value]], *, both_fit: bool) -> Iterator[Suite]:
    """A suite for each pair of unequal grids and each dtype that has at least one problem."""
    runs: dict[str, Any] = {name: list(axes.get(name, values)) for name, values in DEFAULTS.items()}
    shapes = _Shapes.of(runs["height_tiles"], runs["width_tiles"])
    # From WIDTH to WIDTH and from HEIGHT to HEIGHT is left out, as published.
    shardings = [
        item for item in itertools.product(*(runs[name] for name in SHARDING)) if item[0] != item[1] or item[0] == "block"
    ]
    for in_x, in_y in itertools.product(runs["in_x"], runs["in_y"]):
        outputs = itertools.product(runs["out_x"], runs["out_y"], runs["dtype"])
        drafts = [
            _draft(shapes, shardings, (in_x, in_y, out_x, out_y), dtype, both_fit)
            for out_x, out_y, dtype in outputs
            if (in_x, in_y) != (out_x, out_y)
        ]
        yield from _suites(shapes, shardings, [draft for draft in drafts if draft.valid])


@dataclass(frozen=True, eq=False)
class _Draft:
    """A suite as positions in the lists of shapes and shardings."""

    grids: tuple[int, int, int, int]
    dtype: str
    valid: int
    shape: Ints
    sharding: Ints


def _draft(
    shapes: _Shapes, shardings: list[tuple[str, ...]], grids: tuple[int, int, int, int], dtype: str, both_fit: bool
) -> _Draft:
    in_x, in_y, out_x, out_y = grids
    found = []
    for from_strategy, to_strategy, from_orientation, to_orientation in shardings:
        mask = shapes.held(in_x, in_y, from_strategy, from_orientation, dtype)
        mask = mask & shapes.held(out_x, out_y, to_strategy, to_orientation, dtype)
        if both_fit:
            mask &= shapes.held_together(in_x * in_y, out_x * out_y, dtype)
        found.append(np.flatnonzero(mask))
    valid = sum(map(len, found))
    kept = thin(np.arange(valid))
    sharding = np.repeat(np.arange(len(found)), [len(part) for part in found])[kept]
    return _Draft(grids, dtype, valid, np.concatenate([kept[:0], *found])[kept], sharding)


def _suites(shapes: _Shapes, shardings: list[tuple[str, ...]], drafts: list[_Draft]) -> Iterator[Suite]:
    """The drafts as slices of one frame: 4,032 frames would take longer to make than all the arithmetic."""
    # Imported when used: moving shards needs no dataframes.
    import polars as pl

    if not drafts:
        return
    heights = [len(draft.shape) for draft in drafts]
    shape, sharding = (np.concatenate([getattr(draft, name) for draft in drafts]) for name in ("shape", "sharding"))
    numbers = {"height_tiles": shapes.heights[shape], "width_tiles": shapes.widths[shape]}
    for column, name in enumerate(GRIDS):
        numbers[name] = np.repeat(np.array([draft.grids[column] for draft in drafts], np.int64), heights)
    labels = pl.DataFrame(shardings, schema=dict.fromkeys(SHARDING, pl.String), orient="row")[sharding]
    dtypes = pl.Series("dtype", [draft.dtype for draft in drafts]).gather(np.repeat(np.arange(len(drafts)), heights))
    problems = pl.DataFrame(numbers).hstack([*labels.get_columns(), dtypes])
    for draft, start in zip(drafts, np.cumsum([0, *heights[:-1]]), strict=True):
        in_x, in_y, out_x, out_y = draft.grids
        name = f"{in_x}x{in_y}-{out_x}x{out_y}-{draft.dtype}"
        yield Suite(name, problems.slice(int(start), len(draft.shape)), draft.valid)
