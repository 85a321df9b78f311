"""The server as an ASGI application."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from kerncast.serving.gate import Gate
from kerncast.serving.replying import GUARDS, Refused, refused_by
from kerncast.serving.service import Service
from kerncast.serving.settings import Settings
from kerncast.serving.sources import Sources

LOG = logging.getLogger("kerncast.serving")
Endpoint = Callable[[Request], Awaitable[Response]]
HEADERS = {name.decode(): value.decode() for name, value in GUARDS}


def create_app(sources: Sources, settings: Settings | None = None) -> Starlette:
    """The application that answers from these sources."""
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
        routes=[*_own_routes(service), *_explorer_routes(sources)],
        middleware=[Middleware(Gate, service=service)],
        exception_handlers={HTTPException: _http_error, Exception: _failure},
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False
    return app


def _explorer_routes(sources: Sources) -> list[BaseRoute]:
    """The page at `/`."""
    from kerncast.serving.explorer import explorer_routes  # it reads its files

    return explorer_routes(sources)


def _own_routes(service: Service) -> list[BaseRoute]:
    posts = {"/v1/query": service.query, "/v1/select": service.select, "/v1/estimate": service.estimate}
    gets = {"/v1/models": service.list_models, "/healthz": service.health, "/openapi.json": service.describe}
    return [
        *(Route(path, _posted(service, answer), methods=["POST"]) for path, answer in posts.items()),
        *(Route(path, _read(service, answer), methods=["GET"]) for path, answer in gets.items()),
        Route("/metrics", _metrics(service), methods=["GET"]),
    ]


def _posted(service: Service, answer: Callable[[bytes], Awaitable[bytes]]) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        try:
            body = await service.body(request.scope, request.receive)
            return _json(await answer(body))
        except Exception as error:
            return _refusal(service.refused(error), error, request)

    return endpoint


def _read(service: Service, answer: Callable[[], Awaitable[bytes]]) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        try:
            return _json(await answer())
        except Exception as error:
            return _refusal(service.refused(error), error, request)

    return endpoint


def _metrics(service: Service) -> Endpoint:
    from kerncast.serving.metrics import CONTENT_TYPE

    async def endpoint(request: Request) -> Response:
        return Response(service.metrics.text(), headers={**HEADERS, "content-type": CONTENT_TYPE.decode()})

    return endpoint


def _json(body: bytes, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(body, status, {**HEADERS, **(headers or {}), "content-type": "application/json"})


def _refusal(refused: Refused, error: Exception, request: Request) -> Response:
    if refused.kind == "internal":
        LOG.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return _json(refused.body, refused.status, {name.decode(): value.decode() for name, value in refused.headers})


async def _http_error(request: Request, error: Exception) -> Response:
    """What the router refuses: another path, another method."""
    assert isinstance(error, HTTPException)
    method, path = request.method, request.url.path
    known = {
        404: ("not_found", f"there is nothing at {path[:200]}: see /openapi.json for what there is"),
        405: ("wrong_method", f"{method[:20]} is not what {path[:200]} answers: use one of the header Allow"),
    }
    kind, said = known.get(error.status_code, ("refused", str(error.detail)))
    headers = dict(error.headers or {})
    return _json(Refused(error.status_code, kind, said).body, error.status_code, headers)


async def _failure(request: Request, error: Exception) -> Response:
    return _refusal(refused_by(error), error, request)
