"""The explorer's addresses: the page at `/`, its files, and the questions that it asks.

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

from kerncast.app.serve.access import read_body
from kerncast.app.serve.background import Jobs
from kerncast.app.serve.explorer import axes, datasets, ranking
from kerncast.app.serve.explorer.describing import Json, model_facts
from kerncast.app.serve.explorer.watching import Watch
from kerncast.app.serve.replies import Names, json_response
from kerncast.app.serve.schema import BadRequest
from kerncast.app.serve.sources import Sources
from kerncast.core.io.foreign import key_rule
from kerncast.core.io.lock import is_held
from kerncast.data.dataset import Dataset
from kerncast.data.journal import LOCK
from kerncast.errors import InvalidValue
from kerncast.models.model import Model
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


class Explorer:
    """What the page may ask, answered from some sources."""

    def __init__(self, sources: Sources) -> None:
        self.sources = sources
        self._watches: dict[Path, Watch] = {}
        self._starting = threading.Lock()

    def model(self, name: str) -> Model:
        """A model by its id. It is not compiled: the page asks all configs, which the interpreter does as well."""
        return self.sources.model(name)

    def listing(self) -> Json:
        """What there is to look at."""
        models = [
            {
                "id": item.id, "origin": item.origin, "op": item.entry.op, "family": item.entry.family,
                "devices": list(item.entry.record.devices), "rows": item.entry.record.rows,
                "mape": item.entry.record.mape, "efficiency": item.entry.record.efficiency,
            }
            for item in self.sources.models()
        ]  # fmt: skip
        names = self.sources.datasets()
        running = [name for name in names if _is_measured(self.sources.dataset(name))]
        return {
            "version": __version__, "models": models, "datasets": names, "running": running,
            "problems": len(self.sources.problems),
        }  # fmt: skip

    def rank(self, asked: RankQuestion) -> Json:
        """The ranked configs, with the roofline."""
        return ranking.ranked(self.model(asked.model), asked.problem, asked.device, asked.k)

    def why(self, asked: ConfigQuestion) -> Json:
        """What the features contribute."""
        return ranking.why(self.model(asked.model), asked.problem, asked.config, asked.device)

    def near(self, asked: ConfigQuestion) -> Json:
        """What was measured near here."""
        return ranking.near(self.model(asked.model), asked.problem, asked.config, asked.device)

    def along(self, asked: AxisQuestion) -> Json:
        """The choice along one axis."""
        return axes.along(self.model(asked.model), asked.problem, asked.axis, asked.device, asked.count)

    def map(self, asked: MapQuestion) -> Json:
        """The map of winners."""
        return axes.winners_map(self.model(asked.model), asked.problem, asked.x, asked.y, asked.device, asked.count)

    def devices(self, asked: Question) -> Json:
        """The devices of all models of the same family."""
        own = self.sources.listed(asked.model)
        same = [item for item in self.sources.models() if item.entry.family == own.entry.family and item.id != own.id]
        listed = [(own.id, self.model(own.id)), *((item.id, self.model(item.id)) for item in same)]
        return ranking.compared_devices(listed, asked.problem)

    def dataset(self, asked: DatasetQuestion) -> Json:
        """What a dataset holds."""
        return datasets.overview(self.sources.dataset(asked.dataset), asked.family)

    def problems(self, asked: ProblemsQuestion) -> Json:
        """A page of its problems."""
        return datasets.problems(self.sources.dataset(asked.dataset), asked.family, asked.sort, asked.page, asked.text)

    def rows(self, asked: RowsQuestion) -> Json:
        """The rows of one of them."""
        return datasets.measured_rows(self.sources.dataset(asked.dataset), asked.problem, asked.device, asked.family)

    def worst(self, asked: DatasetQuestion) -> Json:
        """Where a model does worst on it."""
        if asked.model is None:
            raise InvalidValue("`model` is missing: name the model to judge")
        return datasets.worst_of(self.model(asked.model), self.sources.dataset(asked.dataset))

    def watch(self, asked: DatasetQuestion) -> Json:
        """The sweep that is being measured into a dataset."""
        path = self.sources.dataset(asked.dataset).path
        with self._starting:
            watch = self._watches.setdefault(path, Watch(path))
        return watch.look()


def explorer_routes(sources: Sources, jobs: Jobs, names: Names) -> list[BaseRoute]:
    """The page at `/`, its files under `/explore/static/`, and the questions it asks under `/explore/`."""
    explorer = Explorer(sources)
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

    async def page(request: Request) -> Response:
        return _file("index.html", files)

    async def static(request: Request) -> Response:
        return _file(request.path_params["name"], files)

    async def listing(request: Request) -> Response:
        return await answered(request, explorer.listing)

    async def model(request: Request) -> Response:
        name = request.query_params.get("id", "")
        return await answered(request, lambda: {"id": name, **model_facts(explorer.model(name))})

    questions: dict[str, tuple[type[msgspec.Struct], Callable[[Any], Json]]] = {
        "rank": (RankQuestion, explorer.rank),
        "why": (ConfigQuestion, explorer.why),
        "near": (ConfigQuestion, explorer.near),
        "along": (AxisQuestion, explorer.along),
        "map": (MapQuestion, explorer.map),
        "devices": (Question, explorer.devices),
        "dataset": (DatasetQuestion, explorer.dataset),
        "problems": (ProblemsQuestion, explorer.problems),
        "rows": (RowsQuestion, explorer.rows),
        "worst": (DatasetQuestion, explorer.worst),
        "watch": (DatasetQuestion, explorer.watch),
    }
    return [
        Route("/", page),
        Route("/explore/static/{name}", static),
        Route("/explore/sources", listing),
        Route("/explore/model", model),
        *(Route(f"/explore/{name}", asking(kind, work), methods=["POST"]) for name, (kind, work) in questions.items()),
    ]


def _is_measured(dataset: Dataset) -> bool:
    """Whether a sweep is measured into a dataset now, or is about to begin."""
    return is_held(dataset.path / LOCK) or not any(part.rows for part in dataset.contents.parts)


def _file(name: str, files: dict[str, bytes]) -> Response:
    if name not in files:
        raise HTTPException(404)
    return Response(files[name], media_type=KINDS[Path(name).suffix], headers=HEADERS)
