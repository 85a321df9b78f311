"""JSON requests read in Python, by the same tree of keys as the exported C reads them; used where there is no C compiler.

The answers are those of the C, except that a refusal does not say at which byte of the text the trouble stands.
"""

from __future__ import annotations

import decimal
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kerncast.errors import InvalidValue
from kerncast.export.query import one_of, rule_of
from kerncast.export.request import TIERS, Identity, Node, request_tree, sameness
from kerncast.models import software as softwares
from kerncast.op import Family
from kerncast.parameters import Bool, Categorical, Parameter
from kerncast.select.answer import Answer, Answered

LONGEST_SHOWN = 40
WHOLE_AS_DOUBLE = 2**53
Reply = dict[str, Any]


class Pairs(list[tuple[str, Any]]):
    """A JSON object with its keys as they came: one that is given twice must be seen twice."""


class Refused(Exception):
    """Why a request is refused."""

    def __init__(self, status: str, message: str, parameter: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.parameter = status, message, parameter


@dataclass
class Asked:
    """What one object asks."""

    values: dict[str, Any] = field(default_factory=dict)
    tier: str | None = None
    software: str | None = None
    name: str | None = None


def parse(text: str | bytes) -> Any:
    """A JSON text by the letter: UTF-8, no NaN, numbers exact."""

    def refuse(name: str) -> Any:
        raise ValueError(f"{name} is not JSON")

    try:
        decoded = text if isinstance(text, str) else text.decode("utf-8")
        return json.loads(decoded, object_pairs_hook=Pairs, parse_float=_exact, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise Refused("bad_input", f"the request must be JSON: {error}") from error


def _exact(text: str) -> Any:
    """A number that is written with a point or an exponent: whole below 2^53 it is one, otherwise nobody asked for it."""
    try:
        number = decimal.Decimal(text)
    except decimal.DecimalException:
        return float(text)
    if number and not -20 < number.adjusted() < 20:
        return float(text)
    return int(number) if number == int(number) and abs(number) < WHOLE_AS_DOUBLE else float(text)


class RequestReader:
    """Reads what an object asks of one family."""

    def __init__(self, family: Family, identity: Identity) -> None:
        self.family, self.identity = family, identity
        self.tree = request_tree(family.problem, family.op)
        self.same = sameness(family.op)

    def read(self, request: Any) -> Asked:
        """The parameters, beside optional keys that are none, or in an object `problem` of their own."""
        if not isinstance(request, Pairs):
            raise Refused("bad_input", f"a request must be an object of problem parameters, got {_shown(request)}")
        asked, problem, beside = Asked(), None, False
        seen: set[str] = set()
        for key, value in request:
            if key in self.tree.children:
                beside = True
                self._walk(self.tree.children[key], value, asked)
                continue
            if key not in ("tier", "op", "family", "device", "software", "problem"):
                raise self._unknown(key)
            if key in seen:
                raise Refused("bad_input", f'"{key}" is given twice: give it once')
            seen.add(key)
            if key == "problem":
                if not isinstance(value, Pairs):
                    raise Refused("bad_input", f"problem must be an object of problem parameters, got {_shown(value)}")
                problem = value
            else:
                self._special(key, value, asked)
        if problem is not None and beside:
            raise Refused(
                "bad_input",
                "parameters must not stand beside an object problem: put all of them into it, or leave it out",
            )
        if problem is not None:
            self._walk(self.tree, problem, asked)
        self._finish(asked)
        return asked

    def _finish(self, asked: Asked) -> None:
        for name, value in self.family.op.aliases.get(asked.name or "", {}).items():
            self._give(asked, name, value, False, json.dumps(asked.name))
        for rule in self.same:
            other = asked.values.get(rule.other, self.family.problem.parameters[rule.other].default)
            if rule.parameter in asked.values and asked.values[rule.parameter] == other:
                asked.values[rule.parameter] = rule.value

    def _unknown(self, key: str) -> Refused:
        known = ", ".join((*self.tree.children, "op", "family", "device", "software", "tier, or problem and tier"))
        return Refused("bad_input", f"unknown key {_shown(key)}: known are {known}")

    def _special(self, key: str, value: Any, asked: Asked) -> None:
        if key == "software":
            if not isinstance(value, str):
                said = f"software must be the name of a commit or a version, got {_shown(value)}"
                raise Refused("unsupported" if _is_number(value) else "bad_input", said, key)
            asked.software = value
            return
        identity = self.identity
        families = (identity.family, identity.family.split("/")[1])
        known = {"tier": TIERS, "op": identity.names, "family": families, "device": identity.devices}[key]
        if not isinstance(value, str) or value not in known:
            label = key != "tier" and (isinstance(value, str) or _is_number(value))
            said = f"{key} must be {one_of(known)}, got {_shown(value)}"
            raise Refused("unsupported" if label else "bad_input", said, key)
        if key == "tier":
            asked.tier = value
        if key == "op":
            asked.name = value

    def _walk(self, node: Node, value: Any, asked: Asked) -> None:
        if isinstance(value, Pairs) and node.children:
            if node.present:
                self._give(asked, node.present, True, False, f'"{node.name}"')
            for key, inner in value:
                if key not in node.children:
                    raise self._unknown(key)
                self._walk(node.children[key], inner, asked)
        elif node.present and value is None:
            self._give(asked, node.present, False, False, f'"{node.name}"')
        elif not node.leaf:
            raise Refused("bad_input", f"{node.path} must be an object, got {_shown(value)}")
        elif node.parameters:
            self._take(node, value, asked)

    def _take(self, node: Node, value: Any, asked: Asked) -> None:
        name, key = node.parameters[0], f'"{node.name}"'
        parameter = self.family.problem.parameters[name]
        numbers = not isinstance(parameter, (Bool, Categorical))
        if isinstance(value, list) and not isinstance(value, Pairs) and not node.once and numbers:
            return self._take_list(node, value, asked)
        if len(node.parameters) > 1:
            raise Refused("bad_input", f"{node.path} must be a list of whole numbers, got {_shown(value)}")
        if node.once and name in asked.values:
            raise Refused("bad_input", f"{key} is given twice: give it once")
        spelled = {given: label for given, label in node.names if type(given) is type(value)} if _is_label(value) else {}
        read = _read(parameter, value)
        if read is NOTHING:
            read = spelled.get(value, NOTHING) if spelled else NOTHING
        if read is NOTHING:
            raise _wrong(name, parameter, not node.once, value)
        return self._give(asked, name, read, node.once, key)

    def _take_list(self, node: Node, value: list[Any], asked: Asked) -> None:
        if len(value) > len(node.parameters):
            most = len(node.parameters)
            raise Refused("unsupported", f"{node.path} must have at most {most} dimensions, got {_shown(value)}")
        padded = [1] * (len(node.parameters) - len(value)) + value
        for name, number in zip(node.parameters, padded, strict=True):
            parameter = self.family.problem.parameters[name]
            read = _read(parameter, number)
            if read is NOTHING:
                raise _wrong(name, parameter, True, number)
            self._give(asked, name, read, False, f'"{node.name}"')

    def _give(self, asked: Asked, name: str, value: Any, once: bool, key: str) -> None:
        if name not in asked.values:
            asked.values[name] = value
        elif once:
            raise Refused("bad_input", f"{key} is given twice: give it once")
        elif asked.values[name] != value:
            raise Refused("bad_input", f"{key} contradicts what is given elsewhere in the request: leave one of them out")


NOTHING = object()


def _read(parameter: Parameter, value: Any) -> Any:
    """A value of the parameter's kind (whether it is in range is for the problem to say); otherwise NOTHING."""
    if value is None:
        return None if parameter.when is not None else NOTHING
    if isinstance(parameter, Bool):
        return value if isinstance(value, bool) else NOTHING
    if isinstance(parameter, Categorical):
        return value if isinstance(value, str) and parameter.index(value) is not None else NOTHING
    return value if type(value) is int and -(2**63) < value < 2**63 else NOTHING


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_label(value: Any) -> bool:
    return isinstance(value, str) or _is_number(value)


def _wrong(name: str, parameter: Parameter, foreign: bool, value: Any) -> Refused:
    label = foreign and isinstance(parameter, Categorical) and _is_label(value)
    return Refused("unsupported" if label else "bad_input", f"{name} must be {rule_of(parameter)}, got {_shown(value)}", name)


def _plain(value: Any) -> Any:
    if isinstance(value, Pairs):
        return {key: _plain(inner) for key, inner in value}
    return [_plain(inner) for inner in value] if isinstance(value, list) else value


def _shown(value: Any) -> str:
    text = json.dumps(_plain(value), ensure_ascii=False)
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}..."


# -- answers -------------------------------------------------------------------------------------------------------------

Select = Callable[[dict[str, Any], str | None], Answer]


def answer_json(reader: RequestReader, select: Select, text: str | bytes) -> bytes:
    """The reply to a text: an object for an object, a list for a list. `select` answers a problem by a tier."""
    try:
        request = parse(text)
    except Refused as refused:
        return json.dumps(_refusal(refused)).encode()
    if isinstance(request, list) and not isinstance(request, Pairs):
        replies: Any = [_reply(reader, select, item) for item in request]
    else:
        replies = _reply(reader, select, request)
    return json.dumps(replies, ensure_ascii=False, separators=(",", ":")).encode()


def _refusal(refused: Refused) -> Reply:
    reply = {"status": refused.status, "message": refused.message}
    return reply if refused.parameter is None else {**reply, "parameter": refused.parameter}


def _reply(reader: RequestReader, select: Select, request: Any) -> Reply:
    try:
        asked = reader.read(request)
    except Refused as refused:
        return _refusal(refused)
    identity = reader.identity
    origin: Reply = {"model": identity.model, "software": identity.software}
    if asked.software is not None and not _is_software(identity, asked.software):
        shown = _shown(asked.software)
        origin["warning"] = f"asked for the software {shown}, the model was trained on another"
    try:
        answer = select({name: value for name, value in asked.values.items() if value is not None}, asked.tier)
    except InvalidValue as error:
        return {"status": "bad_input", "message": str(error), **origin}
    return {**_answered(reader.family, answer), **origin}


def _is_software(identity: Identity, asked: str) -> bool:
    return any(softwares.is_same([f'{{"commit":"{name}"}}'], asked) or name == asked for name in identity.software_names)


def _answered(family: Family, answer: Answer) -> Reply:
    chooses = bool(family.config.parameters)
    if answer.ok:
        reply: Reply = {"status": "ok"}
        if chooses and answer.config is not None:
            reply |= {"tier": str(answer.tier), "config": {name: value for name, value in answer.config if value is not None}}
        figures = ("time_ns", "lower_ns", "upper_ns", *(("efficiency",) if chooses else ()))
        return reply | {name: getattr(answer, name) for name in figures if getattr(answer, name) is not None}
    status, message = str(answer.status), answer.reason
    outside = answer.outside
    if outside is None:
        return {"status": status, "message": message}
    message = f"{outside.parameter} was trained with {outside.rule} only, got {outside.value}"
    # Where there is nothing to choose, a label that training did not have is not a matter of range: no two labels are near.
    if not chooses and isinstance(family.problem.parameters[outside.parameter], (Bool, Categorical)):
        status = str(Answered.UNSUPPORTED)
    reply = {"status": status, "message": message, "parameter": outside.parameter}
    if chooses and answer.fallback is not None:
        reply["fallback"] = {name: value for name, value in answer.fallback if value is not None}
    return reply
