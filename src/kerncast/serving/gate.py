"""Stands before the application: refuses by the head of a request, counts, and answers single questions without a detour."""

from __future__ import annotations

import logging
import time
from typing import Any

from kerncast.serving.limits import Doorkeeper
from kerncast.serving.replying import Receive, Refused, Scope, Send, refuse, reply
from kerncast.serving.service import Service

LOG = logging.getLogger("kerncast.serving")
QUERY = "/v1/query"


class Gate:
    """An ASGI middleware. `POST /v1/query` ends here: routing and wrapping it would cost as much as answering."""

    def __init__(self, app: Any, service: Service) -> None:
        self.app, self.service = app, service
        self._door = Doorkeeper(service.settings)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started, path, metrics = time.perf_counter(), scope["path"], self.service.metrics
        metrics.in_flight += 1
        status = 500
        try:
            self._door.check(scope)
            if path == QUERY and scope["method"] == "POST":
                body = await self.service.query(await self.service.body(scope, receive))
                status = 200
                await reply(send, status, body)
            else:

                async def noted(message: Any) -> None:
                    nonlocal status
                    if message["type"] == "http.response.start":
                        status = message["status"]
                    await send(message)

                await self.app(scope, receive, noted)
        except Exception as error:
            if path != QUERY and not isinstance(error, Refused):
                raise  # the application's own handler answers
            refused = self.service.refused(error)
            status = refused.status
            if refused.kind == "internal":
                LOG.error("%s failed", path, exc_info=error)
            await refuse(send, refused)
        finally:
            metrics.in_flight -= 1
            metrics.count(path, status, time.perf_counter() - started)
