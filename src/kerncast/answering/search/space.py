"""The space that a search covers: one family's configs for one problem and device, and the moves between them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, reduce
from typing import Any

import numpy as np
import polars as pl

from kerncast.core.arrays import Ints
from kerncast.core.device import Device
from kerncast.core.enumeration import Enumeration
from kerncast.core.expr import Program
from kerncast.core.op import Family, Problem
from kerncast.core.space import Point
from kerncast.data import schema

# Counting stops here; then the number is a lower bound.
COUNTED = 250_000
# How far a projection looks, in steps, and how many combinations it holds at once.
WIDEST = 16
MOST_ROWS = 500_000
POINT, STEPS, FOUND = "__point", "__steps", "__found"


class SearchSpace:
    """The configs that can run one problem on one device."""

    def __init__(self, family: Family, problem: Problem, device: Device) -> None:
        self.space = family.config
        self.bindings = family.bindings(problem, device)
        self.schema = {name: schema.column_type(parameter) for name, parameter in self.space.parameters.items()}
        self._search = Enumeration(self.space, self.bindings)
        self.parameters = self._search.searched
        """What is searched: optional parameters stay left out."""
        own = {f"c.{name}" for name in self.space.parameters}
        bound = [constraint.program.bind(self.bindings) for constraint in self.space.constraints]
        due = [check for check in bound if check.symbols and {item.name for item in check.symbols} <= own]
        rules = [rule for check in due for rule in check.outputs.values()]
        self._check = Program({"holds": reduce(lambda a, b: a & b, rules)}) if rules else None

    def frames(self) -> Iterator[pl.DataFrame]:
        """All valid configs, lazily, in a fixed order."""
        return self._search.frames()

    @cached_property
    def _counted(self) -> tuple[int, bool]:
        rows = 0
        for part in self.frames():
            rows += part.height
            if rows > COUNTED:
                return rows, False
        return rows, True

    @property
    def size(self) -> int:
        """Number of valid configs; a lower bound if `exact` is False."""
        return self._counted[0]

    @property
    def exact(self) -> bool:
        return self._counted[1]

    def sample(self, n: int, seed: int) -> pl.DataFrame:
        """Different configs, uniform over the valid ones."""
        return self.space.sample(n, seed, self.bindings)

    def frame(self, points: Iterable[Mapping[str, Any]]) -> pl.DataFrame:
        """Some configs as a frame."""
        return pl.DataFrame([dict(point) for point in points], schema=self.schema)

    def valid(self, configs: pl.DataFrame) -> pl.DataFrame:
        """The configs that keep every rule."""
        return configs if self._check is None else configs.filter(_holds(self._check, configs))

    def indices(self, configs: pl.DataFrame) -> Ints:
        """Each config as the places of its values; a parameter that does not apply has place 0."""
        columns = []
        for name, parameter in self.parameters.items():
            places = {parameter.value(place): place for place in range(parameter.size)}
            columns.append([places.get(value, 0) for value in configs[name].to_list()])
        return np.array(columns, dtype=np.int64).reshape(len(columns), configs.height).T

    def point(self, indices: Sequence[int]) -> Point:
        """The values at some places."""
        return {
            name: parameter.value(int(place)) for (name, parameter), place in zip(self.parameters.items(), indices, strict=True)
        }

    def nearest(self, places: Ints) -> list[Point | None]:
        """For each row of places, the valid config that is the fewest steps away, as `Space.project` finds it.

        None if it is too far away to be found. All rows are moved together: one row takes as long as fifty.
        """
        parts = [_Projection(self, component.names, component.checks).nearest(places) for component in self._search.components]
        points = self._search.decoded(pl.concat([part.drop(FOUND) for part in parts], how="horizontal")).rows(named=True)
        found = np.all([part[FOUND].to_numpy() for part in parts], axis=0)
        return [point if good else None for point, good in zip(points, found, strict=True)]

    def neighbours(self, point: Mapping[str, Any]) -> pl.DataFrame:
        """The valid configs one step away: the next value either way, or any other label."""
        moved = []
        for name, parameter in self.parameters.items():
            place = parameter.index(point[name]) if point[name] is not None else None
            if place is None:
                continue
            near = (place - 1, place + 1) if parameter.ordered else range(parameter.size)
            moved += [{**point, name: parameter.value(i)} for i in near if 0 <= i < parameter.size and i != place]
        return self.valid(self._settled(self.frame(moved)))

    def _settled(self, configs: pl.DataFrame) -> pl.DataFrame:
        """The config without parameters that no longer apply, and with the first value of those that newly apply."""
        for name in self.space.condition_order:
            applies = _holds(self.space.active[name], configs)
            first = pl.lit(self.parameters[name].value(0), dtype=self.schema[name])
            configs = configs.with_columns(pl.when(applies).then(pl.coalesce(name, first)).alias(name))
        return configs


class _Projection:
    """Moves rows of places to valid values of the parameters that constraints connect, in growing circles."""

    def __init__(self, searched: SearchSpace, names: Sequence[str], checks: Sequence[Program | None]) -> None:
        self.searched, self.names, self.checks = searched, names, checks
        self.parameters = [searched.parameters[name] for name in names]
        declared = list(searched.parameters)
        self.columns = [declared.index(name) for name in names]
        self.order = [f"c.{name}" for name in declared if name in names]
        self.furthest = sum(item.size - 1 if item.ordered else 1 for item in self.parameters)

    def nearest(self, places: Ints) -> pl.DataFrame:
        """One row for each row of places: numbers under their symbol names, and whether anything was found."""
        centres = places[:, self.columns]
        pending, radius = np.arange(len(centres)), 0
        found = []
        while len(pending):
            block = self._around(centres, pending, radius)
            best = block.sort(POINT, STEPS, *self.order, nulls_last=True).unique(POINT, keep="first", maintain_order=True)
            found.append(best.with_columns(pl.lit(True).alias(FOUND)))
            pending = np.setdiff1d(pending, best[POINT].to_numpy())
            if radius >= min(self.furthest, WIDEST):
                break
            radius = min(max(2 * radius, 1), self.furthest)
        rows = pl.concat(found)
        everyone = pl.DataFrame({POINT: np.arange(len(centres))})
        return everyone.join(rows, on=POINT, how="left", maintain_order="left").select(
            *self.order, pl.col(FOUND).fill_null(False)
        )

    def _around(self, centres: Ints, points: Ints, radius: int) -> pl.DataFrame:
        """Every valid combination within `radius` steps of each point; none for a point that has too many."""
        block = pl.DataFrame({POINT: points, STEPS: np.zeros(len(points), np.int64)})
        for depth, name in enumerate(self.names):
            block = self._expanded(block, centres, depth, name, radius)
            check = self.checks[depth]
            if check is not None and block.height:
                block = block.filter(check.frame(block, trusted=True).to_series() != 0.0)
            if block.height > MOST_ROWS:
                if len(points) == 1:
                    rest = [pl.lit(None, pl.Int64).alias(f"c.{later}") for later in self.names[depth + 1 :]]
                    return block.clear().with_columns(rest)
                halves = np.array_split(points, 2)
                return pl.concat([self._around(centres, half, radius) for half in halves])
        return block

    def _expanded(self, block: pl.DataFrame, centres: Ints, depth: int, name: str, radius: int) -> pl.DataFrame:
        """A block with the values of one more parameter that its remaining steps allow."""
        active = self.searched.space.active.get(name)
        parts = []
        if active is not None and block.height:
            applies = active.frame(block, trusted=True).to_series() != 0.0
            parts = [block.filter(~applies).with_columns(pl.lit(None, pl.Int64).alias(f"c.{name}"))]
            block = block.filter(applies)
        parameter = self.parameters[depth]
        centre, left = centres[block[POINT].to_numpy(), depth], radius - block[STEPS].to_numpy()
        if parameter.ordered:
            low, high = np.maximum(centre - left, 0), np.minimum(centre + left, parameter.size - 1)
        else:
            low, high = np.where(left > 0, 0, centre), np.where(left > 0, parameter.size - 1, centre)
        counts = high - low + 1
        rows = np.repeat(np.arange(block.height), counts)
        index = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts) + low[rows]
        away = np.abs(index - centre[rows])
        distinct, inverse = np.unique(index, return_inverse=True)
        numbers = np.array([parameter.number(int(i)) for i in distinct], dtype=np.int64)[inverse]
        parts.append(
            block[rows].with_columns(
                pl.Series(STEPS, block[STEPS].to_numpy()[rows] + (away if parameter.ordered else np.minimum(away, 1))),
                pl.Series(f"c.{name}", numbers, dtype=pl.Int64),
            )
        )
        return pl.concat(parts)


def _holds(check: Program, configs: pl.DataFrame) -> pl.Series:
    return check.frame(configs.rename(lambda name: f"c.{name}"), trusted=True).to_series() != 0.0
