"""Deadlines on a busy machine: the time in which a worker is ready to run and gets no core does not count.

Without this, a kernel that runs out of memory in a second of work counts as one that hangs where ten processes share a core.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

# Reading the kernel's record takes some 20 us, and at full rate deadlines change thousands of times a second: only one that
# lasts is looked at.
SETTLED_NS = 20_000_000
# A deadline is put off to at most so many times its length.
MOST = 10


class Patience:
    """Whether the deadline of one worker has passed."""

    def __init__(self, waited: Callable[[], int], clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._waited, self._clock = waited, clock
        self._deadline = self._seen = 0
        self._before: int | None = None
        """How long the worker had waited for a core when the deadline was new."""

    def ended(self, deadline: int) -> bool:
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
    """How long the threads of a process were ready to run and had no core, in all; 0 where the kernel does not say."""
    total = 0
    for thread in (proc / str(pid) / "task").glob("*/schedstat"):
        with contextlib.suppress(OSError, ValueError, IndexError):  # the thread has ended
            total += int(thread.read_text().split()[1])
    return total
