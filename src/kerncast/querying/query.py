"""Answer JSON requests about any op. Each goes to the model that fits it, and gets the answer of that model's exported C.

query = Query(among([Model.load("exp_model")]))
query.answer('{"op": "exp", "tensor": {"shape": [1024, 1024], "dtype": "bfloat16", "memory": {"buffer": "L1"}}}')
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from kerncast.compiling.json_request import RequestReader, answer_json, written
from kerncast.compiling.json_text import Members, NotJson, Number, Token, scan
from kerncast.compiling.lower import refuse_several_devices
from kerncast.compiling.query import origin_json
from kerncast.compiling.request import identity_of
from kerncast.errors import BadFile, InvalidValue, KerncastError, NotFound
from kerncast.models.answer import Answer
from kerncast.models.model import Model
from kerncast.models.statuses import Answered
from kerncast.progress import QUIET, Progress
from kerncast.querying.finding import Address, Find, Found, Key, Several, among, in_store
from kerncast.querying.predicting import OpAnswerer
from kerncast.querying.ready import ReadyReader
from kerncast.registry import OPS
from kerncast.selecting.selector import Selector
from kerncast.selecting.tiers.build import plain_tiers

__all__ = ["Address", "Find", "Found", "Query", "among", "in_store", "selector_of"]


# Kinds of requests whose models are remembered: requests for a thousand unknown devices take no more memory.
MOST_KNOWN, MOST_PREPARED = 4096, 256
# What is longer is the name of no op, family, device or software, and would be remembered as often.
LONGEST_NAME = 2_000


class _Part(NamedTuple):
    """Requests that one model answers: their places in the list."""

    found: Found | None
    refusal: bytes
    places: list[int]


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
        self._readers: dict[Key, RequestReader] = {}
        self._prepared: dict[OpAnswerer, ReadyReader] = {}
        self._found: dict[Address, Found | Several | bytes] = {}
        self._ends: dict[Key, bytes] = {}

    def answer(self, text: str | bytes) -> bytes:
        """One reply for one request; a list of replies, in order, for a list."""
        data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
        listed = data.lstrip()[:1] == b"["
        addresses: Sequence[Address | None]
        try:
            addresses = _MANY.decode(data) if listed else [_ONE.decode(data)]
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):  # not JSON, or some op is not a string
            try:
                addresses = [_address(item) for item in _items(scan(data), listed)]
            except NotJson as error:
                return _not_json(error)

        known = None if listed or addresses[0] is None else self._found.get(addresses[0])
        if isinstance(known, Found) and known.key in self._selectors:  # the way of a question that was asked before
            try:
                return self._whole(known, data, False, 1)
            except NotJson as error:
                return _not_json(error)

        @cache
        def requests() -> list[Any]:
            """The decoded requests; only where several models may answer them."""
            return _decoded(data, listed)

        parts = [self._usable(part) for part in self._parts(addresses, requests)]
        try:
            if len(parts) == 1 and parts[0].found is not None:
                return self._whole(parts[0].found, data, listed, len(addresses))
            return self._mixed(parts, data) if listed else parts[0].refusal
        except NotJson as error:
            return _not_json(error)

    def _parts(self, addresses: Sequence[Address | None], requests: Callable[[], list[Any]]) -> list[_Part]:
        """Requests by the model that answers them; those without one by the reason."""
        parts: dict[Found | bytes, _Part] = {}

        def part_of(found: Found | bytes) -> _Part:
            if found not in parts:
                parts[found] = _Part(None, found, []) if isinstance(found, bytes) else _Part(found, b"", [])
            return parts[found]

        last: tuple[Address | None, Found | Several | bytes] | None = None
        part: _Part | None = None
        for place, address in enumerate(addresses):
            if last is None or address != last[0]:  # a list is mostly about one op on one device
                last, part = (address, self._resolved(address)), None
            if isinstance(last[1], Several):
                part = part_of(last[1].nearest(requests()[place]))
            elif part is None:
                part = part_of(last[1])
            part.places.append(place)
        return list(parts.values())

    def _resolved(self, address: Address | None) -> Found | Several | bytes:
        if address is None:
            return _refused(Answered.BAD_INPUT, "a request must be an object whose op, family, device and software are strings")
        if address not in self._found:
            if (name := _too_long(address)) is not None:
                said = f"{name} has at most {LONGEST_NAME:,} characters, got {len(getattr(address, name)):,}: shorten it"
                return _refused(Answered.BAD_INPUT, said)
            if len(self._found) >= MOST_KNOWN:
                self._found.clear()
            try:
                self._found[address] = self.find(address)
            except NotFound as error:
                unknown = address.op is not None and not _is_op(address.op)
                self._found[address] = _refused(Answered.UNSUPPORTED if unknown else Answered.NO_MODEL, str(error))
            except InvalidValue as error:
                self._found[address] = _refused(Answered.BAD_INPUT if address.op is None else Answered.NO_MODEL, str(error))
            except BadFile as error:
                # A device may be named by a profile, which may be the file that is bad.
                profile = address.device is not None and address.device.endswith(".toml")
                return _refused(Answered.NO_MODEL if profile else Answered.CORRUPT, str(error))
        return self._found[address]

    def _usable(self, part: _Part) -> _Part:
        """The part itself if its model can be loaded, else a refusal of its requests; other models still answer theirs."""
        if part.found is None:
            return part
        try:
            if part.found.ready is not None:
                self._ready(part.found.ready).prepare()
            else:
                self.selector(part.found)
        except (BadFile, NotFound) as error:
            # Without a model of the store, it is a name of the request that is not found.
            unknown = part.found.ready is not None and isinstance(error, NotFound)
            return part._replace(found=None, refusal=_refused(Answered.NO_MODEL if unknown else Answered.CORRUPT, str(error)))
        except KerncastError as error:
            return part._replace(found=None, refusal=_refused(Answered.NO_MODEL, str(error)))
        return part

    def selector(self, found: Found) -> Selector:
        """The selector of a model, made once."""
        if found.key not in self._selectors:
            self._selectors[found.key] = self._make(found.path, found.device)
        return self._selectors[found.key]

    def _selector_of(self, path: Path, device: str | None) -> Selector:
        model = Model.load(path)
        return selector_of(model if device is None else model.on(device), compile=self.compile, progress=self.progress)

    def forget(self, path: Path) -> None:
        """Make the selectors of a model again when they are asked for."""
        self._selectors = {key: selector for key, selector in self._selectors.items() if key[0] != path}

    def _ready(self, asked: OpAnswerer) -> ReadyReader:
        """What reads and answers requests without a model of the store, made once."""
        if asked not in self._prepared:
            if len(self._prepared) >= MOST_PREPARED:
                self._prepared.clear()
            self._prepared[asked] = ReadyReader(asked)
        return self._prepared[asked]

    def _ask(self, found: Found, data: bytes) -> bytes:
        if found.ready is not None:
            return self._ready(found.ready).answer(data)
        key, selector = found.key, self.selector(found)
        if selector.is_compiled:
            return selector.query(data)
        if key not in self._readers:
            self._readers[key] = RequestReader(selector.model.family, identity_of(selector.model))

        def select(values: dict[str, Any], tier: str | None) -> Answer:
            return selector.select(selector.problem(values), tier)  # the memo is asked first, as in C

        return answer_json(self._readers[key], select, data, selector.answering)

    def _whole(self, found: Found, data: bytes, listed: bool, count: int) -> bytes:
        """Hand the whole text to one model, so that positions in its reply are positions in the text."""
        reply = self._ask(found, _without_devices(data, listed, count) if found.renamed else data)
        if found.warning is None and found.entry is None and _SILENT not in reply:
            return reply
        if reply[:1] != b"[":
            return _amended(reply, found)
        whole = self._amended_at_once(reply, found)
        if whole is not None:
            return whole
        return b"[" + b",".join(_amended(bytes(item), found) for item in _RAW.decode(reply)) + b"]"

    def _amended_at_once(self, reply: bytes, found: Found) -> bytes | None:
        """A list of replies, all amended in one pass, if each of a model ends with what it says of itself; None: they do not.

        Texts in a reply have their quotes escaped, so that this end is found nowhere else.
        """
        if found.ready is not None or found.warning is not None or (found.software is not None and _SILENT in reply):
            return None
        if found.key not in self._ends:
            self._ends[found.key] = origin_json(identity_of(self.selector(found).model)).encode() + b"}"
        end = self._ends[found.key]
        if reply.count(_MODEL) != reply.count(end):
            return None
        return reply.replace(end, _amended(end, found))

    def _mixed(self, parts: Sequence[_Part], data: bytes) -> bytes:
        """Give each model a list of its own requests; a text that is not strict JSON is refused as a whole."""
        items = [bytes(item) for item in _RAW.decode(data)]
        replies = [b""] * len(items)
        starts = _starts(data, items)
        for part in parts:
            if part.found is None:
                answers = [part.refusal] * len(part.places)
            else:
                answers = self._part(part.found, [items[place] for place in part.places], data)
            own = 1  # the bracket
            for place, reply in zip(part.places, answers, strict=True):
                # Positions in the model's list become positions in the original text.
                replies[place] = _moved(reply, starts[place] - own) if part.found is not None else reply
                own += len(items[place]) + 1
        return b"[" + b",".join(replies) + b"]"

    def _part(self, found: Found, items: list[bytes], data: bytes) -> list[bytes]:
        if found.renamed:
            items = [_without_devices(item, False, 1) for item in items]
        reply = self._ask(found, b"[" + b",".join(items) + b"]")
        if reply[:1] != b"[":
            scan(data)
            raise AssertionError(f"a model refused valid JSON as a whole: {reply!r}")
        return [_amended(bytes(item), found) for item in _RAW.decode(reply)]


def selector_of(model: Model, *, compile: bool = True, progress: Progress = QUIET) -> Selector:
    """The selector that answers requests about a model."""
    refuse_several_devices(model)
    if model.family.config.parameters:
        return Selector(model, compile=compile, progress=progress)
    # Nothing is chosen, so there is nothing to build tiers for.
    return Selector(model, tiers=plain_tiers(model), tier="full", compile=compile, progress=progress)


_RAW = msgspec.json.Decoder(list[msgspec.Raw])
_MANY = msgspec.json.Decoder(list[Address])
_ONE = msgspec.json.Decoder(Address)
# With the comma before it, or after it if it is the first: in JSON, a string before a colon is a key.
_DEVICE = re.compile(rb',\s*"device"\s*:\s*"[^"\\]*"|"device"\s*:\s*"[^"\\]*"(?:\s*,)?')
_POSITION = b'"position":'
_SILENT = b'"software":null'
# In every reply of a model but one that could not be read.
_MODEL = b'"model":'


def _items(request: Token, listed: bool) -> list[Token]:
    return list(request.what) if listed else [request]


def _address(item: Token) -> Address | None:
    """Read the address; the last of repeated keys counts, as in a JSON decoder. The model itself refuses repeated keys."""
    if not isinstance(item.what, tuple):
        return None
    known = {key.what: value.what for key, value in item.what if key.what in Address.__struct_fields__}
    return Address(**known) if all(value is None or isinstance(value, str) for value in known.values()) else None


def _is_op(name: str) -> bool:
    return name in OPS.found or name in OPS.by_alias


def _too_long(address: Address) -> str | None:
    """Which name of an address is too long; None: none is."""
    return next((name for name, text in msgspec.structs.asdict(address).items() if text and len(text) > LONGEST_NAME), None)


def _refused(status: Answered, message: str) -> bytes:
    return written({"status": status, "message": message})


def _not_json(error: NotJson) -> bytes:
    return written({"status": Answered.BAD_INPUT, "message": str(error), "position": error.position})


def _without_devices(data: bytes, listed: bool, requests: int) -> bytes:
    """The text with spaces where requests name their device, so that everything else stays in its place."""
    quick, count = _DEVICE.subn(lambda found: b" " * len(found[0]), data)
    if count == requests:  # each request names its device once, in plain text
        return quick
    text = bytearray(data)
    for request in _items(scan(data), listed):
        members: Members = request.what if isinstance(request.what, tuple) else ()
        places = [place for place, (key, _) in enumerate(members) if key.what == "device"]
        if len(places) != 1:  # given twice: the model says so
            continue
        place = places[0]
        start = members[place - 1][1].end if place else members[0][0].start
        end = members[1][0].start if not place and len(members) > 1 else members[place][1].end
        text[start:end] = b" " * (end - start)
    return bytes(text)


def _amended(reply: bytes, found: Found) -> bytes:
    """Add what the store knows to a model's reply: its id there, a warning, or software that the model does not name."""
    if found.software is not None and _SILENT in reply:
        answer = msgspec.json.decode(reply)
        answer["software"] = found.software
        answer.pop("warning", None)  # the store has compared the software, which the model could not
        reply = written(answer)
    if found.entry is not None and _MODEL in reply:
        reply = reply[:-1] + _member("entry", found.entry) + _member("basis", "model") + b"}"
    if found.warning is None or b'"warning":' in reply:
        return reply
    return reply[:-1] + _member("warning", found.warning) + b"}"


@lru_cache(256)
def _member(key: str, value: str) -> bytes:
    """A member that is added to an object; thousands of replies have the same."""
    return b"," + written(key) + b":" + written(value)


def _decoded(data: bytes, listed: bool) -> list[Any]:
    """The requests as plain values."""
    try:
        found = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):  # text that another decoder may read
        return [_plain(item) for item in _items(scan(data), listed)]
    return found if listed else [found]


def _plain(token: Token) -> Any:
    if isinstance(token.what, tuple):
        return {key.what: _plain(value) for key, value in token.what}
    if isinstance(token.what, list):
        return [_plain(item) for item in token.what]
    return token.what.whole if isinstance(token.what, Number) else token.what


def _starts(data: bytes, items: Sequence[bytes]) -> list[int]:
    """Where each request of a list begins in the text."""
    found, at = [], 0
    for item in items:
        at = data.index(item, at)
        found.append(at)
        at += len(item)
    return found


def _moved(reply: bytes, by: int) -> bytes:
    if by == 0 or _POSITION not in reply:
        return reply
    answer: dict[str, Any] = msgspec.json.decode(reply)
    answer["position"] += by
    return written(answer)
