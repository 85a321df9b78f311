"""Problem sets for any op: explicit grids, and seeded log-normal draws over the sizes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl

from kerncast.core.arrays import Ints
from kerncast.core.parameters import Int, Value
from kerncast.core.space import Space
from kerncast.errors import InvalidValue
from kerncast.library.problems.axes import parameter_of, parse_axes, range_of, sizes
from kerncast.library.problems.tables import column_type

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
