"""Timing a block of prepared kernels honestly: spread in time, guarded by a sentinel, looped when short.

On shared machines a slow mode lasts from a fraction of a millisecond to seconds. Samples of one vector are
therefore taken in several passes over the whole block, in shuffled order, never in one burst; a fixed tiny
kernel, the sentinel, runs between samples, and a sample whose sentinel was slow is taken again.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from kerncast.backends.contract import Prepared
from kerncast.collect.messages import Policy

# A sample whose process was off the CPU for more than this share of the time was pre-empted.
PREEMPTED = 0.1
LONGEST_LOOP = 1_000_000


@dataclass
class Timed:
    """One vector of a block while it is being timed."""

    index: int
    kernel: Prepared
    problem: object = None
    best_ns: float = 0.0
    loops: int = 1
    warmup_ns: int = 0
    samples: list[float] = field(default_factory=list)
    sentinels: list[float] = field(default_factory=list)
    retaken: int = 0
    prepared_ns: float = 0.0
    max_abs_err: float | None = None
    expected_ns: float = 0.0

    def forget(self) -> None:
        """Drop the samples: the block is timed again after one of its vectors failed."""
        self.samples.clear()
        self.sentinels.clear()

    def median(self) -> float:
        """The label so far."""
        return statistics.median(self.samples)

    def mad(self) -> float:
        """Median absolute deviation of the samples."""
        middle = self.median()
        return statistics.median(abs(sample - middle) for sample in self.samples)


class Sentinel:
    """A fixed kernel with a known floor: how slow is the machine right now?"""

    def __init__(self, kernel: Prepared | None) -> None:
        self.kernel = kernel
        self.floor = math.inf
        if kernel is not None:
            for _ in range(20):
                self.read()

    def read(self) -> float:
        """One launch; the floor is the fastest ever seen."""
        if self.kernel is None:
            return 0.0
        spent = float(self.kernel.run(1))
        self.floor = min(self.floor, spent)
        return spent

    def slowdown(self, spent: float) -> float:
        """How many times slower than the floor."""
        return spent / self.floor if self.kernel is not None and self.floor > 0 else 1.0


class BlockTimer:
    """Times a block; `guard` announces each step (vector and allowed time), `finish` takes each finished vector."""

    def __init__(
        self,
        policy: Policy,
        sentinel: Sentinel,
        guard: Callable[[int, float], None],
        cpu_clock: bool,
        flush: Callable[[], None] | None = None,
    ) -> None:
        self.policy, self.sentinel, self.guard = policy, sentinel, guard
        self.cpu_clock, self.flush = cpu_clock, flush

    def warm_up(self, vector: Timed) -> None:
        """Run it for a while, and find out how many launches make a region long enough to read."""
        policy = self.policy
        self.guard(vector.index, 0.0)
        spent = total = vector.kernel.run(1)
        launches = 1
        while total < policy.warmup_ns:
            launches = min(launches * 2, max(1, int((policy.warmup_ns - total) / max(spent, 1)) + 1))
            self.guard(vector.index, spent * launches)
            region = vector.kernel.run(launches)
            total += region
            spent = max(1, region // launches)
            if spent * launches > policy.warmup_ns / 4:
                break
        vector.warmup_ns, vector.expected_ns = total, float(spent)
        vector.loops = 1 if self.flush else min(LONGEST_LOOP, max(1, math.ceil(policy.sample_ns / max(spent, 1))))

    def sample(self, vector: Timed, before: float) -> float:
        """One accepted sample (or the last of several disturbed ones); returns the sentinel reading after it."""
        after = before
        for attempt in range(self.policy.retries + 1):
            self.guard(vector.index, vector.expected_ns * vector.loops)
            if self.flush:
                self.flush()
            cpu = time.process_time_ns()
            spent = vector.kernel.run(vector.loops)
            busy = time.process_time_ns() - cpu
            after = self.sentinel.read()
            slow = max(self.sentinel.slowdown(before), self.sentinel.slowdown(after)) > self.policy.disturbed
            preempted = self.cpu_clock and busy < (1 - PREEMPTED) * spent
            if not (slow or preempted) or attempt == self.policy.retries:
                vector.samples.append(spent / vector.loops)
                vector.sentinels.append(after)
                return after
            vector.retaken += 1
            before = after
        return after

    def enough(self, vector: Timed) -> bool:
        """Whether more samples would change anything."""
        taken = len(vector.samples)
        if taken >= self.policy.samples:
            return True
        if (
            taken >= min(2, self.policy.samples)
            and vector.best_ns
            and min(vector.samples) > self.policy.give_up * vector.best_ns
        ):
            return True
        return taken >= self.policy.fewest_samples and vector.mad() <= self.policy.target_mad * vector.median()

    def time(self, block: Sequence[Timed], finish: Callable[[Timed], None], rng: random.Random) -> None:
        """Passes over the block in shuffled order until every vector has enough samples."""
        active = list(block)
        reading = self.sentinel.read()
        while active:
            rng.shuffle(active)
            for vector in active:
                reading = self.sample(vector, reading)
            best: dict[object, float] = {}
            for vector in block:
                best[vector.problem] = min(best.get(vector.problem, math.inf), vector.median())
            still = []
            for vector in active:
                vector.best_ns = min(vector.best_ns or math.inf, best[vector.problem])
                if self.enough(vector):
                    finish(vector)
                else:
                    still.append(vector)
            active = still
