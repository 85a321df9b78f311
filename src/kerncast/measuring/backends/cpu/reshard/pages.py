"""The page map: which tile of the tensor is on which core at which place, and what has to move where.

A tile is a page. Inside a shard tiles are stored row by row; shards go to cores by strategy and orientation, and the buffer of
core (x, y) has the number y * grid_x + x.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from kerncast.core.arrays import Ints
from kerncast.library.ops.ttnn_suites import divisors


@dataclass(frozen=True, eq=False)
class Placement:
    """For each tile, row by row of the tensor: its core, and its place in the core's shard."""

    core: Ints
    place: Ints
    cores: int

    @property
    def shard_tiles(self) -> int:
        """Tiles on every core."""
        return len(self.core) // self.cores


def placement(values: Mapping[str, Any], side: str) -> Placement:
    """Where the tiles of one side (`in` or `out`) are."""
    x, y = int(values[f"{side}_x"]), int(values[f"{side}_y"])
    strategy, orientation = str(values[f"{side}_strategy"]), str(values[f"{side}_orientation"])
    height, width = int(values["height_tiles"]), int(values["width_tiles"])
    rows, columns = divisors(x, y, strategy, orientation)
    high, wide = height // rows, width // columns
    row, column = np.divmod(np.arange(height * width, dtype=np.int64), width)
    shard = row // high * columns + column // wide
    turned = orientation == "col_major"
    # The n-th shard goes to the n-th core, counted along rows of the grid or down its columns.
    core = shard % y * x + shard // y if turned else shard
    return Placement(core, row % high * wide + column % wide, x * y)


@dataclass(frozen=True, eq=False)
class Moves:
    """Runs of tiles that are neighbours on both sides, in the order of the output, and where each thread begins."""

    from_core: Ints
    from_place: Ints
    to_core: Ints
    to_place: Ints
    tiles: Ints
    first: Ints


def moves(source: Placement, target: Placement, threads: int) -> Moves:
    """What has to move: as few runs as possible, cut only where another thread takes over, with tiles shared evenly."""
    order = np.argsort(target.core * target.shard_tiles + target.place)
    from_core, from_place, to_core = source.core[order], source.place[order], target.core[order]
    total = len(order)
    begins = np.ones(total, np.bool_)
    begins[1:] = (np.diff(from_place) != 1) | (np.diff(from_core) != 0) | (np.diff(to_core) != 0)
    shares = np.arange(threads + 1, dtype=np.int64) * total // threads
    begins[shares[shares < total]] = True
    starts = np.flatnonzero(begins)
    return Moves(
        from_core[starts],
        from_place[starts],
        to_core[starts],
        target.place[order][starts],
        np.diff(starts, append=total),
        np.searchsorted(starts, shares),
    )
