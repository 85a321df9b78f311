"""The `inductor` backend: `gemm/inductor_cpp` on this machine's CPU, compiled as PyTorch Inductor compiles it.

`templates` renders kernels through Inductor, `build` compiles many of them at once with Inductor's compiler and flags. torch is
loaded when a kernel is asked for, not on import.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from importlib import import_module
from importlib.util import find_spec
from itertools import groupby
from typing import Any

from kerncast.core.device import Device
from kerncast.core.op import Config, Problem
from kerncast.measuring.backends.contract import Backend, Prepared, Unsupported
from kerncast.measuring.backends.cpu import CpuBackend
from kerncast.measuring.backends.inductor import illegal
from kerncast.measuring.backends.inductor.build import Kernels, cpu_software
from kerncast.measuring.backends.inductor.operands import LARGEST_VALUE, Operands, library_call
from kerncast.measuring.backends.inductor.templates import Product

NOT_INSTALLED = "backend inductor needs torch, which is not installed: pip install 'kerncast[torch]'"
# Configs to try first: Inductor's and the library's choice, then the tiles that fill the registers of AVX2 and AVX-512.
FIRST_TILES = ((6, 16), (4, 24), (8, 8), (2, 32), (12, 32), (8, 48), (14, 32), (4, 16), (2, 16), (1, 32), (1, 64), (1, 16))


class _Launches(Prepared):
    """A kernel on the operands of its problem; `loop` launches it so many times."""

    def __init__(self, loop: Callable[[int], object], on: Operands) -> None:
        self._loop, self._on = loop, on

    def run(self, launches: int) -> int:
        begin = time.perf_counter_ns()
        self._loop(launches)
        return time.perf_counter_ns() - begin

    def check(self) -> float:
        self._on.forget()
        self._loop(1)
        return self._on.error()


class InductorBackend(Backend):
    """Runs `gemm/inductor_cpp` on this machine."""

    name = "inductor"
    doc = "PyTorch Inductor's C++ matmul and ATen's, on this machine's CPU"
    families = ("gemm/inductor_cpp",)
    runs_on_cpu = True

    @classmethod
    def unavailable(cls) -> str | None:
        return NOT_INSTALLED if find_spec("torch") is None else CpuBackend.unavailable()

    @classmethod
    def advice(cls, how: str) -> str:
        return illegal.advice(how)

    def __init__(self, index: str = "0") -> None:
        super().__init__(index)
        # It knows this machine: its profile, what shows a disturbance, how to empty the caches.
        self._cpu = CpuBackend(index)
        self._last: tuple[Product, dict[int, Operands]] | None = None

    @cached_property
    def _kernels(self) -> Kernels:
        why_not = self.unavailable()
        if why_not is not None:
            raise Unsupported(why_not)
        return Kernels()

    def device(self) -> Device:
        return self._cpu.device()

    def software(self, family: str) -> Mapping[str, str]:
        assert self._kernels  # sets where Inductor keeps what it compiles
        return cpu_software()

    def compile(self, vectors: Sequence[tuple[Problem, Config]], jobs: int = 1) -> None:
        for product, configs in _by_product(vectors):
            self._kernels.compile(product, configs, jobs)

    def compilations(self, vectors: Sequence[tuple[Problem, Config]]) -> int:
        return sum(self._kernels.lacking(product, configs) for product, configs in _by_product(vectors))

    def prepare(self, problem: Problem, config: Config) -> Prepared:
        product, values = Product.of(problem), config.as_dict()
        import_module("torch").set_num_threads(product.threads)
        if values["kind"] == "aten":
            on = self._operands(product, 0)
            return _Launches(library_call(on), on)
        kernel = self._kernels.get(product, values)
        on = self._operands(product, kernel.columns)
        return _Launches(lambda launches: kernel.repeat(launches, *on.pointers), on)

    def first_configs(self, problem: Problem) -> Iterator[Config]:
        family = problem.family
        assert family is not None
        bindings = family.bindings(problem, self.device())
        blocks = {"mc": 0, "kc": 0, "split": "default"}
        tiles = [{"kind": "tile", "mr": min(mr, int(problem["M"] or 1)), "nr": nr, **blocks} for mr, nr in FIRST_TILES]
        known: tuple[Mapping[str, Any], ...] = ({"kind": "default"}, {"kind": "aten"}, *tiles)
        first = [Config(family, values) for values in known if not family.config.validate(values, bindings)]
        yield from dict.fromkeys([*first, *super().first_configs(problem)])

    def tolerance(self, problem: Problem) -> float:
        """Whole numbers are exact in any order; what rounds is the exponential function, and bf16 before a bias is added."""
        product = Product.of(problem)
        if product.activation in ("none", "relu") and not (product.bias and product.dtype == "bf16"):
            return 0.0
        # Sums of random signs: few are larger than four times their spread.
        usual = 4 * LARGEST_VALUE**2 * math.sqrt(product.k) + LARGEST_VALUE
        return usual * (2**-7 if product.dtype == "bf16" else 2**-20)

    def sentinel(self, kind: str) -> Prepared | None:
        return self._cpu.sentinel(kind)

    def flush_cache(self) -> bool:
        return self._cpu.flush_cache()

    def _operands(self, product: Product, columns: int) -> Operands:
        """Those of the problem used last are kept; configs of one problem come together."""
        if self._last is None or self._last[0] != product:
            self._last = product, {}
        kept = self._last[1]
        if columns not in kept:
            kept[columns] = Operands.of(product, columns)
        return kept[columns]


def _by_product(vectors: Sequence[tuple[Problem, Config]]) -> Iterator[tuple[Product, list[Mapping[str, Any]]]]:
    """The configs that are compiled, by product."""
    for product, own in groupby(((Product.of(problem), config) for problem, config in vectors), key=lambda pair: pair[0]):
        configs = [config.as_dict() for _, config in own]
        yield product, [values for values in configs if values["kind"] != "aten"]
