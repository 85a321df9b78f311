"""Files and directories that appear whole or not at all, and the error message for a failed write.

A draft is written next to its place, flushed to disk and renamed: after a crash the name holds the old bytes or the new
ones, never a mixture. The draft itself is left then; the next process that writes into the folder removes it.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import itertools
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from kerncast.errors import BadFile, CannotWrite, InvalidValue

# Threads of one process may write the same file at the same time: each draft has its own number.
_NUMBERS = itertools.count()
# Drafts that are being filled now, for a process that has to end at once.
_LIVE: set[Path] = set()
# Folders from which drafts of killed processes were removed.
_SWEPT: set[Path] = set()
# The draft of a file, and a scratch folder.
_DRAFT = re.compile(r"\..+\.(?P<pid>\d{1,9})\.\d+\.kerncast|\.?kerncast-scratch-(?P<by>\d{1,9})-[a-z0-9_]{8}", re.DOTALL)
# Written where polars could not write and does not say why, to hear it from the system.
PROBE_BYTES = 1 << 20


# -- what went wrong -----------------------------------------------------------------------------------


def no_space(error: BaseException | None) -> bool:
    """Whether the disk or the quota is full."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def reason(error: BaseException) -> str:
    """Why a write failed, in one line."""
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    full = os.strerror(errno.ENOSPC)
    # Polars has no error type for a full disk: it wraps the system's message in several layers.
    return full if full in text else next(iter(text.splitlines()), type(error).__name__)


def disk_error(error: BaseException, beside: Path) -> OSError | None:
    """The system's error behind a failed write, if it is one: polars wraps it in errors of its own, or does not say it."""
    if isinstance(error, OSError):
        return error
    if not type(error).__module__.startswith("polars"):
        return None
    said = re.search(r"\(os error (\d+)\)", str(error))
    if said:
        return OSError(int(said[1]), os.strerror(int(said[1])))
    try:
        with tempfile.TemporaryFile(dir=beside) as probe:
            probe.write(bytes(PROBE_BYTES))
    except OSError as refused:
        return refused
    # What was full may have room again; polars calls a write that failed a transport error.
    return OSError(errno.EIO, reason(error)) if "transport error" in str(error) else None


def cannot_write(path: Path | str, error: OSError) -> CannotWrite:
    """The error for a failed write, with the next step."""
    cure = "free some space or choose another place" if no_space(error) else "choose another place"
    return CannotWrite(f"could not write {path}: {error.strerror or error}; {cure}")


def refuse_existing(out: Path) -> None:
    """Refuse a path that exists: nothing is replaced."""
    sweep(out.absolute().parent)
    if out.exists():
        raise InvalidValue(f"{out} exists already: choose another name, or remove it first")


# -- files ---------------------------------------------------------------------------------------------


def replace_file(path: Path, write: Callable[[Path], Any]) -> None:
    """Give `write` a draft to fill, then put it in place of `path`. The caller handles an `OSError`."""
    sweep(path.parent)
    draft = path.with_name(f".{path.name}.{os.getpid()}.{next(_NUMBERS)}.kerncast")
    held = _held(draft, os.O_RDWR | os.O_CREAT)
    _LIVE.add(draft)
    try:
        try:
            write(draft)
        except Exception as error:
            refused = disk_error(error, path.parent)
            if refused is None or refused is error:
                raise
            raise refused from error
        _sync(draft)
        os.replace(draft, path)
        _sync(path.parent)
    finally:
        draft.unlink(missing_ok=True)
        os.close(held)
        _LIVE.discard(draft)


def write_atomically(path: Path, write: Callable[[Path], Any]) -> None:
    """`replace_file`, but an error of the disk becomes a `CannotWrite`."""
    with _said(path):
        replace_file(path, write)


def write_bytes(path: Path, data: bytes) -> None:
    """Replace the contents of a file."""
    write_atomically(path, lambda draft: draft.write_bytes(data))


def write_text(path: Path, text: str) -> None:
    """Replace the contents of a file, as UTF-8."""
    write_bytes(path, text.encode())


def is_draft(name: str, of: str) -> bool:
    """Whether a file is a draft of the file `of` that a killed process left."""
    return re.fullmatch(rf"\.{re.escape(of)}\.\d+\.\d+\.kerncast", name) is not None


def sweep(folder: Path) -> None:
    """Remove drafts that killed processes left in a folder; a process looks once into each."""
    if folder in _SWEPT:
        return
    _SWEPT.add(folder)
    with contextlib.suppress(OSError):
        for item in list(os.scandir(folder)):
            found = _DRAFT.fullmatch(item.name)
            if found and not _is_running(int(found["pid"] or found["by"])):
                _remove_dead(Path(item.path))


def _remove_dead(draft: Path) -> None:
    """Remove a draft, unless a process that is not seen from here holds it: on another machine or in a container."""
    with contextlib.suppress(OSError):
        if draft.stat(follow_symlinks=False).st_uid != os.geteuid():
            return
        held = _held(draft, os.O_RDONLY | os.O_NOFOLLOW)
        try:
            if draft.is_dir():
                shutil.rmtree(draft, ignore_errors=True)
            else:
                draft.unlink()
        finally:
            os.close(held)


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True


def _held(draft: Path, flags: int) -> int:
    """A draft, opened and locked: as long as it is, nobody takes it for one that was left behind."""
    fd = os.open(draft, flags | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        raise
    return fd


def sync_tree(folder: Path) -> None:
    """Flush everything in a folder to disk."""
    for inside, _, files in os.walk(folder, topdown=False):
        for name in files:
            _sync(Path(inside, name))
        _sync(Path(inside))


def _sync(path: Path) -> None:
    """Flush a file, or the names in a folder, to disk."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


# -- directories ---------------------------------------------------------------------------------------


def refuse_unwritable(out: Path) -> None:
    """Refuse an unusable path before the work whose result would go there."""
    try:
        refuse_existing(out)
    except OSError as error:
        raise cannot_write(out, error) from error
    shutil.rmtree(_scratch_beside(out), ignore_errors=True)


@contextlib.contextmanager
def drafted(out: Path) -> Iterator[Path]:
    """Yield an empty directory to fill, which becomes `out` at the end. After an error nothing of it remains."""
    scratch = _scratch_beside(out)
    held = _held(scratch, os.O_RDONLY)
    _LIVE.add(scratch)
    try:
        draft = scratch / "draft"
        with _said(out):
            draft.mkdir()
        try:
            yield draft
        except CannotWrite as error:  # nobody knows the draft
            raise CannotWrite(str(error).replace(str(draft), str(out))) from error.__cause__
        with _said(out):
            sync_tree(draft)
            out.parent.mkdir(parents=True, exist_ok=True)
            os.rename(draft, out)
            _sync(out.parent)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        os.close(held)
        _LIVE.discard(scratch)


@contextlib.contextmanager
def scratch_folder(within: Path | None = None) -> Iterator[Path]:
    """Yield a folder, hidden `within` another one, that is removed at the end, however the work in it ends."""
    folder = _scratch(within or Path(tempfile.gettempdir()), "" if within is None else ".")
    held = _held(folder, os.O_RDONLY)
    _LIVE.add(folder)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(held)
        _LIVE.discard(folder)


def _scratch(within: Path, hidden: str = ".") -> Path:
    sweep(within)
    return Path(tempfile.mkdtemp(prefix=f"{hidden}kerncast-scratch-{os.getpid()}-", dir=within))


def discard_drafts() -> None:
    """Remove everything that is being written now; for a process that ends without returning to it."""
    for path in list(_LIVE):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def build_directory(out: Path, fill: Callable[[Path], None]) -> None:
    """Build a directory that appears whole or not at all; `fill` only writes files."""
    with drafted(out) as draft, _said(out):
        fill(draft)


def replace_directory(new: Path, place: Path, aside: Path) -> None:
    """Put a directory in the place of another one on the same disk, which is kept as `aside`; an older `aside` is removed.

    Where the system can swap two names, one of both is at `place` at every moment.
    """
    with _said(place):
        sync_tree(new)
        if _swap(new, place):
            before = new
        else:
            before = new.with_name(f"{new.name}.before")
            os.rename(place, before)
            os.rename(new, place)
        if aside.exists():
            shutil.rmtree(aside)
        os.rename(before, aside)
        _sync(place.parent)


def _swap(one: Path, other: Path) -> bool:
    """Exchange two names in one step; False: this system or file system cannot."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    at_cwd, exchange = -100, 2
    return bool(rename(at_cwd, os.fsencode(one.absolute()), at_cwd, os.fsencode(other.absolute()), exchange) == 0)


def copy_directory(source: Path, out: Path) -> None:
    """Copy a directory; the copy appears whole or not at all."""
    refuse_existing(out)
    build_directory(out, lambda folder: copy_into(source, folder))


def copy_into(source: Path, folder: Path) -> None:
    """Copy everything in a directory into an existing one."""
    shutil.copytree(source, folder, dirs_exist_ok=True)


def remove_directory(folder: Path, within: Path) -> None:
    """Rename a directory out of the way in one step, then delete it; `within` is on the same disk."""
    if within.resolve() not in folder.resolve().parents:
        raise BadFile(f"{folder} leads out of {within} by a link, so it is not removed: remove the link")
    aside = Path(tempfile.mkdtemp(prefix=".removed-", dir=within))
    os.rename(folder, aside / "entry")
    shutil.rmtree(aside)


def _scratch_beside(out: Path) -> Path:
    """A scratch directory in the nearest existing folder above `out`, so that a failure leaves no new folder behind."""
    with _said(out):
        beside = next(folder for folder in out.absolute().parents if folder.exists())
        return _scratch(beside)


@contextlib.contextmanager
def _said(out: Path) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        refused = disk_error(error, next(folder for folder in out.absolute().parents if folder.exists()))
        if refused is None:
            raise
        raise cannot_write(out, refused) from refused
