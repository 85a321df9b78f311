"""Answer JSON requests about any op. Each goes to the model that fits it, and gets the answer of that model's exported C.

query = Query(among([Model.load("exp_model")]))
query.answer('{"op": "exp", "tensor": {"shape": [1024, 1024], "dtype": "bfloat16", "memory": {"buffer": "L1"}}}')

Replies to requests that Python reads have the form of the exported C; they are values until they are written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from kerncast.answering.json_text import NotJson
from kerncast.answering.prediction import OpAnswerer, Prediction
from kerncast.answering.request import JsonRefused, JsonRequest, Reply, RequestReader, Text, is_object
from kerncast.answering.routes import Address, Find, ModelTarget, Route, among, in_store
from kerncast.answering.selector import Selector
from kerncast.core import software as softwares
from kerncast.core.op import Family, Problem
from kerncast.core.progress import QUIET, Progress
from kerncast.errors import BadFile, InvalidValue, KerncastError, NotFound
from kerncast.library.registry import OPS
from kerncast.models.answer import Answer, Answered, without_choice
from kerncast.models.model import Model
from kerncast.native.lower import refuse_several_devices
from kerncast.native.query import device_names, identity_of
from kerncast.native.tiers.build import plain_tiers

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


__all__ = ["Address", "Find", "ModelTarget", "Query", "Route", "among", "in_store", "selector_of"]


# Kinds of requests whose models are remembered: requests for a thousand unknown devices take no more memory.
MOST_KNOWN = 4096
# What is longer is the name of no op, family, device or software, and would be remembered as often.
LONGEST_NAME = 2_000
Key = tuple[Path, str | None]


class Query:
    """Answers JSON texts. Models are loaded (and compiled) when they are first asked for, and kept."""

    def __init__(
        self,
        find: Find,
        *,
        compile: bool = True,
        progress: Progress = QUIET,
        selectors: Callable[[Path, str | None], Selector] | None = None,
    ) -> None:
        """`selectors` makes the selector of a model on a device, or has it already; without it, one is made for each."""
        self.find, self.compile, self.progress = find, compile, progress
        self._make = selectors or self._selector_of
        self._selectors: dict[Key, Selector] = {}
        self._replies: dict[Key, ModelReplies] = {}
        self._readers: dict[Route, RequestReader] = {}
        self._routes: dict[Address, Route | Reply] = {}

    def answer(self, text: str | bytes) -> bytes:
        """One reply for one request; a list of replies, in order, for a list."""
        data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
        try:
            addresses, read = _addresses(data)
            routes = {address: self._route(address) for address in dict.fromkeys(addresses)}
            native = self._native(routes)
            if native is not None:
                return _amended(*native, data)
            replies = self._by_route(read or Text(data), addresses, routes)
        except NotJson as error:
            return written(not_json(error))
        return written(replies if data.lstrip()[:1] == b"[" else replies[0])

    def _native(self, routes: Mapping[Address | None, Route | Reply]) -> tuple[ModelTarget, Selector] | None:
        """The model that reads a whole text itself: it is the only one, and knows the device by its names there; else None."""
        targets = {route.target if isinstance(route, Route) else None for route in routes.values()}
        target = targets.pop() if len(targets) == 1 else None
        if target is None or not {address.device for address in routes if address is not None} <= {None, *target.names}:
            return None
        try:
            selector = self.selector(target)
        except KerncastError:  # which becomes the reply to each request
            return None
        return (target, selector) if selector.is_compiled else None

    # -- who answers ---------------------------------------------------------------------------------------

    def _route(self, address: Address | None) -> Route | Reply:
        """Who answers requests with an address, or why nobody does."""
        if address is None:
            said = "a request must be an object whose op, family, device and software are strings"
            return _refused(Answered.BAD_INPUT, said)
        known = self._routes.get(address)
        if known is not None:
            return known
        for name, text in msgspec.structs.asdict(address).items():
            if text and len(text) > LONGEST_NAME:
                said = f"{name} has at most {LONGEST_NAME:,} characters, got {len(text):,}: shorten it"
                return _refused(Answered.BAD_INPUT, said)
        if len(self._routes) >= MOST_KNOWN:
            self._routes.clear()
            self._readers.clear()
        route: Route | Reply
        try:
            route = self.find(address)
        except NotFound as error:
            unknown = address.op is not None and address.op not in OPS.found and address.op not in OPS.by_alias
            route = _refused(Answered.UNSUPPORTED if unknown else Answered.NO_MODEL, str(error))
        except InvalidValue as error:
            route = _refused(Answered.BAD_INPUT if address.op is None else Answered.NO_MODEL, str(error))
        except BadFile as error:
            # A device may be named by a profile, which may be the file that is bad.
            profile = address.device is not None and address.device.endswith(".toml")
            return _refused(Answered.NO_MODEL if profile else Answered.CORRUPT, str(error))
        self._routes[address] = route
        return route

    def selector(self, target: ModelTarget) -> Selector:
        """The selector of a model, made once."""
        if target.key not in self._selectors:
            self._selectors[target.key] = self._make(target.path, target.device)
        return self._selectors[target.key]

    def _selector_of(self, path: Path, device: str | None) -> Selector:
        model = Model.load(path)
        return selector_of(model if device is None else model.on(device), compile=self.compile, progress=self.progress)

    def forget(self, path: Path) -> None:
        """Make the selectors of a model again when they are asked for."""
        self._selectors = {key: selector for key, selector in self._selectors.items() if key[0] != path}
        self._replies = {key: replies for key, replies in self._replies.items() if key[0] != path}

    # -- requests that Python reads --------------------------------------------------------------------------

    def _by_route(
        self, text: Text, addresses: Sequence[Address | None], routes: Mapping[Address | None, Route | Reply]
    ) -> list[Reply]:
        """A reply to each request: those of one route are answered together."""
        replies: dict[int, Reply] = {}
        places: dict[Route, list[int]] = {}
        for place, address in enumerate(addresses):
            route = routes[address]
            if isinstance(route, Route):
                places.setdefault(route, []).append(place)
            else:
                replies[place] = route
        for route, own in places.items():
            requests: dict[int, JsonRequest] = {}
            try:
                reader = self._reader(route)
            except KerncastError as error:
                replies |= dict.fromkeys(own, _unusable(error, route))
                continue
            for place in own:
                address = addresses[place]
                try:
                    requests[place] = reader.read(text.requests[place], None if address is None else address.device)
                except JsonRefused as refused:
                    replies[place] = text.refusal(place, refused)
            replies |= self._answered(route, reader, text, requests)
        return [replies[place] for place in range(len(addresses))]

    def _reader(self, route: Route) -> RequestReader:
        """What reads the requests of a route, made once; an error says that its model, or a name, is not there."""
        if route not in self._readers:
            if route.ready is not None:
                _ = route.ready.usable  # a device that nobody knows is refused
                aliases = () if route.ready.profile is None else route.ready.profile.aliases
                names = (route.ready.name, str(route.ready.device), *aliases)
                self._readers[route] = RequestReader(route.ready.family, names, products=False)
            elif route.choice is not None:
                self._readers[route] = RequestReader(route.choice.family, route.choice.models[0][0].names)
            else:
                assert route.target is not None
                self._readers[route] = RequestReader(self.selector(route.target).model.family, route.target.names)
        return self._readers[route]

    def _answered(
        self, route: Route, reader: RequestReader, text: Text, requests: Mapping[int, JsonRequest]
    ) -> dict[int, Reply]:
        """The replies to requests that could be read."""
        if route.ready is not None:
            return _predicted(route.ready, text, requests)
        by_target: dict[ModelTarget, dict[int, JsonRequest]] = {}
        for place, request in requests.items():
            target = route.target if route.choice is None else route.choice.nearest(reader.compared(request))
            assert target is not None
            by_target.setdefault(target, {})[place] = request
        replies: dict[int, Reply] = {}
        for target, own in by_target.items():
            try:
                selector = self.selector(target)
            except KerncastError as error:
                replies |= dict.fromkeys(own, _unusable(error, route))
                continue
            if target.key not in self._replies:
                self._replies[target.key] = ModelReplies(selector)
            told = self._replies[target.key].to(reader, text, own)
            replies |= {place: _with_words_of_store(reply, target) for place, reply in told.items()}
        return replies


def selector_of(model: Model, *, compile: bool = True, progress: Progress = QUIET) -> Selector:
    """The selector that answers requests about a model."""
    refuse_several_devices(model)
    if model.family.config.parameters:
        return Selector(model, compile=compile, progress=progress)
    # Nothing is chosen, so there is nothing to build tiers for.
    return Selector(model, tiers=plain_tiers(model), tier="full", compile=compile, progress=progress)


_MANY = msgspec.json.Decoder(list[Address])
_ONE = msgspec.json.Decoder(Address)


def _addresses(data: bytes) -> tuple[Sequence[Address | None], Text | None]:
    """The address of each request, None for what has none; and the text if it was read for that."""
    try:
        return (_MANY.decode(data) if data.lstrip()[:1] == b"[" else [_ONE.decode(data)]), None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):  # not JSON, or some op is not a string
        text = Text(data)
        return [_address(request) for request in text.requests], text


def _address(request: Any) -> Address | None:
    """Read the address; the last of repeated keys counts, as in a JSON decoder. They are refused when the request is read."""
    if not is_object(request):
        return None
    known = {name: value for name, value in dict(request).items() if name in Address.__struct_fields__}
    return Address(**known) if all(value is None or isinstance(value, str) for value in known.values()) else None


def _refused(status: Answered, message: str) -> Reply:
    return {"status": status, "message": message}


def _unusable(error: KerncastError, route: Route) -> Reply:
    """The reply where a model cannot be loaded; without one of the store, it is a name of the request that is not found."""
    damaged = isinstance(error, BadFile) or (isinstance(error, NotFound) and route.ready is None)
    return _refused(Answered.CORRUPT if damaged else Answered.NO_MODEL, str(error))


def _amended(target: ModelTarget, selector: Selector, data: bytes) -> bytes:
    """What compiled code replies to a text, with what the store knows of its model."""
    data = selector.query(data)
    if target.warning is None and target.entry is None:
        return data
    reply = msgspec.json.decode(data)
    if isinstance(reply, list):
        return written([_with_words_of_store(item, target) for item in reply])
    return written(_with_words_of_store(reply, target))


def _with_words_of_store(reply: Reply, target: ModelTarget) -> Reply:
    """A model's reply with its id in the store, a warning, or software that the model does not name."""
    if target.software is not None and "software" in reply and reply["software"] is None:
        reply["software"] = target.software
        reply.pop("warning", None)  # the store has compared the software, which the model could not
    if target.entry is not None and "model" in reply:
        reply["entry"], reply["basis"] = target.entry, "model"
    if target.warning is not None:
        reply.setdefault("warning", target.warning)
    return reply


def _predicted(answerer: OpAnswerer, text: Text, requests: Mapping[int, JsonRequest]) -> dict[int, Reply]:
    """The replies where the store has no model: what ships answers, all requests together."""
    problems = [{name: value for name, value in request.values.items() if value is not None} for request in requests.values()]
    told = answerer.ask(problems) if problems else []
    replies = {}
    for place, prediction in zip(requests, told, strict=True):
        position = {"position": text.position(place, ())} if prediction.status == Answered.BAD_INPUT else {}
        replies[place] = _as_reply(prediction) | position
    return replies


def _as_reply(prediction: Prediction) -> Reply:
    reply = prediction.as_json()
    for name in ("op", "problem", "device"):
        reply.pop(name)
    if "reason" in reply:
        reply["message"] = reply.pop("reason")
    return reply | ({} if prediction.model is None else {"entry": prediction.model})
