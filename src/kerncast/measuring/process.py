"""A worker as its supervisor sees it: a process, its pipes, its deadline, and what it was given to do."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO

from kerncast.measuring.backends.environment import oom_kills
from kerncast.measuring.messages import Chunk, Frames, Item, Position, Ready, Start, frame, reply_decoder
from kerncast.measuring.scheduling import REMEMBERED, WorkerTask

# At full rate deadlines change thousands of times a second, and each look reads a file: only one that lasts is looked at.
SETTLED_NS = 20_000_000
# A deadline is put off to at most so many times its length.
MOST = 10


class Deadline:
    """Whether the deadline of one worker has passed. Time in which it is ready to run and gets no core does not count:
    otherwise a kernel may miss its deadline because of what else runs on the machine.
    """

    def __init__(self, waited: Callable[[], int], clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._waited, self._clock = waited, clock
        self._deadline = self._seen = 0
        self._before: int | None = None
        """How long the worker had waited for a core when the deadline was new."""

    def passed(self, deadline: int) -> bool:
        """Look at the worker's deadline (0: none); to be called often."""
        now = self._clock()
        if deadline != self._deadline:
            self._deadline, self._seen, self._before = deadline, now, None
        elif self._before is None and deadline and now - self._seen > SETTLED_NS:
            self._before = self._waited()
        if not 0 < deadline < now:
            return False
        extra = 0 if self._before is None else max(0, self._waited() - self._before)
        return now > deadline + min(extra, (MOST - 1) * max(0, deadline - self._seen))


def waited_ns(pid: int, proc: Path = Path("/proc")) -> int:
    """How long a process was ready to run and had no core; 0 where the kernel does not say.

    Of its first thread alone, which runs the kernels: a pool of many threads on few cores waits longer than time passes.
    """
    try:
        return int((proc / str(pid) / "schedstat").read_text().split()[1])
    except (OSError, ValueError, IndexError):  # it has ended, or this is not Linux
        return 0


@dataclass
class Worker:
    """A process and what it is doing."""

    process: subprocess.Popen[bytes]
    orders: int
    results: int
    position: Position
    last_words: IO[bytes]
    frames: Frames = field(default_factory=lambda: Frames(reply_decoder))
    task: WorkerTask | None = None
    chunk: Chunk | None = None
    """The chunk of its task that it is at."""
    waiting: dict[str, Item] = field(default_factory=dict)
    ready: Ready | None = None
    started: float = field(default_factory=time.monotonic)
    starting_bytes: int = 0
    """The memory that its backend took before the first vector."""
    earlier: deque[Item] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    """The last vectors of the chunks that it was given before this one."""
    doubtful: bool = False
    """Whether it ran a kernel that computes wrong results, and may do so beyond its own."""
    oom_kills: int = field(default_factory=oom_kills)
    """How many processes had been killed for want of memory when it was started."""
    deadline: Deadline = field(init=False)

    def __post_init__(self) -> None:
        self.deadline = Deadline(partial(waited_ns, self.process.pid))

    def send(self, message: Start | Chunk) -> None:
        """Hand over an order; a worker that died meanwhile is noticed by its closed pipe."""
        data = frame(message)
        with contextlib.suppress(BrokenPipeError):
            while data:
                data = data[os.write(self.orders, data) :]

    @property
    def fresh(self) -> bool:
        """Whether it has run nothing yet."""
        return self.chunk is None and not self.earlier

    def give(self, chunk: Chunk) -> None:
        """Hand over the next chunk of its task."""
        assert self.task is not None
        if self.chunk is not None:
            self.earlier.extend(self.chunk.items)
        self.chunk = chunk
        self.waiting = {} if self.task.inquiry else {item.key: item for item in chunk.items}
        self.send(chunk)

    def rest(self) -> None:
        """Its task is done."""
        assert self.chunk is not None
        self.earlier.extend(self.chunk.items)
        self.task = self.chunk = None
        self.waiting = {}

    def before(self, item: Item, ran: int = 0) -> list[Item]:
        """The vectors that it ran before one of its chunk, the last one last; `ran` of the chunk, if that is known."""
        assert self.chunk is not None
        at = ran or next(index for index, each in enumerate(self.chunk.items) if each.key == item.key)
        return [each for each in (*self.earlier, *self.chunk.items[:at]) if each.key != item.key]

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
        [sys.executable, "-P", "-m", "kerncast.measuring.worker", *map(str, inherited), family, backend],
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


def can_be_read(fd: int) -> bool:
    """Whether a descriptor can be read at once."""
    with selectors.DefaultSelector() as selector:
        selector.register(fd, selectors.EVENT_READ)
        return bool(selector.select(0))


def exit_words(code: int) -> str:
    """How a process ended."""
    if code < 0:
        with contextlib.suppress(ValueError):
            return signal.Signals(-code).name
    return f"exit code {code}"
