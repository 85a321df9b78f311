"""The OpenCL source of one kernel: `gemm.cl` behind the macros that a config, a dtype and a layout define."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

# -cl-mad-enable: a * b + c may become one instruction; sums of small whole numbers are exact either way.
OPTIONS = ("-cl-std=CL1.2", "-cl-mad-enable")
# What elements are stored as, and what they are summed as.
C_TYPES = {"fp16": ("half", "float"), "fp32": ("float", "float"), "fp64": ("double", "double")}
NUMBERS = ("MWG", "NWG", "KWG", "MDIMC", "NDIMC", "VWM", "VWN", "KWI")
FLAGS = ("local_a", "local_b", "strided_m", "strided_n", "guard")


@cache
def text(name: str) -> str:
    """A file beside this one."""
    return (resources.files(__package__) / name).read_text(encoding="utf-8")


@cache
def digest() -> str:
    """A stable hash of what every kernel is made from."""
    parts = [text("gemm.cl"), text("source.py"), *OPTIONS]
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=8).hexdigest()


def _access(width: int, suffix: str, half: bool) -> dict[str, str]:
    """Macros that move `width` elements between a pointer and a value.

    TAKE and KEEP move sums (private and local memory), LOAD and STORE elements (global memory). Halves may be
    loaded and stored on any device; only arithmetic on them is an extension, and there is none here.
    """
    n = "" if width == 1 else str(width)
    take, keep = ("(*({p}))", "(*({p}) = ({v}))") if width == 1 else (f"vload{n}(0, {{p}})", f"vstore{n}({{v}}, 0, {{p}})")
    load, store = (f"vload_half{n}(0, {{p}})", f"vstore_half{n}_rte({{v}}, 0, {{p}})") if half else (take, keep)
    patterns = {"TAKE{s}(p)": take, "KEEP{s}(v, p)": keep, "LOAD{s}(p)": load, "STORE{s}(v, p)": store}
    return {name.format(s=suffix): body.format(p="p", v="v") for name, body in patterns.items()}


def _elements(width: int, suffix: str) -> dict[str, str]:
    """Macros that make a vector of elements, and take one apart, without an array in between.

    With an array PoCL 3.0 did not finish one small kernel in 12 s of CPU time (its uniformity analysis); without, 2 s.
    """
    gather, spread = f"GATHER{suffix}(AT)", f"SPREAD{suffix}(PUT, v)"
    if width == 1:
        return {gather: "AT(0)", spread: "PUT(v, 0)"}
    taken = "; ".join(f"PUT((v).s{at:x}, {at})" for at in range(width))
    return {gather: f"(acc{suffix.lower()})({', '.join(f'AT({at})' for at in range(width))})", spread: taken}


def source(config: Mapping[str, Any], dtype: str, layout: str) -> str:
    """One program with the kernel `gemm`; what is inactive in a config is 0."""
    real, acc = C_TYPES[dtype]
    macros: dict[str, Any] = {name: config[name] or 0 for name in NUMBERS}
    macros |= {name.upper(): int(config[name] or 0) for name in FLAGS}
    macros |= {"A_ROWS": int(layout[0] == "r"), "B_ROWS": int(layout[1] == "r")}
    macros |= {"real": real, "acc": acc}
    macros |= _access(1, "", dtype == "fp16")
    for width, suffix in ((config["VWM"], "_M"), (config["VWN"], "_N")):
        macros[f"acc{suffix.lower()}"] = acc if width == 1 else f"{acc}{width}"
        macros |= _access(width, suffix, dtype == "fp16") | _elements(width, suffix)
    head = ["#pragma OPENCL EXTENSION cl_khr_fp64 : enable"] if dtype == "fp64" else []
    head += [f"#define {name} {body}" for name, body in macros.items()]
    return "\n".join([*head, text("gemm.cl")])
