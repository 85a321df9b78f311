"""torch-diode's files, as JSON or msgpack, taken apart.

    {"hardware": {"NVIDIA H100": {"operation": {"mm": {"solution": {SHAPE: {"config": [TILE, …]}}}}}}}    a table
    {"hardware": … {SHAPE: {"timed_configs": [{"config": TILE, "time": 0.02}, …]}}}                       a dataset
    {"config": [TILE, …]}                                                  a max-autotune solution, for every problem
    {"mm": {"config": [TILE, …]}, "addmm": …}                              one for each operation

SHAPE is the text of a JSON object (B, M, N, K, M_dtype, K_dtype, …), TILE an object (block_m, block_n, block_k,
num_stages, num_warps, …) or its text. Times are milliseconds, although torch-diode's types call them seconds: they are what
Inductor measured. Formats as written by https://github.com/exclamaforte/diode
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from kerncast.core.io.foreign import decode_json, key_rule
from kerncast.errors import BadFile
from kerncast.library.families.torch_products import dtype_of

LEVELS = ("hardware", "operation", "solution")
TIMED = "timed_configs"
CONFIGS = ("config", TIMED)
# torch-diode's converter gives this name to configs without an operation.
ANY_OP = "default"


class Shape(msgspec.Struct, frozen=True):
    """A matrix product; sizes that were symbols at compile time are text (`s77`)."""

    M: int | str
    N: int | str
    K: int | str
    M_dtype: str
    K_dtype: str
    B: int | str = 1


@dataclass(frozen=True)
class Entry:
    """The configs in one place of the file, and what they are for; None: the file does not say."""

    hardware: str | None
    op: str | None
    shape: str | None
    items: list[Any]
    """Configs, or with `timed` objects with a `config` and a `time`."""
    timed: bool


@dataclass(frozen=True)
class Unusable:
    """Why gemm has no such problem: `shape` (a symbol) or `dtype`, and what says so."""

    reason: str
    name: str


def is_diode(data: Mapping[Any, Any]) -> bool:
    """Whether an object looks like one of these files."""
    if any(isinstance(data.get(level), dict) for level in LEVELS) or isinstance(data.get("config"), list):
        return True
    parts = list(data.values())
    return bool(parts) and all(isinstance(part, dict) and isinstance(part.get("config"), list) for part in parts)


def as_object(value: Any, what: str) -> dict[str, Any]:
    """An object, or the text of one."""
    if isinstance(value, str):
        try:
            value = decode_json(value)
        except msgspec.DecodeError as error:
            raise BadFile(f"{what} is text that is not JSON ({error}): '{value:.100}'") from error
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
        raise BadFile(f"{what} must be an object, got {value!r:.100}")
    return value


def entries(data: Mapping[str, Any], hardware: str | None = None, op: str | None = None) -> Iterator[Entry]:
    """Every list of configs in a file, in its order."""
    level = next((name for name in LEVELS if name in data), None)
    if level is not None:
        for name, part in as_object(data[level], f"`{level}`").items():
            inner = as_object(part, f"`{level}` of '{name:.100}'")
            if level == "solution":
                yield _entry(hardware, op, name, inner)
            else:
                yield from entries(inner, name if level == "hardware" else hardware, name if level == "operation" else op)
    elif any(name in data for name in CONFIGS):
        yield _entry(hardware, op, None, data)
    else:
        for name, part in data.items():
            yield _entry(hardware, None if name == ANY_OP else name, None, as_object(part, f"'{name:.100}'"))


def _entry(hardware: str | None, op: str | None, shape: str | None, part: Mapping[str, Any]) -> Entry:
    name = next((name for name in CONFIGS if name in part), None)
    listed = part[name] if name is not None else None
    if not isinstance(listed, list):
        raise BadFile(f"a solution must have a list of configs under `config` or `{TIMED}`, got {dict(part)!s:.100}")
    return Entry(hardware, op, shape, listed, name == TIMED)


def problem_of(text: str) -> dict[str, Any] | Unusable:
    """The sizes and the dtype of a shape; it never says how A and B are stored."""
    try:
        shape = msgspec.convert(as_object(text, "a shape"), Shape)
    except msgspec.ValidationError as error:
        raise BadFile(f"not a shape ({key_rule(error)}): '{text:.200}'") from error
    sizes = {"M": shape.M, "N": shape.N, "K": shape.K, "batch": shape.B}
    if any(isinstance(size, str) for size in sizes.values()):
        return Unusable("shape", text)
    dtype = dtype_of(shape.M_dtype)
    if dtype is None or shape.K_dtype != shape.M_dtype:
        return Unusable("dtype", f"{shape.M_dtype}, {shape.K_dtype}")
    return {**sizes, "dtype": dtype}
