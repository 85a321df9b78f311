"""JSON requests that no model of the user's store answers: read as strictly as the others, answered by what ships."""

from __future__ import annotations

from typing import Any

from kerncast.compiling.json_request import Refused, RequestReader, refusal, written
from kerncast.compiling.json_text import NotJson, Token, scan
from kerncast.compiling.request import Identity
from kerncast.models.statuses import Answered
from kerncast.querying.predicting import OpAnswerer
from kerncast.querying.prediction import Prediction


class ReadyReader:
    """Answers requests about one op on one device."""

    def __init__(self, answerer: OpAnswerer) -> None:
        self.answerer, family = answerer, answerer.family
        profile = answerer.profile
        names = (answerer.name, str(answerer.device), *(() if profile is None else profile.aliases))
        self.reader = RequestReader(family, Identity(family.op, family.id, names, "", None))

    def prepare(self) -> None:
        """Look for the models that answer; a `NotFound` says that there are none for this device."""
        _ = self.answerer.usable

    def answer(self, data: bytes) -> bytes:
        """The reply to a text: an object for an object, a list for a list."""
        try:
            request = scan(data)
        except NotJson as error:
            return written({"status": Answered.BAD_INPUT, "message": str(error), "position": error.position})
        if isinstance(request.what, list):
            return written(self._replies(request.what))
        return written(self._replies([request])[0])

    def _replies(self, requests: list[Token]) -> list[dict[str, Any]]:
        """Those that can be read are answered together."""
        replies: dict[int, dict[str, Any]] = {}
        problems: dict[int, dict[str, Any]] = {}
        for place, request in enumerate(requests):
            try:
                values = self.reader.read(request).values
                problems[place] = {name: value for name, value in values.items() if value is not None}
            except Refused as refused:
                replies[place] = refusal(refused)
        told = self.answerer.ask(list(problems.values())) if problems else []
        for place, found in zip(problems, told, strict=True):
            position = {"position": requests[place].start} if found.status == Answered.BAD_INPUT else {}
            replies[place] = reply_of(found) | position
        return [replies[place] for place in range(len(requests))]


def reply_of(found: Prediction) -> dict[str, Any]:
    """A prediction as the reply to a request."""
    reply = found.as_json()
    for name in ("op", "problem", "device"):
        reply.pop(name)
    if "reason" in reply:
        reply["message"] = reply.pop("reason")
    return reply | ({} if found.model is None else {"entry": found.model})
