"""The server as an ASGI application: what it holds, its routes, and the answers to questions of `POST /v1/query`.

Compiled code answers in microseconds, so the event loop does that. Whatever may wait for a file, for Python or for a compiler
is a job of threads. Jobs take turns step by step, and a piece of a list is a step: a long list holds up nobody else."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterator
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from queue import SimpleQueue
from typing import TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from kerncast.answering import routes
from kerncast.answering.query import Query
from kerncast.answering.routes import Address
from kerncast.app.api.estimate import estimate
from kerncast.app.serve.background import FIRST_PIECE, THREADS, HasLeft, Jobs, in_thread, piece_after
from kerncast.app.serve.explorer import explorer_routes
from kerncast.app.serve.middleware import CONTENT_TYPE, Access, Counting, Metrics, read_body
from kerncast.app.serve.schema import (
    GUARDS,
    ROUTES,
    BadRequest,
    EstimateRequest,
    Names,
    RequestRefused,
    SelectRequest,
    json_response,
    openapi,
    read,
    refusal,
)
from kerncast.app.serve.server import Settings
from kerncast.app.serve.sources import Sources, check_device, choose
from kerncast.errors import BadFile, InvalidValue, KerncastError, quoted
from kerncast.estimating.reading import read_decoder
from kerncast.version import __version__

# Addresses whose model is remembered.
MOST_ADDRESSES = 4096
# What is longer takes more than microseconds to read, and a thread does that.
LONGEST_QUESTION = 4096
# Questions whose replies are kept, and how long these may be: services ask about the same shapes again.
MOST_KEPT, LONGEST_KEPT = 4096, 4096
# Members of a reply that may quote an error, which may name a path.
TEXTS = (b'"message":', b'"note":', b'"warning":')
_ONE = msgspec.json.Decoder(Address)
_RAW = msgspec.json.Decoder(list[msgspec.Raw])
T = TypeVar("T")


class QueryAnswers:
    """Answers from the sources as they are now."""

    def __init__(self, sources: Sources, settings: Settings, jobs: Jobs, names: Names) -> None:
        self._sources, self._settings, self._jobs, self._names = sources, settings, jobs, names
        self.version = sources.version
        self._search = sources.finding(settings.software, settings.strict)
        self._models: dict[Address, routes.Route] = {}
        """The models of the store and of paths that answer all questions with an address."""
        self._at_once = Query(self._models.__getitem__, selectors=sources.selector_at)
        self._in_threads = [Query(self._find, selectors=sources.selector_at) for _ in range(THREADS)]
        self._free = SimpleQueue[Query]()
        for query in self._in_threads:
            self._free.put(query)
        self._kept: OrderedDict[bytes, bytes] = OrderedDict()
        """Replies to single questions that threads gave; used by the event loop alone."""

    def _find(self, address: Address) -> routes.Route:
        """Who answers. If it is one model whatever the problem is, it is remembered for the event loop."""
        route = self._search(address)
        if route.target is not None:
            if len(self._models) >= MOST_ADDRESSES:
                self._models.clear()
            self._models[address] = route
        return route

    async def answer(self, data: bytes, has_left: HasLeft) -> bytes:
        """The reply to a question or to a list of questions."""
        if data.lstrip()[:1] == b"[":
            return await self._jobs.run(self._list(data).__next__, has_left)
        if len(data) > LONGEST_QUESTION:

            def reply_to_long() -> bytes:
                _decoded(_ONE, data)  # refused as a short one is
                return self._reply(data)

            return await self._jobs.run(reply_to_long, has_left)
        if self._is_quick(_decoded(_ONE, data), data):
            return self._at_once.answer(data)
        kept = self._kept  # when a model answers otherwise, there are new ones
        if data in kept:
            kept.move_to_end(data)
            return kept[data]
        reply = await self._jobs.run(lambda: self._reply(data), has_left)
        if len(reply) <= LONGEST_KEPT and b'"status":"ok"' in reply:
            kept[data] = reply
            if len(kept) > MOST_KEPT:
                kept.popitem(last=False)
        return reply

    def _is_quick(self, address: Address, data: bytes) -> bool:
        """Whether compiled code answers a question in microseconds; one that names its tier may ask about every config."""
        route = self._models.get(address)
        target = None if route is None else route.target
        return target is not None and b'"tier"' not in data and self._sources.is_quick(target.path, target.device)

    def _reply(self, data: bytes, whole: ListText | None = None, first: int = 0) -> bytes:
        """What a thread replies to a request, or to the piece of a list that begins with its question number `first`."""
        query = self._free.get()
        try:
            reply = query.answer(data)
        finally:
            self._free.put(query)
        if not any(name in reply for name in TEXTS):
            return reply
        value = msgspec.json.decode(reply)
        for each in value if isinstance(value, list) else [value]:
            if whole is not None and "position" in each:
                each["position"] = whole.position(each["position"], first)
        return self._names.encoded(value)

    def _list(self, data: bytes) -> Iterator[bytes | None]:
        """The reply to a list, after as many steps as there are pieces: each is answered while others wait for their turn."""
        text = ListText(data, _decoded(_RAW, data))
        if len(text.items) > self._settings.max_batch:
            raise RequestRefused(
                413, "too_many_questions",
                f"a request may have {self._settings.max_batch:,} questions, and this one has {len(text.items):,}: send "
                "several requests",
            )  # fmt: skip
        replies, done, size = [], 0, FIRST_PIECE
        while done < len(text.items):
            began = time.perf_counter()
            reply = self._reply(text.piece(done, size), text, done)
            if reply[:1] != b"[":  # a text that is not JSON is refused as a whole
                replies = [reply]
                break
            replies.append(reply)
            done += size
            size = piece_after(size, time.perf_counter() - began)
            yield None
        yield replies[0] if len(replies) == 1 else b"[" + b",".join(memoryview(reply)[1:-1] for reply in replies) + b"]"

    # -- what changes -----------------------------------------------------------------------------------

    def forget(self, path: Path) -> None:
        """Forget what was answered: a model has changed."""
        for query in (self._at_once, *self._in_threads):
            query.forget(path)
        self._kept = OrderedDict()

    def warmed(self, before: QueryAnswers) -> QueryAnswers:
        """Ready for what was asked before a change; those that answered then go on until what is new is built."""
        for address in list(before._models):
            try:
                target = self._find(address).target
                if target is not None:
                    self._sources.selector_at(target.path, target.device)
                    self._sources.builder.wait(target.path)
            except KerncastError:
                continue  # there is no such model any more, which answers say
        return self


class ListText:
    """The text of a list of questions, which is answered in pieces."""

    def __init__(self, data: bytes, items: list[msgspec.Raw]) -> None:
        self._data, self.items = data, items

    def piece(self, first: int, size: int) -> bytes:
        """Some of the questions, as a list."""
        return b"[" + b",".join(self.items[first : first + size]) + b"]"

    @cached_property
    def _places(self) -> tuple[list[int], list[int]]:
        """Where each question begins in the text, and in the same list without spaces; looked for only if one is wrong."""
        starts, at = [], 0
        for item in self.items:
            starts.append(self._data.index(item, at))
            at = starts[-1] + len(item)
        return starts, list(accumulate((len(item) + 1 for item in self.items), initial=1))

    def position(self, position: int, first: int) -> int:
        """Where in the text is what has this position in the piece that begins with question number `first`."""
        starts, joined = self._places
        position += joined[first] - 1
        place = min(max(bisect_right(joined, position) - 1, 0), len(starts) - 1)
        return starts[place] + position - joined[place]


def _decoded(decoder: msgspec.json.Decoder[T], data: bytes) -> T:
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(
            "the body must be a JSON object, or a list of them, whose op, family, device and software are texts, and this is "
            f"not ({quoted(error)}): see /openapi.json"
        ) from error


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
            sources.builder.close()

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
        sources.builder.changed = lambda path: self.answers.forget(path)
        self.answers = self._new_answers()

    def _new_answers(self) -> QueryAnswers:
        return QueryAnswers(self.sources, self.settings, self.questions, self.names)

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
        return json_response(openapi(self.settings))

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
