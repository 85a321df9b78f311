"""How far the answers of a model are to be trusted: one judgement of the problem, the config and the device.

    verdict = Envelope(model, device).judge(problem)
    verdict.worth, verdict.words, verdict.widened(time_ns, lower_ns, upper_ns)

The model's own interval widens with the rarity and the size of a problem (`widening`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from kerncast.core.arrays import Flags, Floats
from kerncast.core.device import Device
from kerncast.core.expr import Program
from kerncast.core.parameters import Parameter, Value
from kerncast.data.schema import symbol_columns
from kerncast.models.limits.devices import Away, away_from, no_peak, without_peak
from kerncast.models.manifest import Fact, Manifest, Range

if TYPE_CHECKING:
    from kerncast.models.model import Model


@dataclass(frozen=True)
class OutOfRange:
    """The parameter that is outside the trained hull, and what it may be."""

    parameter: str
    value: int | bool | str
    rule: str
    """`16 to 4096`, or the labels that were trained on."""

    @property
    def words(self) -> str:
        """The trained range of the parameter, and the value that is not in it."""
        value = str(self.value).lower() if isinstance(self.value, bool) else self.value
        return f"{self.parameter} was trained with {self.rule} only, got {value}"


Inside = Callable[[Any], bool]
Distance = tuple[int, int, bool]
"""How far a problem is from being covered, the worst first."""


@dataclass(frozen=True)
class Limit:
    """The values of one parameter that a model was trained with."""

    parameter: Parameter
    seen: Range | None = None
    """None: not known. Of an optional parameter: only its usual value."""
    fact: Fact | None = None

    @property
    def only_usual(self) -> bool:
        """Whether an optional parameter never had another value than its usual one in training."""
        return self.parameter.optional and self.seen in (None, Range())

    @property
    def ends(self) -> tuple[int, int] | None:
        """The least and the largest size; None: any size, or it has labels."""
        if self.seen is None or self.seen.low is None or self.seen.high is None:
            return None
        return self.seen.low, self.seen.high

    @property
    def words(self) -> str:
        """What it was trained with."""
        if self.only_usual or self.seen is None:
            return self.parameter.usual_word or "nothing"
        words = range_words(self.seen)
        return f"{self.parameter.usual_word} or {words}" if self.parameter.optional else words

    @property
    def inside(self) -> Inside:
        """Whether a value is in the trained range, as a quick function."""
        if self.only_usual:
            return lambda value: value is None
        if self.seen is not None and self.seen.labels:
            labels = frozenset(self.seen.labels)
            return lambda value: value is None or value in labels
        if self.ends is None:
            return lambda value: True
        low, high = self.ends
        return lambda value: value is None or low <= value <= high

    @property
    def covers(self) -> Inside:
        """Whether a value is in the trained range and like the measured ones, as a quick function."""
        inside, fact = self.inside, self.fact
        if fact is None or self.ends is None:
            return inside
        return lambda value: inside(value) and (value is None or fact.holds(value))

    def inside_column(self, values: pl.Series) -> pl.Series:
        """`inside` for many values."""
        if self.only_usual:
            return values.is_null()
        if self.seen is not None and self.seen.labels:
            return values.is_null() | values.is_in(list(self.seen.labels))
        return values.is_null() | (values.is_between(*self.ends) if self.ends else True)

    def unlike_column(self, values: pl.Series) -> pl.Series:
        """Which of many values have not what all measured ones have in common."""
        assert self.fact is not None
        return values.is_not_null() & (values % self.fact.step != self.fact.rest)


@dataclass(frozen=True)
class Coverage:
    """What a model was trained with; known from its manifest alone, without its weights."""

    hull: Mapping[str, Range]
    facts: Mapping[str, Fact]
    parameters: Mapping[str, Parameter]
    manifest: Manifest | None = None
    """Whose coverage it is; None: that of a model of another tool."""

    @classmethod
    def of(cls, manifest: Manifest, parameters: Mapping[str, Parameter]) -> Coverage:
        """The coverage of a model of a family with these problem parameters."""
        return cls(manifest.hull, manifest.facts, parameters, manifest)

    def on(self, device: str) -> Coverage:
        """What it covers on one of its devices."""
        return self if self.manifest is None else replace(self, hull=self.manifest.hull_on(device))

    @cached_property
    def limits(self) -> dict[str, Limit]:
        """By parameter, in declared order."""
        return {name: Limit(item, self.hull.get(name), self.facts.get(name)) for name, item in self.parameters.items()}

    @cached_property
    def _inside(self) -> dict[str, Inside]:
        return {name: limit.inside for name, limit in self.limits.items()}

    def outside(self, problem: Mapping[str, Value]) -> tuple[OutOfRange, ...]:
        """The given parameters of a problem that are outside the trained range."""
        return tuple(
            OutOfRange(name, value, self.limits[name].words)
            for name, value in problem.items()
            if value is not None and not self._inside[name](value)
        )

    def unlike(self, problem: Mapping[str, Value]) -> OutOfRange | None:
        """The first parameter whose value, though in range, is unlike all measured ones: 29 where all were multiples of 16."""
        for name, fact in self.facts.items():
            value = problem.get(name)
            if value is not None and not fact.holds(int(value)):
                return OutOfRange(name, value, fact_words(fact))
        return None

    def distance(self, problem: Mapping[str, Value]) -> Distance:
        """How far a problem is from being covered: labels and sizes outside, and whether it is unlike all measured ones."""
        outside = self.outside(problem)
        labels = sum(not isinstance(item.value, int) or isinstance(item.value, bool) for item in outside)
        return labels, len(outside) - labels, self.unlike(problem) is not None

    def contains(self, other: Coverage) -> bool:
        """Whether this model was trained with every label that another one was, and with ranges that include its ranges."""
        return all(_within(other.hull[name], seen) for name, seen in self.hull.items() if name in other.hull)

    def overlaps(self, other: Coverage) -> bool:
        """Whether the two were trained with some label of every parameter in common."""
        both = [(seen.labels, other.hull[name].labels) for name, seen in self.hull.items() if name in other.hull]
        return all(set(ours) & set(theirs) for ours, theirs in both if ours and theirs)


COVERED: Distance = (0, 0, False)
"""The distance of a problem that a model covers."""


def part_name(manifest: Manifest, parameters: Mapping[str, Parameter]) -> str:
    """The part of an op that a model is of, as `in_strategy=width,out_strategy=height`; empty if it is of the whole op.

    Labels count where the op has others, unless the only one is the default; sizes count where `where` chose them.
    """
    chosen = {re.split(r"[^\w.]", condition, maxsplit=1)[0].removeprefix("problem.") for condition in manifest.data.where}
    found = []
    for name, parameter in parameters.items():
        seen = manifest.hull.get(name)
        if seen is None:
            continue
        if seen.labels and len(seen.labels) < parameter.size and seen.labels != (parameter.default,):
            found.append(f"{name}={'+'.join(map(_label, seen.labels))}")
        elif seen.low is not None and name in chosen:
            found.append(f"{name}={seen.low}-{seen.high}")
    return ",".join(found)


def fact_words(fact: Fact) -> str:
    """What measured values have in common, in words."""
    return f"multiples of {fact.step}" if fact.rest == 0 else "odd numbers"


def _within(part: Range, whole: Range) -> bool:
    if part.low is None or part.high is None or whole.low is None or whole.high is None:
        return set(part.labels) <= set(whole.labels)
    return whole.low <= part.low and part.high <= whole.high


def _label(label: str | bool) -> str:
    return str(label).lower() if isinstance(label, bool) else label


def range_words(seen: Range) -> str:
    """The trained values, in words."""
    if seen.labels:
        return ", ".join(map(_label, seen.labels))
    if seen.low is None or seen.high is None:
        return "nothing"
    return str(seen.low) if seen.low == seen.high else f"{seen.low} to {seen.high}"


def completed(model: Model, values: Mapping[str, Any]) -> dict[str, Any]:
    """A problem with the parameters that it must have, was not given, and of which the model saw one value only."""
    products = model.family.op.products
    factors = {factor for name in products if name in values for factor in products[name]}
    found = dict(values)
    for name, parameter in model.family.problem.parameters.items():
        seen = model.manifest.hull.get(name)
        needed = parameter.default is None and not parameter.optional and name not in factors
        if seen is None or not needed or values.get(name) is not None:
            continue
        only = seen.labels[0] if len(seen.labels) == 1 else seen.low if seen.low == seen.high else None
        if only is not None:
            found[name] = only
    return found


UNTRIED = "the model was not trained on this config, so its time has no interval"
NO_ERRORS = "the model does not record how wrong it was in training, so its times have no interval"
# The column of given candidates that says whether they worked in training.
KNOWN = "__known"


Times = float | Floats


class Worth(StrEnum):
    """Where a question is, the best first."""

    IN = "in"
    UNTRIED = "untried"
    """The config did not work in training, or was not tried."""
    ELSEWHERE = "elsewhere"
    """The device was not measured."""
    UNLIKE = "unlike"
    """The problem is in range, but unlike all measured ones."""
    OUTSIDE = "outside"
    """The problem is outside the trained range: nothing is chosen for it."""


@dataclass(frozen=True)
class AnswerWorth:
    """What an answer is worth."""

    worth: Worth = Worth.IN
    words: str = ""
    """Why; of an answer that stands, what else to know."""
    outside: OutOfRange | None = None
    """The parameter that is outside, or unlike what was measured."""
    away: Away | None = None
    """Where the device is among the measured ones; None: it is one of them."""
    known: bool | None = None
    """Whether a given config worked in training; None: it is one of the model's own."""

    @property
    def stands(self) -> bool:
        """Whether the answer is one to rely on; otherwise it is out of range."""
        return self.outside is None and self.worth is not Worth.OUTSIDE

    @property
    def calibrated(self) -> bool:
        """Whether the model's interval holds as it is."""
        return self.away is None and self.known is not False

    def widened(self, time_ns: Times, lower_ns: Times | None, upper_ns: Times | None) -> tuple[Any, Any]:
        """The bounds of some times: on another device never narrower than on the measured ones. None: there is no interval."""
        factors = None if self.away is None else self.away.factors
        if factors is None:
            return (lower_ns, upper_ns) if self.calibrated else (None, None)
        lower = np.fmin(time_ns if lower_ns is None else lower_ns, factors[0] * time_ns)
        return lower, np.fmax(time_ns if upper_ns is None else upper_ns, factors[1] * time_ns)


@dataclass(frozen=True)
class Verdicts:
    """Of many problems: which are outside the trained range, which of them by a label, and which others are unlike all."""

    outside: Flags
    by_label: Flags
    unlike: Flags


class Envelope:
    """What a model's answers are worth on one device; without one, on those that were measured."""

    def __init__(self, model: Model, device: Device | None = None) -> None:
        self.model, self.device = model, device
        self.coverage = Coverage.of(model.manifest, model.family.problem.parameters)
        self.away = None if device is None else away_from(model, device)
        self._without_peak = frozenset() if device is None or self.away is None else without_peak(model, device)

    def bounds(self, problems: pl.DataFrame, time_ns: Floats) -> tuple[Floats, Floats]:
        """The model's interval of each predicted time, given the problems (`problem.*`) that the times are of."""
        interval = self.model.manifest.interval
        assert interval is not None
        if interval.widening is None:
            return interval.bounds(time_ns)
        rarity, beyond = interval.widening.traits.rarity(self.model.family, problems), interval.beyond
        return interval.bounds(time_ns, rarity, None if beyond is None else beyond.bands(self.sizes_of(problems)))

    def sizes_of(self, problems: pl.DataFrame) -> Floats:
        """How large problems (`problem.*`) are, by the measure that the interval knows their range in."""
        return self._size.columns(symbol_columns(self.model.family, problems, "problem."))[:, 0]

    @cached_property
    def _size(self) -> Program:
        interval = self.model.manifest.interval
        assert interval is not None
        assert interval.beyond is not None
        measure = interval.beyond.sizes.measure
        return Program({measure: self.model.featurizer().work().outputs[measure]})

    def judge(self, problem: Mapping[str, Value]) -> AnswerWorth:
        """What an answer to a problem is worth."""
        outside = self.coverage.outside(problem)
        if outside:
            return AnswerWorth(Worth.OUTSIDE, outside[0].words, outside[0], self.away)
        if self.device is not None and problem.get("dtype") in self._without_peak:
            return AnswerWorth(Worth.OUTSIDE, no_peak(self.device, str(problem["dtype"])), None, self.away)
        if self.away is not None and not self.away.believed:
            return self._elsewhere
        unlike = self.coverage.unlike(problem)
        return self._elsewhere if unlike is None else unlike_measured(unlike, self.away)

    @cached_property
    def _elsewhere(self) -> AnswerWorth:
        """Of problems like those that were measured."""
        if self.away is None:
            return AnswerWorth()
        own = ", ".join(record.name for record in self.model.manifest.devices)
        outside = None if self.away.believed else OutOfRange("device", self.away.device, own)
        return AnswerWorth(Worth.ELSEWHERE, self.away.words, outside, self.away)

    def judge_config(self, row: int) -> AnswerWorth:
        """What an answer with one of the candidates is worth."""
        if not self.model.recorded:
            return AnswerWorth(words=NO_ERRORS)
        if self.model.given is None:
            return AnswerWorth()
        known = bool(self.model.candidates[KNOWN][row])
        return AnswerWorth(known=True) if known else AnswerWorth(Worth.UNTRIED, UNTRIED, known=False)

    def judge_frame(self, problems: pl.DataFrame) -> Verdicts:
        """`judge` for many problems (`problem.*`), as far as it depends on them."""
        outside, by_label, unlike = (np.zeros(problems.height, dtype=bool) for _ in range(3))
        for name, limit in self.coverage.limits.items():
            column = problems[f"problem.{name}"]
            beyond = (~limit.inside_column(column)).to_numpy()
            if limit.parameter.codes or (limit.seen is not None and limit.seen.labels):
                by_label |= beyond & ~outside  # the first parameter outside decides
            outside |= beyond
            if limit.fact is not None:
                unlike |= limit.unlike_column(column).to_numpy()
        if self._without_peak:
            outside |= problems["problem.dtype"].is_in(list(self._without_peak)).to_numpy()
        return Verdicts(outside, by_label, unlike)


def unlike_measured(outside: OutOfRange, away: Away | None = None) -> AnswerWorth:
    """What a value that is unlike all measured ones makes of an answer."""
    return AnswerWorth(Worth.UNLIKE, f"{outside.words}: nothing like it was measured", outside, away)
