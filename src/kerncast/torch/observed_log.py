"""The raw log of what a process saw: a file of its own in the folder `observed` of the dataset, one line per autotune.

A line is the CRC-32 of the rest in hexadecimal, a space, and JSON, as in a journal. The first line says who wrote it. The
process holds a lock on its file, so others know when it has ended, however it ended. This module imports nothing heavy: it is
used inside a compilation.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import secrets
import threading
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kerncast.core.io.atomic import is_draft
from kerncast.errors import InvalidValue

FOLDER, MANIFEST = "observed", "dataset.json"
FORMAT, VERSION = "kerncast-observed", 1
# Of a process that has not ended or not been read yet, and of one whose records became rows as far as families go.
RAW, KEPT = "run-", "kept-"
NAME = re.compile(rf"({RAW}|{KEPT})(?P<token>[0-9a-f]{{16}})\.jsonl")


class ObservedLog:
    """The log that this process writes. The file begins with the first record, and a forked process begins its own."""

    def __init__(self, dataset: Path, header: Mapping[str, Any]) -> None:
        self.folder = dataset / FOLDER
        self._header = dict(header)
        self._begin()

    def _begin(self) -> None:
        self._pid, self._fd, self._lock = os.getpid(), -1, threading.Lock()

    @property
    def is_open(self) -> bool:
        """Whether this process has written a record that is not closed yet."""
        return self._fd >= 0 and self._pid == os.getpid()

    def write(self, record: Mapping[str, Any]) -> None:
        """Append a record; after an error the file is as it was."""
        if self._pid != os.getpid():
            self._begin()  # the file and its lock are the parent's
        with self._lock:
            if self._fd < 0:
                self._fd = self._opened()
            _append(self._fd, record)

    def close(self) -> None:
        """End the file; the next record begins another one."""
        if not self.is_open:
            return
        with self._lock:
            fd, self._fd = self._fd, -1
            fcntl.flock(fd, fcntl.LOCK_UN)  # a forked child may still have the file open, and with it the lock
            os.close(fd)

    def _opened(self) -> int:
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{RAW}{secrets.token_hex(8)}.jsonl"
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            _append(fd, {"format": FORMAT, "version": VERSION, **self._header})
        except BaseException:
            os.close(fd)
            path.unlink(missing_ok=True)
            raise
        return fd


def _append(fd: int, record: Mapping[str, Any]) -> None:
    body = json.dumps(record, ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode()
    line = b"%08x %s\n" % (zlib.crc32(body), body)
    before = os.fstat(fd).st_size
    try:
        if os.write(fd, line) != len(line):
            raise OSError("the disk is full")
    except OSError:
        os.ftruncate(fd, before)
        raise


def refuse_foreign(path: Path) -> None:
    """A path must be a dataset, empty, or new."""
    if path.exists() and not path.is_dir():
        raise InvalidValue(f"{path} is not a folder: give the folder of a dataset, or a new name")
    if path.is_dir() and not (path / MANIFEST).exists():
        # Another process may be making the dataset right now.
        known = (FOLDER, ".lock", MANIFEST)
        others = [item.name for item in path.iterdir() if item.name not in known and not is_draft(item.name, MANIFEST)]
        if others:
            raise InvalidValue(f"{path} is not a kerncast dataset and holds {others[0]}: give a dataset, or a new name")


def logs_of(dataset: Path, *, kept: bool = False) -> list[Path]:
    """The logs of a dataset that are to be read, oldest names first; with `kept` also those that were read before."""
    try:
        names = sorted(os.listdir(dataset / FOLDER))
    except OSError:
        return []
    wanted = (RAW, KEPT) if kept else (RAW,)
    return [dataset / FOLDER / name for name in names if NAME.fullmatch(name) and name.startswith(wanted)]


def token_of(path: Path) -> str:
    """What distinguishes a log from all others."""
    found = NAME.fullmatch(path.name)
    return found["token"] if found else path.stem


def keep(path: Path) -> None:
    """Mark a log as read."""
    if path.name.startswith(RAW):
        os.rename(path, path.with_name(f"{KEPT}{path.name.removeprefix(RAW)}"))
