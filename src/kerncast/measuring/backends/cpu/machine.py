"""What the `cpu` backend is made of: this machine, how fast it really is, and a part for each group of families that run on it.

The advertised clock is not the real one, and under virtualisation it is often a label. Clock, FMA peak and memory bandwidth are
measured in a fraction of a second, once per boot, and kept next to the compiled kernels.
"""

from __future__ import annotations

import abc
import contextlib
import ctypes
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import numpy as np

from kerncast.core.device import Device
from kerncast.core.io.artefact import SEAL, json_text, seal_of
from kerncast.core.io.atomic import replace_file
from kerncast.core.io.foreign import decode_json
from kerncast.core.op import Config, Problem
from kerncast.library import devices
from kerncast.measuring.backends.contract import Backend, CheckedKernel, CheckedOperands, Unsupported
from kerncast.measuring.backends.cpu import build
from kerncast.measuring.backends.cpu.build import Compiler, KernelSource, Library

SOURCE = "measured by the cpu backend's micro-benchmark"
BURSTS = 200
FMA_STEPS = 30_000
CLOCK_STEPS = 20_000
ADDITIONS_PER_STEP = 16
FMAS_PER_STEP = 12
STREAM_REPEATS = 4
LANE_BYTES = {"fp32": 4, "fp64": 8}
NARROW = ("bf16", "int8")


class Machine:
    """What the kernels of every family share."""

    @cached_property
    def compiler(self) -> Compiler:
        """The compiler in use."""
        found = build.find_compiler()
        if found is None:
            raise Unsupported(build.NO_COMPILER)
        return found

    @cached_property
    def library(self) -> Library:
        """The compiled kernels and the probes."""
        return Library(self.compiler)

    @cached_property
    def profile(self) -> Device:
        """This machine with its measured numbers."""
        return measured(self.library, devices.local())


class PlannedKernel(CheckedKernel):
    """A plan of the C side on the operands of its problem."""

    def __init__(self, run: Callable[..., int], plan: ctypes.Structure, operands: CheckedOperands) -> None:
        super().__init__(operands)
        self.plan, self._launch = plan, partial(run, ctypes.byref(plan))

    def run(self, launches: int) -> int:
        return int(self._launch(launches))


class CpuPart(Backend):
    """The backend of some families on this machine; constructed once per process, when first needed."""

    driver: ClassVar[str]
    """The C file that runs plans."""
    symbols: ClassVar[tuple[str, str]]
    """Its functions that reserve what a plan needs, and that run it."""
    plan_type: ClassVar[type[ctypes.Structure]]

    def __init__(self, machine: Machine) -> None:
        super().__init__()
        self.machine = machine

    @abc.abstractmethod
    def digest(self) -> str:
        """A hash of the sources of these kernels: times of different sources cannot be compared."""

    def device(self) -> Device:
        return self.machine.profile

    def software(self, family: str) -> Mapping[str, str]:
        compiler = self.machine.compiler
        return {"compiler": compiler.version, "flags": " ".join(compiler.flags), "kernels": self.digest()}

    @cached_property
    def library(self) -> Library:
        """The compiled kernels."""
        return Library(self.machine.compiler, sources=self.digest())

    @cached_property
    def functions(self) -> tuple[Any, Any]:
        """What reserves memory and threads for a plan, and what runs it; compiled if need be."""
        reserve, run = (getattr(self.library.fixed(self.driver), name) for name in self.symbols)
        run.argtypes, run.restype = [ctypes.POINTER(self.plan_type), ctypes.c_int64], ctypes.c_int64
        return reserve, run

    def kernels(self, problem: Problem, config: Config) -> Iterable[KernelSource]:
        """What a vector needs compiled; `Unsupported` if this machine cannot run it."""
        return ()

    def compile(self, vectors: Sequence[tuple[Problem, Config]], jobs: int = 1) -> None:
        self.library.build(self._kernels(vectors), jobs)
        assert self.functions  # the driver is compiled, too

    def compilations(self, vectors: Sequence[tuple[Problem, Config]]) -> int:
        return len(self.library.missing(self._kernels(vectors)))

    def _kernels(self, vectors: Sequence[tuple[Problem, Config]]) -> set[KernelSource]:
        found: set[KernelSource] = set()
        for problem, config in vectors:
            with contextlib.suppress(Unsupported):  # reported when the vector itself is measured
                found.update(self.kernels(problem, config))
        return found

    def refuse(self, config: Config, broken: str | None, lacking: str | None = None) -> None:
        """Refuse a config that breaks a constraint of its family, or that needs what this CPU lacks."""
        if broken:
            raise Unsupported(next(item.sentence for item in config.family.config.constraints if item.name == broken))
        if lacking:
            raise Unsupported(lacking)
        if config.vector_bytes > self.machine.library.probe.kc_vector_bytes():
            compiler = self.machine.compiler.version
            raise Unsupported(f"this CPU has no {config.vector_bytes}-byte vectors that {compiler} would use")


# -- rates -----------------------------------------------------------------------------------------------


def measure(library: Library, cores: int, stream_bytes: int) -> dict[str, float]:
    """Rates by name: `clock_mhz`, each dtype in TFLOP/s of one core, `bandwidth_gb_s` of all of them."""
    probe = library.probe

    def per_second(kernel: str, work: float, steps: int) -> float:
        """By the least disturbed of many short bursts."""
        return work * steps / min(int(getattr(probe, kernel)(1, steps)) for _ in range(BURSTS))

    rates = {"clock_mhz": per_second("kc_clock", ADDITIONS_PER_STEP, CLOCK_STEPS) * 1e3}
    for dtype, size in LANE_BYTES.items():
        rates[dtype] = per_second(f"kc_fma_{dtype}", 2 * FMAS_PER_STEP * probe.kc_vector_bytes() / size, FMA_STEPS) / 1e3
    for dtype in NARROW:
        rates[dtype] = per_second(f"kc_multiply_{dtype}", 2 * getattr(probe, f"kc_products_{dtype}")(), FMA_STEPS) / 1e3
    data = np.ones(cores * stream_bytes // 4, np.int32)
    starts = [data.ctypes.data + core * stream_bytes for core in range(cores)]
    with ThreadPoolExecutor(cores) as executor:
        for _ in range(STREAM_REPEATS):
            spent = max(executor.map(lambda start: int(probe.kc_stream(1, start, stream_bytes)), starts))
            rates["bandwidth_gb_s"] = max(rates.get("bandwidth_gb_s", 0.0), cores * stream_bytes / spent)
    return rates


def rates(library: Library, device: Device) -> dict[str, float]:
    """The measured rates, from disk when this boot has them."""
    cores = int(device.numbers.get("num_cus", 1))
    boot = "unknown"
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    path = library.folder / f"rates-{boot}-{cores}.rates"
    kept = kept_rates(path)
    if kept is not None:
        return kept
    # Twice the last-level cache in all, so that reads come from memory and not from the cache.
    cache_bytes = int(device.numbers.get("l3_cache_kb", 32 * 1024)) * 1024
    found = measure(library, cores, max(2 * cache_bytes // cores, 16 * 2**20) // 4096 * 4096)
    with contextlib.suppress(OSError):  # measuring again costs less than a failure here
        keep_rates(path, found)
    return found


def keep_rates(path: Path, found: dict[str, float]) -> None:
    """Write the rates, with their checksum."""
    plain = {name: float(value) for name, value in found.items()}
    replace_file(path, lambda draft: draft.write_bytes(json_text({**plain, SEAL: seal_of(plain)})))


def kept_rates(path: Path) -> dict[str, float] | None:
    """The rates that `keep_rates` wrote; None: there are none, or they are damaged and measured again."""
    try:
        found = decode_json(path.read_bytes(), dict[str, Any])
        return found if found.pop(SEAL, None) == seal_of(found) else None
    except (OSError, msgspec.DecodeError):
        return None


def measured(library: Library, device: Device) -> Device:
    """The device with its measured numbers; its identity does not change."""
    found = rates(library, device)
    cores = device.numbers.get("num_cus", 1.0)
    peaks = {dtype: found[dtype] * cores for dtype in (*LANE_BYTES, *NARROW)}
    numbers = {"max_clock_mhz": found["clock_mhz"], "memory_bandwidth_gb_s": found["bandwidth_gb_s"]}
    sources = {**dict.fromkeys(numbers, SOURCE), **dict.fromkeys(peaks, f"{SOURCE}: one core times the number of cores")}
    return replace(
        device,
        numbers={**device.numbers, **numbers},
        peak_tflops={**device.peak_tflops, **peaks},
        sources={**device.sources, **sources},
    )
