"""The supervisor: hands chunks to workers, takes results by key, and survives whatever happens to a worker.

A vector that crashes, hangs or exhausts memory affects only its own row: its worker is killed by pid, the spare takes over,
and the rest of the chunk goes on. It is blamed only if it does so twice in the same way, the second time alone in a fresh
process. A wrong result, or a failure that leaves the process broken, counts only from a fresh process, too: if the vector is
right there, an inquiry looks for the one that spoiled the old process. A device that does not come back is lost: the vector
that ran at that moment is not to blame, and the other devices go on. Only this process writes.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence

from msgspec import structs

from kerncast.core.io.terminal import assignments
from kerncast.core.progress import QUIET, Progress
from kerncast.data.manifest import Hardware
from kerncast.measuring.backends import get_backend
from kerncast.measuring.backends.environment import oom_kills, resident_bytes
from kerncast.measuring.hardware import capture
from kerncast.measuring.messages import Chunk, Done, FailedStart, Item, Position, Ready, Reply, Result, Start, Stuck
from kerncast.measuring.process import Worker, can_be_read, exit_words, spawn
from kerncast.measuring.scheduling import (
    Abandoned,
    AlikeFailures,
    CannotGoOn,
    DeviceLost,
    Devices,
    Inquiry,
    Recorder,
    TaskQueue,
)

POLL_SECONDS = 0.05
START_SECONDS = 300.0
# How long to wait for other devices after the first one has started. Nothing is measured until then, so that devices
# that differ are refused before any of them has a row.
TOGETHER_SECONDS = 30.0
# A device whose backend does not come up this many times in a row is given up.
FAILED_STARTS = 3
# A vector at which a worker ended twice in the same way is to blame, or if one did so this many times.
MOST_STRIKES = 3


class Supervisor(Devices):
    """Measures chunks on one or more devices of this machine."""

    def __init__(
        self,
        start: Start,
        devices: Sequence[str],
        *,
        record: Recorder,
        flush: Callable[[], None],
        admit: Callable[[str, Ready], None],
        reset: Sequence[str] = (),
        memory_bytes: int = 0,
        alike: AlikeFailures | None = None,
        abandoned: Callable[[], bool] = lambda: False,
        progress: Progress = QUIET,
    ) -> None:
        """`admit` gets what every worker reports, also after a restart, and refuses a worker that does not match.

        `reset` is the command that brings a device back. Once `abandoned` returns True, every method raises `Abandoned`; it is
        asked several times a second.
        """
        super().__init__(record, alike or AlikeFailures(0), progress)
        self.start, self.devices, self.admit, self.flush = start, devices, admit, flush
        self.reset, self.memory_bytes, self.abandoned = reset, memory_bytes, abandoned
        self.workers: dict[str, Worker] = {}
        self.spare: Worker | None = None
        self.selector = selectors.DefaultSelector()
        self.tasks = TaskQueue()
        self.failed_starts = dict.fromkeys(devices, 0)
        self.connected = False
        self.struck: dict[str, list[str]] = {}
        """Vectors at which a worker ended, and how."""
        self.blamed: dict[str, tuple[Item, Result, int]] = {}
        """By device: the vector at which a worker ended twice. It gets its row if the device comes up again."""
        self.right: Item | None = None
        """A vector that computed the right result in some process."""
        self.looked = time.monotonic()

    # -- workers -------------------------------------------------------------------------------------

    def _keep_spare(self) -> Worker:
        """The warm process that the next device gets."""
        self.spare = self.spare or spawn(self.start.family, self.start.backend)
        return self.spare

    def _open(self, device: str) -> None:
        """Give a device a worker."""
        worker, self.spare = self._keep_spare(), None
        worker.started = time.monotonic()
        worker.send(structs.replace(self.start, index=device))
        self.workers[device] = worker
        self.selector.register(worker.results, selectors.EVENT_READ, device)

    def _close(self, device: str) -> Worker:
        worker = self.workers.pop(device)
        self.selector.unregister(worker.results)
        return worker

    def connect(self) -> Ready:
        """Start a worker per device and wait for them; what the first in order reports identifies the collection."""
        for device in self.devices:
            self._open(device)
        # Now, not next to the first vectors: they may crash, and the imports of a spare would disturb their timing.
        self._keep_spare()
        first: float | None = None
        while True:
            up = {device: self.workers[device].ready for device in self.devices if device in self.workers}
            ready = {device: message for device, message in up.items() if message is not None}
            if ready and first is None:
                first = time.monotonic()
            if first is not None and (len(ready) == len(up) or time.monotonic() - first > TOGETHER_SECONDS):
                self.connected = True
                for device, message in ready.items():
                    self.admit(device, message)
                return next(iter(ready.values()))
            self._step(POLL_SECONDS)

    def hardware(self, device: str) -> Hardware:
        return capture(device)

    def close(self) -> None:
        self.release()
        for device in list(self.workers):
            self._close(device).kill()
        if self.spare is not None:
            self.spare.kill()
            self.spare = None
        self.selector.close()

    # -- the loop ------------------------------------------------------------------------------------

    def run(self, chunks: Iterator[Chunk], stop: Callable[[], bool]) -> bool:
        exhausted = False
        while True:
            stopping = stop()
            for device, worker in list(self.workers.items()):
                if worker.ready is None or worker.task is not None or stopping:
                    continue
                task = self.tasks.next(chunks)
                if task is None:
                    exhausted = True
                    break
                if not worker.fresh and (task.fresh or worker.doubtful):
                    self.tasks.waiting.appendleft(task)
                    self._replace(device, reset=False)
                    continue
                worker.task = task
                worker.give(structs.replace(task.chunks.popleft(), witness=None if task.inquiry else self.right))
            busy = bool(self.blamed) or any(worker.task is not None for worker in self.workers.values())
            finished = exhausted and not self.tasks.waiting
            if not busy and (stopping or finished):
                self.release()
                return finished
            self._keep_spare()
            self._step(POLL_SECONDS)

    def _step(self, seconds: float) -> None:
        """Take replies, check deadlines and memory, and flush the journal."""
        if self.abandoned():
            raise Abandoned
        for event, _ in self.selector.select(seconds):
            device = event.data
            if device in self.workers and not self._read(device, self.workers[device]):
                self._died(device)
        for device, worker in list(self.workers.items()):
            _, until = worker.position.read()
            if worker.deadline.passed(until if worker.chunk is not None else 0):
                self._culprit(device, "timeout", "no answer before its deadline; the worker was killed")
            elif worker.ready is None and time.monotonic() - worker.started > START_SECONDS:
                self._lost_start(device, f"the backend did not start within {START_SECONDS:g} s")
        self._watch_memory()
        self.flush()
        self.progress.tick()

    def _read(self, device: str, worker: Worker) -> bool:
        """Take the replies that are in the pipe; False: nothing more comes from there."""
        data = os.read(worker.results, 1 << 20)
        for message in worker.frames.feed(data):
            self._reply(device, worker, message)
            if self.workers.get(device) is not worker:
                break
        return bool(data)

    def _reply(self, device: str, worker: Worker, message: Reply) -> None:
        match message:
            case Result():
                self._result(device, worker, message)
            case Done():
                assert worker.task is not None
                if worker.task.inquiry is not None or not message.spoiled:
                    self._done(worker)
                elif message.wrong:
                    self._disproved(device, worker, message.wrong)
                else:
                    self._replace(device)
            case Ready():
                worker.ready, self.failed_starts[device] = message, 0
                worker.starting_bytes = resident_bytes(worker.process.pid)
                if self.connected:
                    self.admit(device, message)
                if device in self.blamed:
                    self._final(*self.blamed.pop(device), device)
            case FailedStart():
                if worker.ready is not None:  # it knows that its device cannot be brought back
                    self._lose(device, message.error)
                else:
                    self._lost_start(device, message.error)
            case Stuck():
                raise CannotGoOn(message.error)

    def _result(self, device: str, worker: Worker, result: Result) -> None:
        assert worker.task is not None
        assert worker.chunk is not None
        if worker.task.inquiry is not None:
            worker.task.inquiry.hear(result)
            return
        item, number = worker.waiting.pop(result.key, None), worker.chunk.number
        if item is None:
            return
        assert worker.ready is not None
        if (result.status == "wrong_result" or result.broken_by) and not worker.ready.isolated:
            worker.doubtful = True
            if suspects := worker.before(item, result.broken_by):
                # One of them may have spoiled this process: it is measured again without them.
                self.tasks.alone(item, number, suspects)
                self._replace(device, reset=False)
                return
        self._final(item, result, number, device)
        if worker.task.suspects and result.status == "ok":
            self.tasks.inquire(Inquiry(item, worker.task.suspects), number)

    def _done(self, worker: Worker) -> None:
        """A chunk is finished: the next one of its task, or what follows from an inquiry."""
        task, chunk = worker.task, worker.chunk
        assert task is not None
        assert chunk is not None
        if task.chunks:
            worker.give(task.chunks.popleft())
            return
        worker.rest()
        if task.inquiry is not None:
            worker.doubtful = True
            culprit = task.inquiry.conclude()
            if culprit is None:
                self.tasks.inquire(task.inquiry, chunk.number)
                return
            self._convict(culprit, task.inquiry.witness, chunk.number)
            self.tasks.last(task.inquiry.held, chunk.number)

    def _disproved(self, device: str, worker: Worker, key: str) -> None:
        """A vector that was right in this process is not any more: what ran since then waits until it is known why."""
        assert worker.chunk is not None
        chunk, ran = worker.chunk, [*worker.earlier, *worker.chunk.items]
        held, worker.waiting = list(worker.waiting.values()), {}
        given = [chunk.witness] if chunk.witness is not None else []
        witness = next((item for item in (*ran, *given) if item.key == key), None)
        if witness is None:  # it ran too long ago
            self.tasks.one_by_one(held, chunk.number)
        else:
            since = ran[ran.index(witness) :] if witness in worker.earlier else chunk.items
            suspects = [item for item in since if item.key != key]
            self.tasks.inquire(Inquiry(witness, suspects, held), chunk.number)
        self._replace(device, reset=False)

    def _convict(self, item: Item, witness: Item, number: int) -> None:
        """A vector that makes others compute wrong results is not correct, whatever its own result is."""
        if item.key in self.tasks.convicted:
            return
        words = f"it spoils the process: a kernel that is right alone is wrong after it ({assignments(witness.config)})"
        self.tasks.convicted.add(item.key)
        if self.right is not None and self.right.key == item.key:
            self.right = None
        result = Result(item.key, "wrong_result", error=words[:500])
        self.record(item, result, number, next(iter(self.workers)), overrules=True)

    def _final(self, item: Item, result: Result, chunk: int, device: str) -> None:
        """Record a vector's status, unless it spoils others."""
        self.struck.pop(item.key, None)
        if item.key in self.tasks.convicted:
            return
        if result.status == "ok":
            self.right = item
        self.settle(item, result, chunk, device)

    # -- what can happen to a worker -------------------------------------------------------------------

    def _culprit(self, device: str, status: str, error: str, way: str = "") -> None:
        """The vector that was running is measured again alone; if it ended a worker in this way before, it gets its row.

        The others go on. Results that are already in the pipe still count.
        """
        worker = self.workers[device]
        while can_be_read(worker.results) and self._read(device, worker):
            if self.workers.get(device) is not worker:
                return
        if worker.chunk is not None:
            number = worker.chunk.number
            if worker.position.read()[0] == Position.PROOF:
                self.tasks.one_by_one(list(worker.waiting.values()), number)
                worker.waiting = {}
            item = self._served(worker)
            if item is not None and worker.waiting.pop(item.key, None) is not None:
                ways = self.struck.setdefault(item.key, [])
                # Two different ways: one of them may have been a signal from outside.
                if (status + way) in ways or len(ways) + 1 >= MOST_STRIKES:
                    self.blamed[device] = item, Result(item.key, status, error=error), number
                else:
                    ways.append(status + way)
                    self.tasks.alone(item, number, worker.task.suspects if worker.task is not None else ())
        self._replace(device)

    def _served(self, worker: Worker) -> Item | None:
        """The vector that the worker was at. While all are being compiled, halves are tried until only one is left."""
        assert worker.chunk is not None
        index, _ = worker.position.read()
        items = worker.chunk.items
        if index != Position.ALL:
            return items[index] if 0 <= index < len(items) else None
        if len(items) == 1:
            return items[0]
        left, worker.waiting = list(worker.waiting.values()), {}
        half = max(1, len(left) // 2)
        self.tasks.first(left[half:], worker.chunk.number)
        self.tasks.first(left[:half], worker.chunk.number)
        return None

    def _end(self, device: str) -> None:
        """End the device's worker; the next one measures what is left."""
        worker = self._close(device)
        if worker.chunk is not None:
            self.tasks.last(list(worker.waiting.values()), worker.chunk.number)
            if worker.task is not None and worker.task.inquiry is not None:
                self.tasks.broken(worker.task.inquiry, worker.chunk.number)
        worker.kill()

    def _replace(self, device: str, why: str = "", *, reset: bool = True) -> None:
        """Start another worker, after a reset of the device; if that fails too, the message begins with `why`."""
        self._end(device)
        if reset and self.reset:
            argv = [part.replace("{device}", device) for part in self.reset]
            try:
                subprocess.run(argv, check=True, capture_output=True, timeout=300)
            except (OSError, subprocess.SubprocessError) as error:
                words = f"the reset command {argv} failed ({error})"
                self._lose(device, f"{why}; then {words}" if why else words)
                return
        self._open(device)

    def _lose(self, device: str, why: str) -> None:
        """Give a device up: the others go on, if there are any."""
        if device in self.workers:
            self._end(device)
        self.lost[device] = why
        if self.blamed.pop(device, None) is not None:
            self.unblamed += 1
        if not self.workers:
            raise DeviceLost("; ".join(f"device {name} is lost: {reason}" for name, reason in self.lost.items()))
        self.progress.say(f"device {device} is lost: {why}; the others go on ({', '.join(self.workers)})")

    def _watch_memory(self) -> None:
        """End a worker before it takes memory that others need."""
        if not self.memory_bytes or time.monotonic() - self.looked < POLL_SECONDS:
            return
        self.looked = time.monotonic()
        for device, worker in list(self.workers.items()):
            taken = resident_bytes(worker.process.pid) - worker.starting_bytes
            if worker.ready is not None and taken > self.memory_bytes:
                words = f"{taken / 1e9:.2f} GB taken, more than the {self.memory_bytes / 1e9:.2f} GB that a worker may have"
                self._culprit(device, "out_of_memory", f"{words}; the worker was killed (see `memory`)")

    def _died(self, device: str) -> None:
        worker = self.workers[device]
        code = worker.process.wait()
        if worker.ready is None:
            self._lost_start(device, f"the worker ended with {exit_words(code)}: {worker.last_line()}")
            return
        # Killed, but not by us: the operating system does this when memory runs out, and counts it.
        status = "out_of_memory" if code == -signal.SIGKILL and oom_kills() > worker.oom_kills else "crash"
        how = exit_words(code)
        said = [f"the worker ended with {how}", worker.last_line(), get_backend(self.start.backend).advice(how)]
        self._culprit(device, status, ": ".join(filter(None, said)), how)

    def _lost_start(self, device: str, why: str) -> None:
        self.failed_starts[device] += 1
        if self.failed_starts[device] >= FAILED_STARTS:
            self._lose(device, f"it does not come up ({why})")
        else:
            self._replace(device, f"it does not come up ({why})")
