"""The folder of what can be made again: compiled kernels, builds of external benchmarks, listed configs.

Code that is read from there is run, so its folder must be this user's alone.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from kerncast.errors import CannotWrite


def cache_folder(name: str) -> Path:
    """The folder for one kind of thing: in KERNCAST_CACHE, else in ~/.cache/kerncast."""
    given = os.environ.get("KERNCAST_CACHE")
    return (Path(given) if given else Path.home() / ".cache" / "kerncast") / name


def private_cache(name: str) -> Path:
    """The same folder, made if it is missing: 0700 and owned by this user. A `CannotWrite` says why it cannot be used."""
    folder = cache_folder(name)
    try:
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        why = _open_to_others(folder)
        if why is None and stat.S_IMODE(folder.stat().st_mode) != 0o700:
            folder.chmod(0o700)
    except OSError as error:
        raise CannotWrite(f"the cache {folder} cannot be used ({error}): free space, or set KERNCAST_CACHE") from error
    if why is not None:
        raise CannotWrite(
            f"the cache {folder} is not used, because {why} and could put code there: set KERNCAST_CACHE to your own folder"
        )
    return folder


def _open_to_others(folder: Path) -> str | None:
    """Who else could have put something into the folder, or could put another one in its place; None: nobody."""
    for own in (folder, folder.parent):
        found = own.stat()
        if found.st_uid != os.geteuid():
            return f"another user owns {own}"
        if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return f"others may write to {own}"
    for above in {*folder.parent.absolute().parents, *folder.parent.resolve().parents}:
        why = open_above(above)
        if why is not None:
            return why
    return None


def open_above(folder: Path) -> str | None:
    """Who else could rename what is in a folder above; None: nobody but root and this user (the sticky bit forbids it, too)."""
    found = folder.stat()
    if found.st_uid not in (0, os.geteuid()):
        return f"another user owns {folder}"
    writers = stat.S_IWOTH if found.st_gid == os.getegid() else stat.S_IWOTH | stat.S_IWGRP
    if found.st_mode & writers and not found.st_mode & stat.S_ISVTX:
        return f"others may write to {folder}"
    return None
