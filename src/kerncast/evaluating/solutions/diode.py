"""torch-diode's files, as JSON or msgpack.

    {"hardware": {"NVIDIA H100": {"operation": {"mm": {"solution": {SHAPE: {"config": [TILE, …]}}}}}}}    a table
    {"hardware": … {SHAPE: {"timed_configs": [{"config": TILE, "time": 0.02}, …]}}}                       a dataset
    {"config": [TILE, …]}                                                  a max-autotune solution, for every problem
    {"mm": {"config": [TILE, …]}, "addmm": …}                              one for each operation

SHAPE is the text of a JSON object (B, M, N, K, M_dtype, K_dtype, …), TILE an object (block_m, block_n, block_k,
num_stages, num_warps, …) or its text. Timed configs are preferred by their time. Formats as written by
https://github.com/exclamaforte/diode
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from kerncast.errors import BadFile
from kerncast.evaluating.solutions.solution import LeftOut, Solution, Target
from kerncast.evaluating.solutions.torch_tiles import OPS, Tile, dtype_of, of_tile, require_triton
from kerncast.parsing import decode_json
from kerncast.writing.keys import key_rule

FORMAT = "torch-diode file"
LEVELS = ("hardware", "operation", "solution")
CONFIGS = ("config", "timed_configs")
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
    configs: list[Any]


def is_diode(data: Mapping[Any, Any]) -> bool:
    """Whether an object looks like one of these files."""
    if any(isinstance(data.get(level), dict) for level in LEVELS) or isinstance(data.get("config"), list):
        return True
    parts = list(data.values())
    return bool(parts) and all(isinstance(part, dict) and isinstance(part.get("config"), list) for part in parts)


def read_diode(data: Mapping[str, Any], target: Target) -> Iterator[Solution | LeftOut]:
    """The choices of a file, in its order; the fastest first where it has times."""
    require_triton(target, FORMAT)
    for entry in _entries(data):
        count = len(entry.configs)
        if entry.hardware is not None and not target.is_on(entry.hardware):
            yield LeftOut("device", entry.hardware, count)
        elif entry.op is not None and (entry.op not in OPS or (entry.shape is None and entry.op != OPS[0])):
            yield LeftOut("op", entry.op, count)
        else:
            problem = _problem(entry)
            for config in entry.configs:
                if isinstance(problem, LeftOut):
                    yield problem
                else:
                    yield of_tile(problem, Tile.read(_object(config, "a config")))


def _object(value: Any, what: str) -> dict[str, Any]:
    """An object, or the text of one."""
    if isinstance(value, str):
        try:
            value = decode_json(value)
        except msgspec.DecodeError as error:
            raise BadFile(f"{what} is text that is not JSON ({error}): '{value:.100}'") from error
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
        raise BadFile(f"{what} must be an object, got {value!r:.100}")
    return value


def _entries(data: Mapping[str, Any], hardware: str | None = None, op: str | None = None) -> Iterator[Entry]:
    level = next((name for name in LEVELS if name in data), None)
    if level is not None:
        for name, part in _object(data[level], f"`{level}`").items():
            inner = _object(part, f"`{level}` of '{name:.100}'")
            if level == "solution":
                yield Entry(hardware, op, name, _configs(inner))
            else:
                yield from _entries(inner, name if level == "hardware" else hardware, name if level == "operation" else op)
    elif any(name in data for name in CONFIGS):
        yield Entry(hardware, op, None, _configs(data))
    else:
        for name, part in data.items():
            yield Entry(hardware, None if name == ANY_OP else name, None, _configs(_object(part, f"'{name:.100}'")))


def _configs(part: Mapping[str, Any]) -> list[Any]:
    name = next((name for name in CONFIGS if name in part), None)
    listed = part[name] if name is not None else None
    if not isinstance(listed, list):
        raise BadFile(f"a solution must have a list of configs under `config` or `timed_configs`, got {dict(part)!s:.100}")
    if name == "config":
        return listed
    timed = [_object(item, "a timed config") for item in listed]
    if not all(isinstance(item.get("time"), int | float) and "config" in item for item in timed):
        raise BadFile("a timed config must have `config` and a number under `time`")
    return [item["config"] for item in sorted(timed, key=lambda item: item["time"])]


def _problem(entry: Entry) -> dict[str, Any] | LeftOut:
    """What an entry says about the problem; it never says how A and B are stored."""
    if entry.shape is None:
        return {}
    try:
        shape = msgspec.convert(_object(entry.shape, "a shape"), Shape)
    except msgspec.ValidationError as error:
        raise BadFile(f"not a shape ({key_rule(error)}): '{entry.shape:.200}'") from error
    sizes = {"M": shape.M, "N": shape.N, "K": shape.K, "batch": shape.B}
    if any(isinstance(size, str) for size in sizes.values()):
        return LeftOut("shape", entry.shape)
    dtype = dtype_of(shape.M_dtype)
    if dtype is None or shape.K_dtype != shape.M_dtype:
        return LeftOut("dtype", f"{shape.M_dtype}, {shape.K_dtype}")
    return {**sizes, "dtype": dtype}
