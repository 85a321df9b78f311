"""The fields of a sweep vector as texts and numbers: what tt-metal's framework writes for shapes, enumerations and memory."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from functools import cache
from typing import Any

import msgspec

from kerncast.core.io.foreign import decode_json
from kerncast.errors import InvalidValue
from kerncast.library.ops.ttnn import NAMES

LONGEST = 300
_LITERAL = re.compile(r"(?:[-\d(), .e\[\]+]|True|False|None)+")


class OtherOp(InvalidValue):
    """A vector of an op that is not known here; the message names it."""


def plain(value: Any) -> str | None:
    """A text that a table can store: one line, without the half surrogate pairs that JSON can contain."""
    if not isinstance(value, str):
        return None
    return " ".join(value[:LONGEST].encode("utf-8", "replace").decode().split())


def field_text(vector: Mapping[str, Any], name: str, default: str | None = None) -> str:
    """A field as the framework's older versions write it: as text."""
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
def shape_of(text: str) -> tuple[int, ...]:
    """A shape, right-aligned to four dimensions."""
    if not re.fullmatch(r"[\[(]\d{1,9}(, *\d{1,9}){0,3}[\])]", text):
        raise InvalidValue(f"a shape is a list of up to four sizes, got {plain(text)!r}")
    sizes = tuple(map(int, re.findall(r"\d+", text)))
    return (1,) * (4 - len(sizes)) + sizes


@cache
def spelled(kind: str, text: str | int) -> str:
    """TTNN's name or number of an enumeration's member, in our words."""
    known = dict(NAMES[kind])
    given = text.removeprefix("ttnn.") if isinstance(text, str) else text
    if given not in known:
        raise InvalidValue(f"{kind} {plain(str(text))!r} is not known")
    return known[given]


def memory_of(config: Any) -> dict[str, str]:
    """Buffer and sharding of a memory config: `{"type": …, "data": "{…}"}`, with its data unfolded, or the data alone."""
    data = config.get("data", config) if isinstance(config, dict) else config
    data = _json(data) if isinstance(data, str) else data
    if not isinstance(data, dict):
        raise InvalidValue("a memory config must be an object with buffer_type and memory_layout")
    found: dict[str, Any] = {"buffer": data.get("buffer_type"), "sharding": data.get("memory_layout", 0)}
    if not all(isinstance(value, str | int) and not isinstance(value, bool) for value in found.values()):
        raise InvalidValue("a memory config must have buffer_type and memory_layout as names or numbers")
    return {kind: spelled(kind, value) for kind, value in found.items()}


def whole_number(vector: Mapping[str, Any], name: str) -> int:
    """A whole number, or the text of one."""
    value = vector.get(name)
    if isinstance(value, str) and re.fullmatch(r"\d{1,9}", value):
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise InvalidValue(f"{name} must be a whole number, got {plain(str(value))!r}")


def flag(vector: Mapping[str, Any], name: str) -> bool:
    """True or False, or Python's text of them."""
    value = vector.get(name)
    found = {"True": True, "False": False}.get(value) if isinstance(value, str) else value
    if not isinstance(found, bool):
        raise InvalidValue(f"{name} must be True or False, got {plain(str(value))!r}")
    return found


def literal(vector: Mapping[str, Any], name: str) -> Any:
    """A tuple of numbers, flags and tuples, or Python's text of one."""
    value = vector.get(name)
    if not isinstance(value, str):
        return value
    if len(value) > LONGEST or not _LITERAL.fullmatch(value):
        raise InvalidValue(f"{name} must be a tuple of numbers and shapes, got {plain(value)!r}")
    try:
        return ast.literal_eval(value)
    except (SyntaxError, ValueError) as error:
        raise InvalidValue(f"{name} must be a tuple of numbers and shapes, got {plain(value)!r}") from error
