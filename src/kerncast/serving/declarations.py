"""What a request may hold: the declarations that requests are checked by, and that /openapi.json is written from."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from kerncast.errors import InvalidValue, quoted
from kerncast.querying.finding import Address

Asked = TypeVar("Asked")
Name = Annotated[str, Meta(max_length=200)]
Number = str | int | float | bool | None
Problem = dict[str, Number]
Count = Annotated[int, Meta(ge=1, le=2**53)]
# The best configs of one problem; there are seldom more candidates.
MOST_RANKED = 1000

__all__ = ["Address", "EstimateRequest", "SelectRequest", "read"]


class SelectRequest(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Choose the config to run for one problem or for a list of problems, as `kerncast select --json` answers."""

    problem: Annotated[Problem | list[Problem], Meta(description="The parameters of a problem, or a list of problems.")]
    model: Annotated[Name | None, Meta(description="The id of a model (`GET /v1/models`); without it, `op` says which.")] = None
    op: Annotated[Name | None, Meta(description="The op: of its models, one that covers the problem chooses.")] = None
    family: Annotated[Name | None, Meta(description="Which family, if there are models of several.")] = None
    device: Annotated[Name | None, Meta(description="Which device, if there are models of several.")] = None
    software: Annotated[Name | None, Meta(description="vllm (the newest there is), vllm==0.24.0, a commit.")] = None
    tier: Annotated[Literal["tree", "portfolio", "full"] | None, Meta(description="Where to look.")] = None
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


def read(kind: type[Asked], data: bytes) -> Asked:
    """A request, checked; a `BadRequest` says the rule, where in the body it is broken, and by which value."""
    try:
        found: Asked = _DECODERS[kind].decode(data)
    except msgspec.ValidationError as error:
        try:  # some writers have no whole numbers: 32.0 is one, in JSON
            return msgspec.convert(_with_whole_numbers(msgspec.json.decode(data)), kind)
        except msgspec.ValidationError:
            raise BadRequest(_said(str(error), data)) from error
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as deeper:
            raise BadRequest(f"the body must be JSON, and this is not ({deeper}): send an object") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"the body must be JSON, and this is not ({error}): send an object") from error
    return found


def _with_whole_numbers(value: Any) -> Any:
    """An object, whose members may be written as 32.0 and mean 32."""
    if not isinstance(value, dict):
        return value
    return {name: whole(item) for name, item in value.items()}


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
