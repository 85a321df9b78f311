"""Replies: JSON, errors that say the rule, the value and the next step, and names in the place of this machine's folders."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from kerncast.app.serve.schema import BadRequest
from kerncast.core.io.arguments import cache_folder
from kerncast.errors import InvalidValue, KerncastError, NotFound
from kerncast.models import trust
from kerncast.models.store.shipped import folder as shipped_folder

if TYPE_CHECKING:
    from kerncast.app.serve.sources import Sources

# An answer is of the models that are there now, and is never a page.
GUARDS = {"cache-control": "no-store", "x-content-type-options": "nosniff"}
JSON = {**GUARDS, "content-type": "application/json"}


class RequestRefused(Exception):
    """Why a request is not answered."""

    def __init__(self, status: int, kind: str, error: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(error)
        self.status, self.kind, self.error, self.headers = status, kind, error, dict(headers or {})

    @property
    def response(self) -> Response:
        """The sentence, and one word for programs."""
        return json_response({"error": self.error, "kind": self.kind}, self.status, self.headers)


def refusal(error: Exception, request: Request) -> RequestRefused:
    """What a client is told about an error; one that is not of this package is a fault here, and its words stay here."""
    if isinstance(error, RequestRefused):
        return error
    if isinstance(error, HTTPException):  # the router's
        return _not_routed(error, request)
    if isinstance(error, ClientDisconnect):
        return RequestRefused(400, "disconnected", "the client went away before its request was whole: send it again")
    if isinstance(error, BadRequest):
        return RequestRefused(400, "bad_request", str(error))
    if isinstance(error, NotFound):
        return RequestRefused(404, "not_found", str(error))
    if isinstance(error, InvalidValue):
        return RequestRefused(422, "invalid_value", str(error))
    if isinstance(error, KerncastError):
        return RequestRefused(500, "bad_file", str(error))
    return RequestRefused(
        500, "internal", "the server failed to answer this request: look at what it has logged, and report it"
    )


def _not_routed(error: HTTPException, request: Request) -> RequestRefused:
    method, path = request.method[:20], request.url.path[:200]
    known = {
        404: ("not_found", f"there is nothing at {path}: see /openapi.json for what there is"),
        405: ("wrong_method", f"{method} is not what {path} answers: use one of the header Allow"),
    }
    return RequestRefused(error.status_code, *known.get(error.status_code, ("refused", str(error.detail))), error.headers)


def json_response(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A value as JSON; bytes are JSON already."""
    body = value if isinstance(value, bytes) else msgspec.json.encode(value)
    return Response(body, status, {**JSON, **headers} if headers else JSON)


class Names:
    """Names in the place of paths: where this machine keeps its files is nobody's business who asks over HTTP.

    Those of models become their ids, all others words.
    """

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._known = self._read()

    def _read(self) -> tuple[int, dict[str, str], re.Pattern[str]]:
        """The version of the sources, the names by path, and what finds these paths in a text: threads read all three at once.

        The longest path is looked for first, for a folder is the beginning of others.
        """
        version, names = self._sources.version, dict[str, str]()  # the version first: the models may change meanwhile
        for place, name in self._places():
            for path in (str(place), str(place.absolute()), str(place.resolve())):
                if "/" in path and path.strip("/"):  # a word may mean something else, the root is a part of every path
                    # "the store PATH" becomes "the store" too, not "the store the store".
                    names |= {said: name for said in (path, f"{name} {path}") if said not in names}
        paths = "|".join(map(re.escape, sorted(names, key=len, reverse=True)))
        return version, names, re.compile(f"(?<![\\w.-])(?:{paths})(?![\\w.-])")

    def _places(self) -> Iterator[tuple[Path, str]]:
        for item in self._sources.models():
            yield item.entry.path, item.id
        for path in self._sources.paths:
            yield path, path.resolve().name
        yield self._sources.store_or_none.path, "the store"
        if (shipped := shipped_folder()) is not None:
            yield shipped, "shipped"
        yield trust.list_path(), "the list of trusted models"
        yield cache_folder("."), "the cache"
        yield Path(__file__).parent.parent, "kerncast"
        with contextlib.suppress(RuntimeError):  # this user has none
            yield Path.home(), "~"

    def in_text(self, text: str) -> str:
        """A sentence with names in the place of paths."""
        if "/" not in text:
            return text
        if self._known[0] != self._sources.version:
            self._known = self._read()
        _, names, paths = self._known
        return paths.sub(lambda match: names[match[0]], text)

    def encoded(self, value: Any) -> bytes:
        """A value as JSON, with names in the place of paths in its texts."""
        return msgspec.json.encode(self._in_value(value))

    def _in_value(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.in_text(value)
        if isinstance(value, dict):
            return {key: self._in_value(item) for key, item in value.items()}
        return [self._in_value(item) for item in value] if isinstance(value, list | tuple) else value
