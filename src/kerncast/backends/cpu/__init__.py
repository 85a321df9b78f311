"""The `cpu` backend: generated GEMM kernels in C for fp32, fp64, bf16 and int8, compiled here, timed and checked bit for bit.

The files are the pipeline: `codegen` (micro-kernels as C text), `build` (compile and cache), `plan` (what the C
driver takes), `inputs` (matrices and the exact result), `arrays` (matrices of a caller instead), `trials` (what to try
where nothing is known), `profile` (how fast the machine is); on the C
side, `driver.c` is the blocked product, `kernels.h`, `products.h` and `packing.h` are what kernels are made of, and
`probe.c` tells how fast the machine is.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, cached_property, partial
from typing import Any

import numpy as np

from kerncast import devices
from kerncast.backends.contract import Backend, Bound, Call, OutOfMemory, Prepared, Unsupported
from kerncast.backends.cpu import build, profile
from kerncast.backends.cpu.arrays import BoundProduct, Product
from kerncast.backends.cpu.build import Compiler, Library
from kerncast.backends.cpu.codegen import Item
from kerncast.backends.cpu.inputs import InputCache, Inputs
from kerncast.backends.cpu.plan import CPlan, Geometry, Kernels, fill, refusal
from kerncast.backends.cpu.trials import trials
from kerncast.device import Device
from kerncast.families.gemm_cpu import gemm_cpu
from kerncast.op import Config, Problem

# Sentinels: a product of about 20 µs that fits into any L2, and a read that none holds.
SENTINEL_PROBLEM: dict[str, int | bool | str | None] = {
    "M": 96, "N": 96, "K": 96, "split_k": 1, "batch": 1, "dtype": "fp32", "layout": "rrr", "threads": 1,
}  # fmt: skip
SENTINEL_CONFIG: dict[str, int | bool | str | None] = {
    "kernel": "outer", "vector_bytes": 32, "mr": 4, "nv": 2, "k_unroll": 1, "prefetch": 0, "pack_a": True, "pack_b": True,
    "mc": 96, "kc": 128, "nc": 256, "loop_order": "nkm", "tile_order": "mn", "split": "none",
}  # fmt: skip
MEMORY_BYTES = 8 * 2**20
# Problems are tried in the small first: sides beyond FEW become one of a few lengths. Most tiles divide those of M and N,
# so that little has to be compiled for edges; that of K is a power of two, at which rows compete for the same cache sets,
# as they do in most networks. The longer ones make matrices beyond any L2 where there is little to compute.
FEW, THIN = 64, 16
SMALL_SIDES, SMALL_SIDES_THIN = {"M": 120, "N": 960, "K": 1024}, {"M": 1920, "N": 1920, "K": 2048}
# kc_reserve's answer when tile registers are refused.
NO_TILES = -2


class _Kernel(Prepared):
    """One config on the buffers of one problem."""

    def __init__(self, library: Library, plan: CPlan, inputs: Inputs) -> None:
        self.inputs = inputs
        self._launch = partial(_functions(library)[1], ctypes.byref(plan))

    def run(self, launches: int) -> int:
        return int(self._launch(launches))

    def check(self) -> float:
        self.inputs.poison()
        self._launch(1)
        return self.inputs.error()


class _Sentinel(Prepared):
    """A fixed kernel; there is nothing to check."""

    def __init__(self, function: Any, *arguments: Any, keep: object = None) -> None:
        self._function, self._arguments, self._keep = function, arguments, keep

    def run(self, launches: int) -> int:
        return int(self._function(launches, *self._arguments))

    def check(self) -> float:
        return 0.0


@cache
def _functions(library: Library) -> tuple[Any, Any]:
    """`kc_reserve` and `kc_run`, typed once."""
    reserve, run = library.driver.kc_reserve, library.driver.kc_run
    reserve.argtypes, reserve.restype = [ctypes.POINTER(CPlan)], ctypes.c_int
    run.argtypes, run.restype = [ctypes.POINTER(CPlan), ctypes.c_int64], ctypes.c_int64
    probe = library.probe
    for name in ("kc_bf16_group", "kc_int8_group", "kc_tile_rows", "kc_products_bf16", "kc_products_int8"):
        probe[name].restype = ctypes.c_int64
    for name in ("kc_clock", "kc_fma_fp32", "kc_fma_fp64", "kc_multiply_bf16", "kc_multiply_int8"):
        probe[name].argtypes, probe[name].restype = [ctypes.c_int64, ctypes.c_int64], ctypes.c_int64
    probe.kc_stream.argtypes = [ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64]
    probe.kc_stream.restype = probe.kc_vector_bytes.restype = ctypes.c_int64
    return reserve, run


class CpuBackend(Backend):
    """Runs `gemm/cpu` on the machine at hand."""

    name = "cpu"
    doc = "generated GEMM kernels in C for this machine's CPU"
    families = ("gemm/cpu",)
    calls = {"gemm/cpu": Product}
    runs_on_cpu = True

    @classmethod
    def unavailable(cls) -> str | None:
        return None if build.find_compiler() else build.NO_COMPILER

    def __init__(self, index: str = "0") -> None:
        super().__init__(index)
        self._inputs = InputCache()
        self._evicting: np.ndarray[Any, np.dtype[np.uint8]] | None = None

    @cached_property
    def compiler(self) -> Compiler:
        """The compiler in use."""
        found = build.find_compiler()
        if found is None:
            raise Unsupported(build.NO_COMPILER)
        return found

    @cached_property
    def library(self) -> Library:
        """The compiled kernels."""
        library = Library(self.compiler)
        _functions(library)
        return library

    @cached_property
    def _profile(self) -> Device:
        return profile.measured(self.library, devices.local())

    def device(self) -> Device:
        return self._profile

    def software(self) -> Mapping[str, str]:
        return {
            "compiler": self.compiler.version,
            "flags": " ".join(self.compiler.flags),
            "kernels": build.source_digest(),
        }

    def compile(self, vectors: Sequence[tuple[Problem, Config]], jobs: int = 1) -> None:
        self.library.build(self._items(vectors), jobs)

    def compilations(self, vectors: Sequence[tuple[Problem, Config]]) -> int:
        return len(self.library.missing(self._items(vectors)))

    def prepare(self, problem: Problem, config: Config) -> Prepared:
        values, chosen, geometry = self._supported(problem, config)
        inputs = self._inputs.get(values)
        plan = self._planned(geometry, values, chosen, inputs.pointers)
        self._reserve(plan)
        return _Kernel(self.library, plan, inputs)

    def bind(self, call: Call, problem: Problem, config: Config) -> Bound:
        assert isinstance(call, Product)
        values, chosen, geometry = self._supported(problem, config)
        # All that is missing in one compilation: `prepare` leaves this to whoever calls `compile` for a whole chunk.
        self.compile([(problem, config)])
        plan = self._planned(geometry, values, chosen, (0, 0, 0))
        self._reserve(plan)
        return BoundProduct(call, plan, geometry.swapped, _functions(self.library)[1], partial(self._reserve, plan))

    def trials(self, problem: Problem) -> Iterator[Config]:
        return iter(trials(problem.values, self.device()))

    def smaller(self, problem: Problem) -> Problem:
        """One of a few dozen problems that stand for all: few rows or columns to the next power of two, else small ones."""
        given = {name: int(str(problem.values[name])) for name in ("M", "N", "K")}
        lengths = SMALL_SIDES_THIN if min(given["M"], given["N"]) <= THIN else SMALL_SIDES
        sides = {name: 1 << (side - 1).bit_length() if side <= FEW else lengths[name] for name, side in given.items()}
        if math.prod(given.values()) <= math.prod(sides.values()):
            return problem
        return Problem.trusted(gemm_cpu, {**problem.values, **sides, "batch": 1})

    def _planned(
        self, geometry: Geometry, values: dict[str, Any], chosen: dict[str, Any], pointers: tuple[int, int, int]
    ) -> CPlan:
        """The plan with its functions. It keeps the table of micro-kernels alive, as ctypes does what a pointer points to."""
        kernels = Kernels.of(geometry, values["dtype"], chosen)
        plan = fill(geometry, kernels, values, chosen, pointers)
        whole = kernels.micro
        table = (ctypes.c_void_p * (whole.mr * whole.nv))()
        for micro in (whole, *kernels.edges):
            table[(micro.mr - 1) * whole.nv + micro.nv - 1] = self.library.function(micro, micro.name)
        plan.micros = ctypes.cast(table, ctypes.POINTER(ctypes.c_void_p))
        for operand, packer in ((plan.a, kernels.a_packer), (plan.b, kernels.b_packer)):
            if packer is not None:
                operand.packer = self.library.function(packer, packer.symbol(bool(operand.rows)))
        return plan

    def _reserve(self, plan: CPlan) -> None:
        """Memory and threads for a plan."""
        refused = _functions(self.library)[0](ctypes.byref(plan))
        if refused == NO_TILES:
            raise Unsupported("the kernel does not grant this process the tile registers of AMX")
        if refused:
            sizes = f"{plan.batch} × {plan.m} × {plan.n} × {plan.k}"
            raise OutOfMemory(f"no memory or no threads for a product of {sizes} on {plan.threads} threads")

    def sentinel(self, kind: str) -> Prepared | None:
        probe = self.library.probe
        if kind == "compute":
            # A product like those that are timed: arithmetic in registers alone does not feel a busy neighbour's loads.
            problem = Problem.trusted(gemm_cpu, {**SENTINEL_PROBLEM})
            width = min(32, int(probe.kc_vector_bytes()))
            return self.prepare(problem, Config.trusted(gemm_cpu, {**SENTINEL_CONFIG, "vector_bytes": width}))
        if kind == "memory":
            l2_bytes = int(devices.local().numbers.get("l2_cache_kb", 0)) * 1024
            data = np.ones(max(MEMORY_BYTES, 2 * l2_bytes), np.uint8)
            return _Sentinel(probe.kc_stream, data.ctypes.data, data.nbytes, keep=data)
        return None

    def flush_cache(self) -> bool:
        """Read through twice the last-level cache, so that the operands are no longer in it."""
        last_level = max(devices.local().numbers.get(f"l{level}_cache_kb", 0.0) for level in (2, 3))
        if self._evicting is None:
            self._evicting = np.ones(max(MEMORY_BYTES, 2 * int(last_level) * 1024), np.uint8)
        self.library.probe.kc_stream(1, self._evicting.ctypes.data, self._evicting.nbytes)
        return True

    def _items(self, vectors: Sequence[tuple[Problem, Config]]) -> set[Item]:
        found: set[Item] = set()
        for problem, config in vectors:
            values = problem.values
            geometry, dtype = Geometry.of(values), str(values["dtype"])
            if refusal(geometry, values, config.values) or self._missing_instructions(str(config.values["kernel"]), dtype):
                continue
            found.update(Kernels.of(geometry, dtype, config.values).items())
        return found

    def _supported(self, problem: Problem, config: Config) -> tuple[dict[str, Any], dict[str, Any], Geometry]:
        """The values of both and the geometry, or why this machine cannot run them."""
        values, chosen = problem.values, config.values
        geometry = Geometry.of(values)
        broken = refusal(geometry, values, chosen)
        if broken:
            raise Unsupported(next(item.sentence for item in config.family.config.constraints if item.name == broken))
        missing = self._missing_instructions(str(chosen["kernel"]), str(values["dtype"]))
        if missing:
            raise Unsupported(f"{chosen['kernel']} kernels for {values['dtype']} need {missing}, which this CPU has not")
        if int(str(chosen["vector_bytes"])) > self.library.probe.kc_vector_bytes():
            raise Unsupported(f"this CPU has no {chosen['vector_bytes']}-byte vectors that {self.compiler.version} would use")
        return values, chosen, geometry

    def _missing_instructions(self, kernel: str, dtype: str) -> str | None:
        """What a kernel needs of the CPU (and the compiler) that is not there."""
        probe = self.library.probe
        if kernel == "amx" and probe.kc_tile_rows() == 1:
            return "AMX"
        if kernel == "pairs" and dtype == "bf16" and probe.kc_bf16_group() == 1:
            return "AVX512-BF16"
        if kernel == "quads" and probe.kc_int8_group() == 1:
            return "VNNI"
        return None
