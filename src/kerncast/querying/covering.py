"""Which model answers a problem: the first one that covers it, else the one that comes closest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from kerncast.device import Device
from kerncast.errors import InvalidValue, NotFound
from kerncast.models.hull import COVERED, Coverage
from kerncast.op import Family
from kerncast.querying.parts import Parts, ways_to_divide
from kerncast.querying.twins import twins_of
from kerncast.store.entry import Entry
from kerncast.store.sources import Source

Point = Mapping[str, Any]


@dataclass(frozen=True)
class Chosen:
    """Who answers one problem."""

    place: int
    source: Source
    entry: Entry
    problem: Point
    filled: Point
    covered: bool
    near: bool
    """Whether the model gives a time: it covers the problem, or has only seen none that is like it."""
    taken: Point
    """Element types that stand for those asked about."""
    parts: Parts | None = None
    """Set if the problem is larger than all that were measured: `problem` is then one of its parts."""

    @property
    def key(self) -> tuple[str, ...]:
        """What is answered together."""
        return (self.entry.id, *(f"{name}={value}" for name, value in self.taken.items()))

    @property
    def whole(self) -> Point:
        """The problem that was asked about."""
        return self.problem if self.parts is None else self.parts.problem_of_all(self.problem)


def chosen(sources: Sequence[Source], problem: Point, place: int, profile: Device | None) -> Chosen:
    """Who answers a problem: a model that covers it, or the twin of an element type, or parts of it; else the closest one."""
    found = _or_twin(sources, problem, place, profile)
    family = found.source.lookup.family
    if found.near or family is None:
        return found
    for parts in ways_to_divide(family.op.name, found.problem):
        part = _or_twin(sources, parts.problem_of_one(problem), place, profile)
        if part.near:
            return replace(part, parts=parts)
    return found


def _or_twin(sources: Sequence[Source], problem: Point, place: int, profile: Device | None) -> Chosen:
    """The model that covers a problem, else one that covers it with the twin of an element type, else the closest one."""
    found = _nearest(sources, problem, place)
    twins = {} if found.covered else twins_of(problem, profile)
    if twins:
        with suppress(InvalidValue, NotFound):  # one of the two may not be a type of the op
            other = _nearest(sources, {**problem, **twins}, place)
            if other.near:
                return replace(other, taken=twins)
    return found


def _nearest(sources: Sequence[Source], problem: Point, place: int) -> Chosen:
    """The first model that covers a problem, else the one that comes closest in the first place."""
    first: Chosen | None = None
    for source in sources:
        family = source.lookup.family
        assert family is not None
        products = {name: value for name, value in problem.items() if name in family.op.products}
        try:
            given = source.lookup.checked({name: value for name, value in problem.items() if name not in products})
        except (InvalidValue, NotFound):
            if first is None:
                raise
            continue  # what a later place does not know, the first one has to answer
        entry = source.covering(given)
        if entry is None and first is not None:
            continue
        nearest = entry or source.lookup.nearest(problem)
        coverage = source.coverage(nearest)
        filled = _filled(coverage, family, given, products)
        near = entry is not None or (coverage is not None and coverage.distance(given)[:2] == COVERED[:2])
        made = Chosen(place, source, nearest, {**given, **products, **filled}, filled, entry is not None, near, {})
        if entry is not None:
            return made
        first = made
    assert first is not None
    return first


def _filled(coverage: Coverage | None, family: Family, given: Point, products: Point) -> dict[str, Any]:
    """The parameters that are not given and of which the model saw one value only."""
    found: dict[str, Any] = {}
    hull = {} if coverage is None else coverage.hull
    factors = {factor for name in products for factor in family.op.products[name]}
    for name, parameter in family.problem.parameters.items():
        seen = hull.get(name)
        if given.get(name) is not None or seen is None or parameter.optional or name in factors:
            continue
        if len(seen.labels) == 1:
            found[name] = seen.labels[0]
        elif seen.low is not None and seen.low == seen.high:
            found[name] = seen.low
    return found
