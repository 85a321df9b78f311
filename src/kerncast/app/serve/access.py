"""Who may ask, how much and how often: what is looked at before a request is answered."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import time
from collections import OrderedDict
from collections.abc import Callable

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from kerncast.app.serve.replies import RequestRefused
from kerncast.app.serve.settings import Settings
from kerncast.errors import quoted

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
