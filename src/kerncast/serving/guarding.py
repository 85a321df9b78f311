"""Connections that keep a server waiting are closed: a head that never ends, or one that has no end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

# A head that has not arrived by the second look is given up, as is a connection on which nothing was ever asked.
LOOK_SECONDS = 15.0
LONGEST_HEAD = 1 << 16


def protocol() -> Any:
    """The class that reads requests, with a limit on the length of a head; the pure Python one has such a limit itself."""
    try:
        from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
    except ImportError:
        return "h11"

    class Guarded(HttpToolsProtocol):
        """Counts the bytes of a head that is not whole yet."""

        _waiting = 0

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if not _reads_head(self):
                self._waiting = 0
                return
            self._waiting += len(data)
            if self._waiting > LONGEST_HEAD:
                self.transport.close()

    return Guarded


def _reads_head(connection: Any) -> bool:
    """Whether a connection waits for a head, of which some bytes may have come."""
    cycle = connection.cycle
    return (cycle is None or cycle.response_complete) and connection.timeout_keep_alive_task is None


async def watch(connections: Iterable[Any]) -> None:
    """Close those that wait for the same head at two looks; one that answers or rests between requests is left alone."""
    before: dict[Any, Any] = {}
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        waiting = {connection: connection.cycle for connection in list(connections) if _reads_head(connection)}
        for connection, cycle in waiting.items():
            if connection in before and before[connection] is cycle:
                connection.transport.close()
        before = waiting
