"""The middleware before the routes: who may ask, how much and how often, and what is counted, as Prometheus reads it."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import re
import resource
import time
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kerncast.app.serve.schema import RequestRefused
from kerncast.app.serve.server import Settings
from kerncast.errors import quoted
from kerncast.version import __version__

# Clients whose rates are remembered; the one that asked longest ago is forgotten.
MOST_CLIENTS = 4096
# A name or an address, and a port: `localhost:8321`, `[::1]:8321`.
_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]{2,45})\]|([^\s\[\]@,:/?#\\]{1,253}))(?::[0-9]{1,5})?")
# Probes of a container and of a load balancer have no token.
OPEN = frozenset({"/healthz"})


class ClientRates:
    """A bucket of requests for each client, which fills at a steady rate and holds those of one second."""

    def __init__(self, per_second: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.per_second, self._clock = per_second, clock
        self._room = max(1.0, per_second)
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait(self, client: str) -> float:
        """Take one request of a client; how many seconds it is too early, 0 if it is not."""
        now = self._clock()
        level, seen = self._buckets.pop(client, (self._room, now))
        level = min(self._room, level + (now - seen) * self.per_second)
        taken = level >= 1
        self._buckets[client] = (level - 1 if taken else level, now)
        if len(self._buckets) > MOST_CLIENTS:
            self._buckets.popitem(last=False)
        return 0.0 if taken else (1 - level) / self.per_second


class Access:
    """Refuses requests by their head: of another host's name, from another page, without the token, or too many."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self.app, self._names = app, settings.host_names
        self._token = None if settings.token is None else _digest(settings.token.encode())
        self._rate = ClientRates(settings.requests_per_second) if settings.requests_per_second else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            try:
                self.check(scope)
            except RequestRefused as refused:
                await refused.response(scope, receive, send)
                return
        await self.app(scope, receive, send)

    def check(self, scope: Scope) -> None:
        """Raise `RequestRefused` if the request is not to be answered."""
        headers = Headers(scope=scope)
        hosts, origin = headers.getlist("host"), headers.get("origin")
        host = hosts[0] if len(hosts) == 1 else ""  # of two, neither is believed
        self._check_host(host)
        if origin is not None and origin.partition("://")[2].rstrip("/") != host:
            raise RequestRefused(
                403, "other_origin", f"pages of {quoted(origin, 80)} may not ask this server: open its own page"
            )
        if self._token is not None and scope["path"] not in OPEN:
            self._check_token(self._token, headers)
        if self._rate is not None:
            self._check_rate(self._rate, scope)

    def _check_host(self, host: str) -> None:
        """A page of another site can make a browser ask a name that leads here: such a request has that name."""
        match = _HOST.fullmatch(host)
        name = "" if match is None else (match[1] or match[2]).lower().rstrip(".")
        if self._names is not None and name not in self._names:
            raise RequestRefused(
                421, "unknown_host",
                f"this server is called {', '.join(sorted(self._names))}, and the request is for '{quoted(name, 80)}': ask it "
                "by one of its names, or allow this one when it is started (`allow_host`)",
            )  # fmt: skip

    def _check_token(self, token: bytes, headers: Headers) -> None:
        sent = headers.get("authorization")
        if sent is not None and hmac.compare_digest(_digest(_token_of(sent.encode("latin-1"))), token):
            return
        # A browser asks its user for the token, as a password; a program is told what to send.
        asks = 'Basic realm="kerncast", charset="UTF-8"' if "text/html" in headers.get("accept", "") else "Bearer"
        said = "no token was sent" if sent is None else "the token that was sent is another one"
        raise RequestRefused(
            401, "unauthorized",
            f"this server answers those who know its token, and {said}: send `Authorization: Bearer TOKEN`",
            {"www-authenticate": asks},
        )  # fmt: skip

    def _check_rate(self, rate: ClientRates, scope: Scope) -> None:
        client = scope.get("client")
        wait = rate.wait(client[0] if client else "")
        if wait:
            raise RequestRefused(
                429, "too_many_requests",
                f"a client may send {rate.per_second:g} requests a second, and this one is {wait:.3f} s too early: wait, "
                "or ask several questions in one request",
                {"retry-after": str(max(1, round(wait + 0.5)))},
            )  # fmt: skip


def _digest(token: bytes) -> bytes:
    """Of one length, so that a comparison takes the same time whatever was sent."""
    return hashlib.sha256(token).digest()


def _token_of(authorization: bytes) -> bytes:
    """The token of `Bearer TOKEN`, or the password of `Basic …` with any name."""
    scheme, _, rest = authorization.partition(b" ")
    if scheme.lower() == b"bearer":
        return rest.strip()
    if scheme.lower() == b"basic":
        try:
            return base64.b64decode(rest.strip(), validate=True).partition(b":")[2]
        except (binascii.Error, ValueError):
            return b""
    return b""


async def read_body(request: Request, most: int) -> bytes:
    """The whole body, if it is JSON and has at most so many bytes."""
    kind = request.headers.get("content-type")
    if kind is None or kind.partition(";")[0].strip().lower() != "application/json":
        said = "none" if kind is None else f"'{quoted(kind, 80)}'"
        raise RequestRefused(
            415, "not_json", f"a body must be of the content type application/json, got {said}: send that header"
        )
    length = request.headers.get("content-length", "")
    size, parts = int(length) if length.isdecimal() and len(length) < 20 else 0, []
    if size <= most:
        size = 0
        async for part in request.stream():
            parts.append(part)
            size += len(part)
            if size > most:
                break
    if size > most:
        raise RequestRefused(
            413, "too_long", f"a body may have {most:,} bytes, and this one has {size:,} or more: send several requests",
            {"connection": "close"},
        )  # fmt: skip
    return b"".join(parts)


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
