"""JSON requests read in Python, by the same tree of keys as the exported C reads them; used where there is no C compiler.

The answers are the same as those of the C code, word for word.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

from kerncast.compiling.header import MESSAGE_BYTES
from kerncast.compiling.json_text import NotJson, Number, Token, scan
from kerncast.compiling.query import one_of, rule_of
from kerncast.compiling.request import Identity, Node, request_tree, sameness
from kerncast.models import software as softwares
from kerncast.models.answer import Answer, without_choice
from kerncast.models.products import Product
from kerncast.models.statuses import Answered
from kerncast.models.tier import CHOOSING
from kerncast.op import Family
from kerncast.parameters import Bool, Categorical, Parameter

Reply = dict[str, Any]
OBJECT = "an object of problem parameters"


class Refused(Exception):
    """Why a request is refused, and at which byte of the text."""

    def __init__(self, status: Answered, message: str, position: int, parameter: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.position, self.parameter = status, message, position, parameter


@dataclass
class Asked:
    """What one object asks, and where its values are in the text."""

    start: int
    values: dict[str, Any] = field(default_factory=dict)
    given: dict[str, int] = field(default_factory=dict)
    tier: str | None = None
    software: Token | None = None
    name: Token | None = None
    totals: dict[str, tuple[int, Token, Token]] = field(default_factory=dict)
    """Products that are given instead of two sizes: the number, its key and its value."""


def _in_lower_case(text: str) -> str:
    """With ASCII letters in lower case and all others as they are, as C does it."""
    return "".join(letter.lower() if letter.isascii() else letter for letter in text)


class RequestReader:
    """Reads what an object asks of one family."""

    def __init__(self, family: Family, identity: Identity) -> None:
        self.family, self.identity = family, identity
        self.tree = request_tree(family.problem, family.op, [product.name for product in identity.products])
        self.same = sameness(family.op)

    def read(self, request: Token) -> Asked:
        """The parameters, next to optional keys that are not parameters, or in an object `problem`."""
        if not isinstance(request.what, tuple):
            raise Refused(Answered.BAD_INPUT, f"a request must be {OBJECT}, got {request.shown()}", request.start)
        asked, problem, beside = Asked(request.start), None, False
        for key, value in _members(request):
            if key.what in self.tree.children:
                beside = True
                self._walk(self.tree.children[key.what], key, value, asked)
            elif key.what in ("tier", "op", "family", "device", "software"):
                self._special(key.what, value, asked)
            elif key.what != "problem":
                raise self._unknown(key)
            elif not isinstance(value.what, tuple):
                raise Refused(Answered.BAD_INPUT, f"problem must be {OBJECT}, got {value.shown()}", value.start)
            else:
                problem = value
        if problem is not None and beside:
            said = "parameters must not be given next to an object problem: put all of them into it, or leave it out"
            raise Refused(Answered.BAD_INPUT, said, problem.start)
        if problem is not None:
            asked.start = problem.start
            self._walk(self.tree, problem, problem, asked)
        self._finish(asked)
        return asked

    def _finish(self, asked: Asked) -> None:
        """Apply an alias of the op, and normalise values that equal another parameter's."""
        if asked.name is not None:
            for name, value in self.family.op.aliases.get(asked.name.what, {}).items():
                _give(asked, name, value, False, asked.name, asked.name.start)
        for rule in self.same:
            other = asked.values.get(rule.other, self.family.problem.parameters[rule.other].default)
            if rule.parameter in asked.values and asked.values[rule.parameter] == other:
                asked.values[rule.parameter] = rule.value
        for product in self.identity.products:
            if product.name in asked.totals:
                self._split(product, *asked.totals[product.name], asked)

    def _split(self, product: Product, total: int, key: Token, value: Token, asked: Asked) -> None:
        """Put two sizes in the place of their product."""
        given = {name: asked.values[name] for name in product.factors if asked.values.get(name) is not None}
        if given:
            pair = product.completed(total, given)
            if pair is None:
                said = f"{key.shown()} contradicts what is given elsewhere in the request: leave one of them out"
                raise Refused(Answered.BAD_INPUT, said, key.start)
        elif product.readers:
            raise Refused(Answered.UNSUPPORTED, product.needs, value.start, product.name)
        else:
            pair = product.shape(total, {name: item for name, item in asked.values.items() if item is not None})
            if pair is None:
                said = f"{product.name} must be {product.parted}, got {value.shown()}"
                raise Refused(Answered.BAD_INPUT, said, value.start, product.name)
        for name, size in zip(product.factors, pair, strict=True):
            asked.values[name] = size
            asked.given.setdefault(name, value.start)

    def _unknown(self, key: Token) -> Refused:
        known = ", ".join((*self.tree.children, "op", "family", "device", "software", "tier, or problem and tier"))
        return Refused(Answered.BAD_INPUT, f"unknown key {key.shown()}: known keys are {known}", key.start)

    def _special(self, key: str, value: Token, asked: Asked) -> None:
        if key == "software":
            if not isinstance(value.what, str):
                said = f"software must be the name of a commit or a version, got {value.shown()}"
                raise Refused(Answered.UNSUPPORTED if value.is_label else Answered.BAD_INPUT, said, value.start, key)
            asked.software = value
            return
        identity = self.identity
        families = (identity.family, identity.family.split("/")[1])
        known = {"tier": CHOOSING, "op": identity.names, "family": families, "device": identity.devices}[key]
        read: Callable[[str], str] = _in_lower_case if key == "device" else str
        if not isinstance(value.what, str) or read(value.what) not in map(read, known):
            label = key != "tier" and value.is_label
            said = f"{key} must be {one_of(known)}, got {value.shown()}"
            raise Refused(Answered.UNSUPPORTED if label else Answered.BAD_INPUT, said, value.start, key)
        if key == "tier":
            asked.tier = value.what
        if key == "op":
            asked.name = value

    def _walk(self, node: Node, key: Token, value: Token, asked: Asked) -> None:
        if isinstance(value.what, tuple) and node.children:
            if node.present:
                _give(asked, node.present, True, False, key, value.start)
            for inner, item in _members(value):
                if inner.what not in node.children:
                    raise self._unknown(inner)
                self._walk(node.children[inner.what], inner, item, asked)
        elif node.product:
            self._take_product(node.product, key, value, asked)
        elif node.present and value.what is None:
            _give(asked, node.present, False, False, key, value.start)
        elif not node.once and value.what is None:
            pass  # an optional argument that is left out
        elif not node.leaf:
            raise Refused(Answered.BAD_INPUT, f"{node.path} must be an object, got {value.shown()}", value.start)
        elif node.parameters:
            self._take(node, key, value, asked)

    def _take_product(self, name: str, key: Token, value: Token, asked: Asked) -> None:
        product = next(item for item in self.identity.products if item.name == name)
        total = value.what.whole if isinstance(value.what, Number) else None
        if total is None or not 1 <= total <= product.most:
            said = f"{name} must be {product.rule}, got {value.shown()}"
            raise Refused(Answered.BAD_INPUT, said, value.start, name)
        asked.totals[name] = (total, key, value)

    def _take(self, node: Node, key: Token, value: Token, asked: Asked) -> None:
        name = node.parameters[0]
        parameter = self.family.problem.parameters[name]
        numbers = not isinstance(parameter, (Bool, Categorical))
        if isinstance(value.what, list) and not node.once and numbers:
            return self._take_list(node, key, value, asked)
        if len(node.parameters) > 1:
            raise Refused(Answered.BAD_INPUT, f"{node.path} must be a list of whole numbers, got {value.shown()}", value.start)
        if node.once and name in asked.given:
            raise _twice(key)
        read = _read(parameter, value)
        if read is NOTHING and value.is_label:
            spelled: str | int | None = value.what.whole if isinstance(value.what, Number) else value.what
            read = NOTHING if spelled is None else dict(node.names).get(spelled, NOTHING)
        if read is NOTHING:
            raise _wrong(name, parameter, not node.once, value)
        return _give(asked, name, read, node.once, key, value.start)

    def _take_list(self, node: Node, key: Token, value: Token, asked: Asked) -> None:
        missing = len(node.parameters) - len(value.what)
        if missing < 0:
            said = f"{node.path} must have at most {len(node.parameters)} dimensions, got {value.shown()}"
            raise Refused(Answered.UNSUPPORTED, said, value.start)
        for name, item in zip(node.parameters, [None] * missing + value.what, strict=True):
            parameter = self.family.problem.parameters[name]
            read = 1 if item is None else _read(parameter, item)
            if read is NOTHING:
                raise _wrong(name, parameter, True, item)
            _give(asked, name, read, False, key, value.start if item is None else item.start)


def _members(value: Token) -> Iterator[tuple[Token, Token]]:
    """The members of an object; a duplicate key is refused."""
    seen = set()
    for key, item in value.what:
        if key.what in seen:
            raise _twice(key)
        seen.add(key.what)
        yield key, item


def _twice(key: Token) -> Refused:
    return Refused(Answered.BAD_INPUT, f"{key.shown()} is given twice: give it once", key.start)


def _give(asked: Asked, name: str, value: Any, once: bool, key: Token, position: int) -> None:
    if name not in asked.given:
        asked.given[name] = position
        asked.values[name] = value
    elif once:
        raise _twice(key)
    elif asked.values[name] != value:
        said = f"{key.shown()} contradicts what is given elsewhere in the request: leave one of them out"
        raise Refused(Answered.BAD_INPUT, said, key.start)


NOTHING = object()


def _read(parameter: Parameter, value: Token) -> Any:
    """A value of the parameter's kind (whether it is in range is for the problem to say); otherwise NOTHING."""
    what = value.what
    if what is None:
        return None if parameter.nullable else NOTHING
    if isinstance(parameter, Bool):
        return what if isinstance(what, bool) else NOTHING
    if isinstance(parameter, Categorical):
        return what if isinstance(what, str) and parameter.index(what) is not None else NOTHING
    return what.whole if isinstance(what, Number) and what.whole is not None else NOTHING


def _wrong(name: str, parameter: Parameter, foreign: bool, value: Token) -> Refused:
    label = foreign and isinstance(parameter, Categorical) and value.is_label
    said = f"{name} must be {rule_of(parameter)}, got {value.shown()}"
    return Refused(Answered.UNSUPPORTED if label else Answered.BAD_INPUT, said, value.start, name)


# -- answers -------------------------------------------------------------------------------------------------------------

Select = Callable[[dict[str, Any], str | None], Answer]


def answer_json(reader: RequestReader, select: Select, text: str | bytes, tiers: Collection[str] = CHOOSING) -> bytes:
    """The reply to a text: an object for an object, a list for a list. `select` answers a problem by one of `tiers`."""
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    try:
        request = scan(data)
    except NotJson as error:
        return written({"status": Answered.BAD_INPUT, "message": str(error), "position": error.position})
    if isinstance(request.what, list):
        return written([_reply(reader, select, item, tiers) for item in request.what])
    return written(_reply(reader, select, request, tiers))


def written(reply: Any) -> bytes:
    """A reply as JSON, as the C writes it: without spaces, numbers with 17 digits, which read back to the same double."""
    return _text(reply).encode()


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ",".join(f"{_text(key)}:{_text(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return f"[{','.join(map(_text, value))}]"
    return f"{value:.17g}" if isinstance(value, float) else json.dumps(value, ensure_ascii=False)


def refusal(refused: Refused) -> Reply:
    """The reply to a request that cannot be read."""
    named = {} if refused.parameter is None else {"parameter": refused.parameter}
    return {"status": refused.status, "message": refused.message, **named, "position": refused.position}


def _reply(reader: RequestReader, select: Select, request: Token, tiers: Collection[str]) -> Reply:
    try:
        asked = reader.read(request)
    except Refused as refused:
        return refusal(refused)
    identity = reader.identity
    origin: Reply = {"model": identity.model, "software": identity.software}
    if asked.software is not None and not softwares.is_same(identity.trained_on, asked.software.what):
        said = softwares.trained(identity.trained_on)
        origin["warning"] = f"asked for the software {asked.software.shown()}, the model {said}"
    values = {name: value for name, value in asked.values.items() if value is not None}
    try:
        _check(reader.family, values, asked)
        if asked.tier is not None and asked.tier not in tiers:
            said = f"the tier '{asked.tier}' is not in this artefact: ask another, or export it with that tier"
            raise Refused(Answered.BAD_INPUT, said, asked.start)
    except Refused as refused:
        return {**refusal(refused), **origin}
    answer = select(values, asked.tier)
    note = {"note": answer.note} if answer.note else {}
    return {**_answered(reader.family, answer, asked), **origin, **note}


def _check(family: Family, values: dict[str, Any], asked: Asked) -> None:
    """Refuse a problem by the first rule that it breaks, in the order and the words of the engine."""
    space = family.problem
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
        raise Refused(Answered.BAD_INPUT, _cut(said), asked.given.get(name, asked.start), name)
    for sentence in broken.values():
        raise Refused(Answered.BAD_INPUT, _cut(sentence), asked.start)


def _cut(said: str) -> str:
    """A message of the engine, cut to its size."""
    return _mended(said.encode()[: MESSAGE_BYTES - 1])


def _mended(data: bytes) -> str:
    """UTF-8 that may end inside a character: each byte of the incomplete one becomes U+FFFD."""
    return "".join("\ufffd" if "\udc80" <= c <= "\udcff" else c for c in data.decode(errors="surrogateescape"))


def _choice(family: Family, answer: Answer) -> Reply:
    """What was chosen and its figures; empty for an answer without a choice."""
    chooses, reply = bool(family.config.parameters), {}
    if chooses and answer.config is not None:
        reply = {
            "tier": str(answer.tier),
            "config": {name: value for name, value in answer.config.items() if value is not None},
        }
    figures = ("time_ns", "lower_ns", "upper_ns", *(("efficiency",) if chooses else ()))
    reply |= {name: getattr(answer, name) for name in figures if getattr(answer, name) is not None}
    said = ("label", "pin") if answer.config is not None else ()
    return reply | {name: str(value) for name in said if (value := getattr(answer, name)) is not None}


def _answered(family: Family, answer: Answer, asked: Asked) -> Reply:
    if answer.ok:
        return {"status": Answered.OK} | _choice(family, answer)
    answer = without_choice(family, answer)
    outside = answer.outside
    named = {} if outside is None else {"parameter": outside.parameter}
    reply = {
        "status": answer.status,
        **_choice(family, answer),
        "message": _cut(answer.reason),
        **named,
        "position": asked.start if outside is None else asked.given.get(outside.parameter, asked.start),
    }
    if answer.fallback is not None:
        reply["fallback"] = {name: value for name, value in answer.fallback.items() if value is not None}
    return reply
