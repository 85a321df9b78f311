"""The versions and the GPU behind a timing, in the words of the backends that time the same kernels."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from typing import Any

from kerncast.measuring.backends.inductor.build import cpu_software

DRIVERS = ("/sys/module/nvidia/version", "/sys/module/amdgpu/version")
# What `backends.triton.device_profile` reads of a GPU.
PROPERTIES = (
    "name", "multi_processor_count", "warp_size", "shared_memory_per_block_optin", "shared_memory_per_block",
    "shared_memory_per_multiprocessor", "max_threads_per_block", "L2_cache_size", "total_memory", "gcnArchName",
)  # fmt: skip


def software(device: str) -> dict[str, str]:
    """torch, and for a CPU its instruction set and the compiler, as the `inductor` backend says them; for a GPU Triton, the
    runtime and the driver."""
    if device != "cpu":
        return _gpu_software()
    try:
        return dict(cpu_software())
    except Exception:  # no compiler, or a torch that names these functions otherwise: the times are recorded all the same
        return {"torch": str(sys.modules["torch"].__version__)}


@cache
def _gpu_software() -> dict[str, str]:
    torch = sys.modules["torch"]
    found = {"torch": str(torch.__version__)}
    triton = sys.modules.get("triton")
    if triton is not None:
        found["triton"] = str(triton.__version__)
    version = torch.version
    if getattr(version, "hip", None) or getattr(version, "cuda", None):
        found["runtime"] = f"rocm {version.hip}" if version.hip else f"cuda {version.cuda}"
    driver = next((text for text in map(_read, DRIVERS) if text), None)
    return found | ({"driver": driver} if driver else {})


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


@cache
def gpu(device: str) -> dict[str, Any]:
    """What torch says about a GPU; nothing if it fails."""
    torch = sys.modules["torch"]
    try:
        properties = torch.cuda.get_device_properties(device)
    except Exception:
        return {}
    found = {name: getattr(properties, name, None) for name in PROPERTIES}
    if not getattr(torch.version, "hip", None):
        found["gcnArchName"] = None
    return {name: value for name, value in found.items() if isinstance(value, str | int)}
