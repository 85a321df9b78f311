"""Inductor's C++ matmul template with a given register tile, cache blocks and division among threads, and its compiler.

Inductor decides all three inside its template, so a tile is a subclass that decides otherwise. torch is imported when the first
template is asked for. Written for torch 2.13; `missing` says what another version lacks.

A kernel alone takes seconds to compile, most of them for the headers; together with others a tenth of that. So many kernels are
in one translation unit, compiled and cached by Inductor itself.
"""

from __future__ import annotations

import ctypes
import hashlib
import math
import os
import re
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

from kerncast.core.io.arguments import private_cache
from kerncast.core.op import Problem
from kerncast.errors import CannotWrite, NotFound
from kerncast.measuring.backends.contract import CannotCompile, Unsupported
from kerncast.measuring.backends.environment import PLAIN_WORDS, fault_in

Values = Mapping[str, Any]
"""A config of gemm/inductor_cpp."""
DTYPES = {"fp32": "float32", "bf16": "bfloat16"}
# gemm's activations, as Inductor's epilogues are called.
EPILOGUES = {"relu": "relu", "gelu": "gelu", "silu": "swish"}
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
class Product:
    """The part of a problem that its kernels are generated for."""

    m: int
    n: int
    k: int
    lda: int
    dtype: str
    threads: int
    bias: bool = False
    activation: str = "none"

    @classmethod
    def of(cls, problem: Problem) -> Product:
        values: Mapping[str, Any] = problem.as_dict()
        return cls(
            values["M"], values["N"], values["K"], values.get("lda") or values["K"], values["dtype"], values["threads"],
            bool(values.get("bias")), values.get("activation") or "none",
        )  # fmt: skip

    @property
    def torch_type(self) -> Any:
        """The torch dtype of the operands."""
        import torch

        return getattr(torch, DTYPES[self.dtype])


@cache
def inductor() -> Any:
    """The module of the template. It can only be imported after `lowering`, which imports it back."""
    import_module("torch._inductor.lowering")
    return import_module("torch._inductor.codegen.cpp_gemm_template")


@cache
def missing() -> str | None:
    """What this version of torch lacks, in a sentence; None if it has everything."""
    try:
        module = inductor()
        base = module.CppGemmTemplate
        parts = [(base, name) for name in ("add_choices", "render", "_thread_blocking", "_cache_blocking")]
        lacking = [name for owner, name in [*parts, (module, "create_micro_gemm")] if not hasattr(owner, name)]
        micro = import_module("torch._inductor.codegen.cpp_micro_gemm")
        lacking += [name for name in ("CppMicroGemmFP32Vec", "GemmBlocking") if not hasattr(micro, name)]
    except (ImportError, AttributeError) as error:
        return f"Inductor's C++ matmul template cannot be loaded ({error}): use torch 2.13"
    return f"Inductor's C++ matmul template has no {', '.join(lacking)}: use torch 2.13" if lacking else None


def thread_factors(split: str, threads: int) -> tuple[int, int, int] | None:
    """How many threads divide M, N and K; None: Inductor decides."""
    if split == "default" or threads == 1:
        return None
    return (threads if split == "m" else 1, threads if split == "n" else 1, threads if split == "k" else 1)


_micro_gemm: ContextVar[Callable[..., Any] | None] = ContextVar("kerncast_micro_gemm", default=None)
"""What makes the micro-kernel of the tile that is being rendered in this thread; None: Inductor decides."""


@cache
def _let_tiles_decide() -> None:
    """Put a function in front of Inductor's that makes micro-kernels. It asks Inductor's own unless a tile is rendered."""
    module = inductor()
    own = module.create_micro_gemm

    def create_micro_gemm(*arguments: Any, **options: Any) -> Any:
        return (_micro_gemm.get() or own)(*arguments, **options)

    module.create_micro_gemm = create_micro_gemm


def template_class(config: tuple[tuple[str, Any], ...], name: str | None = None) -> Any:
    """The template that gives the kernel of a config with kind `tile`; `name` is part of the kernel's own."""
    why_not = missing()
    if why_not is not None:
        raise NotFound(why_not)
    _let_tiles_decide()
    micro = import_module("torch._inductor.codegen.cpp_micro_gemm")
    module, values = inductor(), dict(config)
    base: Any = module.CppGemmTemplate
    tile = micro.GemmBlocking(values["mr"], values["nr"], 1)

    def micro_gemm(
        name: str, m: Any, n: Any, k: Any, input_dtype: Any, input2_dtype: Any,
        output_dtype: Any = None, compute_dtype: Any = None, alpha: Any = 1, **_: Any,
    ) -> Any:  # fmt: skip
        output = output_dtype or input_dtype
        return micro.CppMicroGemmFP32Vec(name, input_dtype, input2_dtype, output, compute_dtype or output, tile, alpha)

    @contextmanager
    def tiled() -> Iterator[None]:
        token = _micro_gemm.set(micro_gemm)
        try:
            yield
        finally:
            _micro_gemm.reset(token)

    class Tiled(base):  # type: ignore[misc]
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **(options if name is None else {**options, "name": name}))
            self.kerncast_config = values

        @classmethod
        def add_choices(cls, *arguments: Any, **options: Any) -> Any:
            with tiled():
                return super().add_choices(*arguments, **options)

        def render(self, *arguments: Any, **options: Any) -> Any:
            with tiled():
                return super().render(*arguments, **options)

        def _thread_blocking(self, num_threads: int) -> Any:
            factors = thread_factors(values["split"], num_threads)
            if factors is None:
                return super()._thread_blocking(num_threads)
            blocks = (math.ceil(size / step) for size, step in zip((self.m, self.n, self.k), tile, strict=True))
            return micro.GemmBlocking(*(math.ceil(block / factor) for block, factor in zip(blocks, factors, strict=True)))

        def _cache_blocking(self, num_threads: int) -> Any:
            own, threads = super()._cache_blocking(num_threads), self.thread_blocking(num_threads)
            rows = own.block_m if values["mc"] == 0 else min(max(values["mc"] // tile.block_m, 1), threads.block_m)
            depth = own.block_k if values["kc"] == 0 else min(values["kc"], threads.block_k)
            return micro.GemmBlocking(rows, own.block_n, depth)

    return Tiled


def key_of(config: Values) -> tuple[tuple[str, Any], ...]:
    """A config as `template_class` takes it."""
    return tuple((name, config[name]) for name in ("mr", "nr", "mc", "kc", "split"))


@contextmanager
def product_of_constant(product: Product) -> Iterator[tuple[Any, list[Any]]]:
    """Inside Inductor, a product X · Wᵀ whose W is a constant: the layout of the result, and X, W and the bias as templates
    take them."""
    from torch._inductor import ir
    from torch._inductor.graph import GraphLowering
    from torch._inductor.virtualized import V
    from torch.fx.experimental.proxy_tensor import make_fx

    import torch

    graph = GraphLowering(make_fx(lambda: torch.zeros(1))())
    cpu, dtype = torch.device("cpu"), product.torch_type
    m, n, k = product.m, product.n, product.k

    def given(name: str, sizes: list[int], strides: list[int]) -> Any:
        box = ir.TensorBox(ir.StorageBox(ir.InputBuffer(name=name, layout=ir.FixedLayout(cpu, dtype, sizes, strides))))
        graph.graph_inputs[name] = box
        return box

    with V.set_graph_handler(graph):
        x = given("x", [m, k], [product.lda, 1])
        # Rendering reads its sizes alone.
        w = graph.add_tensor_constant(torch.empty(n, k, dtype=dtype), "w")
        bias = [given("b", [n], [1])] if product.bias else []
        yield ir.FixedLayout(cpu, dtype, [m, n], [n, 1]), [x, w, *bias]


def sources(product: Product, configs: Sequence[Values], names: Sequence[str]) -> list[str]:
    """The C++ text of each config's kernel, an `extern "C"` function called `cpp_` and its name: (X, packed W, [bias,] Y)."""
    found = []
    options: dict[str, Any] = {"trans_w": True, "has_bias": product.bias}
    options["input_indices"] = [2, 0, 1] if product.bias else [0, 1]
    if product.activation != "none":
        # What the kernel does to each sum, as Inductor writes it.
        create = import_module("torch._inductor.codegen.cpp_utils").create_epilogue_with_attr
        attribute = EPILOGUES[product.activation]
        options["epilogue_creator"] = lambda buffer: create(buffer, attribute, scalars=[], algorithm="none")
    with product_of_constant(product) as (layout, nodes):
        for config, name in zip(configs, names, strict=True):
            choices: list[Any] = []
            template = template_class(key_of(config), name) if config["kind"] == "tile" else _named_default(name)
            template.add_choices(choices, layout, nodes, **options)
            found.append(str(choices[0].bmreq.source_code))
    return found


def _named_default(name: str) -> Any:
    base: Any = inductor().CppGemmTemplate

    class Named(base):  # type: ignore[misc]
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **{**options, "name": name})

    return Named


def default_columns(product: Product) -> int:
    """The columns of the strips in which Inductor's own choice wants the weights."""
    dtype = product.torch_type
    with product_of_constant(product):
        module = inductor()
        output, compute = module.get_gemm_template_output_and_compute_dtype(dtype)
        sizes = product.m, product.n, product.k
        chosen = module.create_micro_gemm("", *sizes, dtype, dtype, output_dtype=output, compute_dtype=compute)
        return int(chosen.register_blocking.block_n)


@dataclass(frozen=True)
class CppKernel:
    """A compiled kernel."""

    function: Any
    loop: Any
    """Launches it: (function, X, W, bias or 0, Y, how often)."""
    columns: int
    """The columns of the strips that it wants the weights packed in."""


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


class CppKernels:
    """The kernels of this process."""

    def __init__(self) -> None:
        # What is compiled here is run here, so it goes to a folder that no other user can write to. Inductor sets the variable
        # when it is first imported.
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(private_cache("inductor")))
        # The compiler's messages are searched for faults of the machine.
        os.environ.update(PLAIN_WORDS)
        why_not = missing()
        if why_not is not None:
            raise Unsupported(why_not)
        self._kernels: dict[str, CppKernel] = {}

    def lacking(self, product: Product, configs: Iterable[Values]) -> int:
        """How many of the configs are not compiled yet."""
        return sum(name_of(product, values) not in self._kernels for values in configs)

    def compile(self, product: Product, configs: Sequence[Values], jobs: int) -> None:
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

    def get(self, product: Product, values: Values) -> CppKernel:
        """The kernel of a config."""
        name = name_of(product, values)
        if name not in self._kernels:
            self._keep(_loaded(self._unit(product, {name: values})), product, {name: values})
        return self._kernels[name]

    def _unit(self, product: Product, wanted: Mapping[str, Values]) -> str:
        import torch

        torch.set_num_threads(product.threads)
        texts = sources(product, list(wanted.values()), list(wanted))
        includes = dict.fromkeys(line.strip() for text in texts for line in INCLUDE.findall(text))
        return "\n".join([*includes, *(INCLUDE.sub("", text) for text in texts), REPEAT])

    def _keep(self, loaded: Any, product: Product, wanted: Mapping[str, Values]) -> None:
        loop = loaded.kerncast_repeat
        loop.argtypes, loop.restype = [*[ctypes.c_void_p] * 5, ctypes.c_long], None
        for name, values in wanted.items():
            function = ctypes.cast(getattr(loaded, f"cpp_{name}"), ctypes.c_void_p)
            columns = values["nr"] if values["kind"] == "tile" else default_columns(product)
            self._kernels[name] = CppKernel(function, loop, columns)


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


def name_of(product: Product, values: Values) -> str:
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
