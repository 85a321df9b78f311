"""Runs an application under uvicorn until it is told to stop, and lets what is under way finish."""

from __future__ import annotations

import contextlib
import logging
import socket
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn

from kerncast.app.api.showing import echo
from kerncast.app.serve.server import Settings
from kerncast.errors import InvalidValue

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
