"""A strict JSON parser that keeps the place of each value: `query_check.c` of the exported C, in Python.

The same texts are refused in the same words, and a value that is refused can be shown as it was written.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

DEEPEST = 16
LONGEST_SHOWN = 40
WHOLE = 2**63
# From here on a writer that uses doubles may have rounded, so numbers with a point or an exponent are not trusted.
WHOLE_AS_DOUBLE = 2**53

_SPACE = re.compile(rb"[ \t\n\r]*")
_DIGITS = re.compile(rb"[0-9]+")
_NUMBER = re.compile(rb"(-?)([0-9]+)(?:\.([0-9]+))?(?:[eE]([+-]?)([0-9]+))?")
_ESCAPE = (
    rb'\\(?:["\\/bfnrt]|u(?:[0-9a-cA-CeEfF][0-9a-fA-F]{3}|[dD][0-7][0-9a-fA-F]{2}'
    rb"|[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}))"
)
_UTF8 = (
    rb"[\xc2-\xdf][\x80-\xbf]|\xe0[\xa0-\xbf][\x80-\xbf]|[\xe1-\xec\xee\xef][\x80-\xbf]{2}|\xed[\x80-\x9f][\x80-\xbf]"
    rb"|\xf0[\x90-\xbf][\x80-\xbf]{2}|[\xf1-\xf3][\x80-\xbf]{3}|\xf4[\x80-\x8f][\x80-\xbf]{2}"
)
_INSIDE = re.compile(rb'(?:[^"\\\x00-\x1f\x80-\xff]+|' + _ESCAPE + b"|" + _UTF8 + b")*")
_ESCAPES = 'an escape must be one of \\" \\\\ \\/ \\b \\f \\n \\r \\t, or \\u and four hexadecimal digits, surrogates in pairs'
_WORDS = ((b"true", True), (b"false", False), (b"null", None))


class NotJson(Exception):
    """Where a text stops being JSON, and why."""

    def __init__(self, data: bytes, position: int, rule: str) -> None:
        found = "the end of the text"
        if position < len(data):
            byte = data[position]
            found = chr(byte) if 0x20 < byte < 0x7F else f"byte 0x{byte:02x}"
        super().__init__(f"{rule}, found {found}")
        self.position = position


@dataclass(frozen=True, slots=True)
class Number:
    """A number, as far as requests need it."""

    whole: int | None
    """The value if it is exactly whole: all of int64 but its smallest in digits alone, below 2^53 otherwise."""


Members = tuple[tuple["Token", "Token"], ...]


@dataclass(frozen=True, slots=True)
class Token:
    """A value: `what` is a str, a bool, None, a Number, a list of tokens, or (of an object) its Members."""

    data: bytes
    start: int
    end: int
    what: Any

    def shown(self) -> str:
        """The value as it was written; a long one is cut between characters."""
        end = min(self.end, self.start + LONGEST_SHOWN)
        while end < self.end and self.data[end] & 0xC0 == 0x80:
            end += 1
        return self.data[self.start : end].decode() + ("..." if end < self.end else "")


def scan(data: bytes) -> Token:
    """The one value that a text holds."""
    at = _after_space(data, 0)
    if at == len(data):
        raise NotJson(data, at, "a request must be an object, or a list of objects")
    found = _value(data, at, 0)
    end = _after_space(data, found.end)
    if end < len(data):
        raise NotJson(data, end, "nothing may follow the request")
    return found


def _after_space(data: bytes, at: int) -> int:
    found = _SPACE.match(data, at)
    assert found is not None  # the pattern also matches the empty string
    return found.end()


def _value(data: bytes, at: int, depth: int) -> Token:
    first = data[at : at + 1]
    if first == b"{" or first == b"[":
        if depth == DEEPEST:
            raise NotJson(data, at, f"brackets must not nest more than {DEEPEST} deep")
        return _container(data, at, depth + 1, "}" if first == b"{" else "]")
    if first == b'"':
        return _string(data, at)
    if first == b"-" or first.isdigit():
        return _number(data, at)
    for word, what in _WORDS:
        if data.startswith(word, at):
            return Token(data, at, at + len(word), what)
    raise NotJson(data, at, "a value must be an object, a list, a string, a number, true, false or null")


def _container(data: bytes, start: int, depth: int, closing: str) -> Token:
    items: list[Any] = []
    at, close = _after_space(data, start + 1), closing.encode()
    more = data[at : at + 1] != close
    while more:
        if closing == "}":
            key, at = _key(data, at)
        value = _value(data, at, depth)
        items.append((key, value) if closing == "}" else value)
        at = _after_space(data, value.end)
        more = data[at : at + 1] == b","
        if more:
            at = _after_space(data, at + 1)
        elif data[at : at + 1] != close:
            raise NotJson(data, at, f"a comma or {closing} must follow")
    return Token(data, start, at + 1, tuple(items) if closing == "}" else items)


def _key(data: bytes, at: int) -> tuple[Token, int]:
    if data[at : at + 1] != b'"':
        raise NotJson(data, at, "a key in double quotes is expected here")
    key = _string(data, at)
    at = _after_space(data, key.end)
    if data[at : at + 1] != b":":
        raise NotJson(data, at, "a colon must follow a key")
    return key, _after_space(data, at + 1)


def _string(data: bytes, start: int) -> Token:
    found = _INSIDE.match(data, start + 1)
    assert found is not None
    at = found.end()
    if at == len(data):
        raise NotJson(data, at, "a string must end with a double quote")
    if data[at] < 0x20:
        raise NotJson(data, at, "control characters inside a string must be written as escapes")
    if data[at] == ord("\\"):
        raise NotJson(data, at, _ESCAPES)
    if data[at] != ord('"'):
        raise NotJson(data, at, "strings must be UTF-8")
    inside = data[start + 1 : at].decode()
    return Token(data, start, at + 1, json.loads(f'"{inside}"') if "\\" in inside else inside)


def _number(data: bytes, start: int) -> Token:
    at = start + (data[start : start + 1] == b"-")
    if data[at : at + 1] == b"0" and data[at + 1 : at + 2].isdigit():
        raise NotJson(data, at, "a number must not begin with more than one zero")
    at = _after_digits(data, at)
    if data[at : at + 1] == b".":
        at = _after_digits(data, at + 1)
    if data[at : at + 1] in (b"e", b"E"):
        at = _after_digits(data, at + 1 + (data[at + 1 : at + 2] in (b"+", b"-")))
    return Token(data, start, at, Number(whole_of(data[start:at])))


def _after_digits(data: bytes, at: int) -> int:
    found = _DIGITS.match(data, at)
    if found is None:
        raise NotJson(data, at, "a digit is expected here")
    return found.end()


def whole_of(text: bytes) -> int | None:
    """The value of a number if it is exactly whole, from its digits, however many: doubles and Python's limit do not matter."""
    found = _NUMBER.fullmatch(text)
    assert found is not None
    sign, before, fraction, falls, exponent = found.groups()
    limit = WHOLE if fraction is None and exponent is None else WHOLE_AS_DOUBLE
    written = (before + (fraction or b"")).lstrip(b"0")
    digits = written.rstrip(b"0")
    if not digits:
        return 0
    power = (exponent or b"").lstrip(b"0")
    raised = 10**18 if len(power) > 18 else int(power or b"0")
    zeros = (-raised if falls == b"-" else raised) - len(fraction or b"") + len(written) - len(digits)
    if zeros < 0 or len(digits) + zeros > len(str(WHOLE)):
        return None
    value = int(digits) * 10**zeros
    return None if value >= limit else -value if sign else value
