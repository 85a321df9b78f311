"""The journal: append-only, one checked line per result; what a killed supervisor leaves behind.

A line is the CRC-32 of the rest in hexadecimal, a space, and JSON. The first line says what began it. A torn
tail (the last line, cut by a crash) is cut off when the journal is opened again; a bad line anywhere else is
damage and is refused.
"""

from __future__ import annotations

import os
import re
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from kerncast.data.dataset import JOURNAL
from kerncast.errors import BadFile, CannotWrite, InvalidValue
from kerncast.files.versioned import Versioned

# The beginning of a first line whose writing was cut short.
_TORN_HEADER = re.compile(rb"[0-9a-f]{0,8}|[0-9a-f]{8} (\{[^\n]*)?")

NAME = JOURNAL
FORMAT = "kerncast-journal"
VERSION = 1
SYNC_SECONDS = 1.0


class Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What began the journal. A resumed collection must match in everything but `run_id`."""

    family: str
    backend: str
    device: str
    software: dict[str, str]
    run_id: str
    format: str = FORMAT
    version: int = VERSION


def _line(value: Any) -> bytes:
    body = msgspec.json.encode(value)
    return b"%08x %s\n" % (zlib.crc32(body), body)


def _checked(line: bytes) -> bytes | None:
    """The JSON of a line, or None when the line is torn or damaged."""
    if len(line) < 11 or line[8:9] != b" " or not line.endswith(b"\n"):
        return None
    body = line[9:-1]
    return body if line[:8] == b"%08x" % zlib.crc32(body) else None


class Refused(CannotWrite):
    """A write failed; the message says what is safe and how to continue."""


def refused(path: Path, why: object, safe: str) -> Refused:
    """An error that says which write failed, what is safe and how to continue."""
    return Refused(f"could not write {path} ({why}): free some space and run the same command again; {safe}")


def is_begun(path: Path) -> bool:
    """Whether there is a journal with a complete first line; without one it holds nothing yet."""
    return path.exists() and not _TORN_HEADER.fullmatch(path.read_bytes())


def read(path: Path) -> tuple[Header, list[dict[str, Any]], int]:
    """The header, every record, and the length of the good part."""
    data = path.read_bytes()
    lines = data.splitlines(keepends=True)
    good = 0
    records: list[dict[str, Any]] = []
    header: Header | None = None
    for number, line in enumerate(lines, 1):
        body = _checked(line)
        if body is None:
            if number == len(lines) and number > 1:
                break
            raise BadFile(f"{path}, line {number} is damaged: move the file away to start again, or restore it")
        if header is None:
            header = _HEADER.decode(body, path)
        else:
            records.append(msgspec.json.decode(body))
        good += len(line)
    if header is None:
        raise BadFile(f"{path} is empty: remove it to start again")
    return header, records, good


_HEADER = Versioned(FORMAT, VERSION, Header, "a kerncast journal", "finish it with the kerncast that began it")


class Journal:
    """An open journal. Lines are handed to the operating system at once, and to the disk every second."""

    def __init__(self, path: Path, header: Header, fd: int) -> None:
        self.path, self.header, self.fd = path, header, fd
        self.pending: list[bytes] = []
        self.synced = time.monotonic()

    @classmethod
    def begin(cls, path: Path, header: Header) -> Journal:
        """A new journal."""
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise refused(path, error.strerror, "nothing new was measured yet") from error
        journal = cls(path, header, fd)
        journal.pending.append(_line(header))
        try:
            journal.flush()
            journal.sync()
        except CannotWrite as error:
            os.close(fd)
            path.unlink()
            raise refused(path, _reason(error), "nothing new was measured yet") from error
        return journal

    @classmethod
    def resume(cls, path: Path, expected: Header) -> tuple[Journal, list[dict[str, Any]]]:
        """Continue a journal, with a torn tail cut off; refuse it if its header does not match."""
        header, records, good = read(path)
        for name in ("family", "backend", "device", "software"):
            then, now = getattr(header, name), getattr(expected, name)
            if then != now:
                raise InvalidValue(
                    f"{path} was begun with {name} {then!r}, but this is {now!r}: "
                    "resume it there, or collect into another dataset"
                )
        os.truncate(path, good)
        return cls(path, header, os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)), records

    def add(self, record: dict[str, Any]) -> None:
        """Add a result; `flush` writes it."""
        self.pending.append(_line(record))

    def flush(self) -> None:
        """Hand the pending lines to the operating system, which keeps them even if this process is killed."""
        if self.pending:
            data = b"".join(self.pending)
            try:
                while data:
                    data = data[os.write(self.fd, data) :]
            except OSError as error:
                # Part of it may be written: the next attempt continues there instead of repeating a line.
                self.pending = [data]
                raise refused(self.path, error.strerror, "everything measured before is safe there") from error
            self.pending.clear()
        if time.monotonic() - self.synced > SYNC_SECONDS:
            self.sync()

    def sync(self) -> None:
        """Force the written lines to the disk."""
        try:
            os.fsync(self.fd)
        except OSError as error:
            raise refused(self.path, error.strerror, "everything measured before is safe there") from error
        self.synced = time.monotonic()

    def close(self) -> None:
        """Write everything to the disk and close the file."""
        try:
            self.flush()
            self.sync()
        finally:
            os.close(self.fd)


def _reason(error: CannotWrite) -> object:
    return error.__cause__.strerror if isinstance(error.__cause__, OSError) else error


def final_records(records: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The last record of each key, in the order in which keys first appeared: a faster one replaces the first."""
    last = {record["key"]: record for record in records}
    yield from last.values()
