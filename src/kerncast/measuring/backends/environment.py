"""Failures of the machine around a kernel: a full or read-only disk, a missing compiler, no file descriptors left.

No kernel is to blame for them, so no vector may get a row because of one.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator

from kerncast.errors import BadFile, CannotWrite, NotFound

# What a kernel cannot cause: space, quota, permissions, descriptors, a broken disk.
CODES = (
    errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE, errno.EIO, errno.ESTALE,
)  # fmt: skip
# "Operation not permitted" is left out: assemblers say similar things of instructions.
_WORDS = tuple(os.strerror(code) for code in CODES if code != errno.EPERM)
# How gcc and clang say that the operating system ended one of their processes.
_KILLED = ("Killed signal terminated program", "unable to execute command: Killed", "ld terminated with signal 9")
# Makes a program say such things in the words above.
PLAIN_WORDS = {"LC_ALL": "C"}


def fault_of(error: BaseException) -> str | None:
    """What is wrong with the environment, if that is why an exception was raised; else None."""
    for each in _chain(error):
        if isinstance(each, CannotWrite | NotFound | BadFile):
            return str(each)
        if isinstance(each, OSError) and each.errno in CODES:
            place = f" ({each.filename})" if each.filename else ""
            return f"{os.strerror(each.errno)}{place}"
    return None


def fault_in(output: str) -> str | None:
    """The line of a compiler's output that blames the environment, or None. It must have run with `PLAIN_WORDS`."""
    for line in output.splitlines():
        if any(words in line for words in (*_WORDS, *_KILLED)):
            return " ".join(line.split())[:300]
    return None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
