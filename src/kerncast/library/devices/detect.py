"""What this machine says about itself, from the standard library and sysfs alone. Unknown stays unknown.

The clock that the kernel reports is recorded with its source. Under virtualisation it is often a label
rather than a measurement, so it never becomes a peak rate.
"""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path

from kerncast.core.device import Device

# Widest first: an instruction set, the register width it brings, the flag that /proc/cpuinfo shows.
_X86_VECTORS = (("avx512", 64, "avx512f"), ("avx2", 32, "avx2"), ("avx", 32, "avx"), ("sse2", 16, "sse2"))
_ARM_VECTORS = (("neon", 16, "asimd"),)
_AMX, _AMX_ROWS = {"amx_tile", "amx_bf16", "amx_int8"}, 16


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None


def parse_cpuinfo(text: str) -> dict[str, str]:
    """The fields of the first processor in /proc/cpuinfo."""
    fields = (line.split(":", 1) for line in text.split("\n\n", 1)[0].splitlines() if ":" in line)
    return {name.strip(): value.strip() for name, value in fields}


def vector_isa(flags: set[str]) -> tuple[str, int] | None:
    """The widest vector instruction set among the flags, and its register width in bytes."""
    return next(((name, width) for name, width, flag in (*_X86_VECTORS, *_ARM_VECTORS) if flag in flags), None)


def product_numbers(flags: set[str]) -> dict[str, float]:
    """The group sizes of the instructions for products of narrow types; 1 for a CPU without them."""
    return {
        "bf16_group": 2.0 if "avx512_bf16" in flags else 1.0,
        "int8_group": 4.0 if flags & {"avx512_vnni", "avx_vnni"} else 1.0,
        "matrix_tile_rows": float(_AMX_ROWS) if flags >= _AMX else 1.0,
    }


def parse_size_kb(text: str) -> float | None:
    """sysfs cache sizes: `512K`, `32M`."""
    match = re.fullmatch(r"(\d+)([KMG])", text)
    return int(match[1]) * {"K": 1, "M": 1024, "G": 1024**2}[match[2]] if match else None


def cache_numbers(root: Path) -> dict[str, float]:
    """Data cache sizes and the line size from sysfs; last-level caches count once, private ones per core."""
    numbers: dict[str, float] = {}
    for entry in sorted(root.glob("index*")):
        level, kind, size = _read(entry / "level"), _read(entry / "type"), _read(entry / "size")
        kilobytes = parse_size_kb(size) if size else None
        if kilobytes and kind in ("Data", "Unified") and level in ("1", "2", "3"):
            numbers[f"l{level}_cache_kb"] = float(kilobytes)
        line = _read(entry / "coherency_line_size")
        if line and line.isdigit() and int(line):
            numbers["cache_line_bytes"] = float(line)
    return numbers


def detect(proc: Path = Path("/proc"), sys_root: Path = Path("/sys")) -> Device:
    """The local CPU as a device. Its identity is CPU model + cores + ISA; measured speeds are not part of it."""
    info = parse_cpuinfo(_read(proc / "cpuinfo") or "")
    model = info.get("model name") or platform.processor() or platform.machine() or "unknown CPU"
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    flags = set((info.get("flags") or info.get("Features") or "").split())
    isa = vector_isa(flags)

    cpu0 = sys_root / "devices/system/cpu/cpu0"
    numbers = cache_numbers(cpu0 / "cache")
    sources = dict.fromkeys(numbers, "sysfs cpu0/cache")
    if cores:
        numbers["num_cus"], sources["num_cus"] = float(cores), "CPUs that this process may run on"
    if isa:
        numbers["vector_bytes"], sources["vector_bytes"] = float(isa[1]), f"/proc/cpuinfo flags: {isa[0]}"
    if flags:
        found = product_numbers(flags)
        numbers |= found
        sources |= dict.fromkeys(found, "/proc/cpuinfo flags")
    highest = _read(cpu0 / "cpufreq/cpuinfo_max_freq")
    if highest and highest.isdigit() and int(highest):
        numbers["max_clock_mhz"], sources["max_clock_mhz"] = int(highest) / 1000, "sysfs cpufreq/cpuinfo_max_freq"
    elif re.fullmatch(r"\d+(\.\d+)?", info.get("cpu MHz", "")) and float(info["cpu MHz"]) > 0:
        numbers["max_clock_mhz"] = float(info["cpu MHz"])
        sources["max_clock_mhz"] = "/proc/cpuinfo: the clock at the moment of reading"
    memory = re.search(r"MemTotal:\s+(\d+) kB", _read(proc / "meminfo") or "")
    if memory:
        numbers["memory_capacity_gb"] = int(memory[1]) * 1024 / 1e9
        sources["memory_capacity_gb"] = "/proc/meminfo"

    slug = re.sub(r"[^a-z0-9]+", "_", model.lower().replace("(r)", "").replace("(tm)", "")).strip("_")
    name = "-".join([slug, f"{cores or 'unknown'}c", isa[0] if isa else platform.machine().lower() or "unknown"])
    return Device(name=name, title=model, kind="cpu", numbers=numbers, sources=sources)
