"""One writer at a time: a lock file that the operating system releases when its holder dies, however it dies."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from kerncast.core.io.atomic import cannot_write
from kerncast.errors import BadFile, InvalidValue


@contextlib.contextmanager
def one_writer(directory: Path, name: str, otherwise: str) -> Iterator[None]:
    """Lock `directory`. If it is locked, the error names the process that holds it and what to do `otherwise`."""
    path = directory / name
    fd = _taken(path, directory, otherwise)
    try:
        os.ftruncate(fd, 0)
        os.write(fd, str(os.getpid()).encode())
        yield
    finally:
        # Removed while it is held: a process that opened it meanwhile sees that the name is gone or another file.
        path.unlink(missing_ok=True)
        os.close(fd)


@contextlib.contextmanager
def in_turn(path: Path) -> Iterator[None]:
    """Wait until no other process holds the lock file `path`, then hold it; for work that is short."""
    fd = _opened(path)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def is_held(path: Path) -> bool:
    """Whether another process holds the lock file `path` now."""
    fd = _found(path, os.O_RDONLY)
    if fd is None:
        return False
    try:
        return not _locks(fd, fcntl.LOCK_SH)
    finally:
        os.close(fd)


def claimed(path: Path) -> int | None:
    """Hold a file that another process has written and let go: an open file with its lock; None: it is held, or gone."""
    fd = _found(path, os.O_RDWR)
    if fd is None:
        return None
    if _locks(fd, fcntl.LOCK_EX) and _is_still(path, fd):
        return fd
    os.close(fd)
    return None


def _found(path: Path, access: int) -> int | None:
    """A file that is there; a link is not followed, as below."""
    try:
        return os.open(path, access | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None


def _locks(fd: int, kind: int) -> bool:
    """Lock without waiting."""
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _is_still(path: Path, fd: int) -> bool:
    """Whether a path names the file that was opened; meanwhile its holder may have removed it."""
    try:
        return os.path.samestat(os.fstat(fd), path.lstat())
    except OSError:
        return False


def _opened(path: Path) -> int:
    """A lock file. A link is not followed: it may lead to a file that somebody needs."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
    except OSError as error:
        if path.is_symlink():
            raise BadFile(f"{path} is a link, and a lock is a file: see where it leads, and remove it") from error
        raise cannot_write(path, error) from error
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise BadFile(f"{path} is a lock, and what is there is not a file: remove it")
    return fd


def _taken(path: Path, directory: Path, otherwise: str) -> int:
    while True:
        fd = _opened(path)
        if not _locks(fd, fcntl.LOCK_EX):
            holder = os.read(fd, 32).decode(errors="replace").strip()
            os.close(fd)
            raise InvalidValue(f"{directory} is being written by process {holder}: wait for it, or {otherwise}")
        if _is_still(path, fd):
            return fd
        os.close(fd)
