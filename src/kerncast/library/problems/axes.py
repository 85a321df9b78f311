"""The values of one parameter as text: `1,2,4`, `256:4096:256`, `16:8192:x2`, `rcr,rrr`, `all`."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import polars as pl

from kerncast.core.arrays import Ints
from kerncast.core.parameters import Bool, Categorical, Int, Parameter, Value
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


PROBLEMS_LIMIT = 10_000_000
# Sizes that a sampler draws unless told otherwise.
DEFAULT_RANGE = (1, 8192)
# Real sizes are seldom arbitrary: each draw is rounded to a multiple of one of these, 1 among them so that
# ragged edges occur too.
MULTIPLES = (1, 8, 32, 64)


def cross(space: Space, axes: Mapping[str, Sequence[Value]], start: pl.DataFrame | None = None) -> pl.DataFrame:
    """`start` times the axes, the last axis fastest."""
    total = math.prod(len(values) for values in axes.values()) * (1 if start is None else start.height)
    if total > PROBLEMS_LIMIT:
        raise InvalidValue(
            f"{total:,} problems are over the limit of {PROBLEMS_LIMIT:,}: take fewer values on {', '.join(axes)}"
        )
    frame = start
    for name, values in axes.items():
        column = pl.DataFrame({name: pl.Series(values, dtype=column_type(space.parameters[name]))})
        frame = column if frame is None else frame.join(column, how="cross", maintain_order="left_right")
    if frame is None:
        raise InvalidValue("a grid needs at least one axis: grid:M=1,2,4;N=256:4096:256")
    return frame


def grid(space: Space, text: str) -> pl.DataFrame:
    """`M=1,2,4;N=256:4096:256;K=16:8192:x2`."""
    return cross(space, parse_axes(space, [item for item in text.split(";") if item.strip()]))


def lognormal(space: Space, text: str, seed: int) -> pl.DataFrame:
    """`N` or `N;M=1:512;K=64:65536`: N different draws, 95 % of the mass inside each range, the tails drawn again."""
    count, *items = (item.strip() for item in text.split(";") if item.strip()) if text.strip() else ("",)
    if not count.isdigit() or not 0 < int(count) <= PROBLEMS_LIMIT:
        raise InvalidValue(f"lognormal takes a number of problems, 1 to {PROBLEMS_LIMIT:,} (lognormal:200), got '{count}'")
    ranges: dict[str, tuple[int, int]] = {}
    for item in items:
        name, _, values = (part.strip() for part in item.partition("="))
        ranges[name] = range_of(name, values, parameter_of(space, name))
    for name in () if ranges else sizes(space):
        parameter = space.parameters[name]
        assert isinstance(parameter, Int)
        ranges[name] = (max(DEFAULT_RANGE[0], parameter.low), min(DEFAULT_RANGE[1], parameter.high))
    if not ranges:
        raise InvalidValue(f"{space.owner} has no size without a default: name the axes, lognormal:{count};NAME=lo:hi")
    return _draw(space, ranges, int(count), np.random.default_rng(seed))


def _draw(space: Space, ranges: Mapping[str, tuple[int, int]], count: int, rng: np.random.Generator) -> pl.DataFrame:
    found = pl.DataFrame(schema=dict.fromkeys(ranges, pl.Int64))
    while found.height < count:
        draws = max(2 * (count - found.height), 256)
        columns = {name: _sizes(space.parameters[name], low, high, draws, rng) for name, (low, high) in ranges.items()}
        keep = np.all([(column >= ranges[name][0]) & (column <= ranges[name][1]) for name, column in columns.items()], axis=0)
        more = pl.concat([found, pl.DataFrame(columns).filter(pl.Series(keep))]).unique(maintain_order=True)
        if more.height - found.height <= draws // 1_000 and more.height < count:
            where = ", ".join(f"{name}={low}:{high}" for name, (low, high) in ranges.items())
            raise InvalidValue(
                f"{where} holds hardly more than {more.height:,} different draws, {count:,} were asked for: widen a range"
            )
        found = more
    return found.head(count)


def _sizes(parameter: object, low: int, high: int, draws: int, rng: np.random.Generator) -> Ints:
    assert isinstance(parameter, Int)
    middle, spread = (math.log(low) + math.log(high)) / 2, (math.log(high) - math.log(low)) / 4
    raw = np.exp(rng.normal(middle, spread, draws))
    multiple = rng.choice(MULTIPLES, draws)
    multiple = np.where(raw >= multiple, multiple, 1)
    whole = np.rint(raw / multiple) * multiple
    steps: Ints = np.rint((whole - parameter.low) / parameter.step).astype(np.int64)
    return parameter.low + steps * parameter.step


def column_type(parameter: Parameter) -> type[pl.DataType]:
    """How the values of a parameter are held in a frame."""
    if isinstance(parameter, Categorical):
        return pl.String
    return pl.Boolean if isinstance(parameter, Bool) else pl.Int64
