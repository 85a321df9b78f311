"""Deadlines of workers that wait for a core."""

import os
import subprocess
import sys
import time

import pytest

from kerncast.measuring.process import MOST, SETTLED_NS, Deadline, waited_ns

SECOND = 1_000_000_000


class Machine:
    """A clock, and what a worker has waited so far."""

    def __init__(self) -> None:
        self.now, self.waited = SECOND, 7 * SECOND

    def watch(self) -> Deadline:
        return Deadline(lambda: self.waited, lambda: self.now)

    def passes(self, seconds: float, waiting: float) -> None:
        self.now += int(seconds * SECOND)
        self.waited += int(seconds * waiting * SECOND)


@pytest.mark.parametrize(("waiting", "lasts"), [(0.0, 2.0), (0.5, 4.0), (0.8, 10.0), (1.0, 2.0 * MOST)])
def test_a_deadline_is_put_off_by_the_time_without_a_core(waiting, lasts):
    """Two seconds with a core half of the time are four; a worker that never gets one is given up at last."""
    machine = Machine()
    watched, deadline = machine.watch(), machine.now + 2 * SECOND
    assert not watched.passed(deadline)
    machine.passes(2 * SETTLED_NS / SECOND, 0.0)
    began = machine.now - 2 * SETTLED_NS
    while not watched.passed(deadline):
        machine.passes(0.05, waiting)
    assert lasts - 0.3 < (machine.now - began) / SECOND < lasts + 0.3


def test_what_was_waited_before_a_deadline_does_not_count():
    """Each new deadline begins at zero, and no deadline never ends."""
    machine = Machine()
    watched = machine.watch()
    for _ in range(3):
        deadline = machine.now + SECOND
        assert not watched.passed(deadline)
        machine.passes(0.5, 1.0)
        assert not watched.passed(deadline)
        machine.passes(0.6, 0.0)
        assert watched.passed(deadline)
        assert not watched.passed(0)


@pytest.mark.skipif(not os.path.exists("/proc/self/schedstat"), reason="this kernel does not say who waits")
def test_the_kernel_says_who_waits_for_a_core():
    """Of two busy processes on one core, one waits while the other runs; one that sleeps does not wait."""
    core = {min(os.sched_getaffinity(0))}
    pin = f"import os; os.sched_setaffinity(0, {core}); "
    busy = [subprocess.Popen([sys.executable, "-c", pin + "\nwhile True: pass"]) for _ in range(2)]
    asleep = pin + "import time; print(flush=True); time.sleep(60)"
    idle = subprocess.Popen([sys.executable, "-c", asleep], stdout=subprocess.PIPE)
    try:
        deadline = time.monotonic() + 30
        while min(waited_ns(process.pid) for process in busy) < SECOND // 5 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert min(waited_ns(process.pid) for process in busy) >= SECOND // 5
        assert idle.stdout is not None
        idle.stdout.readline()
        before = waited_ns(idle.pid)
        time.sleep(0.5)
        assert waited_ns(idle.pid) - before < SECOND // 10
    finally:
        for process in (*busy, idle):
            process.kill()
            process.communicate()
    assert waited_ns(idle.pid) == 0
