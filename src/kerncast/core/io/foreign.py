"""The guard for files that others may have made: no reader takes more memory or time than one limit.

A file of some kilobytes can ask for gigabytes: a compressed file that expands, a table of a million columns, a text that nests
a million brackets. What reading will take is counted before it begins, in bytes of memory; what takes time counts as the memory
that is read in as much time. Every weight below is far from what real files need. `KERNCAST_READ_LIMIT` sets another limit.

A process that reads in place of this one, with limits of the system, costs more than it guards: to read a table of 3 kB took
1.0 ms here, 3.5 ms in a process that was kept, and 788 ms in a new one; for 27 MB it was 48, 1,065 and 2,511 ms.

Parsers raise several kinds of errors for damage: a high bit that was flipped is a `UnicodeDecodeError`, a million brackets are
a `RecursionError`. Here each is the parser's error for a bad document, which callers turn into their sentence.
"""

from __future__ import annotations

import gzip
import io
import itertools
import json
import os
import re
import tomllib
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, cast, overload
from zipfile import BadZipFile, ZipFile

import msgspec

from kerncast.errors import BadFile, InvalidValue, KerncastError

VARIABLE, DEFAULT_LIMIT = "KERNCAST_READ_LIMIT", 2**32
GZIP = b"\x1f\x8b"
PIECE_BYTES = 1 << 20
TOO_DEEP = "it nests more deeply than can be read"
# Python's parser takes a minute for one key of 50,000 parts.
LONGEST_TOML_KEY = 100
# One part of a dotted key with the dot after it, and where a key may begin. Nothing is tried twice.
_KEY_PART = r"""(?:[A-Za-z0-9_-]++|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+"""
_LONG_TOML_KEY = re.compile(rf"(?<![A-Za-z0-9_-])(?:{_KEY_PART}){{{LONGEST_TOML_KEY}}}")

_KINDS = {"int": "a whole number", "float": "a number", "str": "text", "bool": "true or false", "array": "a list",
          "object": "a table of keys", "null": "empty"}  # fmt: skip
_MISSING = re.compile(r"Object missing required field `(?P<name>[^`]*)`(?: - at `\$(?P<at>.*)`)?")
_UNKNOWN = re.compile(r"Object contains unknown field `(?P<name>.*?)`(?: - at `\$(?P<at>.*)`)?", re.DOTALL)
_WRONG = re.compile(r"Expected (?P<kind>`[^`]*`(?:[^`]*?)?)(?:, got (?P<got>`[^`]*`))?(?: - at `\$(?P<at>.*)`)?")

# What the readers of the standard library raise for damage; msgspec's and tomllib's errors are a `ValueError`, too.
DAMAGE = (OSError, EOFError, ValueError, RuntimeError, zlib.error, BadZipFile)

T = TypeVar("T")


# -- the limit -------------------------------------------------------------------------------------------


def read_limit() -> int:
    """How many bytes of memory the reading of one file may take."""
    given = os.environ.get(VARIABLE, "")
    try:
        limit = int(float(given)) if given else DEFAULT_LIMIT
    except (ValueError, OverflowError):
        limit = 0
    if limit < 1:
        raise InvalidValue(f"{VARIABLE} must be a number of bytes of at least 1, got {given!r}")
    return limit


@dataclass(frozen=True)
class Weight:
    """What files consist of, and how many bytes of memory one unit of it counts as."""

    counts_as: int
    unit: str
    about: str
    """What it is, as the docs list it."""

    @property
    def most(self) -> int:
        """How much of it is read."""
        return max(1, read_limit() // self.counts_as)

    def refuse(self, amount: int | None, what: str) -> None:
        """Refuse an amount above the limit; None: it is above, and nobody counted by how much."""
        most = self.most
        if amount is not None and amount <= most:
            return
        has = f"more than {most:,} {self.unit}" if amount is None else f"{amount:,} {self.unit}, and at most {most:,} are read"
        needed = f"more than {read_limit()}" if amount is None else str(amount * self.counts_as)
        raise BadFile(f"{what} has {has}: if it is meant to be that large, set {VARIABLE} to {needed}")

    def read(self, file: Path) -> bytes:
        """The bytes of a file, if they are within the limit; a device or a pipe is not read beyond it, either."""
        with file.open("rb") as stream:
            self.refuse(os.fstat(stream.fileno()).st_size, str(file))
            return self.taken(stream, str(file))

    def taken(self, stream: BinaryIO, what: str) -> bytes:
        """All the bytes of a stream, if they are within the limit."""
        return b"".join(self.pieces(stream, what))

    def pieces(self, stream: BinaryIO, what: str) -> Iterator[bytes]:
        """The bytes of a stream, a piece at a time: reading up to a limit at once would take as much memory as the limit."""
        left = self.most
        while piece := stream.read(min(left + 1, PIECE_BYTES)):
            left -= len(piece)
            if left < 0:
                self.refuse(None, what)
            yield piece


EXPANDED = Weight(1, "bytes", "what one compressed file (gzip, zip, npz, parquet) expands to")
MEMBER = Weight(2**15, "members", "the files in one zip or npz archive")
PAGE = Weight(2**12, "pages", "the pages of one parquet table, in all its row groups and columns")
COLUMN = Weight(2**17, "columns", "the columns of one table (CSV, parquet)")
CELL = Weight(2**3, "cells", "the cells of one CSV table")
CHARACTER = Weight(2**8, "characters", "one line of a CSV table")
JSON = Weight(2, "bytes", "one file of JSON, msgpack or a program's log")
TOML = Weight(2**10, "bytes", "one TOML file")
FOREST = Weight(2**2, "bytes", "the text of one forest of trees, expanded")

WEIGHTS = (EXPANDED, MEMBER, PAGE, COLUMN, CELL, CHARACTER, JSON, TOML, FOREST)


@contextmanager
def guarded(file: Path | str, next_step: str, said: str = "is damaged") -> Iterator[None]:
    """Read a file: what parsers, decompressors and polars raise for damage becomes one error, with a reason and a next step."""
    try:
        yield
    except KerncastError:
        raise
    except Exception as error:
        if not isinstance(error, DAMAGE) and not type(error).__module__.startswith("polars"):
            raise
        reason = key_rule(error).partition("\n")[0] or type(error).__name__
        if isinstance(error, OSError) and error.strerror:
            said, reason = "cannot be read", error.strerror
        raise BadFile(f"{file} {said} ({reason}): {next_step}") from error


# -- documents -------------------------------------------------------------------------------------------


@overload
def read_json(file: Path) -> Any: ...
@overload
def read_json(file: Path, type: type[T]) -> T: ...
def read_json(file: Path, type: Any = Any) -> Any:
    """The value in a file of strict JSON; `OSError`, or `msgspec.DecodeError` if it is not JSON."""
    return decode_json(JSON.read(file), type)


@overload
def decode_json(data: bytes | str) -> Any: ...
@overload
def decode_json(data: bytes | str, type: type[T]) -> T: ...
def decode_json(data: bytes | str, type: Any = Any) -> Any:
    """The value of strict JSON; `msgspec.DecodeError` if it is not."""
    JSON.refuse(len(data), "a JSON document")
    try:
        return msgspec.json.decode(data, type=type)
    except RecursionError as error:
        raise msgspec.DecodeError(TOO_DEEP) from error
    except UnicodeError as error:
        raise msgspec.DecodeError(str(error)) from error


def load_json(data: bytes | str, hook: Callable[[list[tuple[str, Any]]], Any] | None = None) -> Any:
    """The value of JSON as Python reads it (Infinity, too); ValueError if it is not."""
    JSON.refuse(len(data), "a JSON document")
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
    JSON.refuse(len(data), "a msgpack document")
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


def read_toml(file: Path) -> dict[str, Any]:
    """The tables in a TOML file; `OSError`, or `tomllib.TOMLDecodeError` if it is not one."""
    return decode_toml(TOML.read(file))


def decode_toml(data: bytes | str) -> dict[str, Any]:
    """The tables of a TOML document; `tomllib.TOMLDecodeError` if it is not one."""
    TOML.refuse(len(data), "a TOML document")
    try:
        text = data if isinstance(data, str) else data.decode()
        if text.count(".") >= LONGEST_TOML_KEY and _LONG_TOML_KEY.search(text):
            raise tomllib.TOMLDecodeError(f"a dotted key has more than {LONGEST_TOML_KEY} parts")
        return tomllib.loads(text)
    except RecursionError as error:
        raise tomllib.TOMLDecodeError(TOO_DEEP) from error
    except tomllib.TOMLDecodeError:
        raise
    except ValueError as error:  # not UTF-8, or a number of thousands of digits
        raise tomllib.TOMLDecodeError(str(error).partition(";")[0]) from error


def key_rule(error: Exception) -> str:
    """An error of checking a file against its declared keys, by the whole name of the key: `train.folds must be …`.

    Backticks mean arguments in messages of ours, so the texts of other libraries are quoted without them.
    """
    text = str(error)
    if found := _MISSING.fullmatch(text):
        return f"the key '{_key(found['at'], found['name'])}' is missing"
    if found := _UNKNOWN.fullmatch(text):
        return f"there is no key '{_key(found['at'], found['name'])}'".replace("`", "'")
    if found := _WRONG.fullmatch(text):
        key = _key(found["at"], "")
        got = f", got {_kind(found['got'])}" if found["got"] else ""
        subject = f"'{key}'" if key else "it"
        return f"{subject} must be {_kind(found['kind'])}{got}"
    return text.replace("`", "'")


def _key(at: str | None, name: str) -> str:
    """The name of a key: `pin[0].problem`. The `[…]` of a table stands for one of its keys, which are not said."""
    return ".".join(part for part in ((at or "").lstrip(".").replace("[...]", ".…"), name) if part)


def _kind(text: str) -> str:
    return re.sub(r"`([^`]*)`", lambda found: " or ".join(_KINDS.get(kind, kind) for kind in found[1].split(" | ")), text)


# -- compressed files ------------------------------------------------------------------------------------


def gunzip(file: Path, weight: Weight = EXPANDED) -> bytes:
    """What a gzip file holds; OSError if it is damaged."""
    try:
        with gzip.open(file) as stream:
            return weight.taken(cast(BinaryIO, stream), f"{file}, expanded,")
    except (EOFError, zlib.error) as error:
        raise OSError(str(error)) from error


def gunzip_beginning(data: bytes, what: str) -> bytes:
    """What gzipped bytes hold as far as they go, for a file that may be cut off; `zlib.error` if they are damaged."""
    left, parts = EXPANDED.most, []
    while data[:2] == GZIP:
        stream = zlib.decompressobj(wbits=31)
        parts.append(stream.decompress(data, left + 1))
        left -= len(parts[-1])
        if left < 0:
            EXPANDED.refuse(None, f"{what}, expanded,")
        data = stream.unused_data
    return b"".join(parts)


def gunzip_to(file: Path, target: Path) -> None:
    """Expand a gzip file into another one; EOFError, `gzip.BadGzipFile` or `zlib.error` if it is damaged."""
    with gzip.open(file) as source, target.open("wb") as stream:
        for piece in EXPANDED.pieces(cast(BinaryIO, source), f"{file}, expanded,"):
            stream.write(piece)


def refuse_large_archive(file: BinaryIO, name: Path) -> None:
    """Refuse a zip archive as `refuse_large_members` does, and one that cannot be read; it is left at its beginning."""
    try:
        with ZipFile(file) as archive:
            refuse_large_members(archive, name)
    except (BadZipFile, NotImplementedError, ValueError) as error:
        raise BadFile(f"{name} is damaged ({error}): restore it") from error
    file.seek(0, io.SEEK_SET)


def refuse_large_members(archive: ZipFile, name: Path) -> None:
    """Refuse an archive whose members say that they expand to more than the limit, or overlap each other.

    A member cannot expand to more than it says: `zipfile` stops there.
    """
    members = archive.infolist()
    EXPANDED.refuse(sum(max(member.file_size, MEMBER.counts_as) for member in members), f"{name}, expanded,")
    ordered = sorted(members, key=lambda member: member.header_offset)
    for one, other in itertools.pairwise(ordered):
        if one.header_offset + one.compress_size > other.header_offset:
            raise BadFile(f"{name} is damaged ('{one.filename}' and '{other.filename}' share bytes): restore it")
