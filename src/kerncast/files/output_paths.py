"""Check output paths before anything is computed, so that no work is lost to a wrong path."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from kerncast.errors import CannotWrite, InvalidValue

NEXT_STEPS = {
    errno.EACCES: "you may not write there; choose another place",
    errno.EPERM: "you may not write there; choose another place",
    errno.ENOSPC: "the disk is full; free some space or choose another place",
    errno.EDQUOT: "the quota is used up; free some space or choose another place",
    errno.EROFS: "it is read-only; choose another place",
    errno.ENAMETOOLONG: "the name is too long; choose a shorter one",
}


def check_place(argument: str, path: Path | None) -> None:
    """Refuse a file that could not be written; a file next to it is created and removed as a test."""
    if path is None:
        return
    folder, said = path.parent, f"`{argument}`: could not write {path}:"
    try:
        if path.is_dir():
            raise InvalidValue(f"{said} it is a directory; name a file in it")
        if not folder.exists():
            raise InvalidValue(f"{said} there is no directory {folder}; create it first, or choose another place")
        if not folder.is_dir():
            raise InvalidValue(f"{said} {folder} is not a directory; choose another place")
        scratch = path.with_name(f".{path.name}.{os.getpid()}")
        scratch.touch()
        scratch.unlink()
    except OSError as error:
        why = NEXT_STEPS.get(error.errno or 0, "no file can be created there; choose another place")
        raise CannotWrite(f"{said} {why}") from error
