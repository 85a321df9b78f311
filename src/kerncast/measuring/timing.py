"""Timing a block of prepared kernels honestly: spread in time, guarded by a sentinel, looped when short.

On shared machines a slow mode lasts from a fraction of a millisecond to seconds. Samples of one vector are
therefore taken in several passes over the whole block, in shuffled order, never in one burst; a fixed tiny
kernel, the sentinel, runs between samples, and a sample whose sentinel was slow counts only if there is no other.
Noise only makes kernels slower: the label is the median of the samples close to the fastest, once several agree.
"""

from __future__ import annotations

import errno
import math
import os
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from kerncast.core.device import Device
from kerncast.core.expr import Program
from kerncast.core.op import Family, Problem
from kerncast.errors import KerncastError
from kerncast.measuring.backends.contract import Failed, Prepared, WrongResult
from kerncast.measuring.backends.environment import fault_of
from kerncast.measuring.messages import Policy, Result

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


# A sample whose process was off the CPU for more than this share of the time was pre-empted.
PREEMPTED = 0.1
LONGEST_LOOP = 1_000_000
SENTINEL_WARMUP = 20


class Sentinel:
    """A fixed kernel with a known floor: how slow is the machine right now?"""

    def __init__(self, kernel: Prepared | None) -> None:
        self.kernel = kernel
        self.floor = math.inf
        self.last = 0.0
        if kernel is not None:
            for _ in range(SENTINEL_WARMUP):
                self.read()

    def read(self) -> float:
        """One launch, after one that brings its data back into the cache; the floor is the fastest ever seen."""
        if self.kernel is not None:
            self.kernel.run(1)
            self.last = float(self.kernel.run(1))
            self.floor = min(self.floor, self.last)
        return self.last

    def slowdown(self, spent: float) -> float:
        """How many times slower than the floor."""
        return spent / self.floor if self.kernel is not None and self.floor > 0 else 1.0


@dataclass
class TimedVector:
    """One vector of a block while it is being timed."""

    index: int
    kernel: Prepared
    sentinel: Sentinel
    problem: object = None
    best_ns: float = 0.0
    threads: int = 1
    """Threads of a kernel on this CPU. With more than one it is timed only while no process waits for a CPU."""
    loops: int = 1
    warmup_ns: int = 0
    quiet: list[float] = field(default_factory=list)
    disturbed: list[float] = field(default_factory=list)
    sentinels: list[float] = field(default_factory=list)
    pressures: list[float] = field(default_factory=list)
    """The pressure during each sample under CPU pressure."""
    prepared_ns: float = 0.0
    max_abs_err: float | None = None
    label: str | None = None
    """What the program that ran it calls the kernel."""
    expected_ns: float = 0.0

    def forget(self) -> None:
        """Drop the samples: the block is timed again after one of its vectors failed."""
        for samples in (self.quiet, self.disturbed, self.sentinels, self.pressures):
            samples.clear()

    def taken(self) -> int:
        """The number of samples, quiet and disturbed."""
        return len(self.quiet) + len(self.disturbed)

    def accepted(self, close: float) -> list[float]:
        """The samples of the label: the quiet ones (all, if there are none) close to the fastest of them."""
        samples = self.quiet or self.disturbed
        limit = min(samples) * (1 + close)
        return [sample for sample in samples if sample <= limit]


def _launched(vector: TimedVector, launches: int, least: int) -> int:
    """Its time by the backend's clock, refused if it is impossible. (A single short launch may read 0.)"""
    spent = vector.kernel.run(launches)
    if not least <= spent < math.inf:  # also when it is NaN
        raise Failed(f"the backend says that {launches:,} launches took {spent} ns: a time must be a positive number")
    return spent


class BlockTimer:
    """Times a block; `guard` announces each step (vector and allowed time), `finish` takes each finished vector."""

    def __init__(
        self,
        policy: Policy,
        guard: Callable[[int, float], None],
        cpu_clock: bool,
        flush: Callable[[], None] | None = None,
        pressure: CpuPressure | None = None,
    ) -> None:
        self.policy, self.guard = policy, guard
        self.cpu_clock, self.flush, self.pressure = cpu_clock, flush, pressure

    def warm_up(self, vector: TimedVector) -> None:
        """Run it for a while, and find out how many launches make a region long enough to read."""
        policy = self.policy
        self.guard(vector.index, vector.best_ns)
        spent = total = _launched(vector, 1, 0)
        launches = 1
        while total < policy.warmup_ns:
            launches = min(launches * 2, max(1, int((policy.warmup_ns - total) / max(spent, 1)) + 1))
            self.guard(vector.index, spent * launches)
            region = _launched(vector, launches, 0)
            total += region
            spent = max(1, region // launches)
            if spent * launches > policy.warmup_ns / 4:
                break
        vector.warmup_ns, vector.expected_ns = total, float(spent)
        vector.loops = 1 if self.flush else min(LONGEST_LOOP, max(1, math.ceil(policy.sample_ns / max(spent, 1))))

    def sample(self, vector: TimedVector) -> None:
        """One sample, and whether the machine was quiet while it was taken."""
        sentinel = vector.sentinel
        self.guard(vector.index, vector.expected_ns * vector.loops)
        before = sentinel.last
        if self.flush:
            self.flush()
        cpu = time.process_time_ns()
        spent = _launched(vector, vector.loops, 1)
        busy = time.process_time_ns() - cpu
        after = sentinel.read()
        slow = max(sentinel.slowdown(before), sentinel.slowdown(after)) > self.policy.disturbed
        preempted = self.cpu_clock and busy < (1 - PREEMPTED) * spent
        crowded = vector.threads > 1 and self._crowded(vector)
        (vector.disturbed if slow or preempted or crowded else vector.quiet).append(spent / vector.loops)
        vector.sentinels.append(after)

    def _crowded(self, vector: TimedVector) -> bool:
        """Whether a process waited for a CPU lately; then a later pass takes another sample."""
        if self.pressure is None:
            return False
        share = self.pressure.now(vector.threads)
        # Never for a kernel with more threads than CPUs, because that would not end.
        if share <= PRESSED or vector.threads > len(os.sched_getaffinity(0)):
            return False
        vector.pressures.append(share)
        return True

    def confirmed(self, vector: TimedVector) -> bool:
        """Whether enough quiet samples agree."""
        return len(vector.quiet) > 0 and len(vector.accepted(self.policy.close)) >= self.policy.fewest_samples

    def given_up(self, vector: TimedVector) -> bool:
        """Whether it is too far behind the best of its problem to be worth more samples."""
        fastest = min(vector.quiet or vector.disturbed)
        return vector.taken() >= min(2, self.policy.samples) and 0 < self.policy.give_up * vector.best_ns < fastest

    def enough(self, vector: TimedVector) -> bool:
        """Whether more samples would change anything."""
        return vector.taken() >= self.policy.samples or self.given_up(vector) or self.confirmed(vector)

    def time(self, block: Sequence[TimedVector], finish: Callable[[TimedVector], None], rng: random.Random) -> None:
        """Passes over the block in shuffled order until every vector has enough samples."""
        active = list(block)
        for sentinel in {id(vector.sentinel): vector.sentinel for vector in block}.values():
            sentinel.read()
        while active:
            rng.shuffle(active)
            for vector in active:
                self.sample(vector)
            best: dict[object, float] = {}
            for vector in block:
                best[vector.problem] = min(best.get(vector.problem, math.inf), *vector.accepted(self.policy.close))
            still = []
            for vector in active:
                vector.best_ns = min(vector.best_ns or math.inf, best[vector.problem])
                if self.enough(vector):
                    finish(vector)
                else:
                    still.append(vector)
            active = still


def memory_bound(family: Family, device: Device) -> Callable[[Problem], bool]:
    """Whether a problem's operands exceed the last private cache and its roofline is the memory's."""
    work = family.work(family.op.namespace())
    l2_bytes = device.numbers.get("l2_cache_kb", math.inf) * 1024
    bandwidth = device.numbers.get("memory_bandwidth_gb_s")
    if work is None or bandwidth is None:
        return lambda problem: False
    program = Program({"flops": work.flops, "bytes": work.bytes})

    @lru_cache(maxsize=256)
    def bound(problem: Problem) -> bool:
        peak = device.peak_of(str(problem.as_dict().get("dtype")))
        if peak is None:
            return False
        need = program.scalar(family.problem.qualified(problem.as_dict()))
        return need["bytes"] > l2_bytes and need["bytes"] / (bandwidth * 1e9) > need["flops"] / (peak * 1e12)

    return bound


class EnvironmentFault(Exception):
    """The machine around the kernels failed; the message says how."""


def refuse_environment(error: Exception) -> None:
    """Raise an `EnvironmentFault` if that is why an exception was raised."""
    fault = fault_of(error)
    if fault is not None:
        raise EnvironmentFault(fault) from error


def words_of(error: BaseException) -> str:
    """The message of an exception, after its type unless it can be read alone (that of a KeyError is just a key)."""
    text, kind = " ".join(str(error).split()), type(error).__name__
    if text and isinstance(error, Failed | KerncastError):
        return text[:500]
    return f"{kind}: {text}"[:500] if text else kind


def failure_of(key: str, error: Exception, started: str) -> Result:
    """The row of a vector that raised an exception."""
    no_memory = isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM)
    status = error.status if isinstance(error, Failed) else "out_of_memory" if no_memory else "launch_error"
    wrong = error.max_abs_err if isinstance(error, WrongResult) and math.isfinite(error.max_abs_err) else None
    return Result(key, status, max_abs_err=wrong, started_at=started, error=words_of(error))


def result_of(key: str, timed: TimedVector, timer: BlockTimer, started: str) -> Result:
    """The row of a timed vector: median and deviation of the accepted samples, mean and spread of all of them."""
    everything, crowded = timed.quiet + timed.disturbed, None
    if timed.pressures and not timer.confirmed(timed):  # too few quiet samples because other processes wanted the CPUs
        share = statistics.fmean(timed.pressures)
        crowded = f"timed under CPU pressure: others wanted the CPUs of its {timed.threads} threads for {share:.0%} of the time"
    accepted = timed.accepted(timer.policy.close)
    middle = statistics.median(accepted)
    return Result(
        key=key,
        status="ok",
        time_ns=middle,
        time_ns_min=min(everything),
        time_ns_mean=statistics.fmean(everything),
        time_ns_std=statistics.stdev(everything) if len(everything) > 1 else None,
        time_ns_mad=statistics.median(abs(sample - middle) for sample in accepted),
        samples=len(everything),
        inner_loops=timed.loops,
        warmup_ns=float(timed.warmup_ns),
        compile_ns=timed.prepared_ns,
        max_abs_err=timed.max_abs_err,
        label=timed.label,
        sentinel_ns=statistics.median(timed.sentinels) if any(timed.sentinels) else None,
        started_at=started,
        error=crowded,
        disturbed_samples=len(timed.disturbed),
        unsure=not timer.confirmed(timed) and not timer.given_up(timed),
    )
