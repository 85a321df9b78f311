"""A worker as its supervisor sees it: a process, its pipes, and what it was given to do."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from typing import IO

from kerncast.collecting.messages import Chunk, Frames, Item, Position, Ready, Start, frame, reply_decoder


@dataclass
class Worker:
    """A process and what it is doing."""

    process: subprocess.Popen[bytes]
    orders: int
    results: int
    position: Position
    last_words: IO[bytes]
    frames: Frames = field(default_factory=lambda: Frames(reply_decoder))
    chunk: Chunk | None = None
    waiting: dict[str, Item] = field(default_factory=dict)
    ready: Ready | None = None
    started: float = field(default_factory=time.monotonic)
    starting_bytes: int = 0
    """The memory that its backend took before the first vector."""

    def send(self, message: Start | Chunk) -> None:
        """Hand over an order; a worker that died meanwhile is noticed by its closed pipe."""
        data = frame(message)
        with contextlib.suppress(BrokenPipeError):
            while data:
                data = data[os.write(self.orders, data) :]

    def kill(self) -> None:
        """Kill the process, compilers that it started included, and close its descriptors."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)  # it leads a group of its own
        self.process.kill()
        self.process.wait()
        os.close(self.orders)
        os.close(self.results)
        self.last_words.close()

    def last_line(self) -> str:
        """The last line that it wrote to standard error."""
        self.last_words.seek(0)
        lines = self.last_words.read()[-2000:].decode(errors="replace").strip().splitlines()
        return lines[-1][:300] if lines else ""


def spawn(family: str, backend: str) -> Worker:
    """Start a fresh process that imports in the background and opens no device yet. It is not forked from our threads."""
    position, position_fd = Position.create()
    order_read, order_write = os.pipe()
    result_read, result_write = os.pipe()
    inherited = (order_read, result_write, position_fd)
    last_words = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the worker
    process = subprocess.Popen(
        [sys.executable, "-m", "kerncast.collecting.worker", *map(str, inherited), family, backend],
        pass_fds=inherited,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=last_words,
        start_new_session=True,  # Ctrl-C is for the supervisor alone
        # A backend's reference product must not leave BLAS threads spinning next to the timed kernel.
        env={"OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", **os.environ},
    )
    for fd in inherited:
        os.close(fd)
    return Worker(process, order_write, result_read, position, last_words)
