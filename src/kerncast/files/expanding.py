"""Compressed files, expanded no further than their budget."""

from __future__ import annotations

import gzip
import io
import itertools
import zlib
from pathlib import Path
from typing import BinaryIO, cast
from zipfile import BadZipFile, ZipFile

from kerncast.budgets import EXPANDED_BYTES, ZIP_MEMBERS, Budget
from kerncast.errors import BadFile

GZIP = b"\x1f\x8b"
PIECE_BYTES = 1 << 20


def gunzip(file: Path, budget: Budget = EXPANDED_BYTES) -> bytes:
    """What a gzip file holds; OSError if it is damaged."""
    try:
        with gzip.open(file) as stream:
            return budget.taken(cast(BinaryIO, stream), f"{file}, expanded,")
    except (EOFError, zlib.error) as error:
        raise OSError(str(error)) from error


def gunzip_beginning(data: bytes, what: str) -> bytes:
    """What gzipped bytes hold as far as they go, for a file that may be cut off; `zlib.error` if they are damaged."""
    left, parts = EXPANDED_BYTES.limit, []
    while data[:2] == GZIP:
        stream = zlib.decompressobj(wbits=31)
        parts.append(stream.decompress(data, left + 1))
        left -= len(parts[-1])
        if left < 0:
            EXPANDED_BYTES.refuse(None, f"{what}, expanded,")
        data = stream.unused_data
    return b"".join(parts)


def gunzip_to(file: Path, target: Path) -> None:
    """Expand a gzip file into another one; EOFError, `gzip.BadGzipFile` or `zlib.error` if it is damaged."""
    left = EXPANDED_BYTES.limit
    with gzip.open(file) as source, target.open("wb") as stream:
        while block := source.read(PIECE_BYTES):
            left -= len(block)
            if left < 0:
                EXPANDED_BYTES.refuse(None, f"{file}, expanded,")
            stream.write(block)


def refuse_large_archive(file: BinaryIO, name: Path) -> None:
    """Refuse a zip archive as `refuse_large_members` does, and one that cannot be read; it is left at its beginning."""
    try:
        with ZipFile(file) as archive:
            refuse_large_members(archive, name)
    except (BadZipFile, NotImplementedError, ValueError) as error:
        raise BadFile(f"{name} is damaged ({error}): restore it") from error
    file.seek(0, io.SEEK_SET)


def refuse_large_members(archive: ZipFile, name: Path) -> None:
    """Refuse an archive whose members say that they expand to more than the budget, or overlap each other.

    A member cannot expand to more than it says: `zipfile` stops there.
    """
    members = archive.infolist()
    ZIP_MEMBERS.refuse(len(members), str(name))
    EXPANDED_BYTES.refuse(sum(member.file_size for member in members), f"{name}, expanded,")
    ordered = sorted(members, key=lambda member: member.header_offset)
    for one, other in itertools.pairwise(ordered):
        if one.header_offset + one.compress_size > other.header_offset:
            raise BadFile(f"{name} is damaged ('{one.filename}' and '{other.filename}' share bytes): restore it")
