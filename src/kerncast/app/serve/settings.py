"""How a server listens, whom it answers, and how much of it anyone may use."""

from __future__ import annotations

import ipaddress
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from kerncast.errors import BadFile, InvalidValue, quoted

TOKEN = "KERNCAST_TOKEN"
"""The environment variable with the token."""
HOST, PORT = "127.0.0.1", 8321
MAX_BODY, MAX_BATCH = 16 * 2**20, 20_000
# Requests a second of one client of a server that others can reach.
REMOTE_RATE = 1_000.0
SHORTEST_TOKEN, LONGEST_TOKEN = 16, 4096
NAMES_OF_LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class Settings:
    """Everything about a server but what it serves."""

    host: str = HOST
    port: int = PORT
    token: str | None = None
    """What a client has to know; None: only for a server that nobody else can reach."""
    allow_hosts: tuple[str, ...] = ()
    """Names of this server besides its own, which a proxy in front of it may forward."""
    max_body: int = MAX_BODY
    """Bytes of one request."""
    max_batch: int = MAX_BATCH
    """Questions in one request."""
    rate: float | None = None
    """Requests a second of one client; 0: any number. None: any number here, 1,000 for a server that others can reach."""
    refresh_seconds: float = 1.0
    """How often to look whether the files have changed."""
    software: str | None = None
    """For requests that name no software."""
    strict: bool = False
    """Refuse to answer from a model of other software than is asked for."""

    def __post_init__(self) -> None:
        if isinstance(self.port, bool) or not isinstance(self.port, int) or not 0 <= self.port <= 65535:
            raise InvalidValue(f"`port` must be from 0 (any free one) to 65535, got {quoted(self.port)}")
        for name in ("max_body", "max_batch"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InvalidValue(f"`{name}` must be a whole number of at least 1, got {quoted(value)}")
        if self.rate is not None and not 0 <= self.rate < 1e9:
            raise InvalidValue(f"`rate` must be 0 (any) or a number of requests a second, got {quoted(self.rate)}")
        if not 0.05 <= self.refresh_seconds <= 3600:
            raise InvalidValue(f"`refresh_seconds` must be from 0.05 to 3600, got {quoted(self.refresh_seconds)}")
        if self.token is None and not self.is_loopback:
            raise InvalidValue(
                f"`host={quoted(self.host)}` can be reached from other machines, and then a token is required: put one in a "
                f"file and name it with `token_file`, or in the environment variable {TOKEN}"
            )
        if self.token is not None:
            _check_token(self.token)

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def requests_per_second(self) -> float:
        """Of one client; 0: any number."""
        if self.rate is None:
            return 0.0 if self.is_loopback else REMOTE_RATE
        return self.rate

    @property
    def host_names(self) -> frozenset[str] | None:
        """What a request may call this server; None: anything, because its clients have to know the token."""
        if not self.is_loopback and not self.allow_hosts:
            return None
        return frozenset(name.lower() for name in (*NAMES_OF_LOOPBACK, self.host, *self.allow_hosts))


def read_token(file: str | Path | None) -> str | None:
    """The token in a file, else the one in the environment, else None."""
    if file is None:
        return os.environ.get(TOKEN) or None
    path = Path(file)
    try:
        with path.open("rb") as stream:
            mode = os.fstat(stream.fileno()).st_mode
            if stat.S_ISREG(mode) and mode & stat.S_IROTH:
                raise BadFile(f"the file of the token {path} can be read by everyone on this machine: `chmod 600` it")
            data = stream.read(LONGEST_TOKEN + 3)
    except OSError as error:
        raise BadFile(f"the token cannot be read from {path} ({error.strerror}): name another file") from error
    return data.decode("utf-8", "replace").strip()


def _check_token(token: str) -> None:
    if not SHORTEST_TOKEN <= len(token) <= LONGEST_TOKEN:
        raise InvalidValue(
            f"a token has {SHORTEST_TOKEN} to {LONGEST_TOKEN:,} characters, got {len(token):,}: make one with "
            "`openssl rand -hex 32`"
        )
    if not all("!" <= letter <= "~" for letter in token):
        raise InvalidValue("a token has letters, digits and signs of ASCII, without spaces: make another one")
