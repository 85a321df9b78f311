"""The explorer: the page at `/`, its files, and the questions that it asks.

Questions are answered in threads, a few at a time, so that a map of winners does not hold up the other routes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from kerncast.app.serve.background import Jobs
from kerncast.app.serve.explorer import datasets, models
from kerncast.app.serve.explorer.datasets import Watch
from kerncast.app.serve.explorer.models import Json
from kerncast.app.serve.middleware import read_body
from kerncast.app.serve.schema import BadRequest, Names, json_response
from kerncast.app.serve.sources import Sources
from kerncast.core.io.foreign import key_rule
from kerncast.core.io.lock import is_held
from kerncast.data.dataset import Dataset
from kerncast.data.journal import LOCK
from kerncast.errors import InvalidValue
from kerncast.version import __version__

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",
}
KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
LONGEST_QUESTION = 1 << 16

Values = dict[str, int | bool | str | None]


class Question(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A question about one problem."""

    model: str
    problem: Values
    device: str | None = None


class RankQuestion(Question, frozen=True, forbid_unknown_fields=True):
    """Which configs are best."""

    k: int = 10


class ConfigQuestion(Question, frozen=True, forbid_unknown_fields=True):
    """About one config of it."""

    config: Values | None = None


class AxisQuestion(Question, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How the choice changes along one axis."""

    axis: str
    count: int = 25


class MapQuestion(Question, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How it changes over two."""

    x: str
    y: str
    count: int = 16


class RowsQuestion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The rows of one problem of a dataset."""

    dataset: str
    problem: Values
    device: str
    family: str | None = None


class ProblemsQuestion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A page of the problems of a dataset."""

    dataset: str
    family: str | None = None
    sort: str = "failed"
    page: int = 0
    text: str = ""


class DatasetQuestion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A dataset, and what to look at in it."""

    dataset: str
    family: str | None = None
    model: str | None = None


class Watches:
    """The sweeps that pages look at: each is read on from where the last look ended."""

    def __init__(self, sources: Sources) -> None:
        self._sources, self._watches, self._starting = sources, dict[Path, Watch](), threading.Lock()

    def look(self, asked: DatasetQuestion) -> Json:
        """The sweep that is being measured into a dataset."""
        path = self._sources.dataset(asked.dataset).path
        with self._starting:
            watch = self._watches.setdefault(path, Watch(path))
        return watch.look()


def answers_from(sources: Sources) -> dict[str, tuple[type[msgspec.Struct], Callable[[Any], Json]]]:
    """What the page may ask, and what answers. No model is compiled: the page asks all configs, which Python does as well."""
    model, dataset = sources.model, sources.dataset

    def devices(asked: Question) -> Json:
        """The devices of all models of the same family."""
        own = sources.listed(asked.model)
        same = [item for item in sources.models() if item.entry.family == own.entry.family and item.id != own.id]
        return models.compared_devices([(item.id, model(item.id)) for item in (own, *same)], asked.problem)

    def worst(asked: DatasetQuestion) -> Json:
        if asked.model is None:
            raise InvalidValue("`model` is missing: name the model to judge")
        return datasets.worst_of(model(asked.model), dataset(asked.dataset))

    return {
        "rank": (RankQuestion, lambda q: models.ranked(model(q.model), q.problem, q.device, q.k)),
        "why": (ConfigQuestion, lambda q: models.why(model(q.model), q.problem, q.config, q.device)),
        "near": (ConfigQuestion, lambda q: models.near(model(q.model), q.problem, q.config, q.device)),
        "along": (AxisQuestion, lambda q: models.along(model(q.model), q.problem, q.axis, q.device, q.count)),
        "map": (MapQuestion, lambda q: models.winners_map(model(q.model), q.problem, q.x, q.y, q.device, q.count)),
        "devices": (Question, devices),
        "dataset": (DatasetQuestion, lambda q: datasets.overview(dataset(q.dataset), q.family)),
        "problems": (ProblemsQuestion, lambda q: datasets.problems(dataset(q.dataset), q.family, q.sort, q.page, q.text)),
        "rows": (RowsQuestion, lambda q: datasets.measured_rows(dataset(q.dataset), q.problem, q.device, q.family)),
        "worst": (DatasetQuestion, worst),
        "watch": (DatasetQuestion, Watches(sources).look),
    }


def listing(sources: Sources) -> Json:
    """What there is to look at."""
    found = [
        {
            "id": item.id, "origin": item.origin, "op": item.entry.op, "family": item.entry.family,
            "devices": list(item.entry.record.devices), "rows": item.entry.record.rows,
            "mape": item.entry.record.mape, "efficiency": item.entry.record.efficiency,
        }
        for item in sources.models()
    ]  # fmt: skip
    names = sources.datasets()
    return {
        "version": __version__, "models": found, "datasets": names,
        "running": [name for name in names if _is_measured(sources.dataset(name))], "problems": len(sources.problems),
    }  # fmt: skip


def explorer_routes(sources: Sources, jobs: Jobs, names: Names) -> list[BaseRoute]:
    """The page at `/`, its files under `/explore/static/`, and the questions it asks under `/explore/`."""
    folder = resources.files(__package__).joinpath("static")
    files = {item.name: item.read_bytes() for item in folder.iterdir() if Path(item.name).suffix in KINDS}

    async def answered(request: Request, work: Callable[[], Json]) -> Response:
        return json_response(await jobs.run(lambda: names.encoded(work()), request.is_disconnected))

    def asking(kind: type[msgspec.Struct], work: Callable[[Any], Json]) -> Callable[[Request], Any]:
        """An endpoint for questions of one kind."""
        decoder = msgspec.json.Decoder(kind)

        async def ask(request: Request) -> Response:
            body = await read_body(request, LONGEST_QUESTION)
            try:
                asked = decoder.decode(body)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                raise BadRequest(f"the question is not as it should be: {key_rule(error)}") from error
            return await answered(request, lambda: work(asked))

        return ask

    async def file(request: Request) -> Response:
        name = request.path_params.get("name", "index.html")
        if name not in files:
            raise HTTPException(404)
        return Response(files[name], media_type=KINDS[Path(name).suffix], headers=HEADERS)

    async def listed(request: Request) -> Response:
        return await answered(request, lambda: listing(sources))

    async def model(request: Request) -> Response:
        name = request.query_params.get("id", "")
        return await answered(request, lambda: {"id": name, **models.model_facts(sources.model(name))})

    return [
        Route("/", file),
        Route("/explore/static/{name}", file),
        Route("/explore/sources", listed),
        Route("/explore/model", model),
        *(Route(f"/explore/{name}", asking(*each), methods=["POST"]) for name, each in answers_from(sources).items()),
    ]


def _is_measured(dataset: Dataset) -> bool:
    """Whether a sweep is measured into a dataset now, or is about to begin."""
    return is_held(dataset.path / LOCK) or not any(part.rows for part in dataset.contents.parts)
