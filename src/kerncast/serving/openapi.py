"""/openapi.json, from the declarations by which requests are checked."""

from __future__ import annotations

from typing import Any

import msgspec

from kerncast.models.statuses import Answered, Place
from kerncast.serving.declarations import Address, EstimateRequest, SelectRequest
from kerncast.serving.replying import Error
from kerncast.serving.settings import Settings
from kerncast.version import __version__

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
    parts["Question"] = _question(parts.pop("Address"))
    parts["Answer"] = _answer()
    select, estimate, error, model, health = schemas[1:]
    _bound_lists(parts["SelectRequest"], settings.max_batch)
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


def _question(address: dict[str, Any]) -> dict[str, Any]:
    """What says which model answers, and next to it the problem, whose parameters the op declares."""
    about = "Which models may answer, and the problem: the parameters of the op, here or in an object `problem`."
    return {**address, "title": "Question", "description": about}


def _answer() -> dict[str, Any]:
    statuses = [str(status) for status in Answered if Place.JSON in status.places]
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


def _bound_lists(schema: dict[str, Any], most: int) -> None:
    for choice in schema["properties"]["problem"]["anyOf"]:
        if choice.get("type") == "array":
            choice["maxItems"] = most


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
            "408": "The body took too long to arrive.",
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
