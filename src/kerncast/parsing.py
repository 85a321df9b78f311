"""JSON, msgpack and TOML from files and other programs: too large, too deep or not text is an error like any other in it.

Parsers raise several kinds of errors for damage: a high bit that was flipped is a `UnicodeDecodeError`, a million brackets are
a `RecursionError`. Here each is the error for a bad document, which callers turn into their sentence.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable
from typing import Any, TypeVar, overload

import msgspec

from kerncast.budgets import JSON_BYTES, TOML_BYTES, TOML_KEY_PARTS

T = TypeVar("T")

TOO_DEEP = "it nests more deeply than can be read"
# One part of a dotted key with the dot after it, and where a key may begin. Nothing is tried twice.
_KEY_PART = r"""(?:[A-Za-z0-9_-]++|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+"""
_KEY_BEGINS = r"(?<![A-Za-z0-9_-])"


@overload
def decode_json(data: bytes | str) -> Any: ...
@overload
def decode_json(data: bytes | str, type: type[T]) -> T: ...
def decode_json(data: bytes | str, type: Any = Any) -> Any:
    """The value of strict JSON; `msgspec.DecodeError` if it is not."""
    JSON_BYTES.refuse(len(data), "a JSON document")
    try:
        return msgspec.json.decode(data, type=type)
    except RecursionError as error:
        raise msgspec.DecodeError(TOO_DEEP) from error
    except UnicodeError as error:
        raise msgspec.DecodeError(str(error)) from error


def load_json(data: bytes | str, hook: Callable[[list[tuple[str, Any]]], Any] | None = None) -> Any:
    """The value of JSON as Python reads it (Infinity, too); ValueError if it is not."""
    JSON_BYTES.refuse(len(data), "a JSON document")
    try:
        return json.loads(data, object_pairs_hook=hook)
    except RecursionError as error:
        raise ValueError(TOO_DEEP) from error


def load_document(data: bytes) -> Any:
    """The value of JSON as Python reads it, or of a msgpack map, whichever the first byte says; ValueError if it is neither."""
    text = data.removeprefix(b"\xef\xbb\xbf").lstrip()
    if text[:1] in (b"{", b"["):  # no msgpack map or list begins with one of these
        value = load_json(text)
        if re.search(rb"\\u[dD][89a-fA-F]", text):
            # Half of a surrogate pair is valid JSON, but cannot be printed or compared as text.
            json.dumps(value, ensure_ascii=False).encode()
        return value
    JSON_BYTES.refuse(len(data), "a msgpack document")
    try:
        return msgspec.msgpack.decode(data, type=dict[str, Any], ext_hook=_no_extension)
    except RecursionError as error:
        raise ValueError(TOO_DEEP) from error
    except (msgspec.DecodeError, UnicodeError) as error:
        raise ValueError(str(error)) from error


def _no_extension(code: int, data: memoryview) -> Any:
    raise ValueError(f"it has a value of msgpack's extension type {code} ({len(data):,} bytes), which only its writer can read")


def is_msgpack_map(data: bytes) -> bool:
    """Whether the first byte starts a non-empty msgpack map; no text starts with that byte."""
    return bool(data) and (0x81 <= data[0] <= 0x8F or data[0] in (0xDE, 0xDF))


def decode_toml(data: bytes | str) -> dict[str, Any]:
    """The tables of a TOML document; `tomllib.TOMLDecodeError` if it is not one."""
    TOML_BYTES.refuse(len(data), "a TOML document")
    parts = TOML_KEY_PARTS.limit
    try:
        text = data if isinstance(data, str) else data.decode()
        # Python's parser takes a minute for one key of 50,000 parts.
        if text.count(".") >= parts and re.search(f"{_KEY_BEGINS}(?:{_KEY_PART}){{{parts}}}", text):
            TOML_KEY_PARTS.refuse(None, "a key in a TOML document")
        return tomllib.loads(text)
    except RecursionError as error:
        raise tomllib.TOMLDecodeError(TOO_DEEP) from error
    except tomllib.TOMLDecodeError:
        raise
    except ValueError as error:  # not UTF-8, or a number of thousands of digits
        raise tomllib.TOMLDecodeError(str(error).partition(";")[0]) from error
