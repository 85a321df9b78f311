"""Vectors of tt-metal's sweep framework, translated into problems of known ops."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from kerncast.budgets import JSON_BYTES
from kerncast.data.importers.unclosed_json import next_entry
from kerncast.errors import BadFile, InvalidValue
from kerncast.families.reshard import reshard_single
from kerncast.families.single import eltwise_unary_single
from kerncast.op import Family
from kerncast.ops.ttnn import INPUT, NAMES, TILE
from kerncast.parameters import Value
from kerncast.parsing import decode_json

LONGEST = 300
_SPACE = re.compile(r"[ \t\r\n]*")
_GRID = re.compile(r"(?:ttnn\.)?CoreGrid\((?:x=(\d{1,9}), y=(\d{1,9})|y=(\d{1,9}), x=(\d{1,9}))\)")
_SIDES = {"input": "in", "output": "out"}
RESHARD = {"shape", "dtype", *(f"{side}_{what}" for side in _SIDES for what in ("core_grid", "shard_strategy"))}
UNARY = {"input_shape", "input_a_dtype", "input_a_memory_config"}


def read_text(path: Path) -> str:
    """A file as text."""
    try:
        return JSON_BYTES.read(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadFile(f"{path} is not a text file ({error.reason} at byte {error.start}): is it compressed?") from error


class OtherOp(InvalidValue):
    """A vector of an op that is not known here; the message names it."""


def list_entries(text: str, damaged: Callable[[int, str], None]) -> Iterator[tuple[int, Any]]:
    """The entries of a JSON list, each with the line on which it begins.

    An entry that is not JSON goes to `damaged`, and reading goes on at the next one; a list that breaks off ends there.
    """
    decoder, counted, line, read = json.JSONDecoder(), 0, 1, 0

    def skip(place: int) -> int:
        found = _SPACE.match(text, place)
        return found.end() if found else place

    place = skip(0)
    try:
        if text[place : place + 1] != "[":
            raise json.JSONDecodeError("expected a list of results", text, min(place, len(text)))
        place = skip(place + 1)
        more = text[place : place + 1] != "]"
        while more:
            line += text.count("\n", counted, place)
            counted = place
            try:
                value, end = decoder.raw_decode(text, place)
                end = skip(end)
                if text[end : end + 1] not in (",", "]"):
                    raise json.JSONDecodeError("expected ',' or ']'", text, min(end, len(text)))
            except (ValueError, RecursionError):
                following = next_entry(text, place, keyed=False)
                if following is None and not read:
                    raise
                damaged(line, text[place:following].strip())
                if following is None:
                    return
                place = following
                continue
            read += 1
            yield line, value
            more, place = text[end] == ",", skip(end + 1)
    except (ValueError, RecursionError) as error:
        where, words = line, "nested too deeply" if isinstance(error, RecursionError) else "a number with too many digits"
        if isinstance(error, json.JSONDecodeError):
            where, words = error.lineno, error.msg
        raise BadFile(f"line {where}: this is not a JSON list of results, or damaged ({words})") from error


def plain(value: Any) -> str | None:
    """A text that a table can store: one line, without the half surrogate pairs that JSON can contain."""
    if not isinstance(value, str):
        return None
    return " ".join(value[:LONGEST].encode("utf-8", "replace").decode().split())


def problem_of(vector: Mapping[str, Any], module: str) -> tuple[Family, dict[str, Value]]:
    """The family and the problem of a vector; InvalidValue for an unknown one."""
    family: Family
    if vector.keys() >= RESHARD:
        family, problem = reshard_single, _reshard(vector)
    elif vector.keys() >= UNARY:
        family, problem = eltwise_unary_single, _unary(vector, module)
    else:
        raise OtherOp(module or "without a name")
    # Only ranges are checked: the sweep may have tried tensors that fit no card or divide unevenly.
    for name, value in problem.items():
        if not _is_value(family, name, value):
            raise InvalidValue(f"{name} must be {family.problem.parameters[name].describe()}, got {value!r}")
    return family, problem


@cache
def _is_value(family: Family, name: str, value: Value) -> bool:
    """Whether a parameter has this value. A sweep has millions of vectors, and few values."""
    return family.problem.parameters[name].index(value) is not None


def _reshard(vector: Mapping[str, Any]) -> dict[str, Value]:
    *outer, height, width = _shape(_text(vector, "shape"))
    if any(size != 1 for size in outer) or height % TILE or width % TILE:
        raise InvalidValue(f"a resharded tensor has shape [1, 1, {TILE}·j, {TILE}·i], got {_text(vector, 'shape')!r}")
    problem: dict[str, Value] = {"height_tiles": height // TILE, "width_tiles": width // TILE}
    for side, own in _SIDES.items():
        problem[f"{own}_x"], problem[f"{own}_y"] = _grid(_text(vector, f"{side}_core_grid"))
        problem[f"{own}_strategy"] = _label(_text(vector, f"{side}_shard_strategy"), "ShardStrategy", f"{own}_strategy")
        turned = _text(vector, f"{side}_shard_orientation", "ShardOrientation.ROW_MAJOR")
        problem[f"{own}_orientation"] = _label(turned, "ShardOrientation", f"{own}_orientation")
    return problem | {"dtype": _spelled("dtype", _text(vector, "dtype"))}


def _unary(vector: Mapping[str, Any], module: str) -> dict[str, Value]:
    shape = _shape(_text(vector, "input_shape"))
    problem: dict[str, Value] = dict(zip(("dim0", "dim1", "dim2", "dim3"), shape, strict=True))
    problem["func"] = module.rpartition(".")[2]
    if eltwise_unary_single.problem.parameters["func"].index(problem["func"]) is None:
        raise OtherOp(module or "unary, without a name")
    problem["dtype"] = _spelled("dtype", _text(vector, "input_a_dtype"))
    problem["layout"] = _spelled("layout", _text(vector, "input_a_layout", "Layout.TILE"))
    problem |= _memory(vector["input_a_memory_config"])
    out = _memory(vector.get("output_memory_config", vector["input_a_memory_config"]))
    # An output in the same memory as the input always gets the same label.
    return problem | {f"out_{name}": INPUT if value == problem[name] else value for name, value in out.items()}


def _text(vector: Mapping[str, Any], name: str, default: str | None = None) -> str:
    value = vector.get(name, default)
    if isinstance(value, list):
        value = str(value)
    if isinstance(value, dict):
        value = _flat(value, name)
    if not isinstance(value, str):
        raise InvalidValue(f"{name} must be text, got {type(value).__name__}")
    return value


def _flat(value: Mapping[str, Any], name: str) -> str:
    """A grid that was written as an object."""
    data = value.get("data", value)
    data = _json(data) if isinstance(data, str) else data
    if not isinstance(data, dict) or not {"x", "y"} <= data.keys():
        raise InvalidValue(f"{name} must be text or a grid with x and y")
    return f"CoreGrid(x={data['x']}, y={data['y']})"


def _json(text: str) -> Any:
    try:
        return decode_json(text)
    except msgspec.DecodeError:
        return None


@cache
def _shape(text: str) -> tuple[int, ...]:
    """A shape, right-aligned to four dimensions."""
    if not re.fullmatch(r"[\[(]\d{1,9}(, *\d{1,9}){0,3}[\])]", text):
        raise InvalidValue(f"a shape is a list of up to four sizes, got {plain(text)!r}")
    sizes = tuple(map(int, re.findall(r"\d+", text)))
    return (1,) * (4 - len(sizes)) + sizes


@cache
def _grid(text: str) -> tuple[int, int]:
    found = _GRID.fullmatch(text)
    if found is None:
        raise InvalidValue(f"a core grid is CoreGrid(x=…, y=…), got {plain(text)!r}")
    x, y = (found[1], found[2]) if found[1] else (found[4], found[3])
    return int(x), int(y)


@cache
def _label(text: str, kind: str, parameter: str) -> str:
    """`ShardStrategy.BLOCK` as the label of a parameter."""
    label = text.removeprefix("ttnn.").removeprefix(f"{kind}.").lower()
    if reshard_single.problem.parameters[parameter].index(label) is None:
        raise InvalidValue(f"{kind} {plain(text)!r} is not known")
    return label


@cache
def _spelled(kind: str, text: str | int) -> str:
    """TTNN's name or number of an enumeration's member, in our words."""
    known = dict(NAMES[kind])
    given = text.removeprefix("ttnn.") if isinstance(text, str) else text
    if given not in known:
        raise InvalidValue(f"{kind} {plain(str(text))!r} is not known")
    return known[given]


def _memory(config: Any) -> dict[str, str]:
    """Buffer and sharding of a memory config: `{"type": …, "data": "{…}"}`, with its data unfolded, or the data alone."""
    data = config.get("data", config) if isinstance(config, dict) else config
    data = _json(data) if isinstance(data, str) else data
    if not isinstance(data, dict):
        raise InvalidValue("a memory config must be an object with buffer_type and memory_layout")
    found: dict[str, Any] = {"buffer": data.get("buffer_type"), "sharding": data.get("memory_layout", 0)}
    if not all(isinstance(value, str | int) and not isinstance(value, bool) for value in found.values()):
        raise InvalidValue("a memory config must have buffer_type and memory_layout as names or numbers")
    return {kind: _spelled(kind, value) for kind, value in found.items()}
