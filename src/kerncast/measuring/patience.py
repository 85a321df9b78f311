"""Deadlines on a busy machine: the time in which a worker is ready to run and gets no core does not count.

Without this, a kernel may miss its deadline because of what else runs on the machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

# At full rate deadlines change thousands of times a second, and each look reads a file: only one that lasts is looked at.
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
    """How long a process was ready to run and had no core; 0 where the kernel does not say.

    Of its first thread alone, which runs the kernels: a pool of many threads on few cores waits longer than time passes.
    """
    try:
        return int((proc / str(pid) / "schedstat").read_text().split()[1])
    except (OSError, ValueError, IndexError):  # it has ended, or this is not Linux
        return 0
