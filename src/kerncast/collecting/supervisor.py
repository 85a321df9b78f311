"""The supervisor: hands chunks to workers, takes results by key, and survives whatever happens to a worker.

A vector that crashes, hangs or exhausts memory affects only its own row: its worker is killed by pid, the spare
takes over, and the rest of the chunk goes on. A device that does not come back is lost: the vector that ran at
that moment is not to blame and gets no row, and the other devices go on. Only this process writes.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator

from kerncast.collecting.memory import resident_bytes
from kerncast.collecting.messages import (
    Broken,
    Chunk,
    Done,
    Item,
    Ready,
    Reply,
    Result,
    Start,
)
from kerncast.collecting.process import Worker, spawn
from kerncast.errors import KerncastError
from kerncast.progress import QUIET, Progress

POLL_SECONDS = 0.05
START_SECONDS = 300.0
# How long to wait for other devices after the first one has started. Nothing is measured until then, so that devices
# that differ are refused before any of them has a row.
TOGETHER_SECONDS = 30.0
# A device whose backend does not come up this many times in a row is given up.
FAILED_STARTS = 3


class Abandoned(Exception):
    """The collection was stopped: what is being measured is dropped."""


class DeviceLost(KerncastError):
    """No worker can be started any more: fix the device, then resume."""

    rows = 0
    """Rows that are safe in the dataset."""


class Supervisor:
    """Measures chunks on one or more devices."""

    def __init__(
        self,
        start: Callable[[str], Start],
        devices: list[str],
        record: Callable[[Item, Result, int, str], None],
        flush: Callable[[], None],
        admit: Callable[[str, Ready], None],
        reset: Callable[[str], None] | None = None,
        memory_bytes: int = 0,
        *,
        abandoned: Callable[[], bool] = lambda: False,
        progress: Progress = QUIET,
    ) -> None:
        """`admit` gets what every worker reports, also after a restart, and refuses a worker that does not match.

        Once `abandoned` returns True, every method raises `Abandoned`; it is asked several times a second.
        """
        self.start, self.devices, self.admit = start, devices, admit
        self.record, self.flush, self.progress, self.reset = record, flush, progress, reset
        self.lanes: dict[str, Worker] = {}
        self.spare: Worker | None = None
        self.selector = selectors.DefaultSelector()
        self.again: deque[Chunk] = deque()
        self.failed_starts = dict.fromkeys(devices, 0)
        self.connected = False
        self.suspects: dict[str, tuple[Item, Result, int]] = {}
        """By device: the vector at which its worker ended. It is to blame if the device comes up again."""
        self.lost: dict[str, str] = {}
        """Devices that were given up, and why."""
        self.unblamed = 0
        """Vectors without a row because their device was lost while they ran."""
        self.memory_bytes, self.looked = memory_bytes, time.monotonic()
        self.abandoned = abandoned

    # -- workers -------------------------------------------------------------------------------------

    def _open_lane(self, device: str) -> None:
        """Give a device a worker: the warm spare when there is one."""
        start = self.start(device)
        worker, self.spare = self.spare or spawn(start.family, start.backend), None
        worker.started = time.monotonic()
        worker.send(start)
        self.lanes[device] = worker
        self.selector.register(worker.results, selectors.EVENT_READ, device)

    def _keep_spare(self) -> None:
        if self.spare is None:
            start = self.start(self.devices[0])
            self.spare = spawn(start.family, start.backend)

    def _close_lane(self, device: str) -> Worker:
        worker = self.lanes.pop(device)
        self.selector.unregister(worker.results)
        return worker

    def connect(self) -> Ready:
        """Start a worker per device and wait for them; what the first in order reports identifies the collection."""
        for device in self.devices:
            self._open_lane(device)
        # Now, not next to the first vectors: they may crash, and the imports of a spare would disturb their timing.
        self._keep_spare()
        first: float | None = None
        while True:
            up = {device: self.lanes[device].ready for device in self.devices if device in self.lanes}
            ready = {device: message for device, message in up.items() if message is not None}
            if ready and first is None:
                first = time.monotonic()
            if first is not None and (len(ready) == len(up) or time.monotonic() - first > TOGETHER_SECONDS):
                self.connected = True
                for device, message in ready.items():
                    self.admit(device, message)
                return next(iter(ready.values()))
            self._step(POLL_SECONDS)

    def close(self) -> None:
        """End every worker."""
        for device in list(self.lanes):
            self._close_lane(device).kill()
        if self.spare is not None:
            self.spare.kill()
            self.spare = None
        self.selector.close()

    # -- the loop ------------------------------------------------------------------------------------

    def run(self, chunks: Iterator[Chunk], stop: Callable[[], bool]) -> bool:
        """Measure all chunks; False when `stop` ended it before they were all handed out."""
        exhausted = False
        while True:
            stopping = stop()
            for worker in self.lanes.values():
                if worker.ready is None or worker.chunk is not None or stopping:
                    continue
                chunk = self.again.popleft() if self.again else next(chunks, None)
                if chunk is None:
                    exhausted = True
                    break
                worker.chunk, worker.waiting = chunk, {item.key: item for item in chunk.items}
                worker.send(chunk)
            busy = bool(self.suspects) or any(worker.chunk is not None for worker in self.lanes.values())
            finished = exhausted and not self.again
            if not busy and (stopping or finished):
                return finished
            self._keep_spare()
            self._step(POLL_SECONDS)

    def _step(self, seconds: float) -> None:
        """Take replies, check deadlines and flush the journal."""
        if self.abandoned():
            raise Abandoned
        for event, _ in self.selector.select(seconds):
            device = event.data
            if device in self.lanes:
                self._take(device)
        now = time.monotonic_ns()
        for device, worker in list(self.lanes.items()):
            _, deadline = worker.position.read()
            if worker.chunk is not None and 0 < deadline < now:
                self._expired(device)
            elif worker.ready is None and time.monotonic() - worker.started > START_SECONDS:
                self._lost_start(device, f"the backend did not start within {START_SECONDS:g} s")
        self._watch_memory()
        self.flush()
        self.progress.tick()

    def _take(self, device: str) -> None:
        worker = self.lanes[device]
        data = os.read(worker.results, 1 << 20)
        if not data:
            self._died(device)
            return
        for message in worker.frames.feed(data):
            self._reply(device, worker, message)
            if self.lanes.get(device) is not worker:
                return

    def _reply(self, device: str, worker: Worker, message: Reply) -> None:
        match message:
            case Result():
                item = worker.waiting.pop(message.key, None)
                if item is not None:
                    assert worker.chunk is not None
                    self._final(item, message, worker.chunk.number, device)
            case Done():
                if message.spoiled:
                    self._replace(device)
                else:
                    worker.chunk = None
            case Ready():
                worker.ready, self.failed_starts[device] = message, 0
                worker.starting_bytes = resident_bytes(worker.process.pid)
                if self.connected:
                    self.admit(device, message)
                if device in self.suspects:
                    self._final(*self.suspects.pop(device), device)
            case Broken():
                if worker.ready is not None:  # it knows that its device cannot be brought back
                    self._lose(device, message.error)
                else:
                    self._lost_start(device, message.error)

    def _final(self, item: Item, result: Result, chunk: int, device: str) -> None:
        self.record(item, result, chunk, device)
        self.progress.result(
            result.status,
            device=device,
            problem=item.problem,
            time_ns=result.time_ns,
            samples=result.samples or 0,
            disturbed=result.disturbed_samples,
        )

    # -- what can happen to a worker -------------------------------------------------------------------

    def _culprit(self, device: str, status: str, error: str) -> None:
        """The vector that was running gets its row once the device is up again; the rest of the chunk goes on."""
        worker = self.lanes[device]
        index, _ = worker.position.read()
        if worker.chunk is not None:
            item = worker.chunk.items[index] if 0 <= index < len(worker.chunk.items) else None
            if item is not None and worker.waiting.pop(item.key, None) is not None:
                self.suspects[device] = item, Result(item.key, status, error=error), worker.chunk.number
        self._replace(device)

    def _end(self, device: str) -> None:
        """End the device's worker; the next one measures what is left."""
        worker = self._close_lane(device)
        if worker.chunk is not None and worker.waiting:
            self.again.append(Chunk(worker.chunk.number, list(worker.waiting.values())))
        worker.kill()

    def _replace(self, device: str, why: str = "") -> None:
        """Start another worker after a reset; if that fails too, the message begins with `why`."""
        self._end(device)
        if self.reset is not None:
            try:
                self.reset(device)
            except KerncastError as error:
                self._lose(device, f"{why}; then {error}" if why else str(error))
                return
        self._open_lane(device)

    def _lose(self, device: str, why: str) -> None:
        """Give a device up: the others go on, if there are any."""
        if device in self.lanes:
            self._end(device)
        self.lost[device] = why
        if self.suspects.pop(device, None) is not None:
            self.unblamed += 1
        if not self.lanes:
            raise DeviceLost("; ".join(f"device {name} is lost: {reason}" for name, reason in self.lost.items()))
        self.progress.say(f"device {device} is lost: {why}; the others go on ({', '.join(self.lanes)})")

    def _expired(self, device: str) -> None:
        worker = self.lanes[device]
        self._drain(device, worker)
        if self.lanes.get(device) is worker:
            self._culprit(device, "timeout", "no answer before its deadline; the worker was killed")

    def _watch_memory(self) -> None:
        """End a worker before it takes memory that others need."""
        if not self.memory_bytes or time.monotonic() - self.looked < POLL_SECONDS:
            return
        self.looked = time.monotonic()
        for device, worker in list(self.lanes.items()):
            taken = resident_bytes(worker.process.pid) - worker.starting_bytes
            if worker.ready is not None and taken > self.memory_bytes:
                self._drain(device, worker)
                if self.lanes.get(device) is worker:
                    words = f"{taken / 1e9:.2f} GB taken, more than the {self.memory_bytes / 1e9:.2f} GB that a worker may have"
                    self._culprit(device, "out_of_memory", f"{words}; the worker was killed (see `memory`)")

    def _drain(self, device: str, worker: Worker) -> None:
        """Results that are already in the pipe still count."""
        while self.lanes.get(device) is worker and select_ready(worker.results):
            data = os.read(worker.results, 1 << 20)
            if not data:
                return
            for message in worker.frames.feed(data):
                self._reply(device, worker, message)
                if self.lanes.get(device) is not worker:
                    return

    def _died(self, device: str) -> None:
        worker = self.lanes[device]
        code = worker.process.wait()
        if worker.ready is None:
            self._lost_start(device, f"the worker ended with {_exit_words(code)}: {worker.last_line()}")
            return
        # Killed, but not by us: the operating system does this when memory runs out.
        status = "out_of_memory" if code == -signal.SIGKILL else "crash"
        words = worker.last_line()
        self._culprit(device, status, f"the worker ended with {_exit_words(code)}" + (f": {words}" if words else ""))

    def _lost_start(self, device: str, why: str) -> None:
        self.failed_starts[device] += 1
        if self.failed_starts[device] >= FAILED_STARTS:
            self._lose(device, f"it does not come up ({why})")
        else:
            self._replace(device, f"it does not come up ({why})")


def select_ready(fd: int) -> bool:
    """Whether a descriptor can be read at once."""
    with selectors.DefaultSelector() as selector:
        selector.register(fd, selectors.EVENT_READ)
        return bool(selector.select(0))


def _exit_words(code: int) -> str:
    if code < 0:
        with contextlib.suppress(ValueError):
            return signal.Signals(-code).name
    return f"exit code {code}"
