"""Resharding on this CPU: every shard has its own buffer, and worker threads move the tiles between them.

A tile is a page. Inside a shard tiles are stored row by row; shards go to cores by strategy and orientation, and the buffer of
core (x, y) has the number y * grid_x + x. `reshard.c` moves.
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kerncast.core.arrays import Ints
from kerncast.core.dtypes import BYTES
from kerncast.core.op import Config, Problem
from kerncast.library.ops.ttnn import TILE
from kerncast.library.ops.ttnn_suites import divisors
from kerncast.measuring.backends.contract import OutOfMemory, Prepared
from kerncast.measuring.backends.cpu import build
from kerncast.measuring.backends.cpu.machine import CpuPart, Machine, PlannedKernel

Bytes = npt.NDArray[np.uint8]
MOST_CORES = 64
# Each buffer has its own pages, as the memory of another core would have.
ALIGNMENT = 4096
# As `run` of reshard.c.
RUN = np.dtype([("from", "i4"), ("to", "i4"), ("from_offset", "i8"), ("to_offset", "i8"), ("bytes", "i8")])
# What the output holds before a check, so that a tile that is not written differs from the input.
POISON = 0xA5


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


class CReshardPlan(ctypes.Structure):
    """As `plan` of reshard.c."""

    keep: tuple[Any, ...]
    """Keeps alive what its pointers point to."""
    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("runs", "first", "source", "target")),
        ("threads", ctypes.c_int64),
    ]


class ShardBuffers:
    """The memory of the cores for the input or the output: a buffer of each, and the table of addresses that C reads.

    All problems use the same buffers, each grown to the largest shard so far: problems that are measured side by side take no
    more memory than the largest of them.
    """

    def __init__(self) -> None:
        self.buffers: list[Bytes] = [np.zeros(0, np.uint8)] * MOST_CORES
        self.table = (ctypes.c_void_p * MOST_CORES)()

    def grow(self, cores: int, size: int) -> None:
        """Room for `size` bytes on each of the first cores."""
        for core in range(cores):
            if len(self.buffers[core]) < size:
                # Free the old one first: both at once would take more memory than the largest.
                self.buffers[core] = np.zeros(0, np.uint8)
                try:
                    memory = np.empty(size + ALIGNMENT, np.uint8)
                except MemoryError as error:
                    raise OutOfMemory(f"no memory for a shard of {size:,} bytes") from error
                start = -memory.ctypes.data % ALIGNMENT
                self.buffers[core] = memory[start : start + size]
                # Touched here, so that no launch has to wait for a new page.
                self.buffers[core].fill(0)
                self.table[core] = self.buffers[core].ctypes.data

    def shards(self, where: Placement, tile_bytes: int) -> list[Bytes]:
        """The shard of each core, a row for each tile."""
        used = (buffer[: where.shard_tiles * tile_bytes] for buffer in self.buffers[: where.cores])
        return [buffer.reshape(where.shard_tiles, tile_bytes) for buffer in used]


@dataclass(frozen=True)
class Shards:
    """The tiles of one problem in the shared buffers; checked by the page map itself, not by the runs made from it."""

    source: ShardBuffers
    target: ShardBuffers
    before: Placement
    after: Placement
    tile_bytes: int

    def poison(self) -> None:
        """Fill the input with random bytes, and the output with others."""
        random = np.random.default_rng(0)
        for shard in self.source.shards(self.before, self.tile_bytes):
            shard[:] = random.integers(0, 256, shard.nbytes, np.uint8).reshape(shard.shape)
        for shard in self.target.shards(self.after, self.tile_bytes):
            shard.fill(POISON)

    def error(self) -> float:
        """The largest difference of a byte."""
        worst = 0
        source, target = (
            side.shards(where, self.tile_bytes) for side, where in ((self.source, self.before), (self.target, self.after))
        )
        by_core = np.argsort(self.after.core, kind="stable").reshape(self.after.cores, -1)
        for shard, tiles in zip(target, by_core, strict=True):
            wanted = np.empty_like(shard)
            for core in np.unique(self.before.core[tiles]):
                own = tiles[self.before.core[tiles] == core]
                wanted[self.after.place[own]] = source[core][self.before.place[own]]
            if not np.array_equal(wanted, shard):
                worst = max(worst, int(np.abs(wanted.astype(np.int16) - shard).max()))
        return float(worst)


class ReshardPart(CpuPart):
    """Runs `reshard/cpu`."""

    families = ("reshard/cpu",)
    driver = "reshard/reshard"
    symbols = ("kr_reserve", "kr_run")
    plan_type = CReshardPlan

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine)
        self.source, self.target = ShardBuffers(), ShardBuffers()

    def digest(self) -> str:
        sources = (f"{self.driver}.c", "pool.h")
        return hashlib.blake2b(b"".join((build.SOURCES / name).read_bytes() for name in sources), digest_size=8).hexdigest()

    def compilations(self, vectors: Sequence[tuple[Problem, Config]]) -> int:
        return int(not (self.library.folder / f"{self.driver}.so").exists())

    def prepare(self, problem: Problem, config: Config) -> Prepared:
        values: Mapping[str, Any] = problem.as_dict()
        size, threads = round(TILE * TILE * BYTES[values["dtype"]]), values["threads"]
        shards = Shards(self.source, self.target, placement(values, "in"), placement(values, "out"), size)
        tables = (ctypes.addressof(side.table) for side in (self.source, self.target))
        reserve, run = self.functions
        if reserve(ctypes.c_int64(threads)):
            raise OutOfMemory(f"this machine refuses {threads} threads")
        for buffers, where in ((self.source, shards.before), (self.target, shards.after)):
            buffers.grow(where.cores, where.shard_tiles * size)
        found = moves(shards.before, shards.after, threads)
        runs, first = np.empty(len(found.tiles), RUN), np.ascontiguousarray(found.first)
        runs["from"], runs["to"] = found.from_core, found.to_core
        for name, tiles in (("from_offset", found.from_place), ("to_offset", found.to_place), ("bytes", found.tiles)):
            runs[name] = tiles * size
        plan = CReshardPlan(runs.ctypes.data, first.ctypes.data, *tables, threads)
        plan.keep = runs, first
        return PlannedKernel(run, plan, shards)
