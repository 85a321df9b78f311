"""The values of one parameter as text: `1,2,4`, `256:4096:256`, `16:8192:x2`, `rcr,rrr`, `all`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from kerncast.core.parameters import Int, Parameter, Value
from kerncast.core.space import Space
from kerncast.errors import InvalidValue, NotFound

# A listed axis is held in memory and crossed with the others: more values than this are a typing error.
AXIS_LIMIT = 1_000_000
_GRAMMAR = "a,b,c or lo:hi:step or lo:hi:xFACTOR"


def required(space: Space) -> list[str]:
    """The parameters that always apply and have no default."""
    return [name for name, item in space.parameters.items() if item.default is None and not item.nullable]


def sizes(space: Space) -> list[str]:
    """The whole numbers that a problem must give: what a bare list and the log-normal sampler provide."""
    return [name for name in required(space) if isinstance(space.parameters[name], Int)]


def parameter_of(space: Space, name: str) -> Parameter:
    """The parameter called `name`, or an error that suggests the nearest."""
    if name not in space.parameters:
        raise NotFound.named(f"parameter of {space.owner}", name, space.parameters)
    return space.parameters[name]


def parse_axes(space: Space, items: Iterable[str]) -> dict[str, list[Value]]:
    """`["M=1,2,4", "dtype=fp32"]` as values by parameter, each checked against its declaration."""
    axes: dict[str, list[Value]] = {}
    for item in items:
        name, separator, text = (part.strip() for part in item.partition("="))
        if not separator or not text:
            raise InvalidValue(f"an axis is NAME=VALUES with {_GRAMMAR}, got '{item}'")
        if name in axes:
            raise InvalidValue(f"{name} is given twice: put all its values in one axis")
        axes[name] = _values(name, text, parameter_of(space, name))
    return axes


def check_axes(space: Space, axes: Mapping[str, Iterable[Value]]) -> dict[str, list[Value]]:
    """Axes that a program gives, under the same rules as those from text."""
    checked = {name: list(values) for name, values in axes.items()}
    for name, values in checked.items():
        rule = parameter_of(space, name)
        if not values:
            raise InvalidValue(f"the axis {name} has no values: give at least one")
        for value in values:
            if rule.index(value) is None:
                raise InvalidValue(f"{name} {rule.refusal(value)}")
    return checked


def _values(name: str, text: str, parameter: Parameter) -> list[Value]:
    if text == "all":
        if parameter.size > AXIS_LIMIT:
            raise InvalidValue(f"{name} has {parameter.size:,} values, too many for 'all': give a range, {_GRAMMAR}")
        return [parameter.value(index) for index in range(parameter.size)]
    found: dict[Value, None] = {}
    for item in text.split(","):
        for value in _item(name, item.strip(), parameter):
            if parameter.index(value) is None:
                raise InvalidValue(f"'{name}={text}': {name} {parameter.refusal(value)}")
            found[value] = None
            if len(found) > AXIS_LIMIT:
                raise InvalidValue(f"'{name}={text}' has over {AXIS_LIMIT:,} values: take a larger step")
    return list(found)


def _item(name: str, text: str, parameter: Parameter) -> Iterator[Value]:
    """One value, or one range of whole numbers."""
    if parameter.codes:
        yield text
    elif isinstance(parameter.value(0), bool):
        yield {"true": True, "false": False}.get(text.lower(), text)
    elif ":" not in text:
        yield int(text) if re.fullmatch(r"[+-]?\d+", text) else text
    else:
        yield from _range(name, text)


def _range(name: str, text: str) -> Iterator[int]:
    match = re.fullmatch(r"(\d+):(\d+)(?::(?:(\d+)|x(\d+(?:\.\d+)?)))?", text)
    if not match:
        raise InvalidValue(f"{name} takes {_GRAMMAR}, got '{text}'")
    low, high, step, factor = int(match[1]), int(match[2]), int(match[3] or 1), match[4]
    if low > high or step < 1 or (factor and (float(factor) <= 1 or low < 1)):
        raise InvalidValue(f"{name}: a range needs lo ≤ hi and a step ≥ 1, or lo ≥ 1 and a factor over 1, got '{text}'")
    if not factor:
        yield from range(low, high + 1, step)
        return
    value = float(low)
    while round(value) <= high:
        yield round(value)
        value *= float(factor)


def range_of(name: str, values: str, parameter: Parameter) -> tuple[int, int]:
    """`lo:hi` of a sampler's axis."""
    match = re.fullmatch(r"(\d+):(\d+)", values)
    if not match or not 1 <= int(match[1]) <= int(match[2]):
        raise InvalidValue(f"{name} takes a range lo:hi with 1 ≤ lo ≤ hi, got '{values}'")
    low, high = int(match[1]), int(match[2])
    if not isinstance(parameter, Int) or low < parameter.low or high > parameter.high:
        raise InvalidValue(f"{name} must be {parameter.describe()}, and the sampler draws whole-number ranges; got '{values}'")
    return low, high
