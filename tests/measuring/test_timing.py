"""The timing protocol, on a machine whose slow moments are scripted."""

import os
import random

import pytest

from kerncast.measuring.backends.contract import Prepared
from kerncast.measuring.messages import Policy
from kerncast.measuring.timing import WINDOW_NS, BlockTimer, CpuPressure, Sentinel, TimedVector, result_of, watch


class Machine:
    """A clock that every kernel moves, and a slowdown that depends on the time."""

    def __init__(self, slow=lambda now: 1.0):
        self.now, self.slow, self.launches = 0.0, slow, []

    def kernel(self, time_ns, name="k"):
        machine = self

        class Kernel(Prepared):
            def run(self, launches):
                spent = time_ns * machine.slow(machine.now) * launches
                machine.now += spent
                machine.launches.append((name, launches))
                return round(spent)

            def check(self):
                return 0.0

        return Kernel()


def timed_block(machine, times, policy, sentinel_ns=30_000):
    sentinel = Sentinel(machine.kernel(sentinel_ns, "sentinel"))
    timer = BlockTimer(policy, lambda index, expected: None, cpu_clock=False)
    block = [TimedVector(index, machine.kernel(time, f"v{index}"), sentinel, "problem") for index, time in enumerate(times)]
    for vector in block:
        timer.warm_up(vector)
    finished = []
    timer.time(block, finished.append, random.Random(0))
    assert sorted(v.index for v in finished) == list(range(len(times)))
    return block


def test_short_kernels_loop_until_the_region_is_long_enough_to_read():
    """A 1 us kernel is timed 300 at a time, a 10 ms kernel alone; warm-up stays out of the label."""
    block = timed_block(Machine(), [1_000, 10_000_000], Policy(give_up=1e9))
    assert block[0].loops == 300
    assert block[1].loops == 1
    assert [min(v.quiet) for v in block] == [1_000, 10_000_000]
    assert block[0].warmup_ns >= 500_000


def test_caches_are_made_cold_before_every_sample():
    """One launch each, however short: a second one would find its data in the cache."""
    machine = Machine()
    flush = lambda: machine.launches.append(("flush", 0))  # noqa: E731
    timer = BlockTimer(Policy(samples=3, fewest_samples=3), lambda index, expected: None, cpu_clock=False, flush=flush)
    vector = TimedVector(0, machine.kernel(1_000, "v"), Sentinel(None))
    timer.warm_up(vector)
    machine.launches.clear()
    timer.time([vector], lambda timed: None, random.Random(0))
    assert machine.launches == [("flush", 0), ("v", 1)] * 3


def test_a_slow_moment_does_not_reach_the_label():
    """A slow mode that covers a third of the time is seen by the sentinel; the label comes from the quiet samples."""
    machine = Machine(lambda now: 1.4 if int(now / 3e6) % 3 == 0 else 1.0)
    truths = [50_000, 80_000, 120_000, 300_000]
    block = timed_block(machine, truths, Policy(samples=40, fewest_samples=10, give_up=1e9))
    for vector, truth in zip(block, truths, strict=True):
        assert all(sample == pytest.approx(truth, rel=0.02) for sample in vector.accepted(0.05))
        assert len(vector.accepted(0.05)) >= 10
    assert sum(len(vector.disturbed) for vector in block) > 0


def test_a_slow_mode_that_the_sentinel_misses_is_outvoted_by_the_fastest():
    """Noise only slows down: five slow samples in a row do not make a label while faster ones appear."""
    machine = Machine()
    slow = iter([1.3, 1.0, 1.3, 1.3, 1.0, 1.3, 1.0, 1.0] + [1.0] * 99)
    timer = BlockTimer(Policy(), lambda index, expected: None, cpu_clock=False)
    vector = TimedVector(0, machine.kernel(1_000_000), Sentinel(None), loops=1)
    machine.slow = lambda now: next(slow)
    timer.time([vector], lambda timed: None, random.Random(0))
    assert set(vector.accepted(0.05)) == {1_000_000}


def test_a_vector_without_quiet_samples_is_unsure():
    """It gets its label all the same, and is worth another visit."""
    machine = Machine()
    sentinel = Sentinel(machine.kernel(30_000))
    machine.slow = lambda now: 1.5
    timer = BlockTimer(Policy(samples=5), lambda index, expected: None, cpu_clock=False)
    vector = TimedVector(0, machine.kernel(1_000_000), sentinel)
    timer.time([vector], lambda timed: None, random.Random(0))
    assert (len(vector.quiet), len(vector.disturbed)) == (0, 5)
    assert not timer.confirmed(vector)


def test_samples_of_one_vector_are_spread_over_passes_in_shuffled_order():
    """Never one burst: between two samples of a vector the others have their turn."""
    machine = Machine()
    timed_block(machine, [500_000, 510_000, 520_000], Policy(samples=6, fewest_samples=6, close=0.0, give_up=1e9))
    order = [name for name, _ in machine.launches if name.startswith("v")][-18:]
    passes = [tuple(order[i : i + 3]) for i in range(0, 18, 3)]
    assert all(len(set(one)) == 3 for one in passes)
    assert len(set(passes)) > 1


def test_far_slower_vectors_are_given_up_early_and_steady_ones_stop_early():
    """Two samples are enough to lose; a quiet machine needs only the fewest."""
    block = timed_block(Machine(), [100_000, 100_100, 900_000], Policy(fewest_samples=4, give_up=3.0))
    assert [vector.taken() for vector in block] == [4, 4, 2]


def test_give_up_compares_within_a_problem_only():
    """A large problem is not slow because a small one is fast."""
    machine = Machine()
    timer = BlockTimer(Policy(give_up=3.0), lambda index, expected: None, cpu_clock=False)
    none = Sentinel(None)
    block = [TimedVector(0, machine.kernel(1_000), none, "small"), TimedVector(1, machine.kernel(1_000_000), none, "large")]
    timer.time(block, lambda vector: None, random.Random(0))
    assert [vector.taken() for vector in block] == [4, 4]


class Crowd:
    """A count of waiting that goes on while someone waits, on the machine's own clock."""

    def __init__(self, machine, waits):
        self.machine, self.waits, self.counted, self.waited = machine, waits, 0.0, 0.0

    def read(self):
        self.waited += self.waits(self.machine.now) * (self.machine.now - self.counted)
        self.counted = self.machine.now
        return self.waited


def threaded(waits, threads, samples=12, cpus=None):
    """One kernel of 30 ms, timed while others wait as scripted."""
    machine = Machine()
    pressure = CpuPressure(Crowd(machine, waits).read, cpus, lambda: int(machine.now))
    timer = BlockTimer(Policy(samples=samples), lambda index, expected: None, cpu_clock=False, pressure=pressure)
    vector = TimedVector(0, machine.kernel(30_000_000), Sentinel(None), threads=threads)
    timer.time([vector], lambda timed: None, random.Random(0))
    return vector, result_of("key", vector, timer, "")


@pytest.fixture
def two_cpus(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})


def test_several_threads_are_timed_again_until_nobody_waits_for_a_cpu(two_cpus):
    """Samples under pressure do not count once there are others; one thread does not care."""
    vector, row = threaded(lambda now: 0.5 if now < 250e6 else 0.0, threads=2)
    assert (len(vector.quiet), row.error, row.unsure) == (4, None, False)
    assert row.disturbed_samples == len(vector.pressures) == 8
    vector, row = threaded(lambda now: 0.5, threads=1)
    assert (len(vector.quiet), len(vector.disturbed), row.error) == (4, 0, None)


def test_a_row_that_was_timed_under_pressure_says_so(two_cpus):
    """When it never ends, the retries do; the label stands, the row says how much, and it is worth another visit."""
    _, row = threaded(lambda now: 0.25, threads=2, samples=6)
    assert (row.status, row.samples, row.unsure) == ("ok", 6, True)
    assert row.error == "timed under CPU pressure: others wanted the CPUs of its 2 threads for 25% of the time"


def test_threads_that_are_too_many_for_the_machine_are_not_retried_for_ever(two_cpus):
    """They wait for each other: that is the kernel's own time."""
    vector, row = threaded(lambda now: 1.0, threads=3)
    assert (len(vector.quiet), row.error) == (4, None)


def test_without_psi_the_time_of_others_counts_where_it_leaves_too_few_cpus(two_cpus):
    """One busy neighbour is no pressure on two threads of four CPUs, and is on two of two."""
    assert threaded(lambda now: 1.0, threads=2, cpus=4)[1].error is None
    assert "for 100% of the time" in threaded(lambda now: 1.0, threads=2, cpus=2)[1].error


def test_pressure_is_read_once_a_window():
    """Linux forgets what is read more often than it ticks, and a sample must not pay for a reading."""
    now, reads = [0], []
    pressure = CpuPressure(lambda: reads.append(now[0]) or 0.0, clock=lambda: now[0])
    for _ in range(1000):
        now[0] += WINDOW_NS // 100
        pressure.now(2)
    assert len(reads) == 1 + 10


def test_this_machine_can_tell_its_pressure():
    """PSI or /proc/stat, whichever is there; a share."""
    pressure = watch()
    if pressure is not None:
        pressure.began -= WINDOW_NS
        assert 0.0 <= pressure.now(2) <= 1.0
