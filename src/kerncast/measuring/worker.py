"""A worker: one process per device that prepares, checks and times vectors, and may die at any of them.

It is started as `python -P -m kerncast.measuring.worker ORDERS RESULTS PROGRESS FAMILY BACKEND`; the first three are inherited
descriptors. Output of a kernel cannot reach them: standard output is discarded, and the supervisor keeps standard error in
a file, to report the last line before a crash.
"""

from __future__ import annotations

import contextlib
import ctypes
import datetime
import math
import os
import random
import resource
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from msgspec import structs

from kerncast.core.op import Config, Family, Problem
from kerncast.errors import KerncastError, NotFound
from kerncast.library.declared.declaration import declared_family
from kerncast.library.registry import FAMILIES
from kerncast.measuring.backends import get_backend
from kerncast.measuring.backends.contract import Backend, Failed, Prepared, TimesItself, WrongResult
from kerncast.measuring.backends.environment import fault_of
from kerncast.measuring.messages import (
    Chunk,
    Done,
    FailedStart,
    Frames,
    Item,
    Policy,
    Position,
    Ready,
    Reply,
    Result,
    Start,
    Stuck,
    frame,
    order_decoder,
)
from kerncast.measuring.timing import (
    BlockTimer,
    EnvironmentFault,
    Sentinel,
    TimedVector,
    failure_of,
    memory_bound,
    refuse_environment,
    result_of,
    watch,
    words_of,
)

# A block of slow kernels is not proven only at its end: a killed collection loses what was not.
PROOF_SECONDS = 1.0


class Disproved(Exception):
    """A kernel that was right is wrong now, or fails: one of the vectors since then spoiled this process."""

    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key


@dataclass(frozen=True)
class Witness:
    """A vector that was right; `index` is its place in the chunk."""

    index: int
    key: str
    vector: tuple[Problem, Config]


class SoundnessCheck:
    """Holds results back until a witness was right again: the first right vector of the chunk, or one from elsewhere.

    A kernel may compute the right result and yet spoil what the others use. The vectors after it show that by wrong results;
    after the last one of a chunk nobody would.
    """

    def __init__(
        self,
        backend: Backend,
        guard: Callable[[int, float], None],
        close: Callable[[int, Prepared], None],
        send: Callable[[Result], None],
    ) -> None:
        self.backend, self.guard, self.close, self.send = backend, guard, close, send
        self.first: Witness | None = None
        self.earlier: Witness | None = None
        self.several = False
        """Whether the chunk has another right vector: nobody is a witness of what it did itself."""
        self.held: list[Result] = []
        self.settled = time.monotonic()

    def begin(self, given: Witness | None) -> None:
        """A chunk begins. `given` was right in another process; one that was right in this one is better."""
        own = self.first or self.earlier
        self.earlier = given if own is None else Witness(Position.PROOF, own.key, own.vector)
        self.first, self.several, self.held = None, False, []
        self.settled = time.monotonic()

    def right(self, witness: Witness) -> None:
        """A vector of the chunk computed the right result."""
        self.several = self.first is not None
        self.first = self.first or witness

    def hold(self, result: Result) -> None:
        """Send a result when it is proven."""
        self.held.append(result)
        if time.monotonic() - self.settled > PROOF_SECONDS:
            self.settle()

    def settle(self) -> None:
        """Send what is held back, or raise `Disproved`."""
        if not self.held:
            return
        witness = self.first if self.several else self.earlier
        if witness is not None and not self._is_right(witness):
            raise Disproved(witness.key)
        for result in self.held:
            self.send(result)
        self.held, self.settled = [], time.monotonic()

    def _is_right(self, witness: Witness) -> bool:
        self.guard(witness.index, 0.0)
        try:
            kernel = self.backend.prepare(*witness.vector)
            try:
                return float(kernel.check()) <= self.backend.tolerance(witness.vector[0])
            finally:
                self.close(witness.index, kernel)
        except Exception as error:
            refuse_environment(error)
            # Next to other kernels there may be too little memory for it, which proves nothing.
            return failure_of(witness.key, error, "").status == "out_of_memory"


class Measurer:
    """Measures chunks with one backend."""

    def __init__(
        self,
        backend: Backend,
        family: Family,
        policy: Policy,
        position: Position,
        send: Callable[[Reply], None],
        build_jobs: int = 2,
    ) -> None:
        self.backend, self.family, self.policy, self.build_jobs = backend, family, policy, build_jobs
        self.position, self.send = position, send
        self.rng = random.Random(policy.seed)
        flush = self._flush if policy.cache == "cold" else None
        self.watches_threads = backend.runs_on_cpu and "threads" in family.environment.parameters
        self.timer = BlockTimer(policy, self._guard, backend.runs_on_cpu, flush, watch() if self.watches_threads else None)
        self.compute = Sentinel(backend.sentinel("compute"))
        # Other causes disturb memory-bound vectors, so these have their own sentinel.
        self.memory = Sentinel(backend.sentinel("memory"))
        self.memory_bound = memory_bound(family, backend.device())
        self.soundness = SoundnessCheck(backend, self._guard, self._close, send)
        self.leaking = False
        """Whether a kernel could not be closed; then the process is checked before it gets the next chunk."""

    def _flush(self) -> None:
        if not self.backend.flush_cache():
            raise Failed(f"backend {self.backend.name} cannot make caches cold: measure with `cache=warm`")

    def _guard(self, index: int, expected_ns: float) -> None:
        """Announce a step; it may take a multiple of what is expected, within the floor and the ceiling.

        The first launch on a new problem has no expected time (0): it may take as long as the ceiling allows.
        """
        ceiling = self.policy.deadline_ceiling_ns
        allowed = max(self.policy.deadline_floor_ns, int(self.policy.deadline_factor * expected_ns))
        self.position.at(index, min(allowed, ceiling) if expected_ns else ceiling)

    def measure(self, chunk: Chunk) -> None:
        """Send a result for every vector of a chunk; if one of them spoils the process, leave out the rest."""
        try:
            self._measure(chunk)
        except EnvironmentFault as fault:
            self.send(Stuck(str(fault)))
        except Disproved as disproved:
            self.position.idle()
            self.send(Done(chunk.number, spoiled=True, wrong=disproved.key))

    def _measure(self, chunk: Chunk) -> None:
        vectors = [self._vector(item) for item in chunk.items]
        given = chunk.witness if self.policy.verify else None
        self.soundness.begin(None if given is None else Witness(Position.PROOF, given.key, self._vector(given)))
        self.position.at(Position.ALL, int(self.backend.compile_seconds(vectors, self.build_jobs) * 1e9))
        try:
            self.backend.compile(vectors, self.build_jobs)
        except Exception as error:  # a kernel that does not build fails when it is prepared
            refuse_environment(error)
        if isinstance(self.backend, TimesItself):
            try:
                self._ask(self.backend, chunk.items, vectors)
            except KerncastError as error:  # the device cannot be brought back: nothing more to measure here
                self.send(FailedStart(words_of(error)))
                return
            self.position.idle()
            self.send(Done(chunk.number))
            return
        width = max(1, self.backend.max_prepared)
        blocks = (range(start, min(start + width, len(vectors))) for start in range(0, len(vectors), width))
        spoiled = any(self._block(chunk.items, vectors, indices) for indices in blocks)
        if not spoiled:
            self.soundness.settle()
        if self.leaking and not spoiled:
            self.leaking, spoiled = False, not self._healthy()
        self.position.idle()
        self.send(Done(chunk.number, spoiled))

    def _vector(self, item: Item) -> tuple[Problem, Config]:
        return Problem.trusted(self.family, item.problem), Config.trusted(self.family, item.config)

    def _block(self, items: list[Item], vectors: list[tuple[Problem, Config]], indices: range) -> bool:
        """Prepare and time some vectors together; True as soon as the process can no longer be trusted."""
        started = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
        waiting: dict[int, TimedVector] = {}

        def failed(index: int, error: Exception, ran: int) -> bool:
            refuse_environment(error)
            result = failure_of(items[index].key, error, started)
            broken = result.status == "launch_error" and not self._healthy()
            self.send(structs.replace(result, broken_by=ran if broken else 0))
            return broken

        for index in indices:
            try:
                waiting[index] = self._prepare(index, items[index], vectors[index])
            except Exception as error:  # whatever a kernel or its library throws
                if failed(index, error, index + 1):
                    return True

        def finish(timed: TimedVector) -> None:
            del waiting[timed.index]
            # Closed first: a kernel that crashes when it is closed has no result.
            self._close(timed.index, timed.kernel)
            self.soundness.hold(result_of(items[timed.index].key, timed, self.timer, started))

        while waiting:
            try:
                self.timer.time(list(waiting.values()), finish, self.rng)
            except Disproved:
                raise
            except Exception as error:
                # The step that failed is the one announced last; the others are timed again without it.
                index, _ = self.position.read()
                if index not in waiting:  # it has its row: the sentinel failed after it
                    return True
                self._close(index, waiting.pop(index).kernel)
                if failed(index, error, indices.stop):
                    return True
                for timed in waiting.values():
                    timed.forget()
        return False

    def _prepare(self, index: int, item: Item, vector: tuple[Problem, Config]) -> TimedVector:
        """Make the buffers, check the result and warm up."""
        self._guard(index, 0.0)
        begin = time.perf_counter_ns()
        sentinel = self.memory if self.memory_bound(vector[0]) and self.memory.kernel is not None else self.compute
        threads = int(item.problem["threads"] or 1) if self.watches_threads else 1
        timed = TimedVector(index, self.backend.prepare(*vector), sentinel, vector[0], item.best_ns, threads)
        timed.prepared_ns = float(time.perf_counter_ns() - begin)
        try:
            if self.policy.verify:
                self._guard(index, item.best_ns)
                timed.max_abs_err = float(timed.kernel.check())
                if not timed.max_abs_err <= self.backend.tolerance(vector[0]):  # also when it is NaN
                    raise WrongResult(timed.max_abs_err)
                self.soundness.right(Witness(index, item.key, vector))
            self.timer.warm_up(timed)
        except Exception:
            self._close(index, timed.kernel)
            raise
        return timed

    def _close(self, index: int, kernel: Prepared) -> None:
        """Close the kernel of a vector; an exception in closing is not its result, a crash is."""
        self._guard(index, 0.0)
        try:
            kernel.close()
        except Exception:
            self.leaking = True

    def _ask(self, backend: TimesItself, items: list[Item], vectors: list[tuple[Problem, Config]]) -> None:
        """Passes over programs that time themselves: one answer per pass, until they agree or there are enough."""
        started = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
        waiting = {
            index: TimedVector(index, backend.prepare(*vector), self.compute, vector[0], items[index].best_ns)
            for index, vector in enumerate(vectors)
        }
        verify, cache = self.policy.verify, self.policy.cache
        while waiting:
            order = list(waiting)
            self.rng.shuffle(order)
            silent = set(order)

            def begin(position: int, seconds: float, order: list[int] = order) -> None:
                self.position.at(order[position], int(seconds * 1e9))

            for position, answer in backend.ask([vectors[index] for index in order], begin, verify, cache):
                index = order[position]
                silent.discard(index)
                if isinstance(answer, Failed):
                    refuse_environment(answer)
                    del waiting[index]
                    self.send(failure_of(items[index].key, answer, started))
                    continue
                timed = waiting[index]
                timed.quiet.append(answer.time_ns)
                timed.max_abs_err = answer.max_abs_err
                timed.label = answer.label
                timed.prepared_ns = answer.compile_ns or 0.0
            for index in silent:
                del waiting[index]
                self.send(failure_of(items[index].key, Failed("the backend gave no answer"), started))
            self._settle(waiting, items, started)

    def _settle(self, waiting: dict[int, TimedVector], items: list[Item], started: str) -> None:
        """Send the rows of vectors that have enough answers."""
        best: dict[object, float] = {}
        for timed in waiting.values():
            best[timed.problem] = min(best.get(timed.problem, math.inf), *timed.quiet)
        for index, timed in list(waiting.items()):
            timed.best_ns = min(timed.best_ns or math.inf, best[timed.problem])
            if self.timer.enough(timed):
                del waiting[index]
                row = result_of(items[index].key, timed, self.timer, started)
                # Only the program knows how often it was launched and how it was warmed up.
                self.send(structs.replace(row, inner_loops=None, warmup_ns=None, compile_ns=timed.prepared_ns or None))

    def _healthy(self) -> bool:
        """After a failed launch: does the sentinel still run? A process that cannot show it is replaced."""
        kernel: Prepared | None = self.compute.kernel
        if kernel is None:
            return False
        try:
            return kernel.check() <= 0.0 and kernel.run(1) >= 0
        except Exception:
            return False


def main(orders: int, results: int, position_fd: int, family: str, backend: str) -> None:
    """Read orders until the supervisor closes the pipe; `family` and `backend` are those of the coming orders."""
    if sys.platform == "linux":  # it is killed when the supervisor is gone, even in the middle of a hanging kernel
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 0)
    os.dup2(nowhere, 1)
    position, frames = Position(position_fd), Frames(order_decoder)
    measurer: Measurer | None = None

    def send(message: Reply) -> None:
        data = frame(message)
        while data:
            data = data[os.write(results, data) :]

    # A spare imports early what it will need; an error is reported when it is asked to start.
    with contextlib.suppress(Exception):
        FAMILIES.alone(family)
        get_backend(backend)
    while data := os.read(orders, 1 << 20):
        for message in frames.feed(data):
            if isinstance(message, Chunk):
                assert measurer is not None
                measurer.measure(message)
            else:
                measurer = _start(message, position, send)


def _start(message: Start, position: Position, send: Callable[[Reply], None]) -> Measurer | None:
    try:
        backend = get_backend(message.backend).configured(message.index, message.options)
        device = backend.device()
        profile = {
            "name": device.name,
            "title": device.title,
            "kind": device.kind,
            "numbers": dict(device.numbers),
            "peak_tflops": dict(device.peak_tflops),
            "sources": dict(device.sources),
        }
        software = dict(backend.software(message.family))
        # A leak fails an allocation instead of exhausting the machine, and a crash leaves no core file.
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if message.policy.memory_bytes:
            resource.setrlimit(resource.RLIMIT_DATA, (message.policy.memory_bytes, message.policy.memory_bytes))
        own = message.declaration
        family = FAMILIES.alone(message.family) if own is None else declared_family(own)
        measurer = Measurer(backend, family, message.policy, position, send, message.build_jobs)
    except Exception as error:  # reported to the supervisor, which decides what to do
        # A name that is not found may be a device: the others go on without it.
        fault = None if isinstance(error, NotFound) else fault_of(error)
        send(FailedStart(words_of(error)) if fault is None else Stuck(fault))
        return None
    send(Ready(profile, software, isolated=isinstance(backend, TimesItself)))
    return measurer


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:6])
