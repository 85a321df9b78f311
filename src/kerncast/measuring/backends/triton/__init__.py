"""The `triton` backend: `gemm/triton` on a CUDA or ROCm GPU, with our Triton kernel and with the vendor library's.

`kernel` is the Triton code, `product` the tensors and launches. torch and triton are loaded when a device is asked
for, not on import. Nothing here can be timed without a GPU; the kernel's results are tested under Triton's interpreter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, cached_property, partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from kerncast.core.device import Device
from kerncast.core.op import Config, Problem
from kerncast.library.families.gemm_triton import triton as gemm_triton
from kerncast.measuring.backends.contract import Backend, CannotCompile, OutOfMemory, Prepared, Unsupported
from kerncast.measuring.backends.environment import shipped, slug
from kerncast.measuring.backends.triton.product import (
    AMD,
    OUTPUT_TYPES,
    Tensors,
    launch_library,
    launch_triton,
    tensors,
    torch_type,
)

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


class _Launches(Prepared):
    """Something to launch; its time is that between two events on the GPU's own clock.

    The GPU is first kept busy for as long as the host needs to queue everything, so that it never waits for the host
    between the events: a launch from Python takes longer than a small kernel.
    """

    def __init__(self, launch: Callable[[], object], on: Tensors | None = None) -> None:
        self._launch, self._on = launch, on
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
            if self._on is not None:
                self._on.forget()
            self._launch()
            _torch().cuda.synchronize()
            return 0.0 if self._on is None else self._on.error()


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
    def _shared(self) -> dict[tuple[Any, ...], Tensors]:
        return {}

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
        return _Launches(launch, on)

    def sentinel(self, kind: str) -> Prepared | None:
        if kind == "compute":
            return self.prepare(
                Problem.trusted(gemm_triton, {**SENTINEL_PROBLEM}), Config.trusted(gemm_triton, {**SENTINEL_CONFIG})
            )
        if kind == "memory":
            torch = _torch()
            source, target = (torch.zeros(SENTINEL_BYTES, dtype=torch.int8, device=self.where) for _ in range(2))
            return _Launches(partial(target.copy_, source))
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
