"""What a decoded JSON request says about its problem, read quickly and without judging it.

It serves to choose the model that answers. That model reads the request again, and refuses what is wrong with it; so
whatever is not understood here is left out. A request that a model accepts reads the same here and there.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

from kerncast.compiling.request import Node, request_tree, sameness
from kerncast.op import Family
from kerncast.parameters import Bool, Categorical, Parameter, Value

NOTHING = object()


class PlainReader:
    """Reads the problems of one family."""

    def __init__(self, family: Family) -> None:
        self.space, self.parameters = family.problem, family.problem.parameters
        self.aliases, self.products = family.op.aliases, family.op.products
        self.same = sameness(family.op)
        self.readers = {name: _reader(rule) for name, rule in self.parameters.items()}
        self.tree = request_tree(family.problem, family.op, family.op.products)

    @cached_property
    def _defaults(self) -> dict[str, Value]:
        return {name: rule.default for name, rule in self.parameters.items() if rule.default is not None}

    def read(self, request: Any) -> dict[str, Value]:
        """The parameters and products that a request gives, with defaults for parameters that have one."""
        if not isinstance(request, dict):
            return {}
        found: dict[str, Value] = {}
        inner = request.get("problem")
        self._walk(self.tree, inner if isinstance(inner, dict) else request, found)
        preset = self.aliases.get(request.get("op") or "", {}) if isinstance(request.get("op"), str) else {}
        for name, value in preset.items():
            found.setdefault(name, value)
        for rule in self.same:
            if rule.parameter in found and found[rule.parameter] == found.get(rule.other, self.parameters[rule.other].default):
                found[rule.parameter] = rule.value
        totals = {name: found.pop(name) for name in self.products if name in found}
        # The space knows which values do not apply and which stand for none; few spaces have such.
        filled = self.space.fill(found) if self.space.active or self.space.optional else {**self._defaults, **found}
        return {**filled, **totals}

    def _walk(self, node: Node, given: dict[str, Any], found: dict[str, Value]) -> None:
        for key, value in given.items():
            child = node.children.get(key)
            if child is None:
                continue
            if isinstance(value, dict) and child.children:
                if child.present:
                    found[child.present] = True
                self._walk(child, value, found)
            elif value is None:
                if child.present:
                    found[child.present] = False
            elif child.once and child.parameters:  # by its own name, as most are
                read = self.readers[key](value)
                if read is not NOTHING:
                    found[key] = read
            elif child.parameters:
                self._take(child, value, found)
            elif child.product and _number(value) is not NOTHING:
                found[child.product] = _number(value)

    def _take(self, node: Node, value: Any, found: dict[str, Value]) -> None:
        """A value under another key than a parameter's own: a list of several, or another spelling."""
        if isinstance(value, list):
            missing = len(node.parameters) - len(value)
            for name, item in zip(node.parameters, [1] * missing + value, strict=False):
                read = self.readers[name](item)
                if read is not NOTHING:
                    found[name] = read
            return
        name = node.parameters[0]
        read = self.readers[name](value)
        if read is NOTHING and node.names:
            spelled = int(value) if isinstance(value, float) and value.is_integer() else value
            read = next((label for given, label in node.names if given == spelled), NOTHING)
        if read is not NOTHING:
            found[name] = read


def _number(value: Any) -> Any:
    kind = type(value)
    if kind is int:
        return value
    return int(value) if kind is float and value.is_integer() else NOTHING


def _flag(value: Any) -> Any:
    return value if isinstance(value, bool) else NOTHING


def _reader(parameter: Parameter) -> Callable[[Any], Any]:
    """What reads a value of the parameter's kind; otherwise it gives NOTHING."""
    if isinstance(parameter, Bool):
        return _flag
    if not isinstance(parameter, Categorical):
        return _number
    labels = {label: label for label, _ in parameter.codes}
    return lambda value: labels.get(value, NOTHING) if type(value) is str else NOTHING
