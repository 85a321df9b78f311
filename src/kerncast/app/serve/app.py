"""The server as an ASGI application: what it holds, and its routes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Iterator
from functools import cached_property

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from kerncast.app.api.estimate import estimate
from kerncast.app.serve.access import Access, read_body
from kerncast.app.serve.answers import QueryAnswers
from kerncast.app.serve.background import Jobs, ShippedCode, in_thread
from kerncast.app.serve.choosing import choose
from kerncast.app.serve.explorer import explorer_routes
from kerncast.app.serve.metrics import CONTENT_TYPE, Counting, Metrics
from kerncast.app.serve.replies import GUARDS, Names, RequestRefused, json_response, refusal
from kerncast.app.serve.schema import ROUTES, EstimateRequest, SelectRequest, openapi, read
from kerncast.app.serve.settings import Settings
from kerncast.app.serve.sources import Sources, check_device
from kerncast.errors import BadFile, InvalidValue, KerncastError
from kerncast.estimating.config_file import read_decoder
from kerncast.version import __version__

LOG = logging.getLogger("kerncast.serving")


def create_app(sources: Sources, settings: Settings | None = None) -> Starlette:
    """The application that answers from these sources; its state has the `service`."""
    service = Service(sources, settings or Settings())

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        watching = asyncio.create_task(service.watch())
        try:
            yield
        finally:
            watching.cancel()
            service.close()

    app = Starlette(
        routes=[*service.routes, *explorer_routes(sources, Jobs(service.metrics), service.names)],
        middleware=[Middleware(Counting, metrics=service.metrics), Middleware(Access, settings=service.settings)],
        exception_handlers=dict.fromkeys(
            (HTTPException, ClientDisconnect, RequestRefused, KerncastError, Exception), service.refuse
        ),
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False
    app.state.service = service
    return app


class Service:
    """One server: what it answers from, what it counts, and what its routes do."""

    def __init__(self, sources: Sources, settings: Settings) -> None:
        self.sources, self.settings = sources, settings
        self.metrics = Metrics(ROUTES)
        self.metrics.models = len(sources.models())
        # A question does not wait for choices and estimates, which may take minutes.
        self.questions, self.choices = Jobs(self.metrics), Jobs(self.metrics)
        self._said = ""
        self.names = Names(sources)
        self.compiled = ShippedCode(sources.builder, compile=sources.compile)
        sources.builder.changed = lambda path: self.answers.forget(path)
        self.answers = self._new_answers()

    def _new_answers(self) -> QueryAnswers:
        return QueryAnswers(self.sources, self.settings, self.questions, self.names, self.compiled)

    def close(self) -> None:
        """End what is being built."""
        self.sources.builder.close()

    # -- routes -----------------------------------------------------------------------------------------

    @property
    def routes(self) -> list[BaseRoute]:
        """The routes of the API."""
        posts = {"/v1/query": self.query, "/v1/select": self.select, "/v1/estimate": self.estimate}
        gets = {
            "/v1/models": self.list_models, "/healthz": self.health, "/openapi.json": self.describe, "/metrics": self.count,
        }  # fmt: skip
        return [
            *(Route(path, answer, methods=["POST"]) for path, answer in posts.items()),
            *(Route(path, answer, methods=["GET"]) for path, answer in gets.items()),
        ]

    async def query(self, request: Request) -> Response:
        """`POST /v1/query`."""
        body = await read_body(request, self.settings.max_body)
        reply = await self.answers.answer(body, request.is_disconnected)
        self.metrics.answered(reply)
        return json_response(reply)

    async def select(self, request: Request) -> Response:
        """`POST /v1/select`."""
        body = await read_body(request, self.settings.max_body)
        return json_response(await self.choices.run(self._chosen(body).__next__, request.is_disconnected))

    def _chosen(self, body: bytes) -> Iterator[bytes | None]:
        asked = read(SelectRequest, body)
        count = (len(asked.problem) if isinstance(asked.problem, list) else 1) * (asked.top or 1)
        if isinstance(asked.problem, list) and count > self.settings.max_batch:
            raise RequestRefused(
                413, "too_many_questions",
                f"a request may ask for {self.settings.max_batch:,} answers (problems times `top`), and this one asks for "
                f"{count:,}: send several requests",
            )  # fmt: skip
        for answers in choose(self.sources, asked, self.settings):
            yield None if answers is None else self.names.encoded(answers)

    async def estimate(self, request: Request) -> Response:
        """`POST /v1/estimate`."""
        body = await read_body(request, self.settings.max_body)
        return json_response(await self.choices.run(lambda: self._estimated(body), request.is_disconnected))

    def _estimated(self, body: bytes) -> bytes:
        asked = read(EstimateRequest, body)
        check_device(asked.device)
        try:
            read_decoder(asked.config)
        except BadFile as error:  # the file is the client's
            raise InvalidValue(str(error)) from error
        given = msgspec.structs.asdict(asked)
        given["software"] = asked.software or self.settings.software
        return self.names.encoded(estimate(**given, store=self.sources.store_or_none, progress=False).as_json())

    async def list_models(self, request: Request) -> Response:
        """`GET /v1/models`."""
        builder = self.sources.builder
        models = [{**item.as_json(), "building": builder.building(item.entry.path)} for item in self.sources.models()]
        return json_response(models)

    async def health(self, request: Request) -> Response:
        """`GET /healthz`."""
        counts = {"models": len(self.sources.models()), "building": len(self.sources.builder)}
        return json_response({"status": "ok", "version": __version__, **counts})

    async def describe(self, request: Request) -> Response:
        """`GET /openapi.json`."""
        return json_response(self._description)

    @cached_property
    def _description(self) -> bytes:
        return msgspec.json.encode(openapi(self.settings))

    async def count(self, request: Request) -> Response:
        """`GET /metrics`."""
        return Response(self.metrics.text(), headers={**GUARDS, "content-type": CONTENT_TYPE})

    async def refuse(self, request: Request, error: Exception) -> Response:
        """What a client is told about an error. uvicorn logs those that are faults here."""
        refused = refusal(error, request)
        return RequestRefused(refused.status, refused.kind, self.names.in_text(refused.error), refused.headers).response

    # -- what changes -----------------------------------------------------------------------------------

    async def watch(self) -> None:
        """Take over what changes in the files, for as long as the server runs."""
        while True:
            await asyncio.sleep(self.settings.refresh_seconds)
            await self.reload()

    async def reload(self) -> bool:
        """Look at the files; if they have changed, answer from what they hold now. What is under way ends with the old."""
        try:
            changed = await in_thread(self.sources.refresh)
            if not changed and self.answers.version == self.sources.version:
                return False
            before = self.answers
            self.answers = await in_thread(lambda: self._new_answers().warmed(before))
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
