"""Element types: one name, one code and one size each, everywhere.

Codes are part of every dataset and model: append, never renumber. `bfp8` and `bfp4` are Tenstorrent's block
floating-point tiles (a shared exponent byte per 16 elements), not the E5M2 type that is called `bf8` here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from kerncast.core.expr import ConstantTable, Expr, lookup
from kerncast.core.parameters import Categorical

CODES = {
    "fp64": 0,
    "fp32": 1,
    "fp16": 2,
    "bf16": 3,
    "fp8": 4,
    "bf8": 5,
    "int8": 6,
    "int4": 7,
    "fp8_block": 8,
    "nvfp4": 9,
    "bfp8": 10,
    "bfp4": 11,
    "uint8": 12,
    "uint16": 13,
    "uint32": 14,
    "int32": 15,
    # Formats of a product whose weights are narrower than what they are multiplied by, as serving frameworks name them.
    "int4_wo": 16,
    "w4afp8": 17,
    "w4a16_mxfp4": 18,
    "w4a8_mxfp4_mxfp8": 19,
}
# The formats of tensors: what a dtype parameter takes unless it names others.
OF_TENSORS = list(CODES)[:16]

# Bytes per element, shared exponents and scales included where the format has them in the tensor:
# bfp8 is 1,088 bytes per 32×32 tile, bfp4 576; fp8_block has an fp32 scale per 128×128 block and nvfp4 an
# fp8 scale per 16 elements. Of a format with narrow weights it is the size of a weight: mxfp4 has a scale byte per 32 elements,
# the 4-bit integers a 16-bit scale per 128.
BYTES = {
    "fp64": 8.0,
    "fp32": 4.0,
    "fp16": 2.0,
    "bf16": 2.0,
    "fp8": 1.0,
    "bf8": 1.0,
    "int8": 1.0,
    "int4": 0.5,
    "fp8_block": 1.0 + 4.0 / (128 * 128),
    "nvfp4": 0.5 + 1.0 / 16,
    "bfp8": 1088 / 1024,
    "bfp4": 576 / 1024,
    "uint8": 1.0,
    "uint16": 2.0,
    "uint32": 4.0,
    "int32": 4.0,
    "int4_wo": 0.5 + 2.0 / 128,
    "w4afp8": 0.5 + 2.0 / 128,
    "w4a16_mxfp4": 0.5 + 1.0 / 32,
    "w4a8_mxfp4_mxfp8": 0.5 + 1.0 / 32,
}

# The type in which a format is multiplied, where it is not the format itself: the narrow weights are widened when they are
# loaded, and scales of blocks do not change the rate. A device's peak rate of the format is the one of that type.
MULTIPLIED_AS = {
    "fp8_block": "fp8",
    "int4_wo": "bf16",
    "w4afp8": "fp8",
    "w4a16_mxfp4": "bf16",
    "w4a8_mxfp4_mxfp8": "fp8",
}

# The type whose rate counts for an op that declares arithmetic and no `dtype`.
IMPLIED = "fp32"

# Types of the same size that are multiplied at the same rate by every device that has both: a kernel takes as long with either.
TWINS = {"fp16": "bf16", "bf16": "fp16"}

# How other tools spell them. Case and a module in front (`torch.`, `np.`, `DataType.`) do not matter.
SPELLINGS = {
    **{name: name for name in CODES},
    "float64": "fp64", "double": "fp64", "f64": "fp64",
    "float32": "fp32", "float": "fp32", "f32": "fp32", "single": "fp32",
    "float16": "fp16", "half": "fp16", "f16": "fp16", "__half": "fp16",
    "bfloat16": "bf16", "__nv_bfloat16": "bf16", "__hip_bfloat16": "bf16",
    "float8_e4m3fn": "fp8", "float8_e4m3fnuz": "fp8", "float8_e4m3": "fp8", "fp8_e4m3": "fp8", "fp8e4m3": "fp8", "e4m3": "fp8",
    "fp8e4nv": "fp8", "float8_e5m2": "bf8", "float8_e5m2fnuz": "bf8", "fp8_e5m2": "bf8", "fp8e5m2": "bf8", "e5m2": "bf8",
    "fp8e5": "bf8", "i8": "int8", "s8": "int8", "i4": "int4", "s4": "int4", "i32": "int32", "s32": "int32",
    "u8": "uint8", "u16": "uint16", "u32": "uint32",
    # Tenstorrent's block floating point, with and without the suffix of its layout.
    "bfloat8": "bfp8", "bfloat8_b": "bfp8", "bfp8_b": "bfp8", "bfloat4": "bfp4", "bfloat4_b": "bfp4", "bfp4_b": "bfp4",
}  # fmt: skip


def named(text: str) -> str | None:
    """The dtype that a text spells (`torch.bfloat16`, `BF16`, `half`), or None."""
    return SPELLINGS.get(re.sub(r"^(?:[a-z]\w*\.)+", "", text.strip().lower()))


def spelled(*texts: str) -> dict[str, str]:
    """A translation of the spellings of one tool."""
    return {text: SPELLINGS[text.rpartition(".")[2]] for text in texts}


def spellings_of(parameter: Categorical) -> Callable[[str], str | None]:
    """What a text means to a parameter: a dtype, if the parameter takes that dtype. Other parameters know no spellings."""
    codes = dict(parameter.labels)
    if not set(codes.items()) <= set(CODES.items()):
        return lambda text: None

    def meaning(text: str) -> str | None:
        found = named(text)
        return found if found in codes else None

    return meaning


_ACTIVATION_BYTES = {name: BYTES[MULTIPLIED_AS.get(name, name)] for name in CODES}


def dtype_parameter(*names: str, **shared: Any) -> Categorical:
    """A dtype parameter that takes some of the names above (all formats of tensors when none is given)."""
    return Categorical({name: CODES[name] for name in names or OF_TENSORS}, spelled=named, **shared)


def bytes_per_element(dtype: Expr) -> Expr:
    """The size of one element of the dtype that a symbol names; of a format with narrow weights, of a weight."""
    return by_dtype(BYTES, dtype)


def activation_bytes(dtype: Expr) -> Expr:
    """The size of one element of what weights of a format are multiplied by."""
    return by_dtype(_ACTIVATION_BYTES, dtype)


def by_dtype(numbers: Mapping[str, float], dtype: Expr) -> Expr:
    """The number of the dtype that a symbol names; 0 if it has none."""
    return lookup(ConstantTable.of([numbers.get(name, 0.0) for name in CODES]), dtype)
