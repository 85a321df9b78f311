"""Writing TOML: strings, inline tables and comments that hold any text and nothing else."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from kerncast.core.io.terminal import line

_SHORT = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def string(text: str) -> str:
    """A basic string, also as a key; what a terminal would not show as it is has its code."""
    return '"' + "".join(_SHORT.get(char) or (char if char.isprintable() else _code(char)) for char in text) + '"'


def _code(char: str) -> str:
    number = ord(char)
    if 0xD800 <= number < 0xE000:  # half of a character, which no TOML has
        number = 0xFFFD
    return f"\\u{number:04X}" if number < 0x10000 else f"\\U{number:08X}"


def inline_table(values: Mapping[str, str]) -> str:
    """A table of strings in one line."""
    return "{ " + ", ".join(f"{string(key)} = {string(value)}" for key, value in values.items()) + " }"


def value(given: str | bool | int | Sequence[Any] | Mapping[str, Any]) -> str:
    """Text, a flag, a number, a list of such, or a table of such in one line."""
    if isinstance(given, str):
        return string(given)
    if isinstance(given, bool | int):
        return str(given).lower()
    if isinstance(given, Mapping):
        return "{ " + ", ".join(f"{key(name)} = {value(item)}" for name, item in given.items()) + " }"
    return f"[{', '.join(map(value, given))}]"


def key(name: str) -> str:
    """A key: as it is where TOML allows that."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name, re.ASCII) else string(name)


def comment(text: object) -> str:
    """A comment: one line."""
    return f"# {line(text)}"
