"""Writing the journal of a collection; `data/journal.py` describes and reads it."""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from kerncast.core.io.atomic import reason
from kerncast.core.op import Family
from kerncast.data import schema
from kerncast.data.dataset import Dataset, DeviceRecord
from kerncast.data.journal import NAME, STATE, Header, Outcome, damaged, final_rows, header_of, placed_outcomes
from kerncast.errors import CannotWrite, InvalidValue
from kerncast.measuring.messages import Ready

SYNC_SECONDS = 1.0
NOTHING, EVERYTHING = "nothing new was measured yet", "everything measured before is safe there"


class WriteRefused(CannotWrite):
    """A write failed; the message says what is safe and how to continue."""


class Vanished(WriteRefused):
    """The journal was removed while it was being written."""


def refused(path: Path, why: object, safe: str) -> WriteRefused:
    """An error that says which write failed, what is safe and how to continue."""
    return WriteRefused(f"could not write {path} ({why}): free some space and run the same command again; {safe}")


class Journal:
    """An open journal. Lines are handed to the operating system at once, and to the disk every second."""

    def __init__(self, path: Path, header: Header, fd: int) -> None:
        self.path, self.header, self.fd = path, header, fd
        self.pending: list[bytes] = []
        self.size = os.fstat(fd).st_size
        """How long the file is when everything pending is written."""
        self.synced, self.safe = time.monotonic(), EVERYTHING

    @classmethod
    def begin(cls, path: Path, header: Header) -> Journal:
        """A new journal."""
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise refused(path, error.strerror, NOTHING) from error
        journal = cls(path, header, fd)
        journal.safe = NOTHING
        journal.add(header)
        try:
            journal.flush()
            journal.sync()
        except CannotWrite:
            os.close(fd)
            path.unlink(missing_ok=True)
            raise
        journal.safe = EVERYTHING
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

    def add(self, record: Header | dict[str, Any]) -> int:
        """Add a line, which `flush` writes; returns its position."""
        body, at = msgspec.json.encode(record), self.size
        line = b"%08x %s\n" % (zlib.crc32(body), body)
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
                raise refused(self.path, error.strerror, self.safe) from error
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
            raise refused(self.path, error.strerror, self.safe) from error
        self.synced = time.monotonic()

    def close(self) -> None:
        """Write everything to the disk and close the file."""
        try:
            self.flush()
            self.sync()
        finally:
            os.close(self.fd)


# Rows of a part: a part is checked, written and hashed as a whole, which takes two kilobytes of memory for each row.
PART_ROWS = 25_000


def compact(dataset: Dataset, family: Family, ready: Ready) -> None:
    """Write the journal's final records as parts of the dataset, and only then remove the journal."""
    path = dataset.path / NAME
    present = pl.Series("key", [], dtype=pl.String)
    if family in dataset.families:  # keys of this run that a crash between the two steps left in both places
        of_this_run = pl.col("run_id") == header_of(path).run_id
        present = dataset.scan(family).filter(of_this_run).select("key").collect().to_series()
    try:
        for batches in in_batches(final_rows(path, family), PART_ROWS):
            rows = pl.concat(batches)
            new = rows.filter(~rows["key"].is_in(present.implode()))
            dataset.append(family, new, machines=[DeviceRecord(**ready.device)])
    except schema.Mislabelled as error:
        raise damaged(path, error) from error
    except (OSError, CannotWrite, pl.exceptions.ComputeError) as error:  # polars raises the last one for a full disk
        why = error.__cause__ or error if isinstance(error, CannotWrite) else error
        safe = sum(batch.height for batch in final_rows(path, family))
        raise refused(dataset.path, reason(why), f"all {safe:,} rows are safe in {path}") from error
    # The journal goes last: as long as it is there, the same command finishes this.
    (dataset.path / STATE).unlink(missing_ok=True)
    path.unlink()


def in_batches(frames: Iterable[pl.DataFrame], rows: int) -> Iterator[list[pl.DataFrame]]:
    """Frames put together until they have so many rows: what is computed for each of them takes as long for many rows."""
    held: list[pl.DataFrame] = []
    for frame in frames:
        held.append(frame)
        if sum(item.height for item in held) >= rows:
            yield held
            held = []
    if held:
        yield held
