"""A device's profile from what OpenCL says about it. What OpenCL does not say stays unknown.

It gives one cache size without the level, and only the clock for speed. Peak rates and bandwidth are known only if a
GPU has a shipped profile. On a CPU the caches are those of the local machine.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kerncast.core.device import Device
from kerncast.library import devices
from kerncast.measuring.backends.environment import shipped, slug

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


def is_cpu(device: Any) -> bool:
    """Whether an OpenCL device is the machine's own CPU."""
    return bool(device.type & CPU)


def profile(device: Any) -> Device:
    """The profile of a pyopencl device."""
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
