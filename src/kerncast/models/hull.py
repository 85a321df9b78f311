"""The range that a model was trained on, and what is outside of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kerncast.models.manifest import Fact, Range
from kerncast.op import Problem

if TYPE_CHECKING:
    from kerncast.models.model import Model


@dataclass(frozen=True)
class OutOfRange:
    """The parameter that is outside the trained hull, and what it may be."""

    parameter: str
    value: int | bool | str
    rule: str
    """`16 to 4096`, or the labels that were trained on."""


def outside_hull(model: Model, problem: Problem) -> tuple[OutOfRange, ...]:
    """The parameters of a problem that are outside the trained range."""
    found = []
    for name, value in problem.items():
        seen = model.manifest.hull.get(name)
        if value is not None and seen is not None and not _inside(seen, value):
            found.append(OutOfRange(name, value, range_words(seen)))
    return tuple(found)


def against_facts(model: Model, problem: Problem) -> OutOfRange | None:
    """The first parameter whose value, though in range, is unlike all measured ones: 29 where all were multiples of 16."""
    for name, fact in model.manifest.known_facts.items():
        value = problem[name]
        if value is not None and not fact.holds(int(value)):
            return OutOfRange(name, value, fact_words(fact))
    return None


def fact_words(fact: Fact) -> str:
    """What measured values have in common, in words."""
    return f"multiples of {fact.step}" if fact.rest == 0 else "odd numbers"


def _inside(seen: Range, value: int | bool | str) -> bool:
    if seen.labels:
        return value in seen.labels
    return seen.low is None or seen.high is None or seen.low <= int(value) <= seen.high


def range_words(seen: Range) -> str:
    """The trained values, in words."""
    if seen.labels:
        return ", ".join(str(label).lower() if isinstance(label, bool) else label for label in seen.labels)
    if seen.low is None or seen.high is None:
        return "nothing"
    return str(seen.low) if seen.low == seen.high else f"{seen.low} to {seen.high}"
