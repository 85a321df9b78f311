"""What takes long: jobs of clients, in threads that take turns, what is built while Python answers, and the run to its end.

Python answers in tens of milliseconds until the compiled code is there, and where there is no compiler. Both say the same to
the last bit.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar

import uvicorn

from kerncast.app.api.showing import Account, echo
from kerncast.app.serve.middleware import Metrics
from kerncast.app.serve.schema import RequestRefused
from kerncast.app.serve.server import Settings
from kerncast.core.progress import Progress
from kerncast.errors import InvalidValue, KerncastError

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


# How long requests that are under way may take to finish. The end of a busy process takes some seconds more.
GRACE_SECONDS = 4
BACKLOG = 2048
# Idle connections are closed after this; a client that asks again opens a new one.
KEEP_ALIVE_SECONDS = 75
MOST_CONNECTIONS = 2_000
# Bytes of a head that is not whole yet, where the reader of requests has such a limit.
LONGEST_HEAD = 1 << 16


class _Printing(logging.Handler):
    """What is logged is printed line by line on stderr, with control characters as codes: it may quote a file."""

    def emit(self, record: logging.LogRecord) -> None:
        text = self.format(record)
        if "KeyboardInterrupt" not in text:  # a second signal, which is no fault
            echo(*text.split("\n"), err=True)


@contextlib.contextmanager
def _logging(level: int) -> Iterator[None]:
    handler = _Printing()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    before = {}
    for name, least in (("kerncast.serving", level), ("uvicorn", logging.ERROR)):
        logger = logging.getLogger(name)
        before[name] = (logger.level, logger.propagate)
        logger.setLevel(least)
        logger.propagate = False
        logger.addHandler(handler)
    try:
        yield
    finally:
        for name, (former, propagate) in before.items():
            logger = logging.getLogger(name)
            logger.removeHandler(handler)
            logger.setLevel(former)
            logger.propagate = propagate


class _Server(uvicorn.Server):
    """Leaves signals to a caller who says when to stop."""

    def __init__(self, config: uvicorn.Config, stop: Callable[[], bool] | None, started: Callable[[], None]) -> None:
        super().__init__(config)
        self._stop, self._started = stop, started

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        if self._stop is not None:
            yield
            return
        with super().capture_signals():
            yield

    async def main_loop(self) -> None:
        self._started()
        await super().main_loop()

    async def on_tick(self, counter: int) -> bool:
        return await super().on_tick(counter) or (self._stop is not None and self._stop())


def run(
    app: Any,
    settings: Settings,
    *,
    stop: Callable[[], bool] | None = None,
    ready: Callable[[str], None] = lambda url: None,
    log_level: int = logging.INFO,
) -> None:
    """Serve until `stop` is true, or without it until a signal comes; `ready` is told the address once it listens."""
    listening = _listening(settings)
    port = listening.getsockname()[1]
    shown = f"[{settings.host}]" if ":" in settings.host else settings.host
    config = uvicorn.Config(
        app, log_config=None, access_log=False, lifespan="on", server_header=False, date_header=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS, timeout_graceful_shutdown=GRACE_SECONDS, limit_concurrency=MOST_CONNECTIONS,
        ws="none", proxy_headers=False, h11_max_incomplete_event_size=LONGEST_HEAD,
        http="auto" if settings.is_loopback else "h11",
    )  # fmt: skip
    server = _Server(config, stop, lambda: ready(f"http://{shown}:{port}/"))
    try:
        with _logging(log_level), contextlib.suppress(KeyboardInterrupt) if stop is None else contextlib.nullcontext():
            server.run(sockets=[listening])  # uvicorn raises the signal that it caught again, once everything is closed
    finally:
        listening.close()


def _listening(settings: Settings) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind, protocol)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(BACKLOG)
    except OSError as error:
        raise InvalidValue(
            f"cannot listen on `host={settings.host}` `port={settings.port}` ({error.strerror or error}): choose another "
            "`port` (0: any free one), or stop what uses it"
        ) from error
    return listening
