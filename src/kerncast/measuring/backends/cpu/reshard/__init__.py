"""Resharding on this CPU: every shard has its own buffer, and worker threads move the tiles between them.

`pages` is the page map and the runs that follow from it, `buffers` the memory of the cores, `reshard.c` moves.
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from kerncast.core.dtypes import BYTES
from kerncast.core.op import Config, Problem
from kerncast.library.ops.ttnn import TILE
from kerncast.measuring.backends.contract import OutOfMemory, Prepared
from kerncast.measuring.backends.cpu import build
from kerncast.measuring.backends.cpu.build import Library
from kerncast.measuring.backends.cpu.part import Machine, Part
from kerncast.measuring.backends.cpu.reshard.buffers import Bytes, Side
from kerncast.measuring.backends.cpu.reshard.pages import Placement, moves, placement

SOURCE = "reshard/reshard"
# As `run` of reshard.c.
RUN = np.dtype([("from", "i4"), ("to", "i4"), ("from_offset", "i8"), ("to_offset", "i8"), ("bytes", "i8")])
# What the output holds before a check, so that a tile that is not written differs from the input.
POISON = 0xA5


class CPlan(ctypes.Structure):
    """As `plan` of reshard.c."""

    _fields_ = [
        ("runs", ctypes.c_void_p),
        ("first", ctypes.c_void_p),
        ("source", ctypes.c_void_p),
        ("target", ctypes.c_void_p),
        ("threads", ctypes.c_int64),
    ]


class Memory:
    """The input and output buffers of all cores."""

    def __init__(self) -> None:
        self.source, self.target = Side(), Side()


class _Reshard(Prepared):
    """One problem on the shared buffers."""

    def __init__(
        self, run: Any, memory: Memory, placements: tuple[Placement, Placement], tile_bytes: int, threads: int
    ) -> None:
        self._run, self._memory, self._tile_bytes = run, memory, tile_bytes
        self._source, self._target = placements
        found = moves(*placements, threads)
        runs = np.empty(len(found.tiles), RUN)
        runs["from"], runs["to"] = found.from_core, found.to_core
        for name, tiles in (("from_offset", found.from_place), ("to_offset", found.to_place), ("bytes", found.tiles)):
            runs[name] = tiles * tile_bytes
        # C reads these arrays by their addresses, so they live as long as the plan.
        self._runs, self._first = runs, np.ascontiguousarray(found.first)
        self._plan = CPlan(runs.ctypes.data, self._first.ctypes.data, memory.source.pointer, memory.target.pointer, threads)

    def run(self, launches: int) -> int:
        return int(self._run(ctypes.byref(self._plan), launches))

    def check(self) -> float:
        """Byte for byte, by the page map itself rather than by the runs made from it."""
        size = self._tile_bytes
        random = np.random.default_rng(0)
        source = [self._shard(self._memory.source, core, self._source) for core in range(self._source.cores)]
        target = [self._shard(self._memory.target, core, self._target) for core in range(self._target.cores)]
        for shard in source:
            shard[:] = random.integers(0, 256, shard.nbytes, np.uint8).reshape(shard.shape)
        for shard in target:
            shard.fill(POISON)
        self.run(1)
        worst = 0
        by_core = np.argsort(self._target.core, kind="stable").reshape(self._target.cores, -1)
        for shard, tiles in zip(target, by_core, strict=True):
            wanted = np.empty((self._target.shard_tiles, size), np.uint8)
            for core in np.unique(self._source.core[tiles]):
                own = tiles[self._source.core[tiles] == core]
                wanted[self._target.place[own]] = source[core][self._source.place[own]]
            if not np.array_equal(wanted, shard):
                worst = max(worst, int(np.abs(wanted.astype(np.int16) - shard).max()))
        return float(worst)

    def _shard(self, side: Side, core: int, where: Placement) -> Bytes:
        """A core's shard, a row for each tile."""
        used: Bytes = side.buffers[core][: where.shard_tiles * self._tile_bytes]
        return used.reshape(where.shard_tiles, self._tile_bytes)


class ReshardPart(Part):
    """Runs `reshard/cpu`."""

    families = ("reshard/cpu",)

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine)
        self.memory = Memory()

    def digest(self) -> str:
        sources = (f"{SOURCE}.c", "pool.h")
        return hashlib.blake2b(b"".join((build.SOURCES / name).read_bytes() for name in sources), digest_size=8).hexdigest()

    @cached_property
    def library(self) -> Library:
        """Where the compiled file is kept."""
        return Library(self.machine.compiler, sources=self.digest())

    @cached_property
    def _functions(self) -> tuple[Any, Any]:
        """`kr_reserve` and `kr_run`, compiled if need be."""
        driver = self.library.fixed(SOURCE)
        driver.kr_reserve.argtypes, driver.kr_reserve.restype = [ctypes.c_int64], ctypes.c_int
        driver.kr_run.argtypes, driver.kr_run.restype = [ctypes.POINTER(CPlan), ctypes.c_int64], ctypes.c_int64
        return driver.kr_reserve, driver.kr_run

    def compile(self, vectors: Sequence[tuple[Problem, Config]], jobs: int = 1) -> None:
        self.library.fixed(SOURCE)

    def compilations(self, vectors: Sequence[tuple[Problem, Config]]) -> int:
        return int(not (self.library.folder / f"{SOURCE}.so").exists())

    def prepare(self, problem: Problem, config: Config) -> Prepared:
        values = problem.as_dict()
        tile_bytes = round(TILE * TILE * BYTES[str(values["dtype"])])
        tiles, threads = int(problem.tiles), int(str(values["threads"]))
        reserve, run = self._functions
        if reserve(threads):
            raise OutOfMemory(f"this machine refuses {threads} threads")
        for side, buffers in (("in", self.memory.source), ("out", self.memory.target)):
            cores = int(str(values[f"{side}_x"])) * int(str(values[f"{side}_y"]))
            buffers.grow(cores, tiles // cores * tile_bytes)
        return _Reshard(run, self.memory, (placement(values, "in"), placement(values, "out")), tile_bytes, threads)
