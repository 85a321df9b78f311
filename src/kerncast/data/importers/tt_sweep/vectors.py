"""Vectors of tt-metal's sweep framework, translated into problems of known ops."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from kerncast.core.io.foreign import JSON
from kerncast.core.op import Family
from kerncast.core.parameters import Value
from kerncast.data.importers.tt_sweep.fields import OtherOp, field_text, plain, shape_of, spelled
from kerncast.data.importers.tt_sweep.ttnn_ops import ttnn_problem
from kerncast.data.importers.unclosed_json import next_entry
from kerncast.errors import BadFile, InvalidValue
from kerncast.library.families.reshard import reshard_single
from kerncast.library.ops.ttnn import TILE

__all__ = ["OtherOp", "list_entries", "plain", "problem_of", "read_text"]

_SPACE = re.compile(r"[ \t\r\n]*")
_GRID = re.compile(r"(?:ttnn\.)?CoreGrid\((?:x=(\d{1,9}), y=(\d{1,9})|y=(\d{1,9}), x=(\d{1,9}))\)")
_SIDES = {"input": "in", "output": "out"}
RESHARD = {"shape", "dtype", *(f"{side}_{what}" for side in _SIDES for what in ("core_grid", "shard_strategy"))}


def read_text(path: Path) -> str:
    """A file as text."""
    try:
        return JSON.read(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadFile(f"{path} is not a text file ({error.reason} at byte {error.start}): is it compressed?") from error


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


def problem_of(vector: Mapping[str, Any], module: str) -> tuple[Family, dict[str, Value]]:
    """The family and the problem of a vector; InvalidValue for an unknown one."""
    family: Family
    if vector.keys() >= RESHARD:
        family, problem = reshard_single, _reshard(vector)
    else:
        family, problem = ttnn_problem(vector, module)
    # Only ranges are checked: the sweep may have tried tensors that fit no card or divide unevenly.
    for name, value in problem.items():
        if not _is_value(family, name, value):
            raise InvalidValue(f"{name} must be {family.problem.parameters[name].describe()}, got {value!r}")
    return family, problem


@cache
def _is_value(family: Family, name: str, value: Value) -> bool:
    """Whether a parameter has this value. A sweep has millions of vectors, and few values."""
    rule = family.problem.parameters[name]
    return rule.index(value) is not None or (value is None and rule.nullable)


def _reshard(vector: Mapping[str, Any]) -> dict[str, Value]:
    *outer, height, width = shape_of(field_text(vector, "shape"))
    if any(size != 1 for size in outer) or height % TILE or width % TILE:
        raise InvalidValue(f"a resharded tensor has shape [1, 1, {TILE}·j, {TILE}·i], got {field_text(vector, 'shape')!r}")
    problem: dict[str, Value] = {"height_tiles": height // TILE, "width_tiles": width // TILE}
    for side, own in _SIDES.items():
        problem[f"{own}_x"], problem[f"{own}_y"] = _grid(field_text(vector, f"{side}_core_grid"))
        problem[f"{own}_strategy"] = _label(field_text(vector, f"{side}_shard_strategy"), "ShardStrategy", f"{own}_strategy")
        turned = field_text(vector, f"{side}_shard_orientation", "ShardOrientation.ROW_MAJOR")
        problem[f"{own}_orientation"] = _label(turned, "ShardOrientation", f"{own}_orientation")
    return problem | {"dtype": spelled("dtype", field_text(vector, "dtype"))}


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
