"""The `cpu` backend: kernels in C, compiled here, timed and checked bit for bit.

It is a `machine` and parts, one for each group of families. `gemm` is the generated product of matrices; its files are the
pipeline: `codegen` (micro-kernels as C text), `plan` (what the C driver takes), `arrays` (matrices of a caller); on the C side,
`driver.c` is the blocked product, `kernels.h`, `products.h` and `packing.h` are what kernels are made of. `conv` is grouped
convolution in three directions, `reshard` moves tiles between shards. `build` compiles and caches, `inputs` is the memory of
operands; `probe.c` measures how fast the machine is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from kerncast.core.device import Device
from kerncast.core.op import Config, Problem
from kerncast.library import devices
from kerncast.library.families.gemm_cpu import gemm_cpu
from kerncast.measuring.backends.contract import Backend, Bound, Call, CheckedKernel, Prepared
from kerncast.measuring.backends.cpu import build
from kerncast.measuring.backends.cpu.conv import ConvPart
from kerncast.measuring.backends.cpu.gemm import GemmPart
from kerncast.measuring.backends.cpu.machine import CpuPart, Machine
from kerncast.measuring.backends.cpu.reshard import ReshardPart

PARTS: tuple[type[CpuPart], ...] = (GemmPart, ConvPart, ReshardPart)
# Sentinels: a product of about 20 µs that fits into any L2, and a read that fits into none.
SENTINEL_PROBLEM: dict[str, int | bool | str | None] = {
    "M": 96, "N": 96, "K": 96, "split_k": 1, "batch": 1, "dtype": "fp32", "layout": "rrr", "threads": 1,
}  # fmt: skip
SENTINEL_CONFIG: dict[str, int | bool | str | None] = {
    "kernel": "outer", "vector_bytes": 32, "mr": 4, "nv": 2, "k_unroll": 1, "prefetch": 0, "pack_a": True, "pack_b": True,
    "mc": 96, "kc": 128, "nc": 256, "loop_order": "nkm", "tile_order": "mn", "split": "none",
}  # fmt: skip
MEMORY_BYTES = 8 * 2**20


class _MemoryReader(CheckedKernel):
    """Reads through memory."""

    def __init__(self, stream: Any, size: int) -> None:
        super().__init__()
        self._stream, self._data = stream, np.ones(size, np.uint8)

    def run(self, launches: int) -> int:
        return int(self._stream(launches, self._data.ctypes.data, self._data.nbytes))


class CpuBackend(Machine, Backend):
    """Runs the families of its parts on this machine."""

    name = "cpu"
    doc = "kernels in C for this machine's CPU"
    families = tuple(family for part in PARTS for family in part.families)
    calls = {family: call for part in PARTS for family, call in part.calls.items()}
    runs_on_cpu = True

    @classmethod
    def unavailable(cls) -> str | None:
        return None if build.find_compiler() else build.NO_COMPILER

    def __init__(self, index: str = "0") -> None:
        super().__init__(index)
        self._parts: dict[type[CpuPart], CpuPart] = {}

    def part(self, family: str) -> CpuPart:
        """What runs a family."""
        kind = next(part for part in PARTS if family in part.families)
        if kind not in self._parts:
            self._parts[kind] = kind(self)
        return self._parts[kind]

    def _part(self, problem: Problem) -> CpuPart:
        assert problem.family is not None
        return self.part(problem.family.id)

    def device(self) -> Device:
        return self.profile

    def software(self, family: str) -> Mapping[str, str]:
        return self.part(family).software(family)

    def prepare(self, problem: Problem, config: Config) -> Prepared:
        return self._part(problem).prepare(problem, config)

    def bind(self, call: Call, problem: Problem, config: Config) -> Bound:
        return self._part(problem).bind(call, problem, config)

    def first_configs(self, problem: Problem) -> Iterator[Config]:
        return self._part(problem).first_configs(problem)

    def smaller(self, problem: Problem) -> Problem:
        return self._part(problem).smaller(problem)

    def compile(self, vectors: Sequence[tuple[Problem, Config]], jobs: int = 1) -> None:
        for part, own in self._by_part(vectors):
            part.compile(own, jobs)

    def compilations(self, vectors: Sequence[tuple[Problem, Config]]) -> int:
        return sum(part.compilations(own) for part, own in self._by_part(vectors))

    def _by_part(self, vectors: Sequence[tuple[Problem, Config]]) -> Iterator[tuple[CpuPart, list[tuple[Problem, Config]]]]:
        for kind in PARTS:
            own = [vector for vector in vectors if vector[1].family.id in kind.families]
            if own:
                yield self.part(kind.families[0]), own

    def sentinel(self, kind: str) -> Prepared | None:
        probe = self.library.probe
        if kind == "compute":
            # A product like those that are timed: arithmetic in registers alone does not notice a busy neighbour's loads.
            problem = Problem.trusted(gemm_cpu, {**SENTINEL_PROBLEM})
            width = min(32, int(probe.kc_vector_bytes()))
            return self.prepare(problem, Config.trusted(gemm_cpu, {**SENTINEL_CONFIG, "vector_bytes": width}))
        if kind == "memory":
            l2_bytes = int(devices.local().numbers.get("l2_cache_kb", 0)) * 1024
            return _MemoryReader(probe.kc_stream, max(MEMORY_BYTES, 2 * l2_bytes))
        return None

    @cached_property
    def _eviction(self) -> Prepared:
        last_level = max(devices.local().numbers.get(f"l{level}_cache_kb", 0.0) for level in (2, 3))
        return _MemoryReader(self.library.probe.kc_stream, max(MEMORY_BYTES, 2 * int(last_level) * 1024))

    def flush_cache(self) -> bool:
        """Read through twice the last-level cache, so that the operands are no longer in it."""
        self._eviction.run(1)
        return True
