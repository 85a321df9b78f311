"""The product of matrices on this CPU: generated kernels for fp32, fp64, bf16 and int8, checked bit for bit."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator, Sequence
from functools import cache, partial
from typing import Any

from kerncast.core.op import Config, Problem
from kerncast.library.families.gemm_cpu import gemm_cpu
from kerncast.library.ops.gemm import PACKED
from kerncast.measuring.backends.contract import Bound, Call, OutOfMemory, Prepared, Unsupported
from kerncast.measuring.backends.cpu import build
from kerncast.measuring.backends.cpu.build import Library
from kerncast.measuring.backends.cpu.gemm.arrays import BoundProduct, Product
from kerncast.measuring.backends.cpu.gemm.codegen import Item
from kerncast.measuring.backends.cpu.gemm.first_configs import first_configs
from kerncast.measuring.backends.cpu.gemm.inputs import InputCache, Inputs
from kerncast.measuring.backends.cpu.gemm.plan import CPlan, Geometry, Kernels, Pointers, fill, refusal
from kerncast.measuring.backends.cpu.part import Machine, Part

# Configs are tried on small problems first: sides beyond FEW become one of a few lengths. Most tiles divide those of M and N,
# so that few edge kernels are compiled. That of K is a power of two, at which rows compete for the same cache sets, as they
# do in most networks. The longer ones make matrices larger than any L2 with little to compute.
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


@cache
def _functions(library: Library) -> tuple[Any, Any]:
    """`kc_reserve` and `kc_run`, typed once."""
    reserve, run = library.driver.kc_reserve, library.driver.kc_run
    reserve.argtypes, reserve.restype = [ctypes.POINTER(CPlan)], ctypes.c_int
    run.argtypes, run.restype = [ctypes.POINTER(CPlan), ctypes.c_int64], ctypes.c_int64
    return reserve, run


class GemmPart(Part):
    """Runs `gemm/cpu`."""

    families = ("gemm/cpu",)
    calls = {"gemm/cpu": Product}

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine)
        self.inputs = InputCache()

    @property
    def library(self) -> Library:
        """The compiled kernels."""
        return self.machine.library

    def digest(self) -> str:
        return build.source_digest()

    def compile(self, vectors: Sequence[tuple[Problem, Config]], jobs: int = 1) -> None:
        self.library.build(self._items(vectors), jobs)
        _functions(self.library)  # the driver is compiled, too

    def compilations(self, vectors: Sequence[tuple[Problem, Config]]) -> int:
        return len(self.library.missing(self._items(vectors)))

    def prepare(self, problem: Problem, config: Config) -> Prepared:
        values, chosen, geometry = self._supported(problem, config)
        inputs = self.inputs.get(values)
        plan = self._planned(geometry, values, chosen, (*inputs.pointers, inputs.bias_pointer))
        self._reserve(plan)
        return _Kernel(self.library, plan, inputs)

    def bind(self, call: Call, problem: Problem, config: Config) -> Bound:
        assert isinstance(call, Product)
        values, chosen, geometry = self._supported(problem, config)
        # Build all missing kernels in one compilation. `prepare` does not: its caller uses `compile` for a whole chunk.
        self.compile([(problem, config)])
        plan = self._planned(geometry, values, chosen, (0, 0, 0, 0))
        self._reserve(plan)
        return BoundProduct(call, plan, geometry.swapped, _functions(self.library)[1], partial(self._reserve, plan))

    def first_configs(self, problem: Problem) -> Iterator[Config]:
        return iter(first_configs(problem.as_dict(), self.machine.profile))

    def smaller(self, problem: Problem) -> Problem:
        """One of a few dozen typical problems: small sides become the next power of two, others one of a few lengths."""
        given = {name: int(str(problem.as_dict()[name])) for name in ("M", "N", "K")}
        lengths = SMALL_SIDES_THIN if min(given["M"], given["N"]) <= THIN else SMALL_SIDES
        sides = {name: 1 << (side - 1).bit_length() if side <= FEW else lengths[name] for name, side in given.items()}
        if math.prod(given.values()) <= math.prod(sides.values()):
            return problem
        packed = dict.fromkeys(PACKED)
        return Problem.trusted(gemm_cpu, {**problem.as_dict(), **sides, "batch": 1, **packed})

    def _planned(self, geometry: Geometry, values: dict[str, Any], chosen: dict[str, Any], pointers: Pointers) -> CPlan:
        """The plan with its functions. It keeps the table of micro-kernels alive: ctypes keeps what a pointer points to."""
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

    def _items(self, vectors: Sequence[tuple[Problem, Config]]) -> set[Item]:
        found: set[Item] = set()
        for problem, config in vectors:
            values = problem.as_dict()
            geometry, dtype = Geometry.of(values), str(values["dtype"])
            if refusal(geometry, values, config.as_dict()) or self._missing_instructions(
                str(config.as_dict()["kernel"]), dtype
            ):
                continue
            found.update(Kernels.of(geometry, dtype, config.as_dict()).items())
        return found

    def _supported(self, problem: Problem, config: Config) -> tuple[dict[str, Any], dict[str, Any], Geometry]:
        """The values of both and the geometry, or why this machine cannot run them."""
        values, chosen = problem.as_dict(), config.as_dict()
        geometry = Geometry.of(values)
        broken = refusal(geometry, values, chosen)
        if broken:
            raise Unsupported(next(item.sentence for item in config.family.config.constraints if item.name == broken))
        missing = self._missing_instructions(str(chosen["kernel"]), str(values["dtype"]))
        if missing:
            raise Unsupported(f"{chosen['kernel']} kernels for {values['dtype']} need {missing}, which this CPU does not have")
        if int(str(chosen["vector_bytes"])) > self.library.probe.kc_vector_bytes():
            raise Unsupported(
                f"this CPU has no {chosen['vector_bytes']}-byte vectors that {self.machine.compiler.version} would use"
            )
        return values, chosen, geometry

    def _missing_instructions(self, kernel: str, dtype: str) -> str | None:
        """What a kernel needs that the CPU (or the compiler) lacks."""
        probe = self.library.probe
        if kernel == "amx" and probe.kc_tile_rows() == 1:
            return "AMX"
        if kernel == "pairs" and dtype == "bf16" and probe.kc_bf16_group() == 1:
            return "AVX512-BF16"
        if kernel == "quads" and probe.kc_int8_group() == 1:
            return "VNNI"
        return None
