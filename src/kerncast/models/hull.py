"""The range that a model was trained on, and what is outside of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kerncast.models.manifest import Fact, Range
from kerncast.op import Problem
from kerncast.parameters import Parameter

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
        seen, parameter = model.manifest.hull.get(name), model.family.problem.parameters[name]
        if value is None or (seen is None and not parameter.optional):
            continue
        if only_absent(parameter, seen) or (seen is not None and not _inside(seen, value)):
            found.append(OutOfRange(name, value, trained_words(parameter, seen)))
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


def only_absent(parameter: Parameter, seen: Range | None) -> bool:
    """Whether an optional parameter was never given in training; models from before it existed do not mention it."""
    return parameter.optional and (seen is None or (seen.low is None and not seen.labels))


def trained_words(parameter: Parameter, seen: Range | None) -> str:
    """What a parameter was trained with, in words."""
    if only_absent(parameter, seen) or seen is None:
        return parameter.absent or "nothing"
    return f"{parameter.absent} or {range_words(seen)}" if parameter.optional else range_words(seen)


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
