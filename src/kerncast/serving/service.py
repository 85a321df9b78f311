"""What the routes do, without HTTP: bytes in, bytes out, and an error where there is no answer."""

from __future__ import annotations

import asyncio
import logging
from functools import cached_property
from typing import Any

import msgspec

from kerncast.api.estimate import estimate
from kerncast.errors import BadFile, InvalidValue, KerncastError
from kerncast.estimating.config_file import read_decoder
from kerncast.serving.answers import ASKERS, Answers, Jobs
from kerncast.serving.choosing import choose
from kerncast.serving.compiled import Compiled
from kerncast.serving.declarations import EstimateRequest, SelectRequest, read
from kerncast.serving.metrics import Metrics
from kerncast.serving.names import Names
from kerncast.serving.openapi import ROUTES, openapi
from kerncast.serving.replying import Receive, Refused, Scope, header, refused_by
from kerncast.serving.settings import Settings
from kerncast.serving.sources import Sources, check_device
from kerncast.version import __version__

LOG = logging.getLogger("kerncast.serving")
# How long a client may take to send a body.
BODY_SECONDS = 30.0


class Service:
    """One server's state: what it answers from, what it counts."""

    def __init__(self, sources: Sources, settings: Settings) -> None:
        self.sources, self.settings = sources, settings
        self.metrics = Metrics(ROUTES)
        self.metrics.models = len(sources.models())
        self.jobs = Jobs(self.metrics)
        self.names = Names(sources)
        self.compiled = Compiled(ASKERS, compile=sources.compile, changed=lambda: self.answers.forgive())
        self.answers = self._made()

    def _made(self) -> Answers:
        return Answers(self.sources, self.settings, self.jobs, self.compiled)

    def close(self) -> None:
        """End the threads."""
        self.jobs.close()

    # -- what is answered -------------------------------------------------------------------------------

    async def query(self, body: bytes) -> bytes:
        """`POST /v1/query`."""
        found = await self.answers.answer(body)
        self.metrics.answered(found)
        return self.names.in_reply(found)

    async def select(self, body: bytes) -> bytes:
        """`POST /v1/select`."""
        asked = read(SelectRequest, body)
        if isinstance(asked.problem, list) and len(asked.problem) > self.settings.max_batch:
            raise Refused(
                413, "too_many_questions",
                f"a request may have {self.settings.max_batch:,} problems, and this has {len(asked.problem):,}: send several",
            )  # fmt: skip
        found = await self.jobs.run(lambda: _encoded(choose(self.sources, asked, self.settings)))
        return self.names.in_reply(found)

    async def estimate(self, body: bytes) -> bytes:
        """`POST /v1/estimate`."""
        asked = read(EstimateRequest, body)
        check_device(asked.device)
        try:
            read_decoder(asked.config)
        except BadFile as error:  # the file is the client's
            raise InvalidValue(str(error)) from error
        given = msgspec.structs.asdict(asked)
        given["software"] = asked.software or self.settings.software
        store = self.sources.store
        found = await self.jobs.run(lambda: _encoded(estimate(**given, store=store, progress=False).as_json()))
        return self.names.in_reply(found)

    async def list_models(self) -> bytes:
        """`GET /v1/models`."""
        return _encoded([item.as_json() for item in self.sources.models()])

    async def health(self) -> bytes:
        """`GET /healthz`."""
        return _encoded({"status": "ok", "version": __version__, "models": len(self.sources.models())})

    async def describe(self) -> bytes:
        """`GET /openapi.json`."""
        return self._description

    @cached_property
    def _description(self) -> bytes:
        return _encoded(openapi(self.settings))

    def refused(self, error: Exception) -> Refused:
        """What a client is told about an error."""
        found = refused_by(error)
        found.error = self.names.in_text(found.error)
        return found

    # -- what comes in ----------------------------------------------------------------------------------

    async def body(self, scope: Scope, receive: Receive) -> bytes:
        """The whole body, if it is JSON and not too long."""
        kind, length = header(scope, b"content-type"), header(scope, b"content-length")
        if kind is None or (kind != b"application/json" and kind.partition(b";")[0].strip().lower() != b"application/json"):
            said = "none" if kind is None else f"'{kind[:80].decode('latin-1')}'"
            raise Refused(415, "not_json", f"a body must be of the content type application/json, got {said}: send that header")
        if length is not None and len(length) < 20 and length.isdigit() and int(length) > self.settings.max_body:
            raise self._too_long(int(length))
        message = await receive()
        if message["type"] == "http.request" and not message.get("more_body", False):
            data: bytes = message.get("body", b"")
            if len(data) > self.settings.max_body:
                raise self._too_long(len(data))
            return data
        try:
            return await asyncio.wait_for(self._rest(message, receive), BODY_SECONDS)
        except TimeoutError:
            raise Refused(
                408, "too_slow", f"a body must arrive within {BODY_SECONDS:g} seconds, and this one did not: send it again"
            ) from None

    async def _rest(self, message: Any, receive: Receive) -> bytes:
        parts, size = [], 0
        while True:
            if message["type"] == "http.disconnect":
                raise Refused(400, "disconnected", "the client went away before its request was whole: send it again")
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > self.settings.max_body:
                raise self._too_long(size)
            if not message.get("more_body", False):
                return b"".join(parts)
            message = await receive()

    def _too_long(self, size: int) -> Refused:
        return Refused(
            413, "too_long",
            f"a body may have {self.settings.max_body:,} bytes, and this one has {size:,} or more: send several requests",
            ((b"connection", b"close"),),
        )  # fmt: skip

    # -- what changes -----------------------------------------------------------------------------------

    async def watch(self) -> None:
        """Take over what changes in the files, for as long as the server runs."""
        while True:
            await asyncio.sleep(self.settings.refresh_seconds)
            await self.reload()

    async def reload(self) -> bool:
        """Look at the files; if they have changed, answer from what they hold now. What is under way ends with the old."""
        try:
            changed = await asyncio.to_thread(self.sources.refresh)
            if not changed and self.answers.version == self.sources.version:
                return False
            before = self.answers
            self.answers = await asyncio.to_thread(lambda: self._made().warmed(before))
        except (KerncastError, OSError) as error:  # half-written, or damaged: the old models stay
            self.metrics.failed_reloads += 1
            LOG.warning("the models were not read again: %s", error)
            return False
        self.metrics.reloads += 1
        self.metrics.models = len(self.sources.models())
        for sentence in self.sources.problems:
            LOG.warning("%s", sentence)
        LOG.info("the files have changed: %d models are served", self.metrics.models)
        return True


def _encoded(value: Any) -> bytes:
    return msgspec.json.encode(value)
