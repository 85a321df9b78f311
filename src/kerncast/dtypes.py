"""Element types: one name, one code and one size each, everywhere.

Codes are part of every dataset and model: append, never renumber. `bfp8` and `bfp4` are Tenstorrent's block
floating-point tiles (a shared exponent byte per 16 elements), not the E5M2 type that is called `bf8` here.
"""

from __future__ import annotations

from typing import Any

from kerncast.expr import Expr, Table, lookup
from kerncast.parameters import Categorical

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
}

# Bytes per element, shared exponents and scales included where the format has them in the tensor:
# bfp8 is 1,088 bytes per 32×32 tile, bfp4 576; fp8_block has an fp32 scale per 128×128 block and nvfp4 an
# fp8 scale per 16 elements.
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
}

_BYTES_TABLE = Table.of([BYTES[name] for name in CODES])


def dtype_parameter(*names: str, **shared: Any) -> Categorical:
    """A dtype parameter that takes some of the names above (all of them when none is given)."""
    return Categorical({name: CODES[name] for name in names or CODES}, **shared)


def bytes_per_element(dtype: Expr) -> Expr:
    """The size of one element of the dtype that a symbol names."""
    return lookup(_BYTES_TABLE, dtype)
