"""Compressed files, expanded no further than their budget."""

from __future__ import annotations

import gzip
import io
import itertools
import zlib
from pathlib import Path
from typing import BinaryIO
from zipfile import BadZipFile, ZipFile

from kerncast.budgets import EXPANDED_BYTES, ZIP_MEMBERS, Budget
from kerncast.errors import BadFile


def gunzip(file: Path, budget: Budget = EXPANDED_BYTES) -> bytes:
    """What a gzip file holds; OSError if it is damaged."""
    limit = budget.limit
    try:
        with gzip.open(file) as stream:
            data = stream.read(limit + 1)
    except (EOFError, zlib.error) as error:
        raise OSError(str(error)) from error
    if len(data) > limit:
        budget.refuse(None, f"{file}, expanded,")
    return data


def refuse_large_archive(file: Path | BinaryIO, name: Path | str) -> None:
    """Refuse a zip archive whose members say that they expand to more than the budget, or overlap each other.

    A member cannot expand to more than it says: `zipfile` stops there.
    """
    try:
        with ZipFile(file) as archive:
            members = archive.infolist()
    except (BadZipFile, NotImplementedError, ValueError) as error:
        raise BadFile(f"{name} is damaged ({error}): restore it") from error
    ZIP_MEMBERS.refuse(len(members), str(name))
    EXPANDED_BYTES.refuse(sum(member.file_size for member in members), f"{name}, expanded,")
    ordered = sorted(members, key=lambda member: member.header_offset)
    for one, other in itertools.pairwise(ordered):
        if one.header_offset + one.compress_size > other.header_offset:
            raise BadFile(f"{name} is damaged ('{one.filename}' and '{other.filename}' share bytes): restore it")
    if not isinstance(file, Path):
        file.seek(0, io.SEEK_SET)
