"""Whose models may run as compiled code: those that this user trained or trusts, and those of the installed package.

The list is a file of digests, one model per line, that only its user may write:

    1f0c… gemm/cpu on local-epyc

It is read once per process, or after `reread`. A model that is not on it is answered in Python, with the same numbers.
"""

from __future__ import annotations

import fcntl
import os
import re
import stat
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from kerncast.core.io.arguments import data_folder, open_above
from kerncast.core.io.quoting import word
from kerncast.core.io.terminal import printable
from kerncast.errors import BadFile, CannotWrite

if TYPE_CHECKING:  # it need not be loaded to read the list
    from kerncast.models.model import Model

VARIABLE = "KERNCAST_TRUSTED"
_DIGEST = re.compile(r"[0-9a-f]{32}")
LONGEST_WORDS = 200
# Digests of models that this process has made or trusts, whether or not they could be listed.
_HELD: set[str] = set()


def list_path() -> Path:
    """`KERNCAST_TRUSTED`, else `kerncast/trusted` in the user's data directory."""
    given = os.environ.get(VARIABLE)
    return Path(given) if given else data_folder() / "trusted"


def refusal(model: Model) -> str | None:
    """Why the compiled code of a model is not run, with the command that changes it; None: it may be run."""
    digest = model.trust_digest
    if digest in _HELD or _is_shipped(model.path):
        return None
    digests, why = _listed(list_path())
    if digest in digests:
        return None
    return why or (
        f"answered in Python, because this user has not trained or trusted {model.path}: if you know where it is from, run "
        f"`kerncast models trust {word(model.path)}`, and it is compiled"
    )


def hold(model: Model) -> None:
    """Trust a model that this process made, for as long as it runs."""
    _HELD.add(model.trust_digest)


def trust(model: Model) -> None:
    """Add a model to the list; a `CannotWrite` or a `BadFile` says why that failed, and then this process trusts it alone."""
    hold(model)
    path, digest = list_path(), model.trust_digest
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            known = _read(file, path)
            if digest not in _digests(known):
                words = printable(f"{model.family.id} on {model.device.name}")[:LONGEST_WORDS]
                # A line that a crash cut off stays a line of its own, which names no model.
                start = b"" if not known or known.endswith(b"\n") else b"\n"
                os.write(file, start + f"{digest} {words}\n".encode())
                os.fsync(file)
        finally:
            os.close(file)
    except OSError as error:
        raise CannotWrite(_said(path, error)) from error
    _listed.cache_clear()


def revoke(model: Model) -> bool:
    """Take a model off the list; False: it was not on it."""
    path, digest = list_path(), model.trust_digest
    _HELD.discard(digest)
    try:
        file = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise CannotWrite(_said(path, error)) from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        text, found = _read(file, path), False
        for line in re.finditer(rb"(?m)^%s" % digest.encode(), text):
            # The line stays and names no model: whatever happens meanwhile, no other line is lost.
            os.pwrite(file, b"-" * len(digest), line.start())
            found = True
        os.fsync(file)
    except OSError as error:
        raise CannotWrite(_said(path, error)) from error
    finally:
        os.close(file)
    _listed.cache_clear()
    return found


def reread() -> None:
    """Read the list again when it is next needed: a process that runs for days calls this when the file has changed."""
    _listed.cache_clear()


@cache
def _listed(path: Path) -> tuple[frozenset[str], str | None]:
    """The digests on the list, and why it is not used."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return frozenset(), None
    except OSError as error:
        return frozenset(), f"answered in Python: {_said(path, error)}"
    try:
        return _digests(_read(file, path)), None
    except (OSError, BadFile) as error:
        return frozenset(), f"answered in Python: {error if isinstance(error, BadFile) else _said(path, error)}"
    finally:
        os.close(file)


def _read(file: int, path: Path) -> bytes:
    """The whole list; one that others can have written is refused."""
    found = os.fstat(file)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
        raise BadFile(f"the list of trusted models {path} is not a file of this user: remove it, or set {VARIABLE} to another")
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise BadFile(
            f"the list of trusted models {path} may be written by others: look at what it has, then `chmod 600 {word(path)}`"
        )
    for above in {*path.absolute().parents, *path.resolve().parents}:
        why = open_above(above)
        if why is not None:
            raise BadFile(f"the list of trusted models {path} is not used, because {why}: set {VARIABLE} to a file of your own")
    return os.pread(file, found.st_size, 0)


def _digests(text: bytes) -> frozenset[str]:
    words = (line.split(" ", 1)[0] for line in text.decode(errors="replace").splitlines())
    return frozenset(word for word in words if _DIGEST.fullmatch(word))


def _said(path: Path, error: OSError) -> str:
    return f"the list of trusted models {path} cannot be used ({error.strerror or error}): set {VARIABLE} to a file of your own"


@cache
def _is_shipped(path: Path) -> bool:
    """Whether a model is part of the installed package, whose code runs anyway."""
    return path.resolve().is_relative_to(Path(__file__).resolve().parents[1])
