"""What a caller gives: how it is said on the command line, paths, lists, texts, NAME=VALUE; and the user's own folders."""

from __future__ import annotations

import errno
import os
import reprlib
import stat
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kerncast.errors import BadFile, CannotWrite, InvalidValue

# Of a part of a path, in bytes, on all common file systems.
LONGEST_NAME = 255
NEXT_STEPS = {
    errno.EACCES: "you may not write there; choose another place",
    errno.EPERM: "you may not write there; choose another place",
    errno.ENOSPC: "the disk is full; free some space or choose another place",
    errno.EDQUOT: "the quota is used up; free some space or choose another place",
    errno.EROFS: "it is read-only; choose another place",
    errno.ENAMETOOLONG: "the name is too long; choose a shorter one",
}


def given_path(given: Any, rule: str, next_step: str) -> Path:
    """The path; a value of another kind (a frame, a mapping) is refused with what was expected and what to do instead."""
    if not isinstance(given, str | os.PathLike):
        raise InvalidValue(f"{rule} was expected, got {type(given).__name__}: {next_step}")
    return Path(given)


def as_text(name: str) -> str:
    """A file's name as text that can be written down; a name need not be UTF-8."""
    return os.fsencode(name).decode(errors="replace")


def names_a_file_inside(name: str) -> bool:
    """Whether a name that a manifest lists can be that of a file in its folder."""
    place = Path(name)
    short = all(0 < len(os.fsencode(part)) <= LONGEST_NAME for part in place.parts)
    return bool(place.parts) and short and "\0" not in name and not place.is_absolute() and ".." not in place.parts


def refuse_endless(path: Path) -> None:
    """Refuse a pipe or a device, which may never end and cannot be read twice."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise BadFile(f"{path} is a pipe or a device, not a file: save what it holds in a file, and name that")


def check_place(argument: str, path: Path | None) -> None:
    """Refuse a file that could not be written; a file without a name is created in its folder as a test."""
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
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        why = NEXT_STEPS.get(error.errno or 0, "no file can be created there; choose another place")
        raise CannotWrite(f"{said} {why}") from error


# -- the user's own folders -------------------------------------------------------------------------------


def data_folder(environment: Mapping[str, str] = os.environ, platform: str = sys.platform) -> Path:
    """`kerncast` in the user's data directory."""
    if platform == "win32":
        base = Path(environment.get("LOCALAPPDATA") or _home("LOCALAPPDATA") / "AppData" / "Local")
    elif platform == "darwin":
        base = _home("HOME") / "Library" / "Application Support"
    else:
        given = environment.get("XDG_DATA_HOME", "")
        # The base directory specification says to ignore relative paths.
        base = Path(given) if Path(given).is_absolute() else _home("XDG_DATA_HOME") / ".local" / "share"
    return base / "kerncast"


def _home(variable: str) -> Path:
    try:
        return Path.home()
    except RuntimeError as error:
        raise InvalidValue(f"this user has no home directory: name another folder in the variable {variable}") from error


def cache_folder(name: str) -> Path:
    """The folder for one kind of what can be made again (compiled kernels, builds, listed configs): in KERNCAST_CACHE, else in
    ~/.cache/kerncast."""
    given = os.environ.get("KERNCAST_CACHE")
    return (Path(given) if given else _home("KERNCAST_CACHE") / ".cache" / "kerncast") / name


def private_cache(name: str) -> Path:
    """The same folder, made if it is missing: 0700 and owned by this user, for code from there is run.

    A `CannotWrite` says why it cannot be used.
    """
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


def listed(given: Any) -> list[Any]:
    """The items of a list and the like; any other value, such as a frame, is one item, for the caller to accept or refuse."""
    one = (
        isinstance(given, str | bytes | os.PathLike | Mapping)
        or hasattr(type(given), "columns")
        or not isinstance(given, Iterable)
    )
    return [given] if one else list(given)


def texts(given: str | Sequence[str] | None, rule: str = "a text or a list of texts") -> tuple[str, ...]:
    """One text or several, as a tuple."""
    found = [] if given is None else listed(given)
    for item in found:
        if not isinstance(item, str | os.PathLike):
            raise InvalidValue(f"{rule} was expected, got {type(item).__name__} {' '.join(reprlib.repr(item).split())}")
    return tuple(map(str, found))


def named_values(given: Mapping[str, Any] | Sequence[str] | None, argument: str) -> dict[str, str]:
    """A mapping, or `NAME=VALUE` texts with each name once."""
    if isinstance(given, Mapping):
        return {name: str(value) for name, value in given.items()}
    found: dict[str, str] = {}
    for pair in texts(given):
        name, separator, text = pair.partition("=")
        if not separator or not name or not text:
            raise InvalidValue(f"`{argument}` takes NAME=VALUE, got '{pair}'")
        if name in found:
            raise InvalidValue(f"`{argument}` {name} is given twice: keep one")
        found[name] = text
    return found


@dataclass(frozen=True)
class Help:
    """`folds: Annotated[int | None, Help("Cross-validation folds.", least=2)] = None` is also the option `--folds`.

    A long text may stand before it: `Annotated[int, "Cross-validation folds.", Help(least=2)]`.
    A parameter without one is not on the command line. The text names other parameters in backticks, as errors do.
    """

    text: str = ""
    metavar: str | None = None
    option: str | None = None
    """How the command line spells it, if not by its name: `--set`, which is a name of Python's own."""
    choices: tuple[str, ...] = ()
    least: float | None = None
    above: float | None = None
    several: bool | None = None
    """Whether the option may be repeated; None: if the parameter takes several values."""
    alone: str | None = None
    """What the option means without a value."""
    required: bool = False
    """Whether the command line must have it, although the function does not need it."""
    names: str | None = None
    """What the value names: the shell completes it, and `model` is looked up in the store."""


def assignment_texts(given: Mapping[str, Any] | Sequence[str] | str | None) -> tuple[str, ...]:
    """`{"dtype": ["fp32", "fp64"], "layout": "all"}` as texts `dtype=fp32,fp64` and `layout=all`; texts stay as they are."""
    if not isinstance(given, Mapping):
        return texts(given)
    return tuple(f"{name}={comma_list(values)}" for name, values in given.items())


def comma_list(values: Any) -> str:
    """`fp32,fp64`: one value or several, as the command line has them."""
    several = [values] if isinstance(values, str | int | bool) else list(values)
    return ",".join(str(value).lower() if isinstance(value, bool) else str(value) for value in several)


def split_texts(given: str | Sequence[str]) -> tuple[str, ...]:
    """Names, each alone or several in one text with commas between them."""
    return tuple(name.strip() for text in texts(given) for name in text.split(",") if name.strip())
