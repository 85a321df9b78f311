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
from kerncast.serving.bodies import read_body
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


class Service:
    """One server's state: what it answers from, what it counts."""

    def __init__(self, sources: Sources, settings: Settings) -> None:
        self.sources, self.settings = sources, settings
        self.metrics = Metrics(ROUTES)
        self.metrics.models = len(sources.models())
        self.jobs = Jobs(self.metrics)
        self.longer_jobs = Jobs(self.metrics)
        """Choices and estimates have threads of their own: a question does not wait for tiers that are built."""
        self._said = ""
        self.names = Names(sources)
        self.compiled = Compiled(ASKERS, sources.builder, compile=sources.compile)
        sources.builder.changed = lambda path: self.answers.forgive(path)
        self.answers = self._made()

    def _made(self) -> Answers:
        return Answers(self.sources, self.settings, self.jobs, self.compiled)

    def close(self) -> None:
        """End the threads."""
        self.sources.builder.close()
        for jobs in (self.jobs, self.longer_jobs):
            jobs.close()

    # -- what is answered -------------------------------------------------------------------------------

    async def query(self, body: bytes) -> bytes:
        """`POST /v1/query`."""
        found = await self.answers.answer(body)
        self.metrics.answered(found)
        return self.names.in_reply(found)

    async def select(self, body: bytes) -> bytes:
        """`POST /v1/select`."""
        return self.names.in_reply(await self.longer_jobs.run(lambda: self._chosen(body)))

    def _chosen(self, body: bytes) -> bytes:
        asked = read(SelectRequest, body)
        count = (len(asked.problem) if isinstance(asked.problem, list) else 1) * (asked.top or 1)
        if isinstance(asked.problem, list) and count > self.settings.max_batch:
            raise Refused(
                413, "too_many_questions",
                f"a request may ask for {self.settings.max_batch:,} answers (problems times `top`), and this one asks for "
                f"{count:,}: send several requests",
            )  # fmt: skip
        return _encoded(choose(self.sources, asked, self.settings))

    async def estimate(self, body: bytes) -> bytes:
        """`POST /v1/estimate`."""
        return self.names.in_reply(await self.longer_jobs.run(lambda: self._estimated(body)))

    def _estimated(self, body: bytes) -> bytes:
        asked = read(EstimateRequest, body)
        check_device(asked.device)
        try:
            read_decoder(asked.config)
        except BadFile as error:  # the file is the client's
            raise InvalidValue(str(error)) from error
        given = msgspec.structs.asdict(asked)
        given["software"] = asked.software or self.settings.software
        return _encoded(estimate(**given, store=self.sources.store_or_none, progress=False).as_json())

    async def list_models(self) -> bytes:
        """`GET /v1/models`."""
        builder = self.sources.builder
        return _encoded([{**item.as_json(), "building": builder.building(item.entry.path)} for item in self.sources.models()])

    async def health(self) -> bytes:
        """`GET /healthz`."""
        return _encoded(
            {
                "status": "ok",
                "version": __version__,
                "models": len(self.sources.models()),
                "building": len(self.sources.builder),
            }
        )

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
        kind = header(scope, b"content-type")
        if kind is None or (kind != b"application/json" and kind.partition(b";")[0].strip().lower() != b"application/json"):
            said = "none" if kind is None else f"'{kind[:80].decode('latin-1')}'"
            raise Refused(415, "not_json", f"a body must be of the content type application/json, got {said}: send that header")
        return await read_body(scope, receive, self.settings.max_body)

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
        except Exception as error:  # half-written, or damaged: the old models stay, and the next look tries again
            self.metrics.failed_reloads += 1
            if str(error) != self._said:  # once, not every second
                known = isinstance(error, KerncastError | OSError)
                LOG.warning("the models were not read again: %s", error, exc_info=None if known else error)
                self._said = str(error)
            return False
        self.metrics.reloads, self._said = self.metrics.reloads + 1, ""
        self.metrics.models = len(self.sources.models())
        for sentence in self.sources.problems:
            LOG.warning("%s", sentence)
        LOG.info("the files have changed: %d models are served", self.metrics.models)
        return True


def _encoded(value: Any) -> bytes:
    return msgspec.json.encode(value)
