"""What a caller gives: paths, one value or several, `NAME=VALUE`."""

from __future__ import annotations

import os
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kerncast.errors import BadFile, InvalidValue

# Of a part of a path, in bytes, on all common file systems.
LONGEST_NAME = 255


def given_path(given: Any, rule: str, next_step: str) -> Path:
    """The path; a value of another kind (a frame, a mapping) is refused with what was expected and what to do instead."""
    if not isinstance(given, str | os.PathLike):
        raise InvalidValue(f"{rule} was expected, got {type(given).__name__}: {next_step}")
    return Path(given)


def as_text(name: str) -> str:
    """A file's name as text that can be written down; a name need not be UTF-8."""
    return os.fsencode(name).decode(errors="replace")


def names_a_file_inside(name: str) -> bool:
    """Whether a name that a manifest lists can be that of a file in its folder."""
    place = Path(name)
    short = all(0 < len(os.fsencode(part)) <= LONGEST_NAME for part in place.parts)
    return bool(place.parts) and short and "\0" not in name and not place.is_absolute() and ".." not in place.parts


def refuse_endless(path: Path) -> None:
    """Refuse a pipe or a device, which may never end and cannot be read twice."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise BadFile(f"{path} is a pipe or a device, not a file: save what it holds in a file, and name that")


def listed(given: Any) -> list[Any]:
    """The items of a list and the like; any other value, such as a frame, is one item, for the caller to accept or refuse."""
    one = (
        isinstance(given, str | bytes | os.PathLike | Mapping)
        or hasattr(type(given), "columns")
        or not isinstance(given, Iterable)
    )
    return [given] if one else list(given)


def texts(given: str | Sequence[str] | None, rule: str = "a text or a list of texts") -> tuple[str, ...]:
    """One text or several, as a tuple."""
    found = [] if given is None else listed(given)
    for item in found:
        if not isinstance(item, str | os.PathLike):
            raise InvalidValue(f"{rule} was expected, got {type(item).__name__} {' '.join(reprlib.repr(item).split())}")
    return tuple(map(str, found))


def named_values(given: Mapping[str, Any] | Sequence[str] | None, argument: str) -> dict[str, str]:
    """A mapping, or `NAME=VALUE` texts with each name once."""
    if isinstance(given, Mapping):
        return {name: str(value) for name, value in given.items()}
    found: dict[str, str] = {}
    for pair in texts(given):
        name, separator, text = pair.partition("=")
        if not separator or not name or not text:
            raise InvalidValue(f"`{argument}` takes NAME=VALUE, got '{pair}'")
        if name in found:
            raise InvalidValue(f"`{argument}` {name} is given twice: keep one")
        found[name] = text
    return found
