"""The `opencl` backend: one tiled GEMM kernel in as many variants as `gemm/opencl` has configs, on any OpenCL device.

`source` is the text of a kernel: `gemm.cl` and the macros of a config. pyopencl is an extra: it is loaded when a device is
asked for, not on import.
"""

from __future__ import annotations

import contextlib
import math
import os
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, cached_property, partial
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

import numpy as np

from kerncast.core.device import Device
from kerncast.core.op import Config, Problem
from kerncast.library import devices
from kerncast.library.families.gemm_opencl import gemm_opencl
from kerncast.measuring.backends.contract import (
    Backend,
    CannotCompile,
    CheckedKernel,
    Failed,
    OutOfMemory,
    Prepared,
    Unsupported,
)
from kerncast.measuring.backends.cpu.gemm import make_matrices
from kerncast.measuring.backends.cpu.inputs import InputCache
from kerncast.measuring.backends.environment import shipped, slug
from kerncast.measuring.backends.opencl import source

NOT_INSTALLED = "backend opencl needs pyopencl and an OpenCL driver: pip install 'kerncast[opencl]' brings both for CPUs"
FOR_CPUS = "for a CPU pip install 'kerncast[opencl]', or apt install pocl-opencl-icd"
NO_DEVICE = f"backend opencl finds no OpenCL device: install your GPU's OpenCL driver; {FOR_CPUS}"
CANNOT_COMPILE = "the OpenCL driver {driver} cannot compile for {device} ({reason}): install a newer driver; " + FOR_CPUS
# Where a loader of OpenCL looks for drivers, and the variables that name another place.
VENDORS = Path("/etc/OpenCL/vendors")
NAMING_VENDORS = ("OCL_ICD_VENDORS", "OPENCL_VENDOR_PATH")
EXTENSIONS = {"fp64": "cl_khr_fp64"}
SENTINEL_PROBLEM: dict[str, int | bool | str | None] = {
    "M": 96, "N": 96, "K": 96, "split_k": 1, "batch": 1, "dtype": "fp32", "layout": "rrr",
}  # fmt: skip
SENTINEL_CONFIG: dict[str, int | bool | str | None] = {
    "MWG": 32, "NWG": 32, "MDIMC": 8, "NDIMC": 4, "VWM": 1, "VWN": 8, "local_a": False, "local_b": False, "KWG": None,
    "KWI": 2, "strided_m": False, "strided_n": None, "guard": False,
}  # fmt: skip
MEMORY_BYTES = 8 * 2**20
STREAM_ITEMS = 2**14
# Bytes written for `--cache cold` if the sizes of the caches are not known: more than any device has.
EVICTING_BYTES = 256 * 2**20
# Programs that stay loaded: a chunk's and those of the race that follows.
KEPT_PROGRAMS = 256
OUT_OF_MEMORY = ("MEM_OBJECT_ALLOCATION_FAILURE", "OUT_OF_RESOURCES", "OUT_OF_HOST_MEMORY", "INVALID_BUFFER_SIZE")

CPU, GPU = 1 << 1, 1 << 2  # CL_DEVICE_TYPE_*
INFO = {
    "num_cus": ("max_compute_units", 1.0),
    "max_clock_mhz": ("max_clock_frequency", 1.0),
    "max_work_group_size": ("max_work_group_size", 1.0),
    "smem_per_block_bytes": ("local_mem_size", 1.0),
    "cache_line_bytes": ("global_mem_cacheline_size", 1.0),
    "memory_capacity_gb": ("global_mem_size", 1e-9),
}
# What the machine itself knows better: PoCL's global memory is a share of what is free at the moment.
CPU_NUMBERS = ("l1_cache_kb", "l2_cache_kb", "l3_cache_kb", "vector_bytes", "memory_capacity_gb")


@cache
def _opencl() -> Any:
    """pyopencl, or None where it is not installed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it warns about optional packages
            return import_module("pyopencl")
    except ImportError:
        return None


@cache
def _devices() -> tuple[Any, ...]:
    """Every device of every driver, GPUs first."""
    cl = _opencl()
    if cl is None:
        return ()
    try:
        with _installed_by_pip():
            found = [device for platform in cl.get_platforms() for device in platform.get_devices()]
    except cl.Error:  # a loader without drivers
        return ()
    return tuple(sorted(found, key=is_cpu))


@contextlib.contextmanager
def _installed_by_pip() -> Iterator[None]:
    """Lets the loader find Intel's driver for CPUs beside those of the system. Its package tells no loader where it is.

    The loader reads the list of drivers once, at the first call.
    """
    with contextlib.suppress(metadata.PackageNotFoundError):
        library = next((file for file in metadata.files("intel-opencl-rt") or () if file.name == "libintelocl.so"), None)
        if library is not None and not any(name in os.environ for name in NAMING_VENDORS):
            with tempfile.TemporaryDirectory() as folder:
                for listed in VENDORS.glob("*.icd"):
                    Path(folder, listed.name).write_bytes(listed.read_bytes())
                Path(folder, "installed-by-pip.icd").write_text(str(library.locate()))
                os.environ[NAMING_VENDORS[0]] = f"{folder}/"
                try:
                    yield
                finally:
                    del os.environ[NAMING_VENDORS[0]]
            return
    yield


@cache
def _trouble(index: int) -> str | None:
    """Why a device's driver compiles nothing, in one sentence; None if it does. One that is older than the CPU may not."""
    cl, device = _opencl(), _devices()[index]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # compiler messages
            cl.Program(cl.Context([device]), source.text("stream.cl")).build(list(source.OPTIONS), cache_dir=False)
    except cl.Error as error:
        lines = str(error).splitlines()
        reason = next((line for line in lines if line.startswith("error:")), lines[0]).removeprefix("error:").strip()
        platform = f"{device.platform.name}, {device.platform.version.split('  ')[0]}"  # PoCL goes on with how it was built
        return CANNOT_COMPILE.format(driver=platform, device=device.name.strip(), reason=reason[:200])
    return None


@contextlib.contextmanager
def _said_by_opencl() -> Iterator[None]:
    """Turn an OpenCL error into the matching failure."""
    cl = _opencl()
    codes = {getattr(cl.status_code, name) for name in OUT_OF_MEMORY}
    try:
        yield
    except cl.Error as error:
        # A driver that compiles at the first launch reports build errors there.
        if error.code == cl.status_code.BUILD_PROGRAM_FAILURE:
            raise CannotCompile(str(error)) from error
        raise (OutOfMemory if error.code in codes else Failed)(str(error)) from error


class DeviceOperands:
    """A, B and C of one problem on one device."""

    def __init__(self, cl: Any, queue: Any, problem: Mapping[str, Any]) -> None:
        self.queue = queue
        half = problem["dtype"] == "fp16"
        host = make_matrices({**problem, "dtype": "fp32" if half else problem["dtype"]})
        # Halves hold the inputs exactly; the exact sums are rounded once, as the kernels do.
        a, b, reference = (x.astype(np.float16) if half else x for x in (host.a, host.b, host.reference))
        largest = max(a.nbytes, b.nbytes, reference.nbytes)
        if largest > queue.device.max_mem_alloc_size:
            raise OutOfMemory(
                f"a matrix of {largest / 1e9:.1f} GB is larger than the {queue.device.max_mem_alloc_size / 1e9:.1f} GB "
                "that the device allocates in one piece"
            )
        self.reference = reference
        flags, read = cl.mem_flags, cl.mem_flags.READ_ONLY
        if is_cpu(queue.device) and not half:
            # The kernels read the host's huge pages in place: with small ones cache conflicts differ from run to run.
            self._kept = host
            self.a, self.b = (cl.Buffer(queue.context, read | flags.USE_HOST_PTR, hostbuf=x) for x in (a, b))
            self.c = cl.Buffer(queue.context, flags.READ_WRITE | flags.USE_HOST_PTR, hostbuf=host.c)
        else:
            self.a, self.b = (cl.Buffer(queue.context, read | flags.COPY_HOST_PTR, hostbuf=x) for x in (a, b))
            self.c = cl.Buffer(queue.context, flags.READ_WRITE, size=reference.nbytes)
        self.nbytes = a.nbytes + b.nbytes + 2 * reference.nbytes
        self._cl = cl

    def poison(self) -> None:
        """Fill C with NaN, so that elements that are not written show."""
        self._cl.enqueue_fill_buffer(self.queue, self.c, self.reference.dtype.type(math.nan), 0, self.reference.nbytes).wait()

    def error(self) -> float:
        """The largest absolute difference of C from what it must be; infinite where nothing was written."""
        found = np.empty_like(self.reference)
        self._cl.enqueue_copy(self.queue, found, self.c, is_blocking=True)
        if np.array_equal(found, self.reference):
            return 0.0
        difference = float(np.max(np.abs(found.astype(np.float64) - self.reference)))
        return difference if math.isfinite(difference) else math.inf


class _DeviceKernel(CheckedKernel):
    """A kernel with its arguments. Its time is the sum of the times that the device itself spent on each launch.

    From the start of the first to the end of the last would count the host's pauses between launches as well: a
    cost of this process and its driver, not of the config.
    """

    def __init__(
        self, queue: Any, kernel: Any, sizes: tuple[Any, Any], arguments: Any, on: DeviceOperands | None = None
    ) -> None:
        super().__init__(on)
        self.queue, self.kernel, self.sizes, self.arguments = queue, kernel, sizes, arguments
        kernel.set_args(*arguments)

    def run(self, launches: int) -> int:
        cl = _opencl()
        with _said_by_opencl():
            events = [cl.enqueue_nd_range_kernel(self.queue, self.kernel, *self.sizes) for _ in range(launches)]
            self.queue.finish()
            return sum(event.profile.end - event.profile.start for event in events)

    def check(self) -> float:
        with _said_by_opencl():
            return super().check()


class OpenClBackend(Backend):
    """Runs `gemm/opencl` on any OpenCL device."""

    name = "opencl"
    doc = "a tiled GEMM in OpenCL, for GPUs and CPUs"
    families = ("gemm/opencl",)

    @classmethod
    def devices(cls) -> list[str]:
        return [str(index) for index in range(len(_devices()))]

    @classmethod
    def unavailable(cls) -> str | None:
        if _opencl() is None:
            return NOT_INSTALLED
        troubles = (_trouble(index) for index in range(len(_devices())))  # one that works is enough
        return NO_DEVICE if not _devices() else None if None in troubles else _trouble(0)

    def __init__(self, index: str = "0") -> None:
        super().__init__(index)
        self._programs: dict[str, Any] = {}

    @cached_property
    def _device(self) -> Any:
        why_not = self.unavailable()
        if why_not is not None:
            raise Unsupported(why_not)
        if self.index not in self.devices():
            raise Unsupported(f"there is no OpenCL device {self.index}: choose one of {', '.join(self.devices())}")
        if (trouble := _trouble(int(self.index))) is not None:
            raise Unsupported(trouble)
        return _devices()[int(self.index)]

    @cached_property
    def context(self) -> Any:
        """Held here: Intel's driver ends a context that only a queue uses."""
        return _opencl().Context([self._device])

    @cached_property
    def queue(self) -> Any:
        """The one queue, with the device's own clock in every event."""
        cl = _opencl()
        return cl.CommandQueue(self.context, properties=cl.command_queue_properties.PROFILING_ENABLE)

    @cached_property
    def _operands(self) -> InputCache[DeviceOperands]:
        return InputCache(partial(DeviceOperands, _opencl(), self.queue))

    @cached_property
    def _evicting(self) -> Any:
        numbers = self._profile.numbers
        cached = max(numbers.get(f"l{level}_cache_kb", 0.0) for level in (2, 3)) * 1024
        size = 2 * int(cached) if cached else EVICTING_BYTES
        cl = _opencl()
        with _said_by_opencl():
            return cl.Buffer(self.context, cl.mem_flags.READ_WRITE, size=max(MEMORY_BYTES, size))

    @cached_property
    def _profile(self) -> Device:
        return profile(self._device)

    def device(self) -> Device:
        return self._profile

    def software(self, family: str) -> Mapping[str, str]:
        return {
            "opencl": str(self._device.version).strip(),
            "platform": f"{self._device.platform.name} {self._device.platform.version}".strip(),
            "driver": str(self._device.driver_version),
            "pyopencl": str(_opencl().VERSION_TEXT),
            "kernels": source.digest(),
        }

    def compilations(self, vectors: Sequence[tuple[Problem, Config]]) -> int:
        """The number of different programs, including those that the driver has cached from an earlier run."""
        known = ((p, config.as_dict()) for p, config in vectors if p.dtype in source.C_TYPES)
        return len({source.source(values, p.dtype, p.layout) for p, values in known} - self._programs.keys())

    def prepare(self, problem: Problem, config: Config) -> Prepared:
        """Compiles in this process: a compiler crash must count for the vector that caused it."""
        self._refuse(problem, config)
        kernel = self._kernel("gemm", source.source(config.as_dict(), problem.dtype, problem.layout))
        with _said_by_opencl():
            on = self._operands.get(problem.as_dict())
            tiles_n, tiles_m = -(-problem.N // config.NWG), -(-problem.M // config.MWG)
            sizes = (tiles_n * config.NDIMC, tiles_m * config.MDIMC), (config.NDIMC, config.MDIMC)
            arguments = (on.a, on.b, on.c, *map(np.int32, (problem.M, problem.N, problem.K)))
            prepared = _DeviceKernel(self.queue, kernel, sizes, arguments, on)
            # PoCL compiles for the size of a work-group when it is first launched.
            prepared.run(1)
        return prepared

    def sentinel(self, kind: str) -> Prepared | None:
        cl = _opencl()
        if kind == "compute":
            return self.prepare(
                Problem.trusted(gemm_opencl, {**SENTINEL_PROBLEM}), Config.trusted(gemm_opencl, {**SENTINEL_CONFIG})
            )
        if kind == "memory":
            steps = max(MEMORY_BYTES, 2 * int(self._profile.numbers.get("l2_cache_kb", 0)) * 1024) // (16 * STREAM_ITEMS)
            flags, context = cl.mem_flags.READ_WRITE, self.context
            with _said_by_opencl():
                data = cl.Buffer(context, flags, size=16 * STREAM_ITEMS * steps)
                self._fill(data)
                kept = cl.Buffer(context, flags, size=4 * STREAM_ITEMS)
            kernel = self._kernel("stream", source.text("stream.cl"))
            return _DeviceKernel(self.queue, kernel, ((STREAM_ITEMS,), None), (data, kept, np.int32(steps)))
        return None

    def flush_cache(self) -> bool:
        """Write through more than the caches hold, so that the operands are no longer in them."""
        with _said_by_opencl():
            self._fill(self._evicting)
        return True

    def _fill(self, buffer: Any) -> None:
        zero = np.uint32(0)
        _opencl().enqueue_fill_buffer(self.queue, buffer, zero, 0, buffer.size).wait()

    def _kernel(self, name: str, text: str) -> Any:
        cl = _opencl()
        if text not in self._programs:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # compiler warnings
                    self._programs[text] = cl.Program(self.context, text).build(list(source.OPTIONS))
            except cl.Error as error:
                raise CannotCompile(str(error)) from error
            if len(self._programs) > KEPT_PROGRAMS:
                del self._programs[next(iter(self._programs))]
        return cl.Kernel(self._programs[text], name)

    def _refuse(self, problem: Problem, config: Config) -> None:
        """Refuse a vector that breaks a rule of this device or of the family, and name the rule."""
        broken = gemm_opencl.config.validate(
            {name: value for name, value in config.items() if value is not None}, gemm_opencl.bindings(problem, self._profile)
        )
        if broken:
            raise Unsupported(broken[0].sentence)
        needed = EXTENSIONS.get(problem.dtype)
        if needed and needed not in self._device.extensions:
            raise Unsupported(f"{self._profile.title} has no {problem.dtype} (its OpenCL lacks {needed})")


# -- the device's profile -------------------------------------------------------------------------------


def is_cpu(device: Any) -> bool:
    """Whether an OpenCL device is the machine's own CPU."""
    return bool(device.type & CPU)


def profile(device: Any) -> Device:
    """The profile of a pyopencl device. What OpenCL does not say stays unknown.

    It gives one cache size without the level, and only the clock for speed. Peak rates and bandwidth are known only if a
    GPU has a shipped profile. On a CPU the caches are those of the local machine.
    """
    numbers = {name: getattr(device, attribute) * scale for name, (attribute, scale) in INFO.items()}
    # A driver that does not know answers 0.
    numbers = {name: float(value) for name, value in numbers.items() if value > 0}
    sources = {name: f"CL_DEVICE_{INFO[name][0].upper()}" for name in numbers}
    if is_cpu(device):
        here = devices.local()
        known = {name: here.numbers[name] for name in CPU_NUMBERS if name in here.numbers}
        return replace(
            here,
            # The same machine, but other numbers than the `cpu` backend's profile: one name for both would be confusing.
            name=f"{here.name}-opencl",
            title=f"{here.title} through OpenCL",
            numbers={**numbers, **known},
            sources={**sources, **{name: here.sources[name] for name in known}},
        )
    title = str(device.name).strip()
    # AMD's driver calls a GPU by its architecture and reports the board's name separately.
    board = str(getattr(device, "board_name_amd", "")) if "cl_amd_device_attribute_query" in device.extensions else ""
    known_gpu = shipped(title, board, num_cus=int(numbers.get("num_cus", 0)) or None)
    if known_gpu is not None:
        return replace(known_gpu, numbers={**known_gpu.numbers, **numbers}, sources={**known_gpu.sources, **sources})
    name = f"{slug(title)}-{int(numbers.get('num_cus', 0)) or 'unknown'}cu"
    kind = "gpu" if device.type & GPU else "npu"
    return Device(name=name, title=title, kind=kind, numbers=numbers, sources=sources)
