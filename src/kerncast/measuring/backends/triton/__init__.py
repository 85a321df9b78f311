"""The `triton` backend: `gemm/triton` on a CUDA or ROCm GPU, with our Triton kernel and with the vendor library's.

`kernel` is the Triton code. torch and triton are loaded when a device is asked for, not on import. Nothing here can be timed
without a GPU; the kernel's results are tested under Triton's interpreter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from kerncast.core.device import Device
from kerncast.core.op import Config, Problem
from kerncast.library.families.gemm_triton import triton as gemm_triton
from kerncast.measuring.backends.contract import Backend, CannotCompile, CheckedKernel, OutOfMemory, Prepared, Unsupported
from kerncast.measuring.backends.environment import shipped, slug

NOT_INSTALLED = (
    "backend triton needs a CUDA or ROCm GPU with torch and triton, and {missing} is not installed: install torch for your "
    "GPU (pytorch.org), then pip install 'kerncast[triton]'"
)
NO_GPU = (
    "backend triton needs a CUDA or ROCm GPU with torch and triton, and torch finds no GPU here: run it on a machine with one"
)
SENTINEL_PROBLEM: dict[str, int | bool | str | None] = {
    "M": 512, "N": 512, "K": 512, "split_k": 1, "batch": 1, "dtype": "fp16", "layout": "rcr", "tf32": False,
}  # fmt: skip
SENTINEL_CONFIG: dict[str, int | bool | str | None] = {
    "kind": "triton", "BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 32, "num_stages": 2, "num_warps": 4,
}  # fmt: skip
# Written for `--cache cold` where the sizes of the caches are not known: more than any GPU's L2 and MALL.
EVICTING_BYTES = 512 * 2**20
SENTINEL_BYTES = 64 * 2**20
# About 25 µs of a GPU for each launch that the host has to queue; a queue holds about a thousand.
QUEUE_CYCLES, QUEUE_LENGTH = 40_000, 1_000
# One of these exists wherever a driver is installed: CUDA, ROCm, either under WSL. Asking torch takes seconds.
DRIVERS = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")

# The torch types of A and B (and of C, but for those below); AMD's CDNA 3 has its own 8-bit types.
TORCH_TYPES = {
    "fp16": "float16",
    "bf16": "bfloat16",
    "fp32": "float32",
    "fp8": "float8_e4m3fn",
    "bf8": "float8_e5m2",
    "int8": "int8",
}
CDNA3_TYPES = {"fp8": "float8_e4m3fnuz", "bf8": "float8_e5m2fnuz"}
# What is stored: fp8 products go out as fp16 (E4M3 holds no more than 448), int8 ones as the sums they are.
OUTPUT_TYPES = {"fp8": "float16", "bf8": "float16", "int8": "int32"}
LARGEST_VALUE = 3
# What a config means that does not say it; AMD's arguments are then the compiler's own business.
GROUP_M = 8
AMD = ("matrix_instr_nonkdim", "waves_per_eu", "kpack")
# Sums of whole numbers that fp32 holds exactly.
EXACT = 2**24
# Smooth activations are not exact: a share of a number by its type.
SMOOTH_ROUNDING = {"fp32": 2e-6, "bf16": 2**-7}
OTHER_ROUNDING = 2**-9


@cache
def _torch() -> Any:
    return import_module("torch")


@contextmanager
def _said_by_torch() -> Iterator[None]:
    """Turn an error of torch, the driver or Triton's compiler into the matching failure."""
    torch = _torch()
    try:
        yield
    except torch.cuda.OutOfMemoryError as error:
        raise OutOfMemory(str(error)) from error
    except Exception as error:
        kind = type(error)
        # Too many registers or too much shared memory shows when a kernel is loaded.
        if kind.__name__ == "OutOfResources":
            raise OutOfMemory(str(error)) from error
        if kind.__module__.startswith("triton") or kind.__name__ == "PassManagerError":
            raise CannotCompile(f"{kind.__name__}: {error}") from error
        raise


@dataclass(frozen=True)
class Tensors:
    """A, B and C of one problem, and the product as it must be; views with the strides of the layout."""

    a: Any
    b: Any
    c: Any
    reference: Any
    tf32: bool = False
    bias: Any = None
    activation: str | None = None
    rounding: float = 0.0
    """The share of a number (or of 1, if that is more) by which it may be off: more than 0 only for smooth activations."""

    def error(self) -> float:
        """The largest absolute difference of C from what it must be; infinite where nothing was written."""
        wanted = self.reference.double()
        difference = (self.c.double() - wanted).abs()
        if self.rounding and bool((difference <= self.rounding * wanted.abs().clamp(min=1.0)).all()):
            return 0.0
        largest = difference.max().item()
        return float(largest) if math.isfinite(largest) else math.inf

    def poison(self) -> None:
        """Fill C with a value that no product has."""
        self.c.fill_(math.nan if self.c.dtype.is_floating_point else -(2**31))


def torch_type(dtype: str, architecture: str = "") -> Any:
    """The torch dtype of A and B, or None where torch has none."""
    torch = _torch()
    name = CDNA3_TYPES.get(dtype) if architecture.startswith("gfx94") else None
    return getattr(torch, name or TORCH_TYPES.get(dtype, "none"), None)


def tensors(problem: Mapping[str, Any], where: str, architecture: str = "") -> Tensors:
    """The tensors of a problem on a torch device, always the same for the same problem.

    Inputs are small whole numbers: sums in fp32 are exact, whatever the order, and rounded at most once, when they
    are stored. The check is therefore bit for bit, for tensor cores as well.
    """
    torch = _torch()
    m, n, k, batch, layout = (problem[name] for name in ("M", "N", "K", "batch", "layout"))
    kind = torch_type(problem["dtype"], architecture)
    generator = torch.Generator().manual_seed(hash((m, n, k, batch)) % 2**63)
    bound = LARGEST_VALUE if LARGEST_VALUE**2 * k < EXACT else 1

    def drawn(*shape: int) -> Any:
        return torch.randint(-bound, bound + 1, shape, generator=generator, dtype=torch.int8).to(where)

    def with_gaps(rows: int, columns: int, apart: int | None, dtype: Any) -> Any:
        return torch.zeros((batch, rows, apart or columns), dtype=dtype, device=where)[:, :, :columns]

    def matrix(rows: int, columns: int, row_major: bool, apart: int | None) -> Any:
        shape = (rows, columns) if row_major else (columns, rows)
        stored = drawn(batch, *shape).to(kind)
        if apart is not None:
            stored = with_gaps(*shape, apart, kind).copy_(stored)
        return stored if row_major else stored.transpose(1, 2)

    a = matrix(m, k, layout[0] == "r", problem.get("lda"))
    b = matrix(k, n, layout[1] == "r", problem.get("ldb"))
    output = getattr(torch, OUTPUT_TYPES.get(problem["dtype"], TORCH_TYPES[problem["dtype"]]))
    # In fp64 the sums are exact without any setting of a library (TF32 …) in between.
    exact = torch.matmul(a.double(), b.double())
    bias, activation = drawn(n).to(output) if problem.get("bias") else None, problem.get("activation")
    exact = activated(exact if bias is None else exact + bias.double(), activation)
    c = with_gaps(m, n, problem.get("ldc"), output)
    reference = exact.to(torch.int64 if output is torch.int32 else torch.float32).to(output)
    smooth = activation not in (None, "relu")
    rounding = SMOOTH_ROUNDING.get(problem["dtype"], OTHER_ROUNDING) if smooth else 0.0
    return Tensors(a, b, c, reference, bool(problem["tf32"]), bias, activation, rounding)


def activated(values: Any, activation: str | None) -> Any:
    """The activation of a tensor, as torch computes it."""
    return values if activation is None else getattr(_torch().nn.functional, activation)(values)


def launch_triton(on: Tensors, config: Mapping[str, Any]) -> None:
    """Launch our kernel once."""
    kernel, tl = import_module("kerncast.measuring.backends.triton.kernel"), import_module("triton.language")
    (batch, m, k), n = on.a.shape, on.b.shape[2]
    grid = (-(-m // config["BLOCK_M"]) * -(-n // config["BLOCK_N"]), batch)
    whole = not on.c.dtype.is_floating_point
    kernel.matmul[grid](
        on.a, on.b, on.c, on.c if on.bias is None else on.bias, m, n, k, *on.a.stride(), *on.b.stride(), *on.c.stride(),
        BLOCK_M=config["BLOCK_M"], BLOCK_N=config["BLOCK_N"], BLOCK_K=config["BLOCK_K"],
        GROUP_M=config.get("GROUP_M") or GROUP_M,
        EVEN_K=k % config["BLOCK_K"] == 0, SUM=tl.int32 if whole else tl.float32, PRECISION="tf32" if on.tf32 else "ieee",
        BIAS=on.bias is not None, ACTIVATION=on.activation or "none",
        num_stages=config["num_stages"], num_warps=config["num_warps"],
        **{name: config[name] for name in AMD if config.get(name) is not None},
    )  # fmt: skip


def launch_library(on: Tensors) -> None:
    """Launch the vendor library's kernel once, as torch chooses it; an activation is a kernel of its own."""
    torch = _torch()
    torch.backends.cuda.matmul.allow_tf32 = on.tf32
    one = on.a.shape[0] == 1  # a batch of one takes another path through the library
    a, b, c = (x[0] if one else x for x in (on.a, on.b, on.c))
    if on.bias is None:
        (torch.mm if one else torch.bmm)(a, b, out=c)
    elif one:
        torch.addmm(on.bias, a, b, out=c)
    else:
        torch.baddbmm(on.bias, a, b, out=c)
    if on.activation is not None:
        c.copy_(activated(c, on.activation))


class _GpuLaunches(CheckedKernel):
    """Something to launch; its time is that between two events on the GPU's own clock.

    The GPU is first kept busy for as long as the host needs to queue everything, so that it never waits for the host
    between the events: a launch from Python takes longer than a small kernel.
    """

    def __init__(self, launch: Callable[[], object], on: Tensors | None = None) -> None:
        super().__init__(on)
        self._launch = launch
        events = _torch().cuda.Event
        self._begin, self._end = events(enable_timing=True), events(enable_timing=True)

    def run(self, launches: int) -> int:
        with _said_by_torch():
            _torch().cuda._sleep(QUEUE_CYCLES * min(launches, QUEUE_LENGTH))
            self._begin.record()
            for _ in range(launches):
                self._launch()
            self._end.record()
            self._end.synchronize()
            return int(self._begin.elapsed_time(self._end) * 1e6)

    def check(self) -> float:
        with _said_by_torch():
            return super().check()


class TritonBackend(Backend):
    """Runs `gemm/triton` on one GPU."""

    name = "triton"
    doc = "Triton's matmul and the vendor library's, on a CUDA or ROCm GPU"
    families = ("gemm/triton",)

    @classmethod
    def devices(cls) -> list[str]:
        return [] if cls.unavailable() else [str(index) for index in range(_torch().cuda.device_count())]

    @classmethod
    def unavailable(cls) -> str | None:
        for missing in ("torch", "triton"):
            if find_spec(missing) is None:
                return NOT_INSTALLED.format(missing=missing)
        driver = any(Path(path).exists() for path in DRIVERS)
        return None if driver and _torch().cuda.is_available() else NO_GPU

    def __init__(self, index: str = "0") -> None:
        super().__init__(index)
        self._shared: dict[tuple[Any, ...], Tensors] = {}

    @cached_property
    def where(self) -> str:
        """The torch device, made the current one."""
        why_not = self.unavailable()
        if why_not is not None:
            raise Unsupported(why_not)
        if self.index not in self.devices():
            raise Unsupported(f"there is no GPU {self.index}: choose one of {', '.join(self.devices())}")
        _torch().cuda.set_device(int(self.index))
        return f"cuda:{self.index}"

    @cached_property
    def _properties(self) -> Any:
        where = self.where  # raises a clear error if torch is missing, so it comes first
        return _torch().cuda.get_device_properties(where)

    @property
    def _architecture(self) -> str:
        """AMD's name for the chip; empty for NVIDIA's."""
        return str(getattr(self._properties, "gcnArchName", "")) if _torch().version.hip else ""

    @cached_property
    def _profile(self) -> Device:
        return device_profile(self._properties, self._architecture)

    @cached_property
    def _evicting(self) -> Any:
        numbers = self._profile.numbers
        # The last level counts as a whole; an L2 is per chiplet on AMD.
        cached = max(numbers.get("l3_cache_kb", 0.0), numbers.get("l2_cache_kb", 0.0) * numbers.get("num_xcd", 1.0)) * 1024
        torch = _torch()
        return torch.empty(max(2 * int(cached), EVICTING_BYTES // 2), dtype=torch.int8, device=self.where)

    def device(self) -> Device:
        return self._profile

    def software(self, family: str) -> Mapping[str, str]:
        torch = _torch()
        runtime = f"rocm {torch.version.hip}" if torch.version.hip else f"cuda {torch.version.cuda}"
        return {"torch": str(torch.__version__), "triton": str(import_module("triton").__version__), "runtime": runtime}

    def prepare(self, problem: Problem, config: Config) -> Prepared:
        values, chosen = problem.as_dict(), config.as_dict()
        self._refuse(values, chosen)
        with _said_by_torch():
            on = self._tensors(values)
            launch = partial(launch_library, on) if chosen["kind"] == "library" else partial(launch_triton, on, chosen)
            launch()  # compiles
            _torch().cuda.synchronize()
        return _GpuLaunches(launch, on)

    def sentinel(self, kind: str) -> Prepared | None:
        if kind == "compute":
            return self.prepare(
                Problem.trusted(gemm_triton, {**SENTINEL_PROBLEM}), Config.trusted(gemm_triton, {**SENTINEL_CONFIG})
            )
        if kind == "memory":
            torch = _torch()
            source, target = (torch.zeros(SENTINEL_BYTES, dtype=torch.int8, device=self.where) for _ in range(2))
            return _GpuLaunches(partial(target.copy_, source))
        return None

    def flush_cache(self) -> bool:
        """Write through more than the caches hold; the stream keeps the order, so the next launch comes after it."""
        with _said_by_torch():
            self._evicting.zero_()
        return True

    def _tensors(self, values: Mapping[str, Any]) -> Tensors:
        """Those of the problem used last are kept; configs of one problem come together."""
        key = tuple(values.items())
        if key not in self._shared:
            self._shared.clear()
            self._shared[key] = tensors(values, self.where, self._architecture)
        return self._shared[key]

    def _refuse(self, values: Mapping[str, Any], chosen: Mapping[str, Any]) -> None:
        dtype = str(values["dtype"])
        template = chosen.get("template")
        if template is not None:
            raise Unsupported(
                f"backend triton runs the plain template, not {template}: time that one in Inductor and observe it"
            )
        given = [name for name in AMD if chosen.get(name) is not None]
        if given and not self._architecture:
            raise Unsupported(f"{given[0]} is an argument of AMD's compiler: leave it out on other GPUs")
        if torch_type(dtype, self._architecture) is None:
            raise Unsupported(f"backend triton has no {dtype}: torch {_torch().__version__} has no such type")
        if values["split_k"] != 1:
            raise Unsupported("backend triton does not divide K: leave split_k at 1")
        if dtype == "int8" and values.get("activation") not in (None, "relu"):
            raise Unsupported("backend triton leaves sums of int8 as int32: gelu and silu need a floating-point dtype")
        if chosen["kind"] == "library" and dtype in OUTPUT_TYPES:
            raise Unsupported(f"torch.matmul has no {dtype}: measure kind=triton for it")


def device_profile(properties: Any, architecture: str) -> Device:
    """The shipped profile of a GPU, or what torch says about it; rates that are not reported stay unknown."""
    known = shipped(properties.name, architecture, num_cus=properties.multi_processor_count)
    said = {
        "num_cus": properties.multi_processor_count,
        "wavefront_size": getattr(properties, "warp_size", 0),
        "smem_per_block_bytes": getattr(properties, "shared_memory_per_block_optin", 0)
        or getattr(properties, "shared_memory_per_block", 0),
        "lds_capacity_bytes": getattr(properties, "shared_memory_per_multiprocessor", 0),
        "max_work_group_size": getattr(properties, "max_threads_per_block", 0),
        "l2_cache_kb": getattr(properties, "L2_cache_size", 0) / 1024,
        "memory_capacity_gb": properties.total_memory / 1e9,
    }
    numbers = {name: float(value) for name, value in said.items() if value}
    sources = dict.fromkeys(numbers, "torch.cuda.get_device_properties")
    if known is not None:
        # The profile's own numbers come from data sheets: they win, so that a device is the same everywhere.
        return replace(known, numbers={**numbers, **known.numbers}, sources={**sources, **known.sources})
    name = f"{slug(properties.name)}-{properties.multi_processor_count}cu"
    return Device(name=name, title=properties.name, kind="gpu", numbers=numbers, sources=sources)
