"""What takes long: jobs of clients, in threads that take turns, and what is built while Python answers.

Python answers in tens of milliseconds until the compiled code is there, and where there is no compiler. Both say the same to
the last bit.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar

from kerncast.app.api.showing import Account
from kerncast.app.serve.middleware import Metrics
from kerncast.app.serve.schema import RequestRefused
from kerncast.core.progress import Progress
from kerncast.errors import KerncastError

LOG = logging.getLogger("kerncast.serving")
# Steps of the jobs of one kind that run at the same time, and jobs of all kinds that run or wait.
THREADS, MOST_WAITING = 2, 64
# What a step should take if it answers a piece of a list; the first piece has so many questions.
PIECE_SECONDS, FIRST_PIECE = 0.025, 16
# The compiler gives way to those who ask.
NICENESS = 10
# How long the end of the server waits for what is being built: a compiler is ended at once, a learner is not waited for.
END_SECONDS = 1.0
T = TypeVar("T")
HasLeft = Callable[[], Awaitable[bool]]
"""Whether the client that asked is gone."""
Make = Callable[[Progress], None]
"""Makes something, after which a model answers otherwise."""


async def in_thread(work: Callable[[], T]) -> T:
    """The result of some work in a thread of its own, which the end of the process does not wait for."""
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="kerncast-serve", daemon=True).start()
    return await asyncio.wrap_future(future)


class Jobs:
    """What clients wait for, in a few threads: each job does a step, and then the next one has its turn."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._turns = asyncio.Semaphore(THREADS)

    async def run(self, step: Callable[[], T | None], has_left: HasLeft) -> T:
        """Call `step` until it has a result; nothing more is done for a client that has left."""
        if self._metrics.waiting >= MOST_WAITING:
            raise RequestRefused(
                503, "busy",
                f"at most {MOST_WAITING} long requests run or wait at a time, and so many do: try again in a second",
                {"retry-after": "1"},
            )  # fmt: skip
        self._metrics.waiting += 1
        try:
            while True:
                async with self._turns:
                    if await has_left():
                        raise RequestRefused(400, "disconnected", "the client went away before it was answered: ask again")
                    result = await in_thread(step)
                if result is not None:
                    return result
        except asyncio.CancelledError:  # uvicorn has waited long enough for it
            raise RequestRefused(503, "ending", "the server ends before this request is answered: ask again later") from None
        finally:
            self._metrics.waiting -= 1


def piece_after(size: int, seconds: float) -> int:
    """How many questions the next piece of a list has, if one with so many took so long."""
    return max(1, min(4 * size, int(size * PIECE_SECONDS / max(seconds, 1e-6))))


class _Stopped(BaseException):
    """The server ends: nobody waits for what is being made."""


class _Build(Account):
    """Something to build, and how far it is. Where it is cancelled, the next report ends the work."""

    def __init__(self, path: Path, name: str, make: Make) -> None:
        super().__init__("waiting")
        self.path, self.model, self.make = path, name, make
        self.cancelled, self.ended = threading.Event(), threading.Event()

    def changed(self, what: str) -> None:
        if self.cancelled.is_set():
            raise _Stopped
        if what == "guess":
            LOG.info("building %s: %s, left %s", self.model, self.name, self.remaining())

    def as_json(self) -> dict[str, Any]:
        """For `GET /v1/models`."""
        with self.lock:
            seconds = self.left()[0]
            return {"what": self.name, "seconds_left": None if seconds is None else round(seconds, 1)}


class BackgroundBuilder:
    """One thread, which builds one thing after the other; nothing is built twice at a time."""

    def __init__(self) -> None:
        self.changed: Callable[[Path], None] = lambda path: None
        """Called with the path of a model that answers otherwise from now on."""
        self._waiting: SimpleQueue[_Build | None] = SimpleQueue()
        self._builds: list[_Build] = []
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = False

    def put(self, path: Path, name: str, make: Make) -> None:
        """Have something of the model at a path made, as soon as what was asked for before is."""
        build = _Build(path, name, make)
        with self._starting:
            if self._closed:
                return
            self._builds.append(build)
            self._waiting.put(build)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="kerncast-build", daemon=True)
                self._thread.start()

    def building(self, path: Path) -> dict[str, Any] | None:
        """What is being made of a model, and the seconds that are left, if they can be told; None: nothing is."""
        return next((build.as_json() for build in list(self._builds) if build.path == path), None)

    def __len__(self) -> int:
        """How much is being made, or waits for it."""
        return len(self._builds)

    def wait(self, path: Path) -> None:
        """Until nothing is being made of a model."""
        for build in list(self._builds):
            if build.path == path:
                build.ended.wait()

    def close(self) -> None:
        """End what is being made."""
        with self._starting:
            self._closed = True
        for build in list(self._builds):
            build.cancelled.set()
            build.ended.set()
        self._waiting.put(None)
        if self._thread is not None:
            self._thread.join(END_SECONDS)

    def _work(self) -> None:
        with contextlib.suppress(OSError, AttributeError):  # of this thread alone, and of the compilers that it starts
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
        while (build := self._waiting.get()) is not None:
            try:
                self._make(build)
            except _Stopped:
                return
            finally:
                self._builds.remove(build)
                build.ended.set()

    def _make(self, build: _Build) -> None:
        LOG.info("%s is being built; Python answers meanwhile", build.model)
        began = time.monotonic()
        try:
            build.tick()
            build.make(build)
            LOG.info("%s is built, in %.1f s", build.model, time.monotonic() - began)
        except KerncastError as error:
            LOG.warning("%s is answered in Python: %s", build.model, error)
        except Exception:
            LOG.exception("%s is answered in Python: building it failed", build.model)
        self.changed(build.path)
