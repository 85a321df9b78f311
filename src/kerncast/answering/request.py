"""JSON requests about the problems of one family, read in Python by the tree of keys by which the exported C reads them.

A text is decoded once, and each request is walked once. Both readers give the same status, parameter and position; where
something stands in the text is looked up only if it is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import msgspec

from kerncast.answering.json_text import DEEPEST, WHOLE, Number, Token, scan, whole_of
from kerncast.core.op import Family, Problem
from kerncast.core.parameters import Bool, Categorical, Parameter, Value
from kerncast.errors import InvalidValue
from kerncast.models.answer import CHOOSING, Answered
from kerncast.models.limits.envelope import Coverage
from kerncast.models.products import SizeProduct
from kerncast.native.query import Node, one_of, request_tree, rule_of, sameness

Reply = dict[str, Any]
Path = tuple[int, ...]
"""A place in a request: by its number, the member of an object or of a list, then the one inside that, and so on."""

OBJECT = "an object of problem parameters"
SHOWN = "\0"
"""Stands in a message for what is refused, as it is written in the text."""
NOTHING = object()
_RAW = msgspec.json.Decoder(list[msgspec.Raw])
# Numbers with a point or an exponent are read from their digits: a double may be rounded.
_PLAIN = msgspec.json.Decoder(float_hook=lambda text: Number(whole_of(text.encode())))
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"[ \t\n\r]*(:?)')


class JsonRefused(Exception):
    """Why a request is refused, and what in it: a value, or the key of one."""

    def __init__(self, status: Answered, message: str, path: Path, parameter: str | None = None, key: bool = False) -> None:
        super().__init__(message)
        self.status, self.message, self.path, self.parameter, self.key = status, message, path, parameter, key


class Text:
    """A decoded text: one request, or a list of them. An object with a repeated key is a tuple of its members."""

    def __init__(self, data: bytes) -> None:
        """Raises `NotJson` for a text that breaks a rule of JSON anywhere."""
        self.data = data
        self.listed = data.lstrip(b" \t\n\r")[:1] == b"["
        try:
            self._parts = [bytes(item) for item in _RAW.decode(data)] if self.listed else [data]
            self.requests: list[Any] = [_PLAIN.decode(part) for part in self._parts]
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            root = scan(data)
            tokens = root.what if self.listed else [root]
            self._parts = [data[token.start : token.end] for token in tokens]
            self.requests = [_plain(token) for token in tokens]
            return
        for place, part in enumerate(self._parts):
            brackets = part.count(b"{") + part.count(b"[") + self.listed
            if brackets > DEEPEST or _STRING.findall(part).count(b":") != _keys(self.requests[place]):
                root = scan(data)
                self.requests[place] = _plain(root.what[place] if self.listed else root)

    @cached_property
    def _starts(self) -> list[int]:
        """Where each request begins in the text."""
        starts, at = [], 0
        for part in self._parts:
            at = self.data.index(part, at)
            starts.append(at)
            at += len(part)
        return starts

    def _token(self, place: int, path: Path, key: bool = False) -> Token:
        """A value of one request, or the key of one."""
        token = scan(self._parts[place])
        for step, number in enumerate(path, 1):
            member = token.what[number]
            token = member[0 if key and step == len(path) else 1] if isinstance(member, tuple) else member
        return token

    def position(self, place: int, path: Path, key: bool = False) -> int:
        """The byte of the text at which a value of one request begins, or the key of one."""
        return self._starts[place] + self._token(place, path, key).start

    def shown(self, place: int, path: Path, key: bool = False) -> str:
        """The value as it is written; a long one is cut."""
        return self._token(place, path, key).shown()

    def refusal(self, place: int, refused: JsonRefused) -> Reply:
        """The reply to a request that is refused."""
        message = refused.message
        if SHOWN in message:
            message = message.replace(SHOWN, self.shown(place, refused.path, refused.key))
        named = {} if refused.parameter is None else {"parameter": refused.parameter}
        position = self.position(place, refused.path, refused.key)
        return {"status": refused.status, "message": message, **named, "position": position}


def _plain(token: Token) -> Any:
    """What a token stands for."""
    if isinstance(token.what, tuple):
        members = tuple((key.what, _plain(value)) for key, value in token.what)
        plain = dict(members)
        return plain if len(plain) == len(members) else members
    return [_plain(item) for item in token.what] if isinstance(token.what, list) else token.what


def _keys(value: Any) -> int:
    """The keys of all objects in a value."""
    if type(value) is dict:
        return len(value) + sum(map(_keys, value.values()))
    return sum(map(_keys, value)) if type(value) is list else 0


def is_object(value: Any) -> bool:
    """Whether a decoded value is an object."""
    return isinstance(value, dict | tuple)


def _members(value: Any, path: Path) -> Iterator[tuple[str, Any, Path]]:
    """The members of an object, and where they are; a repeated key is refused."""
    seen = set()
    for number, (key, item) in enumerate(value.items() if isinstance(value, dict) else value):
        at = (*path, number)
        if key in seen:
            raise _twice(at)
        seen.add(key)
        yield key, item, at


def _whole(value: Any) -> int | None:
    """A number that is exactly whole, and in reach of 64 bits."""
    if type(value) is int:
        return value if -WHOLE < value < WHOLE else None
    return value.whole if isinstance(value, Number) else None


def _is_label(value: Any) -> bool:
    return isinstance(value, str | Number) or type(value) is int


@dataclass
class JsonRequest:
    """What one object asks, and where its values are."""

    path: Path = ()
    values: dict[str, Any] = field(default_factory=dict)
    given: dict[str, Path] = field(default_factory=dict)
    tier: str | None = None
    software: tuple[str, Path] | None = None
    name: tuple[str, Path] | None = None
    totals: dict[str, tuple[int, Path]] = field(default_factory=dict)
    """Products that are given instead of two sizes."""


class RequestReader:
    """Reads what an object asks of one family on one device."""

    def __init__(self, family: Family, devices: Sequence[str], *, products: bool = True) -> None:
        """`devices` are the names that the device goes by. `products`: whether a problem may be given by products of sizes."""
        op = family.op
        self.family, self.devices = family, tuple(devices)
        nothing = Coverage({}, {}, {})
        self.products = {
            name: SizeProduct(name, factors, family, nothing, ()) for name, factors in op.products.items() if products
        }
        self.tree, self.same = request_tree(family.problem, op, self.products), sameness(op)
        self._known = {"tier": tuple(CHOOSING), "op": (op.name, *op.aliases), "family": (family.id, family.id.split("/")[1])}

    def read(self, value: Any, device: str | None = None) -> JsonRequest:
        """The parameters, next to optional keys that are not parameters, or in an object `problem`.

        `device` is one more name that is right.
        """
        if not is_object(value):
            raise JsonRefused(Answered.BAD_INPUT, f"a request must be {OBJECT}, got {SHOWN}", ())
        request, problem, beside = JsonRequest(), None, False
        for key, item, at in _members(value, ()):
            if key in self.tree.children:
                beside = True
                self._walk(self.tree.children[key], item, at, request)
            elif key in ("tier", "op", "family", "device", "software"):
                self._special(key, item, at, request, device)
            elif key != "problem":
                raise self._unknown(at)
            elif not is_object(item):
                raise JsonRefused(Answered.BAD_INPUT, f"problem must be {OBJECT}, got {SHOWN}", at)
            else:
                problem, request.path = item, at
        if problem is not None and beside:
            said = "parameters must not be given next to an object problem: put all of them into it, or leave it out"
            raise JsonRefused(Answered.BAD_INPUT, said, request.path)
        if problem is not None:
            self._walk(self.tree, problem, request.path, request)
        if request.name is not None:
            name, at = request.name
            for parameter, preset in self.family.op.aliases.get(name, {}).items():
                if request.values.get(parameter, preset) != preset:
                    raise _contradicts(at, key=False)
                _give(request, parameter, preset, False, at, at)
        for rule in self.same:
            other = request.values.get(rule.other, self.family.problem.parameters[rule.other].default)
            if rule.parameter in request.values and request.values[rule.parameter] == other:
                request.values[rule.parameter] = rule.value
        return request

    def compared(self, request: JsonRequest) -> dict[str, Value]:
        """The values by which a model is chosen: with defaults, and products as they are given."""
        filled = self.family.problem.fill(request.values)
        return {**filled, **{name: total for name, (total, _) in request.totals.items()}}

    def problem(self, request: JsonRequest) -> Problem:
        """The problem of a request, validated."""
        values = {name: value for name, value in request.values.items() if value is not None}
        try:
            return Problem(self.family, values)
        except InvalidValue:
            raise self._broken(values, request) from None

    def _broken(self, values: dict[str, Any], request: JsonRequest) -> JsonRefused:
        """The first rule that a problem breaks, in the order of the engine."""
        space = self.family.problem
        broken = {item.name: item.sentence for item in space.validate(values)}
        for name in space.reading_order:
            if name not in broken:
                continue
            parameter, value = space.parameters[name], values.get(name)
            if value is None:
                said = f"{name} is missing: it must be {parameter.describe()}"
            elif broken[name].startswith(f"{name} does not apply"):
                said = f"{name} does not apply here and must be left out"
            else:
                said = f"{name} must be {parameter.describe()}"
            if value is not None:
                said += f", got {str(value).lower() if isinstance(value, bool) else value}"
            return JsonRefused(Answered.BAD_INPUT, said, request.given.get(name, request.path), name)
        return JsonRefused(Answered.BAD_INPUT, next(iter(broken.values())), request.path)

    def split(self, request: JsonRequest, products: Sequence[SizeProduct]) -> None:
        """Put two sizes in the place of each product; `products` are those of the model that answers."""
        for product in products:
            if product.name in request.totals:
                self._split(product, *request.totals[product.name], request)

    def _split(self, product: SizeProduct, total: int, at: Path, request: JsonRequest) -> None:
        given = {name: request.values[name] for name in product.factors if request.values.get(name) is not None}
        if given:
            pair = product.completed(total, given)
            if pair is None:
                raise _contradicts(at)
        elif product.readers:
            raise JsonRefused(Answered.UNSUPPORTED, product.needs, at, product.name)
        else:
            pair = product.shape(total, {name: item for name, item in request.values.items() if item is not None})
            if pair is None:
                raise JsonRefused(Answered.BAD_INPUT, f"{product.name} must be {product.parted}, got {SHOWN}", at, product.name)
        for name, size in zip(product.factors, pair, strict=True):
            request.values[name] = size
            request.given.setdefault(name, at)

    def _unknown(self, at: Path) -> JsonRefused:
        known = ", ".join((*self.tree.children, "op", "family", "device", "software", "tier, or problem and tier"))
        return JsonRefused(Answered.BAD_INPUT, f"unknown key {SHOWN}: known keys are {known}", at, key=True)

    def _special(self, key: str, value: Any, at: Path, request: JsonRequest, device: str | None) -> None:
        wrong = Answered.UNSUPPORTED if _is_label(value) and key != "tier" else Answered.BAD_INPUT
        if key == "software":
            if not isinstance(value, str):
                raise JsonRefused(wrong, f"software must be the name of a commit or a version, got {SHOWN}", at, key)
            request.software = value, at
            return
        known = self.devices if key == "device" else self._known[key]
        read = _in_lower_case if key == "device" else str
        if not isinstance(value, str) or (read(value) not in map(read, known) and (key != "device" or value != device)):
            raise JsonRefused(wrong, f"{key} must be {one_of(known)}, got {SHOWN}", at, key)
        if key == "tier":
            request.tier = value
        if key == "op":
            request.name = value, at

    def _walk(self, node: Node, value: Any, path: Path, request: JsonRequest) -> None:
        if is_object(value) and node.children:
            if node.present:
                _give(request, node.present, True, False, path, path)
            for key, item, at in _members(value, path):
                if key not in node.children:
                    raise self._unknown(at)
                self._walk(node.children[key], item, at, request)
        elif node.product:
            total = _whole(value)
            if total is None or not 1 <= total <= self.products[node.product].most:
                said = f"{node.product} must be {self.products[node.product].rule}, got {SHOWN}"
                raise JsonRefused(Answered.BAD_INPUT, said, path, node.product)
            request.totals[node.product] = total, path
        elif node.present and value is None:
            _give(request, node.present, False, False, path, path)
        elif not node.once and value is None:
            pass  # an optional argument that is left out
        elif not node.leaf:
            raise JsonRefused(Answered.BAD_INPUT, f"{node.path} must be an object, got {SHOWN}", path)
        elif node.parameters:
            self._take(node, value, path, request)

    def _take(self, node: Node, value: Any, path: Path, request: JsonRequest) -> None:
        name = node.parameters[0]
        parameter = self.family.problem.parameters[name]
        if isinstance(value, list) and not node.once and not isinstance(parameter, Bool | Categorical):
            return self._take_list(node, value, path, request)
        if len(node.parameters) > 1:
            raise JsonRefused(Answered.BAD_INPUT, f"{node.path} must be a list of whole numbers, got {SHOWN}", path)
        if node.once and name in request.given:
            raise _twice(path)
        read = _read(parameter, value)
        if read is NOTHING and _is_label(value):
            spelled = value if isinstance(value, str) else _whole(value)
            read = NOTHING if spelled is None else dict(node.names).get(spelled, NOTHING)
        if read is NOTHING:
            raise _wrong(name, parameter, not node.once, value, path)
        return _give(request, name, read, node.once, path, path)

    def _take_list(self, node: Node, values: list[Any], path: Path, request: JsonRequest) -> None:
        missing = len(node.parameters) - len(values)
        if missing < 0:
            said = f"{node.path} must have at most {len(node.parameters)} dimensions, got {SHOWN}"
            raise JsonRefused(Answered.UNSUPPORTED, said, path)
        for place, name in enumerate(node.parameters):
            if place < missing:
                _give(request, name, 1, False, path, path)
                continue
            parameter, value, at = self.family.problem.parameters[name], values[place - missing], (*path, place - missing)
            read = _read(parameter, value)
            if read is NOTHING:
                raise _wrong(name, parameter, True, value, at)
            _give(request, name, read, False, path, at)


def _in_lower_case(text: str) -> str:
    """With ASCII letters in lower case and all others as they are, as C does it."""
    return "".join(letter.lower() if letter.isascii() else letter for letter in text)


def _twice(at: Path) -> JsonRefused:
    return JsonRefused(Answered.BAD_INPUT, f"{SHOWN} is given twice: give it once", at, key=True)


def _contradicts(at: Path, key: bool = True) -> JsonRefused:
    said = f"{SHOWN} contradicts what is given elsewhere in the request: leave one of them out"
    return JsonRefused(Answered.BAD_INPUT, said, at, key=key)


def _give(request: JsonRequest, name: str, value: Any, once: bool, key: Path, at: Path) -> None:
    if name not in request.given:
        request.given[name] = at
        request.values[name] = value
    elif once:
        raise _twice(key)
    elif request.values[name] != value:
        raise _contradicts(key)


def _read(parameter: Parameter, value: Any) -> Any:
    """A value of the parameter's kind (whether it is in range is for the problem to say); otherwise NOTHING."""
    if value is None:
        return None if parameter.nullable else NOTHING
    if isinstance(parameter, Bool):
        return value if isinstance(value, bool) else NOTHING
    if isinstance(parameter, Categorical):
        return value if isinstance(value, str) and parameter.index(value) is not None else NOTHING
    whole = _whole(value)
    return NOTHING if whole is None else whole


def _wrong(name: str, parameter: Parameter, foreign: bool, value: Any, at: Path) -> JsonRefused:
    label = foreign and isinstance(parameter, Categorical) and _is_label(value)
    status = Answered.UNSUPPORTED if label else Answered.BAD_INPUT
    return JsonRefused(status, f"{name} must be {rule_of(parameter)}, got {SHOWN}", at, name)
