"""Writing the journal of a collection; `data/journal.py` describes and reads it."""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from kerncast.data.journal import Header, Outcome, header_of, placed_outcomes
from kerncast.errors import CannotWrite, InvalidValue

SYNC_SECONDS = 1.0


def _line(value: Any) -> bytes:
    body = msgspec.json.encode(value)
    return b"%08x %s\n" % (zlib.crc32(body), body)


class Refused(CannotWrite):
    """A write failed; the message says what is safe and how to continue."""


class Vanished(Refused):
    """The journal was removed while it was being written."""


def refused(path: Path, why: object, safe: str) -> Refused:
    """An error that says which write failed, what is safe and how to continue."""
    return Refused(f"could not write {path} ({why}): free some space and run the same command again; {safe}")


class Journal:
    """An open journal. Lines are handed to the operating system at once, and to the disk every second."""

    def __init__(self, path: Path, header: Header, fd: int) -> None:
        self.path, self.header, self.fd = path, header, fd
        self.pending: list[bytes] = []
        self.size = os.fstat(fd).st_size
        """How long the file is when everything pending is written."""
        self.synced = time.monotonic()

    @classmethod
    def begin(cls, path: Path, header: Header) -> Journal:
        """A new journal."""
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise refused(path, error.strerror, "nothing new was measured yet") from error
        journal = cls(path, header, fd)
        journal._append(header)
        try:
            journal.flush()
            journal.sync()
        except CannotWrite as error:
            os.close(fd)
            path.unlink()
            raise refused(path, _reason(error), "nothing new was measured yet") from error
        return journal

    @classmethod
    def resume(cls, path: Path, expected: Header) -> tuple[Journal, Iterator[tuple[list[int], list[Outcome]]]]:
        """Continue a journal, and read its records, some at a time; refuse it if its header does not match.

        All of them must be read before anything is added: then a torn tail is cut off.
        """
        header = header_of(path)
        for name in ("family", "backend", "device", "software"):
            then, now = getattr(header, name), getattr(expected, name)
            if then != now:
                raise InvalidValue(
                    f"{path} was begun with {name} {then!r}, but this is {now!r}: "
                    "resume it there, or collect into another dataset"
                )
        journal = cls(path, header, os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC))
        return journal, journal._outcomes()

    def _outcomes(self) -> Iterator[tuple[list[int], list[Outcome]]]:
        self.size = yield from placed_outcomes(self.path)
        os.ftruncate(self.fd, self.size)

    def add(self, record: dict[str, Any]) -> int:
        """Add a result, which `flush` writes; returns the position of its line."""
        return self._append(record)

    def _append(self, value: Any) -> int:
        line, at = _line(value), self.size
        self.pending.append(line)
        self.size += len(line)
        return at

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
        """Force the written lines to the disk; refuse to go on if the file was removed."""
        try:
            if not os.fstat(self.fd).st_nlink:
                raise Vanished(
                    f"{self.path} was removed while it was being written, so nothing can be kept: put it back from a copy, or "
                    "run the same command to measure again"
                )
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
