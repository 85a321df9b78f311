"""Responses: JSON, and errors that say the rule, the value and the next step."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

import msgspec

from kerncast.errors import InvalidValue, KerncastError, NotFound
from kerncast.serving.declarations import BadRequest

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Headers = tuple[tuple[bytes, bytes], ...]

JSON = (b"content-type", b"application/json")
# An answer is of the models that are there now, and is never a page.
GUARDS: Headers = ((b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff"))
ABOUT_JSON = (JSON, *GUARDS)


class Refused(Exception):
    """Why a request is not answered."""

    def __init__(self, status: int, kind: str, error: str, headers: Headers = ()) -> None:
        super().__init__(error)
        self.status, self.kind, self.error, self.headers = status, kind, error, headers

    @property
    def body(self) -> bytes:
        """As JSON: the sentence, and one word for programs."""
        return json.dumps({"error": self.error, "kind": self.kind}).encode()


class Error(msgspec.Struct):
    """Why a request was not answered, in one sentence: the rule, the value and the next step."""

    error: str
    kind: str
    """One word for programs."""


def refused_by(error: Exception) -> Refused:
    """What a client is told about an error of this package; anything else is a fault here, and its words stay here."""
    if isinstance(error, Refused):
        return error
    if isinstance(error, BadRequest):
        return Refused(400, "bad_request", str(error))
    if isinstance(error, NotFound):
        return Refused(404, "not_found", str(error))
    if isinstance(error, InvalidValue):
        return Refused(422, "invalid_value", str(error))
    if isinstance(error, KerncastError):
        return Refused(500, "bad_file", str(error))
    return Refused(500, "internal", "the server failed to answer this request: look at what it has logged, and report it")


async def reply(send: Send, status: int, body: bytes, headers: Headers = ABOUT_JSON) -> None:
    """Send a whole response."""
    length = (b"content-length", b"%d" % len(body))
    await send({"type": "http.response.start", "status": status, "headers": [*headers, length]})
    await send({"type": "http.response.body", "body": body})


async def refuse(send: Send, refused: Refused) -> None:
    """Send an error."""
    await reply(send, refused.status, refused.body, (*ABOUT_JSON, *refused.headers))


def header(scope: Mapping[str, Any], name: bytes) -> bytes | None:
    """The first header of this name (in lower case)."""
    for key, value in scope["headers"]:
        if key == name:
            return bytes(value)
    return None
