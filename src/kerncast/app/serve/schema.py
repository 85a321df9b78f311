"""What requests and replies hold: the declarations by which requests are checked, and /openapi.json, written from them."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from kerncast.answering.routes import Address
from kerncast.app.serve.server import Settings
from kerncast.core.io.arguments import cache_folder
from kerncast.errors import InvalidValue, KerncastError, NotFound, quoted
from kerncast.models import trust
from kerncast.models.answer import CHOOSING, Answered, StatusPlace
from kerncast.models.store.entry import folder as shipped_folder
from kerncast.version import __version__

if TYPE_CHECKING:
    from kerncast.app.serve.sources import Sources


Body = TypeVar("Body")
Name = Annotated[str, Meta(max_length=200)]
Number = str | int | float | bool | None
Problem = dict[str, Number]
if TYPE_CHECKING:
    Choosing = str
else:  # the list of tiers is that of the models
    Choosing = Literal[tuple(map(str, CHOOSING))]
Count = Annotated[int, Meta(ge=1, le=2**53)]
# The best configs of one problem; there are seldom more candidates.
MOST_RANKED = 1000

ROUTES = ("/v1/query", "/v1/select", "/v1/estimate", "/v1/models", "/healthz", "/metrics", "/openapi.json")
_REFERENCE = "#/components/schemas/{name}"
_GEMM = {"op": "gemm", "device": "b200", "software": "vllm", "M": 128, "N": 1536, "K": 7168, "dtype": "fp8"}
_DECODER = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
    "torch_dtype": "bfloat16",
}  # fmt: skip
_QUESTIONS = {"gemm": _GEMM, "list": [_GEMM, {**_GEMM, "M": 4096}]}
_STEPS = {"llama": {"config": _DECODER, "device": "h100", "context": 4096, "batch": 8}}


class SelectRequest(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Choose the config to run for one problem or for a list of problems, as `kerncast select --json` answers."""

    problem: Annotated[Problem | list[Problem], Meta(description="The parameters of a problem, or a list of problems.")]
    model: Annotated[Name | None, Meta(description="The id of a model (`GET /v1/models`); without it, `op` says which.")] = None
    op: Annotated[Name | None, Meta(description="The op: of its models, one that covers the problem chooses.")] = None
    family: Annotated[Name | None, Meta(description="Which family, if there are models of several.")] = None
    device: Annotated[Name | None, Meta(description="Which device, if there are models of several.")] = None
    software: Annotated[Name | None, Meta(description="vllm (the newest there is), vllm==0.24.0, a commit.")] = None
    tier: Annotated[Choosing | None, Meta(description="Where to look.")] = None
    top: Annotated[
        Annotated[int, Meta(ge=1, le=MOST_RANKED)] | None,
        Meta(description="Give the best configs of each problem instead of one, as a list."),
    ] = None


class EstimateRequest(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Estimate a step of a whole model, op by op, as `kerncast estimate --json` answers."""

    config: Annotated[dict[str, Any], Meta(description="What the config.json of a Hugging Face model holds.")]
    device: Annotated[Name, Meta(description="The name of a device, or `all` to compare those that have a profile.")]
    context: Annotated[Count, Meta(description="Tokens of each sequence.")]
    tp: Annotated[Count, Meta(description="GPUs that share every layer.")] = 1
    ep: Annotated[Count | None, Meta(description="GPUs that share the experts.")] = None
    batch: Annotated[Count, Meta(description="Sequences.")] = 1
    new_tokens: Annotated[Count | None, Meta(description="Tokens that are computed (prefill) or generated (decode).")] = None
    phase: Literal["prefill", "decode"] = "decode"
    dtype: Annotated[Name | None, Meta(description="The format of the weights, if not that of the config.")] = None
    kv_dtype: Annotated[Name | None, Meta(description="The format of the KV cache.")] = None
    imbalance: Annotated[float, Meta(ge=0, le=10, description="Exponent of a power law of the loads of experts.")] = 0.0
    software: Annotated[Name | None, Meta(description="vllm, sglang, trtllm, or one with a version.")] = None
    graphs: Annotated[bool, Meta(description="False: kernels are launched one by one.")] = True
    launch_us: Annotated[
        Annotated[float, Meta(gt=0, lt=1e6)] | None, Meta(description="Microseconds between launches without graphs.")
    ] = None


_DECODERS: dict[type, msgspec.json.Decoder[Any]] = {
    kind: msgspec.json.Decoder(kind) for kind in (SelectRequest, EstimateRequest)
}
_PLACE = re.compile(r" - at `(?:key in )?\$(.*)`$")
_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]")


class BadRequest(InvalidValue):
    """A body that is not what the declaration says."""


def read(kind: type[Body], data: bytes) -> Body:
    """A request, checked; a `BadRequest` says the rule, where in the body it is broken, and by which value."""
    try:
        decoded: Body = _DECODERS[kind].decode(data)
    except msgspec.ValidationError as error:
        try:  # some writers have no whole numbers: 32.0 is one, in JSON
            value = msgspec.json.decode(data)
            given = {name: whole(item) for name, item in value.items()} if isinstance(value, dict) else value
            return msgspec.convert(given, kind)
        except msgspec.ValidationError:
            raise BadRequest(_said(str(error), data)) from error
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as deeper:
            raise BadRequest(f"the body must be JSON, and this is not ({deeper}): send an object") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"the body must be JSON, and this is not ({error}): send an object") from error
    return decoded


def whole(value: Any) -> Any:
    """A value; a float that is a whole number becomes one, as long as a double is exact."""
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 2**53 else value


def _said(message: str, data: bytes) -> str:
    place = _PLACE.search(message)
    rule = message[: place.start()] if place else message
    where = place[1].lstrip(".") if place else "the body"
    value = _value_at(place[1] if place else "", data)
    got = "" if value is msgspec.UNSET else f", and it is {quoted(msgspec.json.encode(value).decode(), 80)}"
    return f"{quoted(where)}: {rule[:1].lower()}{rule[1:]}{got}: see /openapi.json"


def _value_at(path: str, data: bytes) -> Any:
    """The value that a rule is about; UNSET if the path does not lead to one."""
    try:
        value = msgspec.json.decode(data)
    except msgspec.DecodeError:  # a number that no float can hold
        return msgspec.UNSET
    for name, index in _STEP.findall(path):
        try:
            value = value[int(index)] if index else value[name]
        except (LookupError, TypeError):
            return msgspec.UNSET
    return value


# -- /openapi.json --------------------------------------------------------------------------------


class Error(msgspec.Struct):
    """Why a request was not answered, in one sentence: the rule, the value and the next step."""

    error: str
    kind: str
    """One word for programs."""


class Building(msgspec.Struct):
    """What is being built while Python answers."""

    what: str
    seconds_left: float | None


class ModelInfo(msgspec.Struct):
    """A model that may answer."""

    id: str
    origin: str
    """`store`, `shipped` (it came with kerncast) or `path` (it was named when the server was started)."""
    op: str
    family: str
    devices: list[str]
    software: list[str]
    kind: str
    dtypes: list[str]
    rows: int
    problems: int
    checksum: str
    r2: float | None
    mape: float | None
    efficiency: float | None
    building: Building | None


class Health(msgspec.Struct):
    """The server is up."""

    status: str
    version: str
    models: int
    building: int
    """How many models are being built, or wait for it."""


def openapi(settings: Settings) -> dict[str, Any]:
    """The description of the API of a server with these settings."""
    kinds = (Address, SelectRequest, EstimateRequest, Error, ModelInfo, Health)
    schemas, parts = msgspec.json.schema_components(kinds, ref_template=_REFERENCE)
    # What says which model answers, and next to it the problem, whose parameters the op declares.
    asks = "Which models may answer, and the problem: the parameters of the op, here or in an object `problem`."
    parts["Question"] = {**parts.pop("Address"), "title": "Question", "description": asks}
    parts["Answer"] = _answer()
    select, estimate, error, model, health = schemas[1:]
    for choice in parts["SelectRequest"]["properties"]["problem"]["anyOf"]:
        if choice.get("type") == "array":
            choice["maxItems"] = settings.max_batch
    questions, answers = _one_or_many("Question", settings), _one_or_many("Answer", settings)
    about = "How long kernels and tensor ops take, and which to run."
    chosen, step = {"type": ["object", "array"]}, {"type": "object"}
    posts = {
        "query": _post("query", "How long an op takes: one question, or a list.", questions, answers, _QUESTIONS),
        "select": _post("select", "Which config to run, for one problem or a list.", select, chosen, {}),
        "estimate": _post("estimate", "One step of a whole model on a device, op by op.", estimate, step, _STEPS),
    }
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "kerncast", "version": __version__, "description": about},
        "paths": {
            **{f"/v1/{name}": {"post": operation} for name, operation in posts.items()},
            "/v1/models": {"get": _get("models", "The models that may answer.", {"type": "array", "items": model})},
            "/healthz": {"get": _get("healthz", "Whether the server is up; never asks for a token.", health)},
            "/openapi.json": {"get": _get("openapi", "This document.", {"type": "object"})},
            "/metrics": {"get": _get("metrics", "What the server counts, for Prometheus.", {"type": "string"}, "text/plain")},
        },
        "components": {"schemas": parts},
    }
    for route in document["paths"].values():
        for operation in route.values():
            _add_errors(operation, error, settings)
    if settings.token is not None:
        document["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"token": []}]
        document["paths"]["/healthz"]["get"]["security"] = []
    return document


def _answer() -> dict[str, Any]:
    statuses = [str(status) for status in Answered if StatusPlace.JSON in status.places]
    number = {"type": "number"}
    return {
        "title": "Answer",
        "description": "A time with its interval, or a status and a message that say why there is none.",
        "type": "object",
        "properties": {
            "status": {"enum": statuses}, "message": {"type": "string"}, "time_ns": number, "lower_ns": number,
            "upper_ns": number, "config": {"type": "object"}, "model": {"type": "string"}, "basis": {"type": "string"},
            "position": {"type": "integer"},
        },
        "required": ["status"],
    }  # fmt: skip


def _one_or_many(name: str, settings: Settings) -> dict[str, Any]:
    """An object, or a list: what is wrong in a list is answered in its place, so its items may be anything."""
    one = {"$ref": _REFERENCE.format(name=name)}
    items: dict[str, Any] = one if name == "Answer" else {}
    return {"anyOf": [one, {"type": "array", "maxItems": settings.max_batch, "items": items}]}


def _post(name: str, summary: str, body: Any, reply: Any, examples: dict[str, Any]) -> dict[str, Any]:
    content: dict[str, Any] = {"schema": body}
    if examples:
        content["examples"] = {key: {"value": value} for key, value in examples.items()}
    operation = _get(name, summary, reply)
    return {**operation, "requestBody": {"required": True, "content": {"application/json": content}}}


def _get(name: str, summary: str, reply: Any, kind: str = "application/json") -> dict[str, Any]:
    responses: dict[str, Any] = {"200": {"description": "The answer.", "content": {kind: {"schema": reply}}}}
    return {"operationId": name, "summary": summary, "responses": responses}


def _add_errors(operation: dict[str, Any], error: dict[str, Any], settings: Settings) -> None:
    """The errors that a route may give, each with what to do about it."""
    known = {"403": "Asked by a page of another site.", "421": "Asked by a name that is not this server's.",
             "500": "The server failed, or a model is damaged."}  # fmt: skip
    if "requestBody" in operation:
        known |= {
            "400": "The body is not what is declared here.",
            "413": f"The body has more than {settings.max_body:,} bytes or {settings.max_batch:,} questions.",
            "415": "The body is not of the content type application/json.",
            "503": "Too many long requests wait.",
        }
    if operation["operationId"] in ("select", "estimate"):
        known |= {"404": "A name is not known.", "422": "The request is well-formed, and cannot be answered as it is."}
    if settings.token is not None:
        known["401"] = "Without the token, or with another one."
    if settings.requests_per_second:
        known["429"] = "Sooner after the last ones than the rate allows."
    for status, about in sorted(known.items()):
        operation["responses"][status] = {"description": about, "content": {"application/json": {"schema": error}}}


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
