"""Grouped convolutions on this CPU, in three directions: generated tiles, checked bit for bit.

The files are the pipeline: `geometry` (which taps meet which pixels), `plan` (what conv.c takes), `codegen` (tiles as C
text), `inputs` (tensors and the exact result), `first_configs` (what to try where nothing is known); on the C side `conv.c`
with `staging.h` (copies and packed weights), `gather.h` (forward and the gradient of the input) and `weight.h` (the
gradient of the weights).
"""

from __future__ import annotations

import ctypes
import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

from kerncast.core.op import Config, Problem
from kerncast.library.families.conv_tiles import LARGEST_DEPTHWISE
from kerncast.library.families.grouped_conv_cpu import DTYPES, FAMILIES
from kerncast.measuring.backends.contract import Bound, Call, OutOfMemory, Prepared, Unsupported
from kerncast.measuring.backends.cpu import build
from kerncast.measuring.backends.cpu.build import Library
from kerncast.measuring.backends.cpu.conv.arrays import CALLS, BoundConvolution, Convolution
from kerncast.measuring.backends.cpu.conv.codegen import Tile
from kerncast.measuring.backends.cpu.conv.first_configs import first_configs
from kerncast.measuring.backends.cpu.conv.geometry import Geometry
from kerncast.measuring.backends.cpu.conv.inputs import InputCache, shapes
from kerncast.measuring.backends.cpu.conv.plan import CPlan, Layout
from kerncast.measuring.backends.cpu.gemm.inputs import Inputs
from kerncast.measuring.backends.cpu.part import Machine, Part

SOURCES = ("codegen.py", "conv.c", "staging.h", "gather.h", "weight.h")

# Configs are tried on small problems first: about a millisecond of arithmetic, with a minimum number of rows.
FEW_PRODUCTS, FEW_ROWS = 2**25, 4


def _products(values: Mapping[str, Any]) -> int:
    outputs = math.prod(shapes(values)["output"])
    return int(outputs * values["C"] // values["G"] * values["Z"] * values["Y"] * values["X"])


def _direction(family: str) -> str:
    return family.removeprefix("grouped_conv_").removesuffix("/cpu")


class _Kernel(Prepared):
    """One config on the buffers of one problem."""

    def __init__(self, run: Any, plan: CPlan, inputs: Inputs) -> None:
        self.inputs = inputs
        self._launch = partial(run, ctypes.byref(plan))

    def run(self, launches: int) -> int:
        return int(self._launch(launches))

    def check(self) -> float:
        self.inputs.poison()
        self._launch(1)
        return self.inputs.error()


class ConvPart(Part):
    """Runs `grouped_conv_*/cpu`."""

    families = tuple(family.id for family in FAMILIES)
    calls = CALLS

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine)
        self.inputs = InputCache()

    def digest(self) -> str:
        hasher = hashlib.blake2b((build.SOURCES / "kernels.h").read_bytes(), digest_size=8)
        for name in SOURCES:
            hasher.update((build.SOURCES / "conv" / name).read_bytes())
        return hasher.hexdigest()

    @cached_property
    def library(self) -> Library:
        """The compiled tiles and the loops around them."""
        return Library(self.machine.compiler, sources=self.digest())

    @cached_property
    def _functions(self) -> tuple[Any, Any]:
        """`kc_conv_reserve` and `kc_conv_run`, typed once."""
        driver = self.library.fixed("conv/conv")
        reserve, run = driver.kc_conv_reserve, driver.kc_conv_run
        reserve.argtypes, reserve.restype = [ctypes.POINTER(CPlan)], ctypes.c_int
        run.argtypes, run.restype = [ctypes.POINTER(CPlan), ctypes.c_int64], ctypes.c_int64
        return reserve, run

    def compile(self, vectors: Sequence[tuple[Problem, Config]], jobs: int = 1) -> None:
        self.library.build(self._items(vectors), jobs)

    def compilations(self, vectors: Sequence[tuple[Problem, Config]]) -> int:
        return len(self.library.missing(self._items(vectors)))

    def prepare(self, problem: Problem, config: Config) -> Prepared:
        layout = self._layout(problem, config)
        plan = self.plan(layout)
        inputs = self.inputs.get(layout.g.direction, problem.as_dict())
        plan.source, plan.other, plan.result = inputs.pointers
        return _Kernel(self._functions[1], plan, inputs)

    def bind(self, call: Call, problem: Problem, config: Config) -> Bound:
        assert isinstance(call, Convolution)
        # Build all missing kernels in one compilation. `prepare` does not: its caller uses `compile` for a whole chunk.
        self.compile([(problem, config)])
        plan, run = self.plan(self._layout(problem, config)), self._functions[1]
        place = ctypes.byref(plan)

        def launch(source: int, other: int, result: int) -> None:
            plan.source, plan.other, plan.result = source, other, result
            run(place, 1)

        return BoundConvolution(call, launch)

    def plan(self, layout: Layout) -> CPlan:
        """A plan with its functions and memory, but no operands yet: `source`, `other` and `result` are pointers to set."""
        plan, nv = layout.plan(), layout.config["nv"]
        table = (ctypes.c_void_p * (layout.config["mr"] * nv))()
        for (rows, vectors), tile in layout.tiles.items():
            table[(rows - 1) * nv + vectors - 1] = self.library.function(tile, tile.name)
        plan.tiles = ctypes.cast(table, ctypes.POINTER(ctypes.c_void_p))
        self.reserve(plan)
        return plan

    def reserve(self, plan: CPlan) -> None:
        """Memory for a plan."""
        if self._functions[0](ctypes.byref(plan)):
            raise OutOfMemory(f"no memory for the {plan.bytes / 1e6:.0f} MB in which operands are staged")

    def first_configs(self, problem: Problem) -> Iterator[Config]:
        return iter(first_configs(problem, self.machine.profile))

    def smaller(self, problem: Problem) -> Problem:
        """One image with few rows, to be quick; configs differ in how they treat channels and the width of a row."""
        values = problem.as_dict()
        sizes = {"N": 1, **{name: int(str(values[name])) for name in ("Di", "Hi")}}
        for name, axis, taps in (("Di", "d", "Z"), ("Hi", "h", "Y")):
            reach = (int(str(values[taps])) - 1) * int(str(values[f"dilation_{axis}"])) + 1
            least = reach + (FEW_ROWS - 1) * int(str(values[f"stride_{axis}"]))
            while _products({**values, **sizes}) > FEW_PRODUCTS and sizes[name] > least:
                sizes[name] = max(least, sizes[name] // 2)
        assert problem.family is not None
        return Problem.trusted(problem.family, {**values, **sizes}) if _products(values) > FEW_PRODUCTS else problem

    def _items(self, vectors: Sequence[tuple[Problem, Config]]) -> set[Tile]:
        found: set[Tile] = set()
        for problem, config in vectors:
            try:
                found.update(self._layout(problem, config).tiles.values())
            except Unsupported:
                continue
        return found

    def _layout(self, problem: Problem, config: Config) -> Layout:
        """The config on the problem, or why this machine cannot run it."""
        values, chosen = problem.as_dict(), config.as_dict()
        direction = _direction(config.family.id)
        broken = self._refusal(direction, values, chosen)
        if broken:
            raise Unsupported(next(item.sentence for item in config.family.config.constraints if item.name == broken))
        if int(str(chosen["vector_bytes"])) > self.machine.library.probe.kc_vector_bytes():
            raise Unsupported(
                f"this CPU has no {chosen['vector_bytes']}-byte vectors that {self.machine.compiler.version} would use"
            )
        return Layout(Geometry.of(direction, values), str(values["dtype"]), chosen)

    @staticmethod
    def _refusal(direction: str, values: Mapping[str, Any], chosen: Mapping[str, Any]) -> str | None:
        """The name of the constraint of the family without which the C side would compute nonsense, if one is broken."""
        if values["dtype"] not in DTYPES:
            return "dtype"
        if values.get("threads", 1) != 1:
            return "one_thread"
        channels = values["K" if direction == "bwd_data" else "C"] // values["G"]
        return "small_group" if chosen["kernel"] == "depthwise" and channels > LARGEST_DEPTHWISE else None
