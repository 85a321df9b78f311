"""Made-up problems within the measured ranges: the model's answers to them teach the tree."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl

from kerncast.core.arrays import Ints
from kerncast.core.op import Family
from kerncast.core.parameters import Int, Parameter
from kerncast.core.space import Space
from kerncast.models.manifest import Range

# How a problem is drawn: near a measured one, each size from another measured one, or anywhere in the hull.
JITTERED, CROSSED, ANYWHERE = range(3)
SHARES = (0.5, 0.3, 0.2)
# A jittered size keeps its value half of the time; otherwise it changes by a factor of about 1.6 up or down.
KEPT, SPREAD = 0.5, 0.5
# Sizes are divisible by powers of two like those of measured problems, up to this: kernels hardly tell 256 from 512.
EVENEST = 256
# This share of the problems from anywhere has any size, so that rules about multiples are met both ways.
UNEVEN = 0.5
# Rules may refuse most of what is drawn; after this many rounds drawing stops.
MOST_ROUNDS = 8


def draw_problems(
    family: Family, measured: pl.DataFrame, hull: Mapping[str, Range], count: int, rng: np.random.Generator
) -> pl.DataFrame:
    """Up to `count` different problems (`problem.*`) that the op allows, none of them measured.

    Labels and flags come together from one measured problem, so no new combinations of them are made up.
    """
    columns = [f"problem.{name}" for name in family.problem.parameters]
    measured = measured.select(columns).unique(maintain_order=True)
    sizes = {
        name: span for name, span in hull.items() if span.low is not None and span.high is not None and span.low < span.high
    }
    found = measured.clear()
    if not sizes:
        return found
    for _ in range(MOST_ROUNDS):
        drawn = _draw(family, measured, sizes, count, rng)
        drawn = allowed_problems(family.problem, drawn).join(measured, on=columns, how="anti", nulls_equal=True)
        found = pl.concat([found, drawn]).unique(maintain_order=True)
        if found.height >= count:
            break
    return found.head(count)


def _draw(
    family: Family, measured: pl.DataFrame, sizes: Mapping[str, Range], count: int, rng: np.random.Generator
) -> pl.DataFrame:
    base = measured[rng.integers(measured.height, size=count)]
    way = rng.choice(len(SHARES), size=count, p=SHARES)
    columns = []
    for name, span in sizes.items():
        assert span.low is not None
        assert span.high is not None
        own = base[f"problem.{name}"]
        absent = own.is_null().to_numpy()
        known = own.fill_null(span.low).to_numpy()
        seen = measured[f"problem.{name}"].drop_nulls().to_numpy()
        moved = np.where(rng.random(count) < KEPT, known, known * np.exp(SPREAD * rng.standard_normal(count)))
        other = seen[rng.integers(len(seen), size=count)]
        uniform = np.exp(rng.uniform(np.log(max(span.low, 1)), np.log(max(span.high, 1)), count))
        even = np.minimum(seen & -seen, EVENEST)[rng.integers(len(seen), size=count)]
        even = np.where(way == JITTERED, np.minimum(known & -known, EVENEST), even)
        even = np.where((way == ANYWHERE) & (rng.random(count) < UNEVEN), 1, even)
        value = np.choose(way, [moved, other, uniform])
        whole = np.where(value == known, known, np.rint(value / np.maximum(even, 1)) * np.maximum(even, 1))
        whole = np.where(way == CROSSED, other, whole)
        fitted = _nearest(family.problem.parameters[name], np.clip(whole, span.low, span.high).astype(np.int64), seen)
        columns.append(pl.Series(f"problem.{name}", fitted).set(pl.Series(absent), None))
    return base.with_columns(columns)


def _nearest(parameter: Parameter, values: Ints, seen: Ints) -> Ints:
    """The nearest values that the parameter may have: on its grid or, for a list, those that were measured."""
    if isinstance(parameter, Int):
        return parameter.low + (values - parameter.low) // parameter.step * parameter.step
    known = np.unique(seen)
    above = np.clip(np.searchsorted(known, values), 1, len(known) - 1)
    return np.where(values - known[above - 1] <= known[above] - values, known[above - 1], known[above])


def allowed_problems(space: Space, frame: pl.DataFrame) -> pl.DataFrame:
    """The rows that break no rule; inactive parameters become null, and rows without a value for an active one are dropped."""
    symbols = {f"problem.{name}": f"{space.namespace}.{name}" for name in space.parameters}
    frame = space.without_usual(frame, "problem.")
    for name in space.condition_order:
        column = pl.col(f"problem.{name}")
        applies = space.active[name].frame(frame.rename(symbols), trusted=True).to_series() != 0.0
        frame = frame.with_columns(pl.when(applies).then(column).alias(f"problem.{name}"))
        frame = frame.filter(~applies | frame[f"problem.{name}"].is_not_null())
    for constraint in space.constraints:
        frame = frame.filter(constraint.program.frame(frame.rename(symbols), trusted=True).to_series() != 0.0)
    return frame
