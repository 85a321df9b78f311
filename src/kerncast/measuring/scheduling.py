"""What devices measure next, how it is found out which vector spoils the results of others, and why a collection stops."""

from __future__ import annotations

import abc
import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from kerncast.core.progress import QUIET, Progress
from kerncast.data import journal as journals
from kerncast.data.manifest import Hardware
from kerncast.errors import KerncastError
from kerncast.measuring.messages import Chunk, Item, Ready, Result

# How a vector that is right alone fails in a process that another one spoiled.
SPOILED = ("wrong_result", "launch_error")
# Vectors of a process that are remembered as possible causes of a wrong result.
REMEMBERED = 256
# A collection stops when so many configs in a row failed alike.
LIMIT = 100
# These two are what a problem that is too large, or a config that the device cannot run, should give.
EXPECTED = ("ok", "out_of_memory", "unsupported", "invalid")
CAUSES = {
    "compile_error": "the compiler, its flags or a missing header",
    "wrong_result": "the reference result, its tolerance or a broken device",
    "timeout": "a device that hangs, or a `timeout` that is too short",
    "not_run": "a program that is not built, or a wrong path",
}
OTHER_CAUSE = "the device, its driver or the backend"
_NUMBERS = re.compile(r"0x[0-9a-fA-F]+|\d+(\.\d+)?(e[+-]?\d+)?")


# -- why a collection stops before its end, other than by a signal -------------------------------------------


class Abandoned(Exception):
    """The collection was stopped: what is being measured is dropped."""


class CannotGoOn(KerncastError):
    """Something other than a kernel stops the collection: fix it, then resume."""

    rows = 0
    """Rows that are safe in the dataset."""
    ended: journals.Ended = "environment"
    fix = "fix that and run the same command to go on"

    @property
    def partial(self) -> bool:
        return self.rows > 0


class DeviceLost(CannotGoOn):
    """No worker can be started any more."""

    ended = "device_lost"
    fix = "fix the device and run the same command to go on"


class FailedAlike(CannotGoOn):
    """So many vectors in a row failed in the same way that one cause must be behind them."""

    ended = "alike_failures"
    fix = "fix the cause and run the same command to go on, or keep such rows as failures with `alike_failures=0`"


# -- what is to be done ------------------------------------------------------------------------------------


class Inquiry:
    """Which of the vectors that ran before a witness spoils its result: wrong after them, right alone.

    The one before it is tried first, then all the others together, then halves of what is left.
    """

    def __init__(self, witness: Item, suspects: Sequence[Item], held: Sequence[Item] = ()) -> None:
        self.witness, self.held = witness, list(held)
        """`held` are vectors that wait for the answer."""
        self.broken = 0
        """How often the process of this trial ended."""
        self.trying, self.rest = list(suspects[-1:]), list(suspects[:-1])
        self.wrong = False
        """Whether the witness was wrong in the last trial."""

    @property
    def over(self) -> bool:
        """Whether nobody is left to try."""
        return not self.trying

    def hear(self, result: Result) -> None:
        """Take a result of the trial; only that of the witness counts."""
        if result.key == self.witness.key:
            self.wrong = result.status in SPOILED

    def conclude(self) -> Item | None:
        """The one that did it; None: there are others to try, or it is over."""
        wrong, self.wrong, self.broken = self.wrong, False, 0
        if not wrong:
            self.trying, self.rest = self.rest, []
        elif len(self.trying) == 1:
            return self.trying.pop()
        else:
            half = len(self.trying) // 2
            self.trying, self.rest = self.trying[half:], self.trying[:half]
        return None


@dataclass
class WorkerTask:
    """Chunks for one worker, in this order."""

    chunks: deque[Chunk]
    fresh: bool = False
    """Only a process that has run nothing yet may do it."""
    suspects: Sequence[Item] = ()
    """What ran before the vector of this task, when that gave a wrong result."""
    inquiry: Inquiry | None = None
    """If given, the results only answer its question: nothing is recorded."""


class TaskQueue:
    """What waits besides the chunks: vectors to measure again, and trials."""

    def __init__(self) -> None:
        self.waiting: deque[WorkerTask] = deque()
        self.convicted: set[str] = set()
        """Vectors that spoil the results of others; they are not run again."""

    def next(self, chunks: Iterator[Chunk]) -> WorkerTask | None:
        """What to do now; None: nothing waits, and there are no more chunks."""
        while True:
            if self.waiting:
                task = self.waiting.popleft()
            elif (chunk := next(chunks, None)) is not None:
                task = WorkerTask(deque([chunk]))
            else:
                return None
            if task.inquiry or not self.convicted:
                return task
            left = [Chunk(chunk.number, [i for i in chunk.items if i.key not in self.convicted]) for chunk in task.chunks]
            task.chunks = deque(chunk for chunk in left if chunk.items)
            if task.chunks:
                return task

    def first(self, items: list[Item], number: int) -> None:
        """Measure vectors in any process, before everything else."""
        if items:
            self.waiting.appendleft(WorkerTask(deque([Chunk(number, items)])))

    def last(self, items: list[Item], number: int) -> None:
        """Measure vectors in any process, after what waits already."""
        if items:
            self.waiting.append(WorkerTask(deque([Chunk(number, items)])))

    def alone(self, item: Item, number: int, suspects: Sequence[Item] = ()) -> None:
        """Measure one vector again, now and in a process of its own."""
        self.waiting.appendleft(WorkerTask(deque([Chunk(number, [item])]), fresh=True, suspects=suspects))

    def one_by_one(self, items: list[Item], number: int) -> None:
        """Measure vectors in a process of its own each: together they are not sound, and nobody knows why."""
        self.waiting.extend(WorkerTask(deque([Chunk(number, [item])]), fresh=True) for item in items)

    def inquire(self, inquiry: Inquiry, number: int) -> None:
        """Look for the vector that spoiled a process, unless all were tried."""
        if inquiry.over:
            self.one_by_one(inquiry.held, number)
            return
        # Two chunks, so that the suspects have been timed before the witness is checked.
        chunks = deque([Chunk(number, inquiry.trying), Chunk(number, [inquiry.witness])])
        self.waiting.appendleft(WorkerTask(chunks, fresh=True, inquiry=inquiry))

    def broken(self, inquiry: Inquiry, number: int) -> None:
        """The process of a trial ended without an answer, perhaps by a signal from outside: once more, then it is given up."""
        inquiry.broken += 1
        if inquiry.broken > 1:
            self.one_by_one(inquiry.held, number)
        else:
            self.inquire(inquiry, number)


# -- what becomes of the results ---------------------------------------------------------------------------

FinalResult = tuple[Item, Result, int, str]
"""A vector, how it ended, its chunk and its device."""


class AlikeFailures:
    """A circuit breaker: many failures in a row that are all alike have one cause, and it is hardly the kernels.

    They are held back meanwhile, so that none of them has a row if their cause is a common one.
    """

    def __init__(self, limit: int = LIMIT) -> None:
        """`limit` counts different configs; 0: never."""
        self.limit = limit
        self.held: list[FinalResult] = []
        self._kind: tuple[str, str] | None = None
        self._configs: set[tuple[object, ...]] = set()

    def take(self, entry: FinalResult) -> list[FinalResult]:
        """What may be recorded now that this has happened, in order."""
        if not self.limit:
            return [entry]
        item, result = entry[:2]
        kind = None if result.status in EXPECTED else (result.status, _NUMBERS.sub("#", result.error or ""))
        free = self.release() if kind is None or kind != self._kind else []
        if kind is None:
            return [*free, entry]
        self._kind = kind
        self.held.append(entry)
        self._configs.add(tuple(item.config.items()))
        if len(self._configs) >= self.limit:
            words = f"{result.status}: {result.error}" if result.error else result.status
            count, self.held = len(self._configs), []
            raise FailedAlike(
                f"{count:,} configs in a row failed alike ({words}), so the likely cause is "
                f"{CAUSES.get(result.status, OTHER_CAUSE)}; none of them got a row"
            )
        return free

    def release(self) -> list[FinalResult]:
        """Everything that is held back."""
        free, self.held, self._kind = self.held, [], None
        self._configs.clear()
        return free


class Recorder(Protocol):
    """Takes a vector's final status. `overrules`: it replaces an earlier one, even a time."""

    def __call__(self, item: Item, result: Result, block: int, device_index: str, overrules: bool = False) -> None: ...


class Devices(abc.ABC):
    """Devices of one kind that measure the chunks of a collection: those of this machine, or of a cluster."""

    def __init__(self, record: Recorder, alike: AlikeFailures, progress: Progress = QUIET) -> None:
        self.record, self.alike, self.progress = record, alike, progress
        self.lost: dict[str, str] = {}
        """Devices that were given up, and why."""
        self.unblamed = 0
        """Vectors without a row because their device was lost while they ran."""

    @abc.abstractmethod
    def connect(self) -> Ready:
        """Start the devices; what the first of them reports identifies the collection."""

    @abc.abstractmethod
    def run(self, chunks: Iterator[Chunk], stop: Callable[[], bool]) -> bool:
        """Measure all chunks; False when `stop` ended it before they were all handed out."""

    @abc.abstractmethod
    def hardware(self, device: str) -> Hardware:
        """What the tools of a device's machine say about it."""

    @abc.abstractmethod
    def close(self) -> None:
        """End every worker, and record what was held back."""

    def settle(self, item: Item, result: Result, chunk: int, device: str) -> None:
        """Record a vector's status, unless too many others ended alike."""
        self._record_all(self.alike.take((item, result, chunk, device)))

    def release(self) -> None:
        """Record the failures that were held back: they were not too many."""
        self._record_all(self.alike.release())

    def _record_all(self, entries: list[FinalResult]) -> None:
        for item, result, chunk, device in entries:
            self.record(item, result, chunk, device)
            self.progress.result(
                result.status, device=device, problem=item.problem, time_ns=result.time_ns, samples=result.samples or 0,
                disturbed=result.disturbed_samples,
            )  # fmt: skip
