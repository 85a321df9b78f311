"""Names of CK Tile's GEMM kernels: read strictly, because a wrong tile in a row is worse than a missing row."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from kerncast.core.parameters import Categorical, Value
from kerncast.errors import InvalidValue
from kerncast.library.families.gemm_ck_tile import ck_tile

NAME_FORM = (
    "gemm[_universal]_{dtype}_{layout}_{pipeline}_{epilogue}_{scheduler}_{pad m}_{pad n}_{pad k}_{persistent}"
    "_{tile}_{warps}_{warp tile}"
)
PADS = ("pad_m", "pad_n", "pad_k")
FLAGS = (*PADS, "persistent")
SIZES = tuple(f"{kind}_{side}" for kind in ("tile", "warp", "warp_tile") for side in "mnk")


def _labels(parameter: object) -> str:
    assert isinstance(parameter, Categorical)
    return "|".join(label for label, _ in parameter.labels)


_CONFIG, _PROBLEM = ck_tile.config.parameters, ck_tile.problem.parameters
_SHAPE = r"_(\d{1,4})x(\d{1,4})x(\d{1,4})"
_NAME = re.compile(
    rf"gemm(?:_universal)?_({_labels(_PROBLEM['dtype'])})_({_labels(_PROBLEM['layout'])})"
    rf"_({_labels(_CONFIG['pipeline'])})_({_labels(_CONFIG['epilogue'])})_({_labels(_CONFIG['scheduler'])})"
    + r"_(True|False)" * len(FLAGS) + _SHAPE * 3
)  # fmt: skip


@dataclass(frozen=True)
class GemmKernel:
    """What the name of a kernel says."""

    dtype: str
    layout: str
    config: Mapping[str, Value]
    corrected: bool
    """Whether the kernel pads although its name says that it does not."""


def parse_gemm_kernel(name: str, *, as_named: bool = False) -> GemmKernel:
    """Parse the name of a kernel.

    Kernels of the pipeline mem pad all three sides whatever their name says; CK's own tools correct the flags too. With
    `as_named` the flags are those of the name, by which a build finds the kernel.
    """
    found = _NAME.fullmatch(name)
    if found is None:
        raise InvalidValue(f"a kernel's name must be {NAME_FORM}, got '{name}'")
    dtype, layout, pipeline, epilogue, scheduler, *rest = found.groups()
    config: dict[str, Value] = {"pipeline": pipeline, "epilogue": epilogue, "scheduler": scheduler}
    config |= {flag: text == "True" for flag, text in zip(FLAGS, rest, strict=False)}
    config |= {size: int(text) for size, text in zip(SIZES, rest[len(FLAGS) :], strict=True)}
    corrected = not as_named and pipeline == "mem" and not all(config[flag] for flag in PADS)
    if corrected:
        config |= dict.fromkeys(PADS, True)
    for size in SIZES:
        if _CONFIG[size].index(config[size]) is None:
            raise InvalidValue(f"{size} must be {_CONFIG[size].describe()}, got {config[size]} in '{name}'")
    return GemmKernel(dtype, layout, config, corrected)
