"""Checksums of files, computed once per file and process: what was verified, or written here, stays so until it changes."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from kerncast.core.io.atomic import replace_file

# Reading is about as fast as hashing, so a few threads are enough.
THREADS = 4
# Device, inode, size and time of the last change → checksum. A file that was changed or replaced has another key.
_KNOWN: dict[tuple[int, int, int, int], str] = {}
# Files that this process has written, by the same: they need not be doubted.
_OWN: set[tuple[int, int, int, int]] = set()
_LOCK = threading.Lock()


def file_checksum(path: Path) -> str:
    """A hash of a file's bytes, computed if this process has not yet done so since the file was last changed."""
    key = file_state(path)
    with _LOCK:
        known = _KNOWN.get(key)
    if known is None:
        known = _hashed(path)
        # A file that changes while it is read has no checksum that could be kept.
        if file_state(path) == key:
            with _LOCK:
                _KNOWN[key] = known
    return known


def _hashed(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def differing(files: Mapping[Path, str]) -> Path | None:
    """The first file that differs from its checksum; None: all are as they should be."""
    paths = list(files)
    if len(paths) < 2:
        found = [file_checksum(path) for path in paths]
    else:
        with ThreadPoolExecutor(min(THREADS, len(paths), os.cpu_count() or 1)) as pool:
            found = list(pool.map(file_checksum, paths))
    return next((path for path, own in zip(paths, found, strict=True) if own != files[path]), None)


def own_checksums(folder: Path) -> dict[str, str]:
    """The checksums of the files in a folder, by name; this process has just written all of them, and `is_own` knows it."""
    files = sorted(folder.iterdir())
    _OWN.update(map(file_state, files))
    return {file.name: file_checksum(file) for file in files}


def is_own(file: Path) -> bool:
    """Whether a file is as this process wrote it."""
    return file_state(file) in _OWN


def keep_sum(file: Path) -> None:
    """Write the checksum of a file beside it (`.sum`). The caller handles an `OSError`."""
    checksum = file_checksum(file)
    replace_file(file.with_suffix(".sum"), lambda draft: draft.write_text(checksum))


def is_intact(file: Path) -> bool:
    """Whether a file is there and as it was when `keep_sum` wrote its checksum."""
    try:
        return file.is_file() and file_checksum(file) == file.with_suffix(".sum").read_text(errors="replace")
    except OSError:
        return False


def file_state(path: Path) -> tuple[int, int, int, int]:
    """What changes when a file is changed or replaced."""
    found = path.stat()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
