"""Who may ask, how much and how often: checks of a request's head, before its body is read."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import time
from collections import OrderedDict
from collections.abc import Callable

from kerncast.errors import quoted
from kerncast.serving.replying import Refused, Scope, header
from kerncast.serving.settings import Settings

# Clients whose rates are remembered; the one that asked longest ago is forgotten.
MOST_CLIENTS = 4096
# Values of the header Host that are remembered: of one port, or of a proxy, there are a few.
MOST_HOSTS = 64
# A name or an address, and a port: `localhost:8321`, `[::1]:8321`.
_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]{2,45})\]|([^\s\[\]@,:/?#\\]{1,253}))(?::[0-9]{1,5})?")
# Probes of a container and of a load balancer have no token.
OPEN = frozenset({"/healthz"})


class Rate:
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


class Doorkeeper:
    """Refuses requests by their head: of another host's name, from another page, without the token, or too many."""

    def __init__(self, settings: Settings) -> None:
        self._names = settings.host_names
        self._token = None if settings.token is None else _digest(settings.token.encode())
        self._rate = Rate(settings.requests_per_second) if settings.requests_per_second else None
        self._quick = self._token is None and self._rate is None
        self._known: set[bytes] = set()
        """Values of the header Host that were found to be right: a client sends the same one again and again."""

    def check(self, scope: Scope) -> None:
        """Raise `Refused` if the request is not to be answered."""
        host: bytes | None = None
        origin: bytes | None = None
        given: bytes | None = None
        for name, value in scope["headers"]:
            if name == b"host":
                host = value if host is None else b","  # of two, neither is believed
            elif name == b"origin":
                origin = value
            elif name == b"authorization":
                given = value
        if host not in self._known:
            self._check_host(host)
        if origin is not None and _place(origin) != host:
            raise Refused(
                403, "other_origin", f"pages of {quoted(_text(origin), 80)} may not ask this server: open its own page"
            )
        if self._quick:
            return
        if self._token is not None and scope["path"] not in OPEN:
            self._check_token(scope, given)
        if self._rate is not None:
            self._check_rate(scope)

    def _check_host(self, host: bytes | None) -> None:
        """A page of another site can make a browser ask a name that leads here: such a request has that name."""
        if self._names is None:
            return
        name = "" if host is None else _host_name(_text(host))
        if name not in self._names:
            raise Refused(
                421, "unknown_host",
                f"this server is called {', '.join(sorted(self._names))}, and the request is for '{quoted(name, 80)}': ask it "
                "by one of its names, or allow this one when it is started (`allow_host`)",
            )  # fmt: skip
        if host is not None and len(self._known) < MOST_HOSTS:
            self._known.add(host)

    def _check_token(self, scope: Scope, given: bytes | None) -> None:
        assert self._token is not None
        if given is not None and hmac.compare_digest(_digest(_sent_token(given)), self._token):
            return
        # A browser asks its user for the token, as a password; a program is told what to send.
        asks = b'Basic realm="kerncast", charset="UTF-8"' if b"text/html" in (header(scope, b"accept") or b"") else b"Bearer"
        said = "no token was sent" if given is None else "the token that was sent is another one"
        raise Refused(
            401, "unauthorized",
            f"this server answers those who know its token, and {said}: send `Authorization: Bearer TOKEN`",
            ((b"www-authenticate", asks),),
        )  # fmt: skip

    def _check_rate(self, scope: Scope) -> None:
        assert self._rate is not None
        client = scope.get("client")
        wait = self._rate.wait(client[0] if client else "")
        if wait:
            raise Refused(
                429, "too_many_requests",
                f"a client may send {self._rate.per_second:g} requests a second, and this one is {wait:.3f} s too early: wait, "
                "or ask several questions in one request",
                ((b"retry-after", b"%d" % max(1, round(wait + 0.5))),),
            )  # fmt: skip


def _digest(token: bytes) -> bytes:
    """Of one length, so that a comparison takes the same time whatever was sent."""
    return hashlib.sha256(token).digest()


def _sent_token(header_value: bytes) -> bytes:
    """The token of `Bearer TOKEN`, or the password of `Basic …` with any name."""
    scheme, _, rest = header_value.partition(b" ")
    if scheme.lower() == b"bearer":
        return rest.strip()
    if scheme.lower() == b"basic":
        try:
            return base64.b64decode(rest.strip(), validate=True).partition(b":")[2]
        except (binascii.Error, ValueError):
            return b""
    return b""


def _text(value: bytes) -> str:
    return value.decode("latin-1")


def _host_name(host: str) -> str:
    """Of `localhost:8321` or `[::1]:8321`, the name alone; empty for what is none."""
    found = _HOST.fullmatch(host)
    return "" if found is None else (found[1] or found[2]).lower().rstrip(".")


def _place(origin: bytes) -> bytes:
    """Of `http://localhost:8321`, what the header Host would be."""
    return origin.partition(b"://")[2].rstrip(b"/")
