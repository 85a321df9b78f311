"""Text quoted for Markdown, TOML, Python and a shell: each function's result holds any text and nothing else."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from kerncast.core.io.terminal import line
from kerncast.errors import InvalidValue

# What can begin a span, an element, a link or a cell. One underscore between two letters cannot.
_SPECIAL = re.compile(r"[\\`*<>&\[\]|~]|(?<![^\W_])_|_(?![^\W_])")


def markdown_text(value: object) -> str:
    """Text within a paragraph, a heading or a cell: one line, with no markup of its own."""
    return _SPECIAL.sub(lambda found: f"\\{found[0]}", line(value))


def markdown_code(value: object) -> str:
    """A code span, also within a cell."""
    plain = line(value).replace("|", "\\|") or " "
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", plain)), default=0))
    return f"{fence}{plain}{fence}" if len(fence) == 1 else f"{fence} {plain} {fence}"


_TOML_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def toml_string(text: str) -> str:
    """A basic string, also as a key; what a terminal would not show as it is has its code."""
    return '"' + "".join(_TOML_ESCAPES.get(char) or (char if char.isprintable() else _toml_code(char)) for char in text) + '"'


def _toml_code(char: str) -> str:
    number = ord(char)
    if 0xD800 <= number < 0xE000:  # half of a character, which no TOML has
        number = 0xFFFD
    return f"\\u{number:04X}" if number < 0x10000 else f"\\U{number:08X}"


def toml_table(values: Mapping[str, str]) -> str:
    """A table of strings in one line."""
    return "{ " + ", ".join(f"{toml_string(key)} = {toml_string(value)}" for key, value in values.items()) + " }"


def toml_value(given: str | bool | int | Sequence[Any] | Mapping[str, Any]) -> str:
    """Text, a flag, a number, a list of such, or a table of such in one line."""
    if isinstance(given, str):
        return toml_string(given)
    if isinstance(given, bool | int):
        return str(given).lower()
    if isinstance(given, Mapping):
        return "{ " + ", ".join(f"{toml_key(name)} = {toml_value(item)}" for name, item in given.items()) + " }"
    return f"[{', '.join(map(toml_value, given))}]"


def toml_key(name: str) -> str:
    """A key: as it is where TOML allows that."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name, re.ASCII) else toml_string(name)


def toml_comment(text: object) -> str:
    """A comment: one line."""
    return f"# {line(text)}"


def python_literal(value: str | int | float | bool) -> str:
    """A value as source code. Only ASCII: what is not is written by its code, so no editor shows it as something else."""
    if isinstance(value, float) and not math.isfinite(value):
        raise InvalidValue(f"a number in generated Python must be finite, got {value}")
    if not isinstance(value, str | int | float):
        raise InvalidValue(f"only texts, numbers and flags are written as Python, got {type(value).__name__}")
    # Subclasses may have a repr of their own.
    plain = next(kind(value) for kind in (bool, int, float, str) if isinstance(value, kind))
    return ascii(plain)


def python_comment(text: object) -> str:
    """A comment: one line, only ASCII."""
    return f"# {line(text).encode('ascii', 'backslashreplace').decode()}"


def word(text: object) -> str:
    """One word of a command; a text with control characters is written with their codes (`$'…'`, as bash and zsh read it)."""
    plain = str(text)
    if plain.isprintable():
        return shlex.quote(plain)
    return "$'" + "".join(_shell_code(char) for char in plain) + "'"


def _shell_code(char: str) -> str:
    if char in "\\'":
        return f"\\{char}"
    if char.isprintable():
        return char
    # Half of a character stands for a byte of a path that is not UTF-8.
    errors = "surrogateescape" if "\udc80" <= char <= "\udcff" else "surrogatepass"
    return "".join(f"\\{byte:03o}" for byte in char.encode("utf-8", errors))
