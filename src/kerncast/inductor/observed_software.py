"""The versions and the GPU behind a timing, in the words of the backends that time the same kernels."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

DRIVERS = ("/sys/module/nvidia/version", "/sys/module/amdgpu/version")
# What `backends.triton.device_profile` reads of a GPU.
PROPERTIES = (
    "name", "multi_processor_count", "warp_size", "shared_memory_per_block_optin", "shared_memory_per_block",
    "shared_memory_per_multiprocessor", "max_threads_per_block", "L2_cache_size", "total_memory", "gcnArchName",
)  # fmt: skip


@cache
def software(device: str) -> dict[str, str]:
    """torch, and for a CPU its instruction set and the compiler, as the `inductor` backend says them; for a GPU Triton, the
    runtime and the driver."""
    torch = sys.modules["torch"]
    found = {"torch": str(torch.__version__)}
    if device == "cpu":
        return found | _cpu()
    triton = sys.modules.get("triton")
    if triton is not None:
        found["triton"] = str(triton.__version__)
    version = torch.version
    if getattr(version, "hip", None) or getattr(version, "cuda", None):
        found["runtime"] = f"rocm {version.hip}" if version.hip else f"cuda {version.cuda}"
    driver = next((text for text in map(_read, DRIVERS) if text), None)
    return found | ({"driver": driver} if driver else {})


def _cpu() -> dict[str, str]:
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.cpu_vec_isa import pick_vec_isa

    found = {"isa": str(pick_vec_isa())}
    shown = subprocess.run([get_cpp_compiler(), "--version"], capture_output=True, text=True, check=True, timeout=30).stdout
    return {**found, "compiler": shown.splitlines()[0].strip()}


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


@cache
def gpu(device: str) -> dict[str, Any]:
    """What torch says about a GPU."""
    torch = sys.modules["torch"]
    properties = torch.cuda.get_device_properties(device)
    found = {name: getattr(properties, name, None) for name in PROPERTIES}
    if not getattr(torch.version, "hip", None):
        found["gcnArchName"] = None
    return {name: value for name, value in found.items() if isinstance(value, str | int)}
