"""The body of a request: whole, not too long, and in time."""

from __future__ import annotations

import asyncio
from typing import Any

from kerncast.serving.replying import Receive, Refused, Scope, header

# How long a client may take to send a body.
BODY_SECONDS = 30.0


async def read_body(scope: Scope, receive: Receive, most: int) -> bytes:
    """The body, if it has at most so many bytes."""
    length = header(scope, b"content-length")
    if length is not None and len(length) < 20 and length.isdigit() and int(length) > most:
        raise _too_long(int(length), most)
    message = await receive()
    if message["type"] == "http.request" and not message.get("more_body", False):  # most are short, and come at once
        return await _joined(message, receive, most)
    try:
        return await asyncio.wait_for(_joined(message, receive, most), BODY_SECONDS)
    except TimeoutError:
        raise Refused(
            408, "too_slow", f"a body must arrive within {BODY_SECONDS:g} seconds, and this one did not: send it again"
        ) from None


async def _joined(message: Any, receive: Receive, most: int) -> bytes:
    parts, size = [], 0
    while True:
        if message["type"] == "http.disconnect":
            raise Refused(400, "disconnected", "the client went away before its request was whole: send it again")
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > most:
            raise _too_long(size, most)
        if not message.get("more_body", False):
            return b"".join(parts)
        message = await receive()


def _too_long(size: int, most: int) -> Refused:
    return Refused(
        413, "too_long", f"a body may have {most:,} bytes, and this one has {size:,} or more: send several requests",
        ((b"connection", b"close"),),
    )  # fmt: skip
