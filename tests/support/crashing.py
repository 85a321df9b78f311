"""Processes that die at their n-th file call: what they leave is found whole by readers, and the next run ends as any other.

    ended(["merge", "a", "b", "--out", "c"], folder, 7)    # a command line that dies before its 7th file call in the folder
    faults_at(CASES["merge"], home, scratch, 7)            # the same, what readers see of it, and the next run

A file call is one that changes something: opening for writing, writing, flushing, renaming, linking, removing, making and
removing folders. Each command runs in a process that a server with everything imported has forked, so a point costs little
more than the command.
"""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

DEAD = 86
LONGEST_SECONDS = 120.0
PRELOADED = [
    "tests.support.crashing", "kerncast.app.cli", "kerncast.app.cli.verbs.collect", "kerncast.app.cli.verbs.data",
    "kerncast.app.cli.verbs.train", "kerncast.app.cli.verbs.models", "kerncast.app.cli.verbs.select",
    "kerncast.app.cli.verbs.regenerate",
    "kerncast.app.api.collect", "kerncast.app.api.train", "kerncast.app.api.export", "kerncast.models.store.store",
    "kerncast.regenerating", "kerncast.answering.selector", "lightgbm",
]  # fmt: skip
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
EVENTS = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.chmod"}


@dataclass(frozen=True)
class Ended:
    """How a command ended: `code` is DEAD where it died at its point, and `said` what it printed."""

    code: int
    calls: tuple[str, ...]
    said: str


class _Point:
    """Counts the file calls in a folder, and ends the process before the n-th."""

    def __init__(self, folder: Path, at: int | None) -> None:
        self.folder, self.at = str(folder), at
        self.calls: list[str] = []
        self.counted = 0

    def install(self) -> None:
        """From now on; it cannot be undone."""
        sys.addaudithook(self._heard)
        for name in ("fsync", "fdatasync", "write", "pwrite", "ftruncate"):
            setattr(os, name, self._counting(name, getattr(os, name)))

    def _counting(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(fd: int, *arguments: Any) -> Any:
            with contextlib.suppress(OSError):
                self._count(name, os.readlink(f"/proc/self/fd/{int(fd)}"))
            return call(fd, *arguments)

        return counted

    def _heard(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, mode, flags = arguments
            changes = (isinstance(mode, str) and set(mode) & set("wax+")) or (isinstance(flags, int) and flags & WRITING)
            if changes and isinstance(path, str | bytes | os.PathLike):
                self._count("open", path)
        elif event in EVENTS and isinstance(arguments[0], str | bytes | os.PathLike):
            # What is removed as part of a tree is named below an open folder.
            below = arguments[1] if event in ("os.remove", "os.rmdir") else -1
            self._count(event, arguments[0], os.readlink(f"/proc/self/fd/{below}") if below >= 0 else self.folder)

    def _count(self, what: str, path: Any, below: str | None = None) -> None:
        text = os.path.join(below or self.folder, os.fsdecode(path))
        if not text.startswith(self.folder):
            return
        self.calls.append(f"{what} {text.removeprefix(self.folder)}")
        self.counted += 1
        if self.counted == self.at:
            os._exit(DEAD)


class _Said(io.StringIO):
    """What a command says on standard output; each time is among the calls."""

    def __init__(self, calls: list[str]) -> None:
        super().__init__()
        self.calls = calls

    def write(self, text: str) -> int:
        self.calls.append(f"say {text}")
        return super().write(text)


def _run(argv: Sequence[str], folder: Path, at: int | None, told: Any) -> None:
    os.chdir(folder)
    os.environ |= {"KERNCAST_TRUSTED": str(folder / "trusted"), "KERNCAST_CACHE": str(folder.parent / "cache")}
    from kerncast.app import cli

    point = _Point(folder, at)
    said, told_beside = _Said(point.calls), io.StringIO()
    code = 0
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(told_beside):
        point.install()
        try:
            cli.main(list(argv))
        except SystemExit as stopped:
            code = stopped.code if isinstance(stopped.code, int) else 0
        except BaseException as error:
            code = 99
            print(f"{type(error).__name__}: {error}")
    told.send((code, point.calls, said.getvalue() + told_beside.getvalue()))
    told.close()
    os._exit(0)


def ended(argv: Sequence[str], folder: Path, at: int | None = None) -> Ended:
    """Run a command line in a process of its own, in a folder; `at`: it dies before this file call in it."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    heard, told = context.Pipe(duplex=False)
    process: BaseProcess = context.Process(target=_run, args=(tuple(argv), folder, at, told), daemon=False)
    process.start()
    told.close()
    try:
        code, calls, said = heard.recv() if heard.poll(LONGEST_SECONDS) else (98, (), "it did not end")
    except EOFError:
        code, calls, said = None, (), ""
    process.join(LONGEST_SECONDS)
    if code is None:
        code = process.exitcode if process.exitcode is not None else 98
    return Ended(code, tuple(calls), said)
