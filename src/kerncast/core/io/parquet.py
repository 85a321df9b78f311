"""Parquet tables, read no further than the limit of `core.io.foreign`.

A page of a few bytes may stand for two billion values, and the totals at the end of a file may be wrong. So what a table
expands to is added up from the headers of its pages, which a reader has to follow, before polars reads any of them.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import polars as pl

from kerncast.core.io.artefact import file_state
from kerncast.core.io.foreign import COLUMN, EXPANDED, PAGE
from kerncast.errors import BadFile, quoted

MAGIC = b"PAR1"
# A header of a page is some dozens of bytes; statistics in it may be long.
HEADER_BYTES = 4096
LONGEST_HEADER = 2**24
BYTE_ARRAY = 6
# Nothing that describes a table nests more deeply.
DEEPEST = 16
# Files of which this process knows that they are within the limit.
_KNOWN: set[tuple[int, int, int, int]] = set()


def read_parquet(file: Path) -> pl.DataFrame:
    """A table; BadFile above the limit, OSError or polars' errors if it cannot be read."""
    refuse_large_table(file)
    with _panics_are_errors():
        return pl.read_parquet(file, glob=False)


def parquet_columns(file: Path) -> tuple[str, ...]:
    """The names of a table's columns; errors as from `read_parquet`."""
    refuse_large_table(file)
    with _panics_are_errors():
        return tuple(pl.read_parquet_schema(file))


def parquet_metadata(file: Path) -> dict[str, str]:
    """What the writer of a table noted in it; errors as from `read_parquet`."""
    refuse_large_table(file)
    with _panics_are_errors():
        return pl.read_parquet_metadata(file)


@contextlib.contextmanager
def _panics_are_errors() -> Iterator[None]:
    """Polars ends with a panic, which is no `Exception`, where the parts of a damaged table contradict each other."""
    try:
        yield
    except pl.exceptions.PanicException as error:
        raise pl.exceptions.ComputeError("its parts contradict each other") from error


def scan_parquet(file: Path) -> pl.LazyFrame:
    """A table to be read later; errors as from `read_parquet`."""
    refuse_large_table(file)
    return pl.scan_parquet(file, glob=False)


def refuse_large_table(file: Path) -> None:
    """Refuse a table with more columns, pages or bytes than the limit allows, and names that polars cannot open."""
    try:
        str(file).encode()
    except UnicodeEncodeError:
        raise BadFile(f"{quoted(str(file))} has a name that is not UTF-8: rename it") from None
    key = file_state(file)
    if key in _KNOWN:
        return
    try:
        with file.open("rb") as stream:
            left = EXPANDED.most
            for size in _page_sizes(stream, str(file)):
                left -= max(size, PAGE.counts_as)
                if left < 0:
                    EXPANDED.refuse(None, f"{file}, expanded,")
    except (_Cut, struct.error, IndexError, TypeError, KeyError, AttributeError) as error:
        raise pl.exceptions.ComputeError("what it says of its columns is damaged") from error
    _KNOWN.add(key)


class _Cut(Exception):
    """A description ends before it is complete, or is not one."""


def _page_sizes(stream: BinaryIO, name: str) -> Iterator[int]:
    """How much memory each page of a table takes at least."""
    end = stream.seek(0, 2)
    stream.seek(max(0, end - 8))
    tail = stream.read(8)
    length = struct.unpack("<I", tail[:4])[0] if len(tail) == 8 else 0
    if tail[4:] != MAGIC or length + 12 > end:
        raise _Cut
    stream.seek(end - 8 - length)
    described = _Thrift(stream.read(length)).struct()
    # An element of the schema without children is a column.
    COLUMN.refuse(sum(5 not in element for element in described[2]), name)
    for group in described.get(4, ()):
        for chunk in group[1]:
            column = chunk[3]
            wide = 16 if column[1] == BYTE_ARRAY else 8
            for size, values in _pages(stream, column, end):
                yield max(size, values * wide)


def _pages(stream: BinaryIO, column: dict[int, Any], end: int) -> Iterator[tuple[int, int]]:
    """The expanded size and the number of values of each page of a column, as their own headers give them."""
    start, dictionary = column[9], column.get(11, 0)
    at = min(start, dictionary) if dictionary > 0 else start
    wanted, seen = column[5], 0
    yield 0, 0  # a column without a page counts, too
    while seen < wanted and 0 <= at < end:
        header, taken = _header(stream, at)
        size, packed = header[2], header[3]
        values = next((header[place][1] for place in (5, 8, 7) if place in header), 0)
        if packed < 0 or size < 0 or values < 0:
            raise _Cut
        yield size, values
        if 7 not in header:
            seen += values
        at += taken + packed


def _header(stream: BinaryIO, at: int) -> tuple[dict[int, Any], int]:
    """The header of the page at a place, and its length."""
    size = HEADER_BYTES
    while True:
        stream.seek(at)
        reader = _Thrift(stream.read(size))
        try:
            return reader.struct(), reader.at
        except (IndexError, _Cut):
            if size >= LONGEST_HEADER:
                raise _Cut from None
            size *= 16


class _Thrift:
    """Thrift's compact protocol: a struct becomes a dict by the numbers of its fields, a list becomes a list."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def struct(self, depth: int = 0) -> dict[int, Any]:
        if depth > DEEPEST:
            raise _Cut
        found: dict[int, Any] = {}
        number = 0
        while True:
            kind = self._byte()
            if kind == 0:
                return found
            step = kind >> 4
            number = number + step if step else self._whole()
            found[number] = self._value(kind & 15, depth)

    def _value(self, kind: int, depth: int) -> Any:
        match kind:
            case 1 | 2:
                return kind == 1
            case 3:
                return self._byte()
            case 4 | 5 | 6:
                return self._whole()
            case 7:
                return self._skip(8)
            case 8:
                return self._skip(self._varint())
            case 9 | 10:
                head = self._byte()
                count, inner = head >> 4, head & 15
                if count == 15:
                    count = self._varint()
                if count > len(self.data):  # an item takes a byte or more
                    raise _Cut
                # The items of a list of flags are bytes; as fields they have none.
                return [self._byte() if inner in (1, 2) else self._value(inner, depth + 1) for _ in range(count)]
            case 12:
                return self.struct(depth + 1)
            case _:
                raise _Cut

    def _skip(self, count: int) -> None:
        self.at += count
        if self.at > len(self.data):
            raise _Cut

    def _byte(self) -> int:
        self.at += 1
        return self.data[self.at - 1]

    def _varint(self) -> int:
        found = shift = 0
        while True:
            byte = self._byte()
            found |= (byte & 127) << shift
            if byte < 128:
                return found
            shift += 7
            if shift > 63:
                raise _Cut

    def _whole(self) -> int:
        found = self._varint()
        return (found >> 1) ^ -(found & 1)
