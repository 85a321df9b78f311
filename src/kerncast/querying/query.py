"""Answer JSON requests about any op. Each goes to the model that fits it, and gets the answer of that model's exported C.

query = Query(among([Model.load("exp_model")]))
query.answer('{"op": "exp", "tensor": {"shape": [1024, 1024], "dtype": "bfloat16", "memory": {"buffer": "L1"}}}')
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from kerncast.compiling.json_request import RequestReader, answer_json, written
from kerncast.compiling.json_text import Members, NotJson, Token, scan
from kerncast.compiling.request import device_names, identity_of
from kerncast.devices import profiles
from kerncast.errors import BadFile, InvalidValue, KerncastError, NotFound
from kerncast.models import software as softwares
from kerncast.models.answer import Answer
from kerncast.models.model import Model
from kerncast.models.statuses import Answered
from kerncast.progress import QUIET, Progress
from kerncast.registry import OPS
from kerncast.selecting.selector import Selector
from kerncast.selecting.tiers.build import plain_tiers
from kerncast.store.store import Store, canonical


class Address(msgspec.Struct, frozen=True, gc=False):
    """The part of a request that says which model answers."""

    op: str | None = None
    family: str | None = None
    device: str | None = None
    software: str | None = None


@dataclass(frozen=True)
class Found:
    """The model that answers, and what to say about it."""

    path: Path
    warning: str | None = None
    software: str | None = None
    """What the model was trained on, if the model itself does not say."""
    renamed: bool = False
    """The request names the device in a way that the model does not know (`local`): the model must not see that name."""


Find = Callable[[Address], Found]
"""Which model answers; a NotFound or InvalidValue says why none does."""


def in_store(store: Store, strict: bool = False) -> Find:
    """Find models in a store, in the store's order."""

    def find(asked: Address) -> Found:
        if asked.op is None:
            raise InvalidValue('a request must name its op: {"op": "exp", …}')
        entry = store.find(OPS.get(asked.op).name, asked.family, asked.device, asked.software, strict=strict)
        warning = entry.warning
        if warning is not None and asked.software is not None and not entry.software:
            warning = _other(entry.software, asked.software)
        names = {alias for name in entry.record.devices for alias in (name, *_aliases(name))}
        renamed = asked.device is not None and asked.device not in names
        return Found(entry.path, warning, softwares.telling(entry.software), renamed)

    return find


def among(models: Sequence[Model], strict: bool = False) -> Find:
    """Find the only one of these models that fits the op, family and device of a request."""

    def find(asked: Address) -> Found:
        fitting = [model for model in models if _fits(model, asked)]
        if len(fitting) != 1:
            there = ", ".join(f"{model.family.id} on {model.device.name}" for model in fitting or models)
            if fitting:
                raise NotFound(f"several models fit ({there}): name the family and the device")
            on = f" on {asked.device}" if asked.device else ""
            raise NotFound(f"no given model is for {asked.family or asked.op}{on}, only for {there}: name one with `model`")
        model = fitting[0]
        found = Found(model.path, renamed=asked.device is not None and asked.device not in device_names(model))
        known = model.manifest.software
        if asked.software is None or softwares.is_same(known, asked.software):
            return found
        warning = _other(known, asked.software)
        if strict:
            raise NotFound(f"{model.path}: {warning}: leave out `strict` to use it, or train one on that software")
        return replace(found, warning=warning)

    return find


def _other(known: Sequence[str], asked: str) -> str:
    """The warning about a model that was trained on other software."""
    return (
        f"trained on {'; '.join(known)}, not on {asked}"
        if known
        else f"asked for {asked}, the model {softwares.trained(known)}"
    )


def _aliases(device: str) -> tuple[str, ...]:
    known = profiles().get(device)
    return known.aliases if known is not None else ()


def _fits(model: Model, asked: Address) -> bool:
    if asked.op is not None and OPS.get(asked.op).name != model.manifest.op:
        return False
    if asked.family is not None and asked.family not in (model.family.id, model.family.id.split("/")[1]):
        return False
    return asked.device is None or asked.device in device_names(model) or canonical(asked.device) == model.device.name


class _Part(NamedTuple):
    """Requests that one model answers: their places in the list."""

    found: Found | None
    refusal: bytes
    places: list[int]


class Query:
    """Answers JSON texts. Models are loaded (and compiled) when they are first asked for, and kept."""

    def __init__(self, find: Find, *, compile: bool = True, progress: Progress = QUIET) -> None:
        self.find, self.compile, self.progress = find, compile, progress
        self._selectors: dict[Path, Selector] = {}
        self._readers: dict[Path, RequestReader] = {}
        self._found: dict[Address, Found | bytes] = {}

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
        parts = [self._usable(part) for part in self._parts(addresses)]
        try:
            if len(parts) == 1 and parts[0].found is not None:
                return self._whole(parts[0].found, data, listed, len(addresses))
            return self._mixed(parts, data) if listed else parts[0].refusal
        except NotJson as error:
            return _not_json(error)

    def _parts(self, addresses: Sequence[Address | None]) -> list[_Part]:
        """Requests by the model that answers them; those without one by the reason."""
        parts: dict[Found | bytes, _Part] = {}
        last: tuple[Address | None, list[int]] | None = None
        for place, address in enumerate(addresses):
            if last is not None and address == last[0]:  # a list is mostly about one op on one device
                last[1].append(place)
                continue
            found = self._resolved(address)
            refusal = found if isinstance(found, bytes) else b""
            part = parts.setdefault(found, _Part(None if isinstance(found, bytes) else found, refusal, []))
            part.places.append(place)
            last = (address, part.places)
        return list(parts.values())

    def _resolved(self, address: Address | None) -> Found | bytes:
        if address is None:
            return _refused(Answered.BAD_INPUT, "a request must be an object whose op, family, device and software are strings")
        if address not in self._found:
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
            self.selector(part.found.path)
        except (BadFile, NotFound) as error:
            return part._replace(found=None, refusal=_refused(Answered.CORRUPT, str(error)))
        except KerncastError as error:
            return part._replace(found=None, refusal=_refused(Answered.NO_MODEL, str(error)))
        return part

    def selector(self, path: Path) -> Selector:
        """The selector of a model, loaded once."""
        if path not in self._selectors:
            model = Model.load(path)
            if model.family.config.parameters:
                self._selectors[path] = Selector(model, compile=self.compile, progress=self.progress)
            else:  # nothing is chosen, so there is nothing to build tiers for
                self._selectors[path] = Selector(
                    model, tiers=plain_tiers(model), tier="full", compile=self.compile, progress=self.progress
                )
        return self._selectors[path]

    def _ask(self, path: Path, data: bytes) -> bytes:
        selector = self.selector(path)
        if selector.is_compiled:
            return selector.query(data)
        if path not in self._readers:
            self._readers[path] = RequestReader(selector.model.family, identity_of(selector.model))
        tiers = [tier for tier in selector.artefact.include if tier != "tree" or selector.tiers.tree is not None]

        def select(values: dict[str, Any], tier: str | None) -> Answer:
            return selector.select(selector.problem(values), tier)  # the memo is asked first, as in C

        return answer_json(self._readers[path], select, data, tiers)

    def _whole(self, found: Found, data: bytes, listed: bool, count: int) -> bytes:
        """Hand the whole text to one model, so that positions in its reply are positions in the text."""
        reply = self._ask(found.path, _without_devices(data, listed, count) if found.renamed else data)
        if found.warning is None and _SILENT not in reply:
            return reply
        if reply[:1] != b"[":
            return _amended(reply, found)
        return b"[" + b",".join(_amended(bytes(item), found) for item in _RAW.decode(reply)) + b"]"

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
        reply = self._ask(found.path, b"[" + b",".join(items) + b"]")
        if reply[:1] != b"[":
            scan(data)
            raise AssertionError(f"a model refused valid JSON as a whole: {reply!r}")
        return [_amended(bytes(item), found) for item in _RAW.decode(reply)]


_RAW = msgspec.json.Decoder(list[msgspec.Raw])
_MANY = msgspec.json.Decoder(list[Address])
_ONE = msgspec.json.Decoder(Address)
# With the comma before it, or after it if it is the first: in JSON, a string before a colon is a key.
_DEVICE = re.compile(rb',\s*"device"\s*:\s*"[^"\\]*"|"device"\s*:\s*"[^"\\]*"(?:\s*,)?')
_POSITION = b'"position":'
_SILENT = b'"software":null'


def _items(request: Token, listed: bool) -> list[Token]:
    return list(request.what) if listed else [request]


def _address(item: Token) -> Address | None:
    """Read the address; the last of repeated keys counts, as in a JSON decoder. The model itself refuses repeated keys."""
    if not isinstance(item.what, tuple):
        return None
    known = {key.what: value.what for key, value in item.what if key.what in Address.__struct_fields__}
    return Address(**known) if all(value is None or isinstance(value, str) for value in known.values()) else None


def _is_op(name: str) -> bool:
    try:
        OPS.get(name)
    except NotFound:
        return False
    return True


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
    """Add what the store knows to a model's reply: a warning, or the software that the model does not name."""
    if found.software is not None and _SILENT in reply:
        answer = msgspec.json.decode(reply)
        answer["software"] = found.software
        answer.pop("warning", None)  # the store has compared the software, which the model could not
        reply = written(answer)
    if found.warning is None or b'"warning":' in reply:
        return reply
    return reply[:-1] + b',"warning":' + written(found.warning) + b"}"


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
