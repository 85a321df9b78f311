"""The entries of one long list or object in a JSON file that may be cut off or damaged, each with its line."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from kerncast.errors import BadFile

SPACE = " \t\r\n"
# json raises ValueError for a number with too many digits.
NO_JSON = (ValueError, RecursionError)


@dataclass(frozen=True)
class Entries:
    """The members other than the long one, and the entries of that one with the lines on which they begin."""

    name: str
    header: dict[str, Any]
    entries: list[tuple[int, Any]]
    damaged: list[tuple[int, str]]
    """The lines and texts of entries that are not JSON; reading went on at the next one."""


def list_entries(text: str, damaged: Callable[[int, str], None]) -> Iterator[tuple[int, Any]]:
    """The entries of a JSON list, each with the line on which it begins.

    An entry that is not JSON goes to `damaged`, and reading goes on at the next one; a list that breaks off ends there.
    """
    reader = _JsonReader(text)
    try:
        start = reader.skip(0)
        if text[start : start + 1] != "[":
            raise json.JSONDecodeError("expected a list of results", text, start)
        yield from reader.entries(0, damaged)
    except NO_JSON as error:
        if reader.read:
            damaged(reader.line(reader.begin), text[reader.begin :].strip())
            return
        line, words = _what_is_wrong(error, reader.line(reader.begin))
        raise BadFile(f"line {line}: this is not a JSON list of results, or damaged ({words})") from error


def read_unclosed(text: str, names: Sequence[str]) -> Entries:
    """Read an object whose member called one of `names` is long and may break off on the last line of the text."""
    reader, name = _JsonReader(text), ""
    header: dict[str, Any] = {}
    entries: list[tuple[int, Any]] = []
    damaged: list[tuple[int, str]] = []
    try:
        place: int | None = reader.expect(0, "{")
        while place is not None:
            key, place = reader.member(place)
            if key in names and not name:
                name = key
                entries += reader.entries(place, lambda line, entry: damaged.append((line, entry)))
                place = reader.end
            else:
                header[key], place = reader.value(place)
            place = reader.following(place, "}")
    except NO_JSON as error:
        line, words = _what_is_wrong(error, 1)
        # An error on the last line means that the text was cut off; an error before it means damage.
        if not name or not entries or line < text.count("\n", 0, reader.last) + 1:
            raise BadFile(f"line {line}: this is not JSON, or it is damaged ({words})") from error
    if not name:
        raise BadFile(f"line 1: the file has no member {' or '.join(f'`{item}`' for item in names)}")
    return Entries(name, header, entries, damaged)


def _what_is_wrong(error: Exception, line: int) -> tuple[int, str]:
    """The line and the words of an error; `line` if it has none."""
    if isinstance(error, json.JSONDecodeError):
        return error.lineno, error.msg
    return line, "nested too deeply" if isinstance(error, RecursionError) else "a number with too many digits"


class _JsonReader:
    """Reads JSON from a text, a value at a time."""

    def __init__(self, text: str) -> None:
        self.text, self.decoder = text, json.JSONDecoder()
        self.last = len(text.rstrip())
        self.begin = self.end = 0
        """Where the last entry begins, and the place after all of them."""
        self.read = 0
        self._counted, self._lines = 0, 1

    def skip(self, place: int) -> int:
        while place < len(self.text) and self.text[place] in SPACE:
            place += 1
        return place

    def line(self, place: int) -> int:
        """The line of a place; places must not decrease from call to call."""
        self._lines += self.text.count("\n", self._counted, place)
        self._counted = place
        return self._lines

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

    def entries(self, place: int, damaged: Callable[[int, str], None]) -> Iterator[tuple[int, Any]]:
        """The entries of the object or the list at a place, each with its line; then `end` is the place after it."""
        place = self.skip(place)
        keyed = self.text[place : place + 1] == "{"
        closing = "}" if keyed else "]"
        following: int | None = self.expect(place, "{" if keyed else "[")
        place = self.skip(place + 1)
        if self.text[place : place + 1] == closing:
            following = None
        while following is not None:
            begin = self.begin = self.skip(following)
            try:
                value, place = self.value(self.member(begin)[1] if keyed else begin)
                following = self.following(place, closing)
            except NO_JSON:
                following = self._next_entry(begin, keyed)
                if following is None:
                    raise
                damaged(self.line(begin), self.text[begin:following].strip())
            else:
                self.read += 1
                yield self.line(begin), value
        self.end = self.expect(place, closing)

    def _next_entry(self, begin: int, keyed: bool) -> int | None:
        """The place where the next entry begins, on a line of its own that is indented like the damaged one; None: nowhere."""
        line = self.text.rfind("\n", 0, begin) + 1
        indent = self.text[line:begin]
        if indent.strip():  # several entries share a line: where the next one begins cannot be told
            return None
        start = r'"[^"\n]*"\s*:\s*\{' if keyed else r"\{"
        match = re.compile(rf"\n{re.escape(indent)}(?={start})").search(self.text, begin)
        return match.end() if match else None
