"""How fast this machine really is: clock, FMA peak and memory bandwidth, measured in a fraction of a second.

The advertised clock is not the real one, and under virtualisation it is often a label. Rates are measured once
per boot and kept next to the compiled kernels.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from kerncast.core.device import Device
from kerncast.core.io.artefact import SEAL, json_text, seal_of
from kerncast.core.io.atomic import replace_file
from kerncast.core.io.foreign import decode_json
from kerncast.measuring.backends.cpu.build import Library

SOURCE = "measured by the cpu backend's micro-benchmark"
BURSTS = 200
FMA_STEPS = 30_000
CLOCK_STEPS = 20_000
ADDITIONS_PER_STEP = 16
FMAS_PER_STEP = 12
STREAM_REPEATS = 4
LANE_BYTES = {"fp32": 4, "fp64": 8}
NARROW = ("bf16", "int8")


def _best(run: Callable[[], int]) -> int:
    """The least disturbed of many short bursts."""
    return min(run() for _ in range(BURSTS))


def measure(library: Library, cores: int, stream_bytes: int) -> dict[str, float]:
    """Rates by name: `clock_mhz`, each dtype in TFLOP/s of one core, `bandwidth_gb_s` of all of them."""
    probe = library.probe
    rates = {"clock_mhz": CLOCK_STEPS * ADDITIONS_PER_STEP / _best(lambda: int(probe.kc_clock(1, CLOCK_STEPS))) * 1e3}
    for dtype, size in LANE_BYTES.items():
        kernel = probe[f"kc_fma_{dtype}"]
        flops = 2 * FMA_STEPS * FMAS_PER_STEP * probe.kc_vector_bytes() / size
        rates[dtype] = flops / _best(lambda kernel=kernel: int(kernel(1, FMA_STEPS))) / 1e3  # type: ignore[misc]
    for dtype in NARROW:
        kernel, flops = probe[f"kc_multiply_{dtype}"], 2 * FMA_STEPS * probe[f"kc_products_{dtype}"]()
        rates[dtype] = flops / _best(lambda kernel=kernel: int(kernel(1, FMA_STEPS))) / 1e3  # type: ignore[misc]
    data = np.ones(cores * stream_bytes // 4, np.int32)
    starts = [data.ctypes.data + core * stream_bytes for core in range(cores)]
    with ThreadPoolExecutor(cores) as executor:
        for _ in range(STREAM_REPEATS):
            spent = max(executor.map(lambda start: int(probe.kc_stream(1, start, stream_bytes)), starts))
            rates["bandwidth_gb_s"] = max(rates.get("bandwidth_gb_s", 0.0), cores * stream_bytes / spent)
    return rates


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "unknown"


def rates(library: Library, device: Device) -> dict[str, float]:
    """The measured rates, from disk when this boot has them."""
    cores = int(device.numbers.get("num_cus", 1))
    path = library.folder / f"rates-{_boot()}-{cores}.rates"
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
