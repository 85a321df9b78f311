"""A model's replies to JSON requests that Python has read, in the form of its exported C; values until they are written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from kerncast.answering.json_text import NotJson
from kerncast.answering.request import JsonRefused, JsonRequest, Reply, RequestReader, Text
from kerncast.core.op import Family, Problem
from kerncast.models import software as softwares
from kerncast.models.answer import Answer, without_choice
from kerncast.models.statuses import Answered
from kerncast.native.request import device_names, identity_of

if TYPE_CHECKING:  # it imports this module
    from kerncast.answering.selector import Selector

written = msgspec.json.Encoder().encode


class ModelReplies:
    """Replies of one model."""

    def __init__(self, selector: Selector) -> None:
        self.selector, self.identity = selector, identity_of(selector.model)

    def to(self, reader: RequestReader, text: Text, requests: Mapping[int, JsonRequest]) -> dict[int, Reply]:
        """The replies to requests, by their places in the text; those for one tier are answered together."""
        replies: dict[int, Reply] = {}
        problems: dict[str | None, dict[int, Problem]] = {}
        for place, request in requests.items():
            try:
                reader.split(request, self.identity.products)
            except JsonRefused as refused:
                replies[place] = text.refusal(place, refused)
                continue
            try:
                problem = reader.problem(request)
                if request.tier is not None and request.tier not in self.selector.answering:
                    said = f"the tier '{request.tier}' is not in this artefact: ask another, or export it with that tier"
                    raise JsonRefused(Answered.BAD_INPUT, said, request.path)
            except JsonRefused as refused:
                replies[place] = text.refusal(place, refused) | self._origin(place, request, text)
            else:
                problems.setdefault(request.tier, {})[place] = problem
        for tier, asked in problems.items():
            # A single one may be in the memo.
            one = [self.selector.select(problem, tier) for problem in asked.values()] if len(asked) == 1 else None
            answers = one or self.selector.select_many(list(asked.values()), tier)
            for place, answer in zip(asked, answers, strict=True):
                note = {"note": answer.note} if answer.note else {}
                own = _reply_of(reader.family, answer, place, requests[place], text)
                replies[place] = own | self._origin(place, requests[place], text) | note
        return replies

    def _origin(self, place: int, request: JsonRequest, text: Text) -> Reply:
        """What a reply says of its model, which may be of other software than was asked for."""
        identity, asked = self.identity, request.software
        origin: Reply = {"model": identity.model, "software": identity.software}
        if asked is not None and not softwares.is_same(identity.trained_on, asked[0]):
            said = softwares.trained(identity.trained_on)
            origin["warning"] = f"asked for the software {text.shown(place, asked[1])}, the model {said}"
        return origin


def _reply_of(family: Family, answer: Answer, place: int, request: JsonRequest, text: Text) -> Reply:
    """An answer as the reply to a request."""
    if answer.ok:
        return {"status": Answered.OK} | _choice(family, answer)
    answer = without_choice(family, answer)
    outside = answer.outside
    at = request.path if outside is None else request.given.get(outside.parameter, request.path)
    named = {} if outside is None else {"parameter": outside.parameter}
    fallback = {} if answer.fallback is None else {"fallback": _known(answer.fallback)}
    said = {"message": answer.reason, **named, "position": text.position(place, at)}
    return {"status": answer.status} | _choice(family, answer) | said | fallback


def _choice(family: Family, answer: Answer) -> Reply:
    """What was chosen and its figures; empty for an answer without a choice."""
    chooses, reply = bool(family.config.parameters), {}
    if chooses and answer.config is not None:
        reply = {"tier": str(answer.tier), "config": _known(answer.config)}
    figures = ("time_ns", "lower_ns", "upper_ns", *(("efficiency",) if chooses else ()))
    reply |= {name: getattr(answer, name) for name in figures if getattr(answer, name) is not None}
    said = ("label", "pin") if answer.config is not None else ()
    return reply | {name: str(value) for name in said if (value := getattr(answer, name)) is not None}


def _known(values: Mapping[str, Any]) -> Reply:
    return {name: value for name, value in values.items() if value is not None}


def answer_text(selector: Selector, text: str | bytes) -> bytes:
    """The reply of one model to a text, read in Python: an object for an object, a list for a list."""
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    try:
        read = Text(data)
    except NotJson as error:
        return written(not_json(error))
    model, replies, requests = selector.model, dict[int, Reply](), dict[int, JsonRequest]()
    reader = RequestReader(model.family, device_names(model))
    for place, value in enumerate(read.requests):
        try:
            requests[place] = reader.read(value)
        except JsonRefused as refused:
            replies[place] = read.refusal(place, refused)
    replies |= ModelReplies(selector).to(reader, read, requests)
    listed = [replies[place] for place in range(len(read.requests))]
    return written(listed if read.listed else listed[0])


def not_json(error: NotJson) -> Reply:
    """The reply to a text that is not JSON."""
    return {"status": Answered.BAD_INPUT, "message": str(error), "position": error.position}
