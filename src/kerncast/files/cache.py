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
    # Above it, a folder may belong to anybody, but not everybody may rename what is in it (as the sticky bit of /tmp forbids).
    for above in {*folder.parent.absolute().parents, *folder.parent.resolve().parents}:
        mode = above.stat().st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            return f"others may write to {above}"
    return None
