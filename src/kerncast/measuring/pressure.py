"""CPU pressure: did a process wait for a CPU while a kernel with several threads was timed?

A kernel with several threads is as slow as its slowest thread, so another process on one CPU spoils its time. The
sentinel has one thread and may not notice.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

# Linux counts pressure in whole scheduler ticks (up to 10 ms) and drops the rest. Read every 2 ms, it alternates between
# 0 and 1; read every 20 ms or more, it is steady. One read takes 7 us, so this costs nothing.
WINDOW_NS = 50_000_000
# The machine is under pressure if a process waited for more than this share of the window. A sample that was off the CPU
# for the same share counts as pre-empted.
PRESSED = 0.1


class CpuPressure:
    """The share of the last window in which a process waited for a CPU.

    `read` counts nanoseconds of waiting if Linux reports it (PSI), else nanoseconds of CPU time that other processes
    took. In the second case `cpus` is the number of CPUs, and CPU time beyond what the kernel's threads leave free
    counts as waiting.
    """

    def __init__(
        self, read: Callable[[], float], cpus: int | None = None, clock: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self.read, self.cpus, self.clock = read, cpus, clock
        self.began, self.total = clock(), read()
        self.load = 0.0

    def now(self, threads: int) -> float:
        """The share in the newest window, for a kernel with `threads` threads."""
        at = self.clock()
        if at - self.began >= WINDOW_NS:
            total = self.read()
            self.load = (total - self.total) / (at - self.began)
            self.began, self.total = at, total
        waiting = self.load if self.cpus is None else self.load + threads - self.cpus
        return min(1.0, max(0.0, waiting))


def pressed(share: float, threads: int) -> bool:
    """Whether to take a sample again; never if the kernel has more threads than CPUs, because that would not end."""
    return share > PRESSED and threads <= len(os.sched_getaffinity(0))


def watch() -> CpuPressure | None:
    """The pressure of this machine; None if it cannot be read."""
    try:
        return CpuPressure(_waiting_reader())
    except OSError:  # a kernel without PSI, or with psi=0
        pass
    try:
        return CpuPressure(_others_reader(), os.cpu_count() or 1)
    except OSError:
        return None


def _waiting_reader() -> Callable[[], float]:
    fd = os.open("/proc/pressure/cpu", os.O_RDONLY | os.O_CLOEXEC)
    os.pread(fd, 1, 0)

    def read() -> float:
        line = os.pread(fd, 256, 0).split(b"\n", 1)[0]  # some avg10=… avg60=… avg300=… total=MICROSECONDS
        return 1e3 * int(line.rpartition(b"=")[2])

    return read


def _others_reader() -> Callable[[], float]:
    fd = os.open("/proc/stat", os.O_RDONLY | os.O_CLOEXEC)
    tick_ns = 1e9 / os.sysconf("SC_CLK_TCK")

    def read() -> float:
        line = os.pread(fd, 256, 0).split(b"\n", 1)[0]  # cpu user nice system idle iowait irq softirq steal …
        user, nice, system, _, _, *others = (int(part) for part in line.split()[1:9])
        return (user + nice + system + sum(others)) * tick_ns - time.process_time_ns()

    return read
