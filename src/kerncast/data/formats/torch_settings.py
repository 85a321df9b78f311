"""What `constants` may say about the rows of PyTorch's files: parameters of gemm that these files leave out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kerncast.core import dtypes
from kerncast.core.parameters import Value
from kerncast.errors import InvalidValue, NotFound
from kerncast.library.families.gemm_inductor_cpp import gemm_inductor_cpp
from kerncast.library.families.gemm_triton import triton
from kerncast.library.families.torch_products import worded

RULES = {**gemm_inductor_cpp.problem.parameters, **triton.problem.parameters}


def settings(given: Mapping[str, str], names: Sequence[str]) -> dict[str, Value]:
    """The values of `constants`, checked; only some `names` apply to a format."""
    found: dict[str, Value] = {}
    for name, text in given.items():
        if name not in names:
            raise NotFound.named("parameter for `constants`", name, names)
        value = dtypes.named(text) or text if name == "dtype" else worded(text.capitalize() if name == "tf32" else text)
        if RULES[name].index(value) is None:
            raise InvalidValue(f"`constants` {name} must be {RULES[name].describe()}, got '{text}'")
        found[name] = value
    return found
