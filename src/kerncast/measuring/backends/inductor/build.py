"""Many of Inductor's C++ kernels in one translation unit, compiled and cached by Inductor itself.

A kernel alone takes seconds to compile, most of them for the headers; together with others a tenth of that.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Any

from kerncast.core.io.arguments import private_cache
from kerncast.errors import CannotWrite
from kerncast.measuring.backends.contract import CannotCompile, Unsupported
from kerncast.measuring.backends.environment import PLAIN_WORDS, fault_in
from kerncast.measuring.backends.inductor import templates
from kerncast.measuring.backends.inductor.templates import Product

KERNELS_PER_UNIT = 16
# Launches in C: a call from Python takes longer than a small product. A kernel without a bias takes three pointers.
REPEAT = """
extern "C" void kerncast_repeat(void* kernel, const void* x, const void* w, const void* b, void* y, long n)
{
    if (b)
        for (long i = 0; i < n; i++) ((void (*)(const void*, const void*, const void*, void*))kernel)(x, w, b, y);
    else
        for (long i = 0; i < n; i++) ((void (*)(const void*, const void*, void*))kernel)(x, w, y);
}
"""
# What follows ATen's product if it has no epilogue itself: one pass over Y, as Inductor generates it.
PASS = """
#include <torch/csrc/inductor/cpp_prefix.h>
extern "C" void kerncast_pass(float* y, const float* bias, long m, long n)
{{
    using Lanes = at::vec::Vectorized<float>;
    #pragma omp parallel for num_threads({threads})
    for (long i = 0; i < m; i++) {{
        for (long j = 0; j < n; j += Lanes::size()) {{
            const int lanes = std::min<long>(Lanes::size(), n - j);
            auto v = Lanes::loadu(y + i * n + j, lanes);
            {bias}
            {activation}
            v.store(y + i * n + j, lanes);
        }}
    }}
}}
"""
ACTIVATIONS = {
    "none": "",
    "relu": "v = at::vec::maximum(v, Lanes(0.f));",
    "gelu": "v = v * Lanes(0.5f) * ((v * Lanes(0.7071067811865476f)).erf() + Lanes(1.f));",
    "silu": "v = v / (Lanes(1.f) + v.neg().exp());",
}
INCLUDE = re.compile(r"^\s*#include.*$", re.MULTILINE)


@dataclass(frozen=True)
class Kernel:
    """A compiled kernel."""

    function: Any
    loop: Any
    columns: int
    """The columns of the strips that it wants the weights packed in."""

    def repeat(self, launches: int, x: int, w: int, bias: int, y: int) -> None:
        """Launch it so many times; `bias` is 0 if there is none."""
        self.loop(self.function, x, w, bias, y, launches)


def cpu_software() -> Mapping[str, str]:
    """What else decides the times of kernels: torch, its instruction set, and the compiler.

    The instruction set is asked each time: `config.cpp.simdlen` may change it while a program runs.
    """
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.cpu_vec_isa import pick_vec_isa

    import torch

    return {"torch": str(torch.__version__), "isa": str(pick_vec_isa()), "compiler": _version(get_cpp_compiler())}


@cache
def _version(compiler: str) -> str:
    """The first line of what a compiler says about itself."""
    command = [compiler, "--version"]
    shown = subprocess.run(command, capture_output=True, text=True, errors="replace", check=True, timeout=30).stdout
    return shown.splitlines()[0].strip()


class Kernels:
    """The kernels of this process."""

    def __init__(self) -> None:
        # What is compiled here is run here, so it goes to a folder that no other user can write to. Inductor sets the variable
        # when it is first imported.
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(private_cache("inductor")))
        # The compiler's messages are searched for faults of the machine.
        os.environ.update(PLAIN_WORDS)
        why_not = templates.missing()
        if why_not is not None:
            raise Unsupported(why_not)
        self._kernels: dict[str, Kernel] = {}

    def lacking(self, product: Product, configs: Iterable[templates.Values]) -> int:
        """How many of the configs are not compiled yet."""
        return sum(name_of(product, values) not in self._kernels for values in configs)

    def compile(self, product: Product, configs: Sequence[templates.Values], jobs: int) -> None:
        """Compile what is lacking. Units that do not compile are left to `get`, which finds the kernel to blame."""
        wanted = {name_of(product, values): values for values in configs}
        names = [name for name in wanted if name not in self._kernels]
        size = max(1, min(KERNELS_PER_UNIT, -(-len(names) // max(jobs, 1))))
        parts = [names[at : at + size] for at in range(0, len(names), size)]
        texts = [self._unit(product, {name: wanted[name] for name in part}) for part in parts]
        with ThreadPoolExecutor(max(jobs, 1)) as pool:
            for part, loaded in zip(parts, pool.map(_loaded_or_none, texts), strict=True):
                if loaded is not None:
                    self._keep(loaded, product, {name: wanted[name] for name in part})

    def get(self, product: Product, values: templates.Values) -> Kernel:
        """The kernel of a config."""
        name = name_of(product, values)
        if name not in self._kernels:
            self._keep(_loaded(self._unit(product, {name: values})), product, {name: values})
        return self._kernels[name]

    def _unit(self, product: Product, wanted: Mapping[str, templates.Values]) -> str:
        import torch

        torch.set_num_threads(product.threads)
        texts = templates.sources(product, list(wanted.values()), list(wanted))
        includes = dict.fromkeys(line.strip() for text in texts for line in INCLUDE.findall(text))
        return "\n".join([*includes, *(INCLUDE.sub("", text) for text in texts), REPEAT])

    def _keep(self, loaded: Any, product: Product, wanted: Mapping[str, templates.Values]) -> None:
        loop = loaded.kerncast_repeat
        loop.argtypes = [*[ctypes.c_void_p] * 5, ctypes.c_long]
        loop.restype = None
        for name, values in wanted.items():
            function = ctypes.cast(getattr(loaded, f"cpp_{name}"), ctypes.c_void_p)
            columns = values["nr"] if values["kind"] == "tile" else templates.default_columns(product)
            self._kernels[name] = Kernel(function, loop, columns)


def epilogue_pass(product: Product) -> Any:
    """A compiled function that adds the bias to fp32 sums and applies the activation: (Y, bias, M, N)."""
    text = PASS.format(
        threads=product.threads,
        bias="v = v + Lanes::loadu(bias + j, lanes);" if product.bias else "",
        activation=ACTIVATIONS[product.activation],
    )
    function = _loaded(text).kerncast_pass
    function.argtypes, function.restype = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_long, ctypes.c_long], None
    return function


def name_of(product: Product, values: templates.Values) -> str:
    """A name for a kernel that no other has."""
    text = repr((product, sorted((name, value) for name, value in values.items() if value is not None)))
    return "kerncast_" + hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _loaded(text: str) -> Any:
    from torch._inductor.codecache import CppCodeCache
    from torch._inductor.exc import CppCompileError

    try:
        return CppCodeCache.load(text, device_type="cpu")
    except CppCompileError as error:
        said = str(error)
        fault = fault_in(said)
        if fault is not None:
            raise CannotWrite(f"the compiler cannot work: {fault}") from error
        told = [line for line in said.splitlines() if "error:" in line] or said.splitlines()[-5:]
        raise CannotCompile("\n".join(told)[:500]) from error


def _loaded_or_none(text: str) -> Any:
    try:
        return _loaded(text)
    except CannotCompile:
        return None
