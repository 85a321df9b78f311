"""One writer at a time: a lock file that the operating system releases when its holder dies, however it dies."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from kerncast.errors import BadFile, InvalidValue
from kerncast.files.atomic import cannot_write


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
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
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
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.read(fd, 32).decode(errors="replace").strip()
            os.close(fd)
            raise InvalidValue(f"{directory} is being written by process {holder}: wait for it, or {otherwise}") from error
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(fd), path.lstat()):
                return fd
        os.close(fd)
