"""JSON requests about any op: each goes to the model that knows it, and is answered as that model's exported C would.

query = Query(among([Model.load("exp_model")]))
query.answer('{"op": "exp", "tensor": {"shape": [1024, 1024], "dtype": "bfloat16", "memory": {"buffer": "L1"}}}')
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import msgspec

from kerncast.errors import InvalidValue, NotFound
from kerncast.export.request import device_names
from kerncast.models import Model
from kerncast.models import software as softwares
from kerncast.models.store import Store
from kerncast.registry import OPS
from kerncast.select.selector import Selector
from kerncast.select.tiers import plain_tiers


class Address(msgspec.Struct, frozen=True, gc=False):
    """The part of a request that says whose answer is asked for."""

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
    """What the model was trained on, where the model itself does not say."""


Find = Callable[[Address], Found]
"""Which model answers; a NotFound or InvalidValue says why none does."""


def in_store(store: Store, strict: bool = False) -> Find:
    """Models of a store, by its order."""

    def find(asked: Address) -> Found:
        if asked.op is None:
            raise InvalidValue('a request must name its op: {"op": "exp", …}')
        entry = store.find(OPS.get(asked.op).name, asked.family, asked.device, asked.software, strict=strict)
        return Found(entry.path, entry.warning, ", ".join(_short(text) for text in entry.software) or None)

    return find


def among(models: Sequence[Model], strict: bool = False) -> Find:
    """A few models at hand: the only one of the op (and family and device) that is asked for."""

    def find(asked: Address) -> Found:
        fitting = [model for model in models if _fits(model, asked)]
        if len(fitting) != 1:
            there = ", ".join(f"{model.family.id} on {model.device.name}" for model in fitting or models)
            if fitting:
                raise NotFound(f"several models fit ({there}): name the family and the device")
            on = f" on {asked.device}" if asked.device else ""
            raise NotFound(f"no model at hand is of {asked.family or asked.op}{on}, only of {there}: name it with --model")
        known = fitting[0].manifest.software
        if asked.software is None or softwares.is_same(known, asked.software):
            return Found(fitting[0].path)
        warning = f"trained on {'; '.join(known) or 'software that its data do not name'}, not on {asked.software}"
        if strict:
            raise NotFound(f"{fitting[0].path} was {warning}: leave out --strict to use it, or train one there")
        return Found(fitting[0].path, warning)

    return find


def _fits(model: Model, asked: Address) -> bool:
    if asked.op is not None and OPS.get(asked.op).name != model.manifest.op:
        return False
    if asked.family is not None and asked.family not in (model.family.id, model.family.id.split("/")[1]):
        return False
    return asked.device is None or asked.device in device_names(model)


class _Part(NamedTuple):
    """Requests that one model answers: their places in the list."""

    found: Found | None
    refusal: bytes
    places: list[int]


class Query:
    """Answers JSON texts. Models are loaded (and compiled) when they are first asked for, and kept."""

    def __init__(self, find: Find, *, compile: bool = True, step: Callable[[str], None] = lambda what: None) -> None:
        self.find, self.compile, self.step = find, compile, step
        self._selectors: dict[Path, Selector] = {}
        self._found: dict[Address, Found | bytes] = {}

    def answer(self, text: str | bytes) -> bytes:
        """One reply for one request; a list of replies, in order, for a list."""
        data = text.encode() if isinstance(text, str) else text
        listed = data.lstrip()[:1] == b"["
        addresses: Sequence[Address | None]
        try:
            addresses = _MANY.decode(data) if listed else [_ONE.decode(data)]
        except (msgspec.DecodeError, UnicodeDecodeError):  # not JSON, or some op is not a string
            try:
                addresses = [_address(item) for item in (_RAW.decode(data) if listed else [msgspec.Raw(data)])]
                msgspec.json.decode(data)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                return _refused("bad_input", f"the request must be JSON: {error}")
        parts = self._parts(addresses)
        if len(parts) == 1 and (parts[0].found is not None or not listed):
            return self._whole(parts[0], data)
        items = [bytes(item) for item in _RAW.decode(data)]
        replies = [b""] * len(items)
        for part in parts:
            for place, reply in zip(part.places, self._part(part, [items[i] for i in part.places]), strict=True):
                replies[place] = reply
        _restore_positions(data, items, replies, parts)
        return b"[" + b",".join(replies) + b"]"

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
            return _refused("bad_input", "a request must be an object whose op, family, device and software are strings")
        if address not in self._found:
            try:
                self._found[address] = self.find(address)
            except NotFound as error:
                unknown = address.op is not None and not _is_op(address.op)
                self._found[address] = _refused("unsupported" if unknown else "no_model", str(error))
            except InvalidValue as error:
                self._found[address] = _refused("bad_input" if address.op is None else "no_model", str(error))
        return self._found[address]

    def selector(self, path: Path) -> Selector:
        """The selector of a model, loaded once."""
        if path not in self._selectors:
            model = Model.load(path)
            if model.family.config.parameters:
                self._selectors[path] = Selector.load(model, compile=self.compile, step=self.step)
            else:  # nothing is chosen, so there is nothing to build tiers for
                self._selectors[path] = Selector(model, plain_tiers(model), tier="full", compile=self.compile, step=self.step)
        return self._selectors[path]

    def _whole(self, part: _Part, data: bytes) -> bytes:
        """The whole text is one model's: it answers as it is, and positions in the text are right."""
        if part.found is None:
            return part.refusal
        reply = self.selector(part.found.path).query(data)
        if part.found.warning is None and _SILENT not in reply:
            return reply
        if reply[:1] != b"[":
            return _amended(reply, part.found)
        return b"[" + b",".join(_amended(bytes(item), part.found) for item in _RAW.decode(reply)) + b"]"

    def _part(self, part: _Part, items: list[bytes]) -> list[bytes]:
        if part.found is None:
            return [part.refusal] * len(items)
        reply = self.selector(part.found.path).query(b"[" + b",".join(items) + b"]")
        if reply[:1] != b"[":  # not JSON to the letter, of which one request may be guilty
            return [self.selector(part.found.path).query(item) for item in items]
        return [_amended(bytes(item), part.found) for item in _RAW.decode(reply)]


_RAW = msgspec.json.Decoder(list[msgspec.Raw])
_MANY = msgspec.json.Decoder(list[Address])
_ONE = msgspec.json.Decoder(Address)
_POSITION = b'"position":'
_SILENT = b'"software":null'


def _address(item: msgspec.Raw) -> Address | None:
    try:
        return _ONE.decode(item)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _is_op(name: str) -> bool:
    try:
        OPS.get(name)
    except NotFound:
        return False
    return True


def _refused(status: str, message: str) -> bytes:
    return json.dumps({"status": status, "message": message}, ensure_ascii=False, separators=(",", ":")).encode()


def _short(text: str) -> str:
    known = softwares.parts(text)
    return next((known[name] for name in softwares.TELLING if name in known), text)


def _amended(reply: bytes, found: Found) -> bytes:
    """The reply of a model, with what is known of it from elsewhere: a warning, or the software that it does not name."""
    if found.software is not None and _SILENT in reply:
        answer = json.loads(reply)
        answer["software"] = found.software
        answer.pop("warning", None)  # what the model could not compare, the store did
        reply = json.dumps(answer, ensure_ascii=False, separators=(",", ":")).encode()
    if found.warning is None or b'"warning":' in reply:
        return reply
    return reply[:-1] + b',"warning":' + json.dumps(found.warning, ensure_ascii=False).encode() + b"}"


def _restore_positions(data: bytes, items: Sequence[bytes], replies: list[bytes], parts: Sequence[_Part]) -> None:
    """Positions in what was handed to each model become positions in the text that was asked."""
    if not any(_POSITION in reply for reply in replies):
        return
    starts, at = [], 0
    for item in items:
        start = data.index(item, at)
        starts.append(start)
        at = start + len(item)
    for part in parts:
        own = 1
        for place in part.places:
            if _POSITION in replies[place]:
                reply = json.loads(replies[place])
                reply["position"] += starts[place] - own
                replies[place] = json.dumps(reply, ensure_ascii=False, separators=(",", ":")).encode()
            own += len(items[place]) + 1
