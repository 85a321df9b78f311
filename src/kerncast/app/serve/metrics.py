"""What the server counts, as Prometheus reads it."""

from __future__ import annotations

import os
import resource
import time
from bisect import bisect_left
from pathlib import Path

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kerncast.version import __version__

BUCKETS = (0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 30.0)
OTHER = "other"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
Labels = tuple[tuple[str, str], ...]


class _Times:
    """How long the requests of one route took."""

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts, self.total = [0] * (len(BUCKETS) + 1), 0.0


class Metrics:
    """Counters of one process. Labels are routes and numbers of HTTP, never a text of a client."""

    def __init__(self, routes: tuple[str, ...]) -> None:
        self._times = {route: _Times() for route in (*routes, OTHER)}
        self._requests: dict[tuple[str, int], int] = {}
        self.answers = {"ok": 0, "refused": 0}
        self.reloads, self.failed_reloads, self.models, self.waiting, self.in_flight = 0, 0, 0, 0, 0
        self._began = time.time()

    def count(self, path: str, status: int, seconds: float) -> None:
        """A request was answered."""
        route = path if path in self._times else OTHER
        key = (route, status)
        self._requests[key] = self._requests.get(key, 0) + 1
        times = self._times[route]
        times.counts[bisect_left(BUCKETS, seconds)] += 1
        times.total += seconds

    def answered(self, reply: bytes) -> None:
        """Questions were answered: quotes inside of a text are escaped, so this is found in statuses alone."""
        ok = reply.count(b'"status":"ok"')
        self.answers["ok"] += ok
        self.answers["refused"] += reply.count(b'"status":"') - ok

    def text(self) -> bytes:
        """All of them."""
        lines: list[str] = []
        _add(lines, "build_info", "gauge", "The version of kerncast.", {(("version", __version__),): 1})
        requests: dict[Labels, float] = {
            (("route", route), ("status", str(status))): count for (route, status), count in sorted(self._requests.items())
        }
        _add(lines, "requests_total", "counter", "Requests, by route and HTTP status.", requests)
        answers: dict[Labels, float] = {(("status", status),): count for status, count in self.answers.items()}
        _add(lines, "answers_total", "counter", "Answers to questions of /v1/query, ok or with a reason.", answers)
        self._histogram(lines)
        for name, kind, about, value in (
            ("models", "gauge", "Models that may answer.", self.models),
            ("requests_in_flight", "gauge", "Requests that are being answered.", self.in_flight),
            ("jobs_waiting", "gauge", "Lists and first questions that run or wait for a thread.", self.waiting),
            ("reloads_total", "counter", "How often changed files were taken over.", self.reloads),
            ("reload_failures_total", "counter", "How often that failed, and the old models stayed.", self.failed_reloads),
        ):
            _add(lines, name, kind, about, {(): value})
        _process(lines, self._began)
        return ("\n".join(lines) + "\n").encode()

    def _histogram(self, lines: list[str]) -> None:
        name = "kerncast_request_seconds"
        lines += [f"# HELP {name} How long requests took, by route.", f"# TYPE {name} histogram"]
        for route, times in self._times.items():
            if not sum(times.counts):
                continue
            seen = 0
            for bound, count in zip((*map(str, BUCKETS), "+Inf"), times.counts, strict=True):
                seen += count
                lines.append(f'{name}_bucket{{route="{route}",le="{bound}"}} {seen}')
            lines += [f'{name}_sum{{route="{route}"}} {times.total:.9g}', f'{name}_count{{route="{route}"}} {seen}']


class Counting:
    """A middleware that counts requests and measures how long they take."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app, self.metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, status = time.perf_counter(), 500

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        self.metrics.in_flight += 1
        try:
            await self.app(scope, receive, noted)
        finally:
            self.metrics.in_flight -= 1
            self.metrics.count(scope["path"], status, time.perf_counter() - began)


def _add(lines: list[str], name: str, kind: str, about: str, values: dict[Labels, float]) -> None:
    lines += [f"# HELP kerncast_{name} {about}", f"# TYPE kerncast_{name} {kind}"]
    for labels, value in values.items():
        inside = ",".join(f'{key}="{text}"' for key, text in labels)
        lines.append(f"kerncast_{name}{{{inside}}} {value}" if inside else f"kerncast_{name} {value}")


def _process(lines: list[str], began: float) -> None:
    """Under the names that Prometheus' own clients give them."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    numbers: list[tuple[str, str, float]] = [
        ("process_cpu_seconds_total", "counter", round(used.ru_utime + used.ru_stime, 3)),
        ("process_start_time_seconds", "gauge", round(began, 3)),
    ]
    if (memory := resident_bytes()) is not None:
        numbers.append(("process_resident_memory_bytes", "gauge", memory))
    for name, kind, value in numbers:
        lines += [f"# TYPE {name} {kind}", f"{name} {value}"]


def resident_bytes() -> int | None:
    """The memory of this process; None where the system does not say."""
    try:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None
