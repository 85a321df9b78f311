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
from kerncast.data.journal import NAME, STATE, Header, Outcome, final_rows, header_of, placed_outcomes
from kerncast.errors import BadFile, CannotWrite, InvalidValue
from kerncast.measuring.messages import Ready

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


# Rows of a part: a part is checked, written and hashed as a whole, which takes two kilobytes of memory for each row.
PART_ROWS = 25_000


def compact(dataset: Dataset, family: Family, ready: Ready) -> None:
    """Write the journal's final records as parts of the dataset, and only then remove the journal."""
    path = dataset.path / NAME
    present = _already_compacted(dataset, family, header_of(path).run_id)
    profile = DeviceRecord(**ready.device)
    try:
        for rows in _parts(final_rows(path, family)):
            dataset.append(family, rows.filter(~rows["key"].is_in(present.implode())), machines=[profile])
    except schema.Mislabelled as error:
        raise BadFile(f"{path} is damaged, {error}: move the file away to measure again, or restore it") from error
    except (OSError, CannotWrite, pl.exceptions.ComputeError) as error:  # polars raises the last one for a full disk
        why = error.__cause__ or error if isinstance(error, CannotWrite) else error
        raise refused(dataset.path, reason(why), f"all {_count(path, family):,} rows are safe in {path}") from error
    # The journal goes last: as long as it is there, the same command finishes this.
    (dataset.path / STATE).unlink(missing_ok=True)
    path.unlink()


def _parts(batches: Iterable[pl.DataFrame]) -> Iterator[pl.DataFrame]:
    """Batches of rows, put together to parts."""
    held: list[pl.DataFrame] = []
    for batch in batches:
        held.append(batch)
        if sum(item.height for item in held) >= PART_ROWS:
            yield pl.concat(held)
            held = []
    if held:
        yield pl.concat(held)


def _count(path: Path, family: Family) -> int:
    return sum(batch.height for batch in final_rows(path, family))


def _already_compacted(dataset: Dataset, family: Family, run_id: str) -> pl.Series:
    """Keys of this run that a crash between the two steps left in both places."""
    if family not in dataset.families:
        return pl.Series("key", [], dtype=pl.String)
    return dataset.scan(family).filter(pl.col("run_id") == run_id).select("key").collect().to_series()
