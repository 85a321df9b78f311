"""The `inductor` backend: `gemm/inductor_cpp` on this machine's CPU, compiled as PyTorch Inductor compiles it.

`build` renders kernels through Inductor and compiles many of them at once with Inductor's compiler and flags. torch is loaded
when a kernel is asked for, not on import.
"""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from importlib.util import find_spec
from itertools import groupby
from typing import Any

import numpy as np

from kerncast.core.device import Device
from kerncast.core.op import Config, Problem
from kerncast.measuring.backends.contract import Backend, CheckedKernel, Prepared, Unsupported
from kerncast.measuring.backends.cpu import CpuBackend
from kerncast.measuring.backends.cpu.inputs import Arena, memory_for
from kerncast.measuring.backends.inductor.build import EPILOGUES, CppKernels, Product, cpu_software, epilogue_pass

NOT_INSTALLED = "backend inductor needs torch, which is not installed: pip install 'kerncast[torch]'"
# Configs to try first: Inductor's and the library's choice, then the tiles that fill the registers of AVX2 and AVX-512.
FIRST_TILES = ((6, 16), (4, 24), (8, 8), (2, 32), (12, 32), (8, 48), (14, 32), (4, 16), (2, 16), (1, 32), (1, 64), (1, 16))
# On some machines eager PyTorch dies at a bf16 product: they announce instructions that they do not execute. oneDNN, PyTorch's
# library for such products, picks its kernels by what the processor announces. Some virtual machines announce more than they
# allow, and the process ends with SIGILL. A variable, read when torch is imported, makes oneDNN ask for less.
VARIABLE, VALUE = "ONEDNN_MAX_CPU_ISA", "AVX10_1_512"
PROBE = (sys.executable, "-P", "-c", "import torch; x = torch.ones(64, 64, dtype=torch.bfloat16); assert (x @ x)[0, 0] == 64")
# Importing torch takes two seconds, from a cold disk a minute.
SECONDS = 120.0
# Small whole numbers: sums in fp32 are exact in any order, so the check is bit for bit.
LARGEST_VALUE, EXACT = 3, 2**24


@dataclass(frozen=True)
class LinearOperands:
    """X, packed W, the bias and Y of one product as torch tensors in one arena, and the result as it must be."""

    product: Product
    x: Any
    w: Any
    bias: Any
    """None: the product has none."""
    y: Any
    weights: Any
    """W as `nn.Linear` has it: N × K."""
    reference: Any
    arena: Arena

    @classmethod
    def of(cls, product: Product, columns: int) -> LinearOperands:
        """The operands of a product, always the same; W is in strips of so many columns, or N × K where that is 0."""
        import torch

        m, n, k, lda = product.m, product.n, product.k, product.lda
        kind = product.torch_type
        padded = -(-n // columns) * columns if columns else n
        sizes = [size * kind.itemsize for size in (m * lda, padded * k, n)]
        result = m * n * kind.itemsize
        needed = sum(sizes) + result + 3 * m * n * 8 + n * k * 8
        with memory_for(needed, "matrices"):
            arena = Arena(sizes if product.bias else sizes[:2], result)
        generator = np.random.default_rng((m, n, k))
        bound = LARGEST_VALUE if LARGEST_VALUE**2 * k < EXACT else 1
        drawn_x, drawn_w = (
            torch.from_numpy(generator.integers(-bound, bound + 1, shape, np.int8)) for shape in ((m, k), (n, k))
        )
        drawn_bias = torch.from_numpy(generator.integers(-bound, bound + 1, n, np.int8)) if product.bias else None

        def tensor(memory: Any, *shape: int) -> Any:
            return torch.from_numpy(memory).view(kind).reshape(shape)

        stored_x = tensor(arena.operand((sizes[0],), np.uint8), m, lda)
        stored_x[:, :k] = drawn_x
        stored_x[:, k:] = math.nan
        shape = (padded // columns, k, columns) if columns else (n, k)
        stored_w = tensor(arena.operand((sizes[1],), np.uint8), *shape)
        if columns:
            strips = torch.nn.functional.pad(drawn_w.T, (0, padded - n)).reshape(k, padded // columns, columns)
            stored_w[:] = strips.transpose(0, 1)
        else:
            stored_w[:] = drawn_w
        expected, bias = drawn_x.double() @ drawn_w.double().T, None
        if drawn_bias is not None:
            bias = tensor(arena.operand((sizes[2],), np.uint8), n)
            bias[:] = drawn_bias
            expected = expected + drawn_bias.double()
        if product.activation != "none":
            expected = getattr(torch.nn.functional, product.activation)(expected)
        y = tensor(arena.result((result,), np.uint8), m, n)
        arena.seal()
        return cls(product, stored_x[:, :k], stored_w, bias, y, drawn_w.to(kind), expected.to(kind), arena)

    @property
    def pointers(self) -> tuple[int, int, int, int]:
        """Where X, W, the bias (0: there is none) and Y begin."""
        return self.x.data_ptr(), self.w.data_ptr(), 0 if self.bias is None else self.bias.data_ptr(), self.y.data_ptr()

    def poison(self) -> None:
        """Fill Y with a value that no product has."""
        self.y.fill_(math.nan)

    def error(self) -> float:
        """The largest absolute difference of Y from what it must be; infinite where nothing was written."""
        largest = (self.y.double() - self.reference.double()).abs().max().item()
        return float(largest) if math.isfinite(largest) else math.inf


def library_call(on: LinearOperands) -> Callable[[int], None]:
    """ATen's product with packed weights and what Inductor does after it: MKL's for fp32, oneDNN's for bf16, where the
    machine has them. Only oneDNN's takes the bias and the activation; they cost the others a pass over the result."""
    import torch

    x, weights, ops, product = on.x, on.weights, torch.ops, on.product
    after: Callable[[Any], Any] = lambda sums: sums  # noqa: E731
    if weights.dtype is torch.float32 and torch._C.has_mkl:
        packed = ops.mkl._mkl_reorder_linear_weight(weights, x.shape[0])

        def multiply() -> Any:
            return ops.mkl._mkl_linear(x, packed, weights, None, x.shape[0])

        if product.bias or product.activation != "none":
            finish, bias = epilogue_pass(product), on.pointers[2]

            def after(sums: Any) -> Any:
                finish(sums.data_ptr(), bias, product.m, product.n)
                return sums
    elif weights.dtype is torch.bfloat16 and ops.mkldnn._is_mkldnn_bf16_supported():
        packed = ops.mkldnn._reorder_linear_weight(weights, x.shape[0])
        attribute = EPILOGUES.get(product.activation, "none")

        def multiply() -> Any:
            return ops.mkldnn._linear_pointwise(x, packed, on.bias, attribute, [], "none")
    else:

        def multiply() -> Any:
            return torch.nn.functional.linear(x, weights, on.bias)

        if product.activation != "none":
            after = getattr(torch.nn.functional, product.activation)

    def loop(launches: int) -> None:
        for _ in range(launches - 1):
            after(multiply())
        on.y.copy_(after(multiply()))

    return loop


class _TimedLoop(CheckedKernel):
    """A kernel on the operands of its problem; `loop` launches it so many times."""

    def __init__(self, loop: Callable[[int], object], on: LinearOperands) -> None:
        super().__init__(on)
        self._loop = loop

    def run(self, launches: int) -> int:
        begin = time.perf_counter_ns()
        self._loop(launches)
        return time.perf_counter_ns() - begin


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
        if how != signal.SIGILL.name or os.environ.get(VARIABLE) == VALUE:
            return ""
        return f"on some virtual machines PyTorch's bf16 products end so: set {VARIABLE}={VALUE} before torch is imported"

    def __init__(self, index: str = "0") -> None:
        super().__init__(index)
        # It knows this machine: its profile, what shows a disturbance, how to empty the caches.
        self._cpu = CpuBackend(index)
        self._kept: dict[tuple[Product, int], LinearOperands] = {}

    @cached_property
    def _kernels(self) -> CppKernels:
        why_not = self.unavailable()
        if why_not is not None:
            raise Unsupported(why_not)
        return CppKernels()

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
            return _TimedLoop(library_call(on), on)
        kernel = self._kernels.get(product, values)
        on = self._operands(product, kernel.columns)
        return _TimedLoop(lambda launches: kernel.loop(kernel.function, *on.pointers, launches), on)

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

    def _operands(self, product: Product, columns: int) -> LinearOperands:
        """Those of the problem used last are kept; configs of one problem come together."""
        if any(kept != product for kept, _ in self._kept):
            self._kept.clear()
        if (product, columns) not in self._kept:
            self._kept[product, columns] = LinearOperands.of(product, columns)
        return self._kept[product, columns]


def _by_product(vectors: Sequence[tuple[Problem, Config]]) -> Iterator[tuple[Product, list[Mapping[str, Any]]]]:
    """The configs that are compiled, by product."""
    for product, own in groupby(((Product.of(problem), config) for problem, config in vectors), key=lambda pair: pair[0]):
        configs = [config.as_dict() for _, config in own]
        yield product, [values for values in configs if values["kind"] != "aten"]


# -- machines that announce too much ---------------------------------------------------------------------


def bf16_products(probe: Sequence[str] = PROBE, seconds: float = SECONDS) -> tuple[bool, str]:
    """Whether eager bf16 products work on this machine, tried in another process, and a sentence about it."""
    how = _ended(probe, seconds, {})
    if how is None:
        given = os.environ.get(VARIABLE)
        return True, f"eager bf16 products run{f' with {VARIABLE}={given}' if given else ''}"
    if how != signal.SIGILL.name:
        return False, f"an eager bf16 product {how}: try it with python -c 'import torch; …', and install torch again"
    if _ended(probe, seconds, {VARIABLE: VALUE}) is None:
        return False, f"an eager bf16 product ends with {how}: set {VARIABLE}={VALUE} before torch is imported, then it runs"
    return False, f"an eager bf16 product ends with {how}, with {VARIABLE}={VALUE}, too: use other dtypes on this machine"


def _ended(probe: Sequence[str], seconds: float, variables: dict[str, str]) -> str | None:
    """None: the program ended well; else the signal, or what happened in a few words."""
    try:
        done = subprocess.run(
            list(probe), capture_output=True, text=True, errors="replace", timeout=seconds, check=False,
            stdin=subprocess.DEVNULL, env={**os.environ, **variables},
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"has no result after {seconds:g} s"
    except OSError as error:
        return f"cannot be tried ({error.strerror or error})"
    if done.returncode == 0:
        return None
    if done.returncode == -signal.SIGILL:
        return signal.SIGILL.name
    last = next(iter(done.stderr.strip().splitlines()[-1:]), f"exit code {done.returncode}")
    return f"fails ({last[:200]})"
