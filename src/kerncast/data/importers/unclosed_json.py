"""Read JSON objects that may be cut off: the complete entries of one long list or object inside, with their lines."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kerncast.errors import BadFile

SPACE = " \t\r\n"


@dataclass(frozen=True)
class Entries:
    """The members other than the long one, and the entries of that one with the lines on which they begin."""

    name: str
    header: dict[str, Any]
    entries: list[tuple[int, Any]]
    damaged: list[tuple[int, str]]
    """The lines and texts of entries that are not JSON; reading went on at the next one."""


class _Reader:
    def __init__(self, text: str) -> None:
        self.text, self.decoder = text, json.JSONDecoder()
        self.last = len(text.rstrip())
        self.counted, self.lines = 0, 1

    def skip(self, place: int) -> int:
        while place < self.last and self.text[place] in SPACE:
            place += 1
        return place

    def line(self, place: int) -> int:
        """The line of a place; places must not decrease from call to call."""
        self.lines += self.text.count("\n", self.counted, place)
        self.counted = place
        return self.lines

    def expect(self, place: int, mark: str) -> int:
        place = self.skip(place)
        if place >= self.last or self.text[place] != mark:
            raise json.JSONDecodeError(f"expected '{mark}'", self.text, min(place, self.last))
        return place + 1

    def value(self, place: int) -> tuple[Any, int]:
        return self.decoder.raw_decode(self.text, self.skip(place))

    def member(self, place: int) -> tuple[str, int]:
        """A key, and the place of its value."""
        key, place = self.value(self.expect(place, '"') - 1)
        return key, self.expect(place, ":")

    def following(self, place: int, closing: str) -> int | None:
        """The place after the comma, or None at the end."""
        place = self.skip(place)
        if place < self.last and self.text[place] == closing:
            return None
        return self.expect(place, ",")


def read_unclosed(text: str, names: Sequence[str]) -> Entries:
    """Read an object whose member called one of `names` is long and may break off on the last line of the text."""
    reader = _Reader(text)
    header: dict[str, Any] = {}
    entries: list[tuple[int, Any]] = []
    damaged: list[tuple[int, str]] = []
    name = ""
    try:
        place: int | None = reader.expect(0, "{")
        while place is not None:
            key, place = reader.member(place)
            if key in names and not name:
                name = key
                place = _entries(reader, place, entries, damaged)
            else:
                header[key], place = reader.value(place)
            place = reader.following(place, "}")
    except (json.JSONDecodeError, RecursionError) as error:
        broken = error.lineno if isinstance(error, json.JSONDecodeError) else 1
        # An error on the last line means that the text was cut off; an error before it means damage.
        if not name or not entries or broken < text.count("\n", 0, reader.last) + 1:
            words = error.msg if isinstance(error, json.JSONDecodeError) else "nested too deeply"
            raise BadFile(f"line {broken}: this is not JSON, or it is damaged ({words})") from error
    if not name:
        raise BadFile(f"line 1: the file has no member {' or '.join(f'`{item}`' for item in names)}")
    return Entries(name, header, entries, damaged)


def _entries(reader: _Reader, place: int, entries: list[tuple[int, Any]], damaged: list[tuple[int, str]]) -> int:
    """Add the entries of an object or a list, each with its line; return the place after it."""
    begin = reader.skip(place)
    keyed = reader.text[begin : begin + 1] == "{"
    closing = "}" if keyed else "]"
    following: int | None = reader.expect(begin, "{" if keyed else "[")
    assert following is not None
    place = reader.skip(following)
    if reader.text[place : place + 1] == closing:
        following = None
    while following is not None:
        begin = reader.skip(following)
        try:
            value, place = reader.value(reader.member(begin)[1] if keyed else begin)
            following = reader.following(place, closing)
            entries.append((reader.line(begin), value))
        except (json.JSONDecodeError, RecursionError):
            following = next_entry(reader.text, begin, keyed)
            if following is None:
                raise
            damaged.append((reader.line(begin), reader.text[begin:following].strip()))
    return reader.expect(place, closing)


def next_entry(text: str, begin: int, keyed: bool) -> int | None:
    """The place where the next entry begins, on a line of its own that is indented like the damaged one; None: nowhere."""
    line = text.rfind("\n", 0, begin) + 1
    indent = text[line:begin]
    if indent.strip():  # several entries share a line: where the next one begins cannot be told
        return None
    start = r'"[^"\n]*"\s*:\s*\{' if keyed else r"\{"
    found = re.compile(rf"\n{re.escape(indent)}(?={start})").search(text, begin)
    return found.end() if found else None
