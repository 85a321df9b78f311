"""One autotune of PyTorch Inductor, as its logs tell it: an op, its operands, and the choices that were timed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kerncast.library.families.torch_products import Described, worded

# One argument in the description of a choice: torch 2.5 and later separate them by commas, earlier ones by hyphens.
ASSIGNMENT = re.compile(r"""(\w{1,60})=('[^']*'|"[^"]*"|\([^)]*\)|\[[^\]]*\]|-?[^,\s-]+)""")
NUMBERED = re.compile(r"_\d{1,9}$")
SPLIT_K = re.compile(r"decompose_k_mm_(\d{1,9})_split")
# How the names of choices begin that are neither a template of Triton's nor a library's kernel.
OTHERS = {"cutlass": "cutlass", "cuda_": "cutlass", "ck_": "ck", "rocm_": "ck", "nv_universal_gemm": "nv_universal_gemm",
          "cutedsl": "cutedsl", "subgraph": "subgraph"}  # fmt: skip
CPP = "cpp_"
UNTOLD = "a template whose tile the log does not give (torch prints it from 2.5 on)"


@dataclass(frozen=True)
class Choice:
    """A choice that was timed; `ms` is None if it did not run."""

    line: int
    said: Described
    ms: float | None

    @property
    def described(self) -> Described:
        """As `data.autotune_rows` takes it."""
        return {**self.said, "ms": self.ms}


@dataclass
class Autotune:
    """What one autotune timed; `choices` are in the order of the log."""

    line: int
    op: str
    inputs: Sequence[Described] = ()
    choices: list[Choice] = field(default_factory=list)
    device: str | None = None
    """What the driver calls the GPU, if the log says so."""
    total: int | None = None
    """How many choices there were, if the log says so: it may list only the fastest."""
    problem: Mapping[str, int] | None = None
    """The sizes, where a log gives these instead of operands."""


def described(name: str, description: str) -> Described:
    """What a choice is, from its name and its description in a log."""
    params = {key: worded(value.strip('"')) for key, value in ASSIGNMENT.findall(description)}
    shared = {"name": name, "description": description}
    split = SPLIT_K.match(name)
    if split:
        return {"kind": "triton", **shared, "template": "decompose_k", "params": {"k_split": int(split[1])}}
    if name.startswith("contiguous_"):
        return {"kind": "triton", **shared, "template": NUMBERED.sub("", name), "params": params}
    if name.startswith("triton_"):
        template = f"triton::{NUMBERED.sub('', name.removeprefix('triton_'))}"
        return {"kind": "triton" if params else UNTOLD, **shared, "template": template, "params": params}
    if name.startswith(CPP):
        return {"kind": "default", **shared, "template": "CppGemmTemplate"}
    other = next((kind for beginning, kind in OTHERS.items() if name.startswith(beginning)), None)
    return {"kind": other or "extern", **shared}


def numbers_of(text: Any) -> list[int | str]:
    """`[64, 1]` or `(64, 1)` as numbers; what is not a number stays text."""
    inner = str(text).strip().strip("[]()")
    return [int(part) if re.fullmatch(r"\d{1,18}", part.strip()) else part.strip() for part in inner.split(",") if part.strip()]
