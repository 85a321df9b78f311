"""Running programs that may crash, hang, print without end or leave children behind. No shell anywhere.

Each program has its own process group. When it ends, or its time is over, the whole group is killed, and so are children
that left the group: they have the program's mark in their environment. If this process dies first, a guard (`guard.py`)
kills them, so nothing that was started here outlives the worker.
"""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from kerncast.measuring.backends.command.guard import MARK, end_marked
from kerncast.measuring.backends.contract import Ended
from kerncast.measuring.backends.environment import oom_kills

# What is kept of a program's output, from its end: answers come last.
STDOUT_BYTES = 8 << 20
STDERR_BYTES = 64 << 10
# How long output may still arrive after a program ended, from children that are being killed.
DRAIN_SECONDS = 1.0
# Beyond a program's own deadline, for killing it, reading its files and a reset.
MARGIN_SECONDS = 30.0
# The longest line in which signs of progress are looked for.
LINE_BYTES = 64 << 10


@dataclass(frozen=True)
class Pulse:
    """How a program shows that it goes on: a line that `pattern` matches gives it `seconds` from then on."""

    pattern: re.Pattern[bytes]
    seconds: float
    startup: float
    """Seconds that it may need besides, after the first such line."""
    longest: float
    """Seconds that it may take in all, however often it shows that it goes on."""


@dataclass(frozen=True)
class ProgramEnd:
    """How a program ended and what it printed. `code` is negative for a signal."""

    code: int
    timed_out: bool
    seconds: float
    stdout: str
    stderr: str
    oom_killed: bool = False
    """Whether the operating system killed a process for want of memory while it ran."""
    at: str = ""
    """The last vector that it said it began, by its `id`."""

    @property
    def last_line(self) -> str:
        """The last line that it printed, for an error message."""
        lines = (self.stderr.strip() or self.stdout.strip()).splitlines()
        return " ".join(lines[-1].split())[:200] if lines else ""

    def failure(self, exit_codes: Mapping[str, str]) -> Ended | None:
        """Why it counts as failed: a deadline, a signal, an exit code; None when it ended well."""
        words = f": {self.last_line}" if self.last_line else ""
        if self.timed_out:
            return Ended("timeout", f"the program did not end within {self.seconds:.0f} s and was killed{words}")
        if self.code < 0:
            status = "out_of_memory" if self.code == -signal.SIGKILL and self.oom_killed else "crash"
            name = next((known.name for known in signal.Signals if known == -self.code), f"signal {-self.code}")
            return Ended(status, f"the program ended with {name}{words}")
        status = exit_codes.get(str(self.code), "ok" if self.code == 0 else "launch_error")
        return None if status == "ok" else Ended(status, f"the program ended with exit code {self.code}{words}")


def located(program: str, directory: str = "") -> str:
    """A program by name as it is; one by a relative path in its own folder, or where the collection was started."""
    return os.path.join(directory or os.getcwd(), program) if os.sep in program else program


def _end(guard: subprocess.Popen[bytes]) -> None:
    """Let the guard see the end of its pipe."""
    assert guard.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        guard.stdin.close()
    guard.wait()


class ProgramRunner:
    """Starts programs, one guard for all of them, and a scratch folder that goes with it."""

    def __init__(self) -> None:
        self.scratch = Path(tempfile.mkdtemp(prefix="kerncast-"))
        self._lock = threading.Lock()
        self._count = 0
        guard = Path(__file__).with_name("guard.py")
        self._guard = subprocess.Popen(
            [sys.executable, "-I", "-S", str(guard), str(self.scratch)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self.close = weakref.finalize(self, _end, self._guard)

    def _tell(self, line: str) -> None:
        assert self._guard.stdin is not None
        with self._lock, contextlib.suppress(BrokenPipeError):
            self._guard.stdin.write(line.encode())
            self._guard.stdin.flush()

    @contextlib.contextmanager
    def folder(self) -> Iterator[Path]:
        """A fresh folder for one call."""
        with self._lock:
            self._count += 1
            path = self.scratch / str(self._count)
        path.mkdir()
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)

    def run(
        self,
        argv: Sequence[str],
        timeout: float,
        environment: Mapping[str, str] | None = None,
        directory: str | Path | None = None,
        stdin: Path | None = None,
        pulse: Pulse | None = None,
    ) -> ProgramEnd:
        """Run a program to its end or its deadline. Raise `Ended` if it cannot be started."""
        ooms = oom_kills()
        with self._lock:
            self._count += 1
            mark = f"{self.scratch}#{self._count}#"
        watch = _ProgramWatch(timeout, pulse)
        with open(stdin or os.devnull, "rb") as given:
            try:
                process = subprocess.Popen(
                    list(argv),
                    stdin=given,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    cwd=directory or self.scratch,
                    env={**os.environ, **(environment or {}), MARK: mark},
                    process_group=0,
                )
            except (OSError, ValueError) as error:
                raise Ended("not_run", f"{argv[0]} cannot be run ({error}): is it built, and is its path right?") from error
        self._tell(f"+{process.pid}\n")
        try:
            out, err, timed_out = watch.until_the_end(process)
        finally:
            _kill_group(process.pid)
            code = process.wait()
            end_marked(mark)
            self._tell(f"-{process.pid}\n")
        return ProgramEnd(code, timed_out, time.monotonic() - watch.began, out, err, oom_kills() > ooms, watch.at)


def _kill_group(group: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


class _ProgramWatch:
    """A program's deadline, which moves on with each line that says that it goes on."""

    def __init__(self, timeout: float, pulse: Pulse | None) -> None:
        self.began = time.monotonic()
        self.deadline, self.pulse = self.began + timeout, pulse
        self.beats, self.at = 0, ""
        self._lines: dict[IO[bytes], bytearray] = {}

    def read(self, stream: IO[bytes], data: bytes) -> None:
        """Look for signs of progress in what a stream brought, line by line."""
        if self.pulse is None:
            return
        held = self._lines.setdefault(stream, bytearray())
        held += data
        *whole, rest = re.split(rb"[\r\n]", held)
        self._lines[stream] = bytearray(rest[-LINE_BYTES:])
        for line in whole:
            if found := self.pulse.pattern.search(line[-LINE_BYTES:]):
                self._beat(found, self.pulse)

    def _beat(self, found: re.Match[bytes], pulse: Pulse) -> None:
        more = pulse.seconds if self.beats else pulse.startup + pulse.seconds
        self.beats += 1
        self.deadline = min(time.monotonic() + more, self.began + pulse.longest)
        self.at = found["id"].decode(errors="replace") if "id" in pulse.pattern.groupindex else ""

    def until_the_end(self, process: subprocess.Popen[bytes]) -> tuple[str, str, bool]:
        """Read both streams until the program ends or its time is over."""
        assert process.stdout is not None
        assert process.stderr is not None
        limits: dict[IO[bytes], int] = {process.stdout: STDOUT_BYTES, process.stderr: STDERR_BYTES}
        tails = {stream: bytearray() for stream in limits}
        ended: float | None = None
        timed_out = False
        with selectors.DefaultSelector() as selector, process.stdout, process.stderr:
            for stream in tails:
                selector.register(stream, selectors.EVENT_READ)
            while selector.get_map():
                now = time.monotonic()
                if ended is None and (process.poll() is not None or now > self.deadline):
                    timed_out = process.returncode is None
                    # Children that it left behind hold its streams open: they go with it.
                    _kill_group(process.pid)
                    ended = now
                if ended is not None and now > ended + DRAIN_SECONDS:
                    break
                for key, _ in selector.select(min(0.05, max(0.0, self.deadline - now)) if ended is None else 0.05):
                    data = os.read(key.fd, 1 << 16)
                    stream = key.fileobj  # type: ignore[assignment]
                    if data:
                        tails[stream] += data
                        if len(tails[stream]) > 2 * limits[stream]:
                            del tails[stream][: -limits[stream]]
                        self.read(stream, data)
                    else:
                        selector.unregister(stream)
            if ended is None:
                # Both streams are closed, but it may still be at work.
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.0, self.deadline - time.monotonic()))
                timed_out = process.poll() is None
            out, err = (tails[stream][-limit:].decode(errors="replace") for stream, limit in limits.items())
            return out, err, timed_out
