"""Answers of a compiled artefact: problems become its numbers, its replies become answers, in the words of Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from kerncast.answering.tiered import NUMBERS, TieredAnswerer
from kerncast.core.arrays import Floats, Ints
from kerncast.core.op import Problem
from kerncast.core.space import Space
from kerncast.errors import InvalidValue
from kerncast.models.answer import Answer, Pin, Tier, as_judged
from kerncast.models.limits.trained import OutOfRange
from kerncast.models.statuses import C_STATUSES, Answered, Place
from kerncast.models.tier import C_TIER_NAMES, CHOOSING
from kerncast.native.binding import Binding, Reply, reply_of
from kerncast.native.encoding import MISSING
from kerncast.native.overrides import Decided

ANSWERED_BY = {number: Tier(name) for number, name in enumerate(C_TIER_NAMES) if name in set(Tier)}
TIER_NUMBERS = {tier: C_TIER_NAMES.index(tier) for tier in CHOOSING}
PINS = {1: Pin.DECIDED, 2: Pin.NOT_APPLIED}


class NativeAnswerer:
    """Answers of one artefact through its binding; `python` answers the same, and finds the words."""

    is_compiled = True

    def __init__(self, python: TieredAnswerer, binding: Binding) -> None:
        self.python, self.binding = python, binding
        self.encode = Encoder(python.family.problem)

    def override(self, decided: Decided | None, applied: Decided) -> None:
        """Apply other overrides; `applied` says the same where there are none."""
        self.binding.override(applied)
        self.python.override(decided, applied)

    def ask(self, problem: Problem, tier: Tier) -> Answer:
        """The answer of a tier."""
        found = self.binding.quick(self.encode(problem), TIER_NUMBERS[tier])
        if isinstance(found, Reply):
            return self.of_reply(problem, found)
        answered, candidate, time_ns, lower, upper, efficiency, pin = found
        answer = self._chosen(problem, ANSWERED_BY[answered], candidate, time_ns, lower, upper, efficiency)
        return answer if not pin else self.python.with_pin(answer, PINS[pin])

    def ask_many(self, problems: Sequence[Problem], tier: Tier) -> list[Answer]:
        """An answer to each problem, in order."""
        numbers = np.array([self.encode(item) for item in problems], np.int64).reshape(len(problems), -1)
        replies = self.binding.select_many(numbers, tier)
        return [self.of_reply(item, reply_of(row)) for item, row in zip(problems, replies, strict=True)]

    def rank(self, problem: Problem, tier: Tier, k: int) -> list[Answer]:
        """The k best configs, best first: those of the tier, then all others."""
        return [self.of_reply(problem, reply) for reply in self.binding.rank(self.encode(problem), tier, k)]

    def scores(self, problem: Problem, tier: Tier) -> tuple[Floats, Floats]:
        """Scores and times of the configs of a tier."""
        return self.binding.scores(self.encode(problem), tier, len(self.python.scored(tier)))

    def latencies_us(self, problems: Sequence[Problem], tier: Tier) -> Floats:
        """Microseconds per call, without the memo."""
        return self.binding.latencies_us([self.encode(problem) for problem in problems], tier)

    def replies(self, problems: pl.DataFrame, tier: Tier) -> npt.NDArray[np.void]:
        """What the artefact replies to valid problems (`problem.*`, in stored types): a row each."""
        return self.binding.select_many(self.encode.frame(problems), tier)

    def of_reply(self, problem: Problem, reply: Reply) -> Answer:
        """What the artefact replied, as an answer."""
        fallback, pin = reply.candidate if reply.candidate >= 0 else None, PINS.get(reply.pin)
        chosen = reply.tier in ANSWERED_BY.values()
        if reply.status is Answered.OK or (reply.status is Answered.OUT_OF_RANGE and chosen):
            figures = reply.time_ns, reply.lower_ns, reply.upper_ns, reply.efficiency
            answer = self._chosen(problem, Tier(reply.tier), reply.candidate, *figures)
            if reply.status is not Answered.OK:
                return as_judged(replace(answer, pin=pin), self.python.envelope.judge(problem))
            return answer if pin is None else replace(answer, pin=pin, reason=reply.message)
        if reply.status is Answered.OUT_OF_RANGE:
            name = list(problem)[reply.parameter]
            return replace(self.python.outside(problem, self._outside(problem, name), fallback), pin=pin)
        if reply.status is Answered.UNSURE:
            return replace(self.python.unsure(problem, fallback), pin=pin)
        if Place.PYTHON not in reply.status.places:
            raise InvalidValue(reply.message)
        return Answer(reply.status, problem, reason=reply.message)

    def _chosen(
        self, problem: Problem, tier: Tier, candidate: int, time_ns: float, lower: float, upper: float, efficiency: float
    ) -> Answer:
        """An answer from the artefact's numbers, where negative means unknown."""
        return Answer.quick(
            problem,
            self.python.configs[candidate],
            time_ns if time_ns >= 0 else None,
            lower if lower >= 0 else None,
            upper if upper >= 0 else None,
            efficiency if efficiency >= 0 else None,
            tier,
            self.python.label(candidate, problem),
        )

    def _outside(self, problem: Problem, name: str) -> OutOfRange:
        """The parameter that is outside the trained range, in words."""
        value = problem[name]
        assert value is not None
        return OutOfRange(name, value, self.python.envelope.coverage.limits[name].words)

    def frame(self, problems: pl.DataFrame, tier: Tier) -> pl.DataFrame:
        """The answers to valid problems (`problem.*`), as columns; only refusals and pins become objects."""
        replies = self.replies(problems, tier)
        answered, by = replies["status"], replies["tier"]
        unlike = (answered == Answered.OUT_OF_RANGE.number) & np.isin(by, list(ANSWERED_BY))
        chose = (answered == Answered.OK.number) | unlike
        reasons: list[str] = [""] * len(replies)
        for place in np.flatnonzero((answered != Answered.OK.number) | (replies["pin"] != 0)):
            values = problems.row(int(place), named=True)
            problem = Problem.trusted(self.python.family, {name.removeprefix("problem."): v for name, v in values.items()})
            reasons[place] = self.of_reply(problem, reply_of(replies[place])).reason
        numbers: Mapping[str, Floats] = {
            name: np.where(chose & (replies[name] >= 0), replies[name], np.nan) for name in NUMBERS
        }
        tiers = np.array([*C_TIER_NAMES, None], dtype=object)[np.where(chose, by, -1)]
        rows = np.where(chose, replies["candidate"], -1)
        return self.python.columns(rows, numbers, tiers, np.array(C_STATUSES, dtype=object)[answered], reasons, problems)


class Encoder:
    """Valid problems as the numbers that C reads; the tables are made once."""

    def __init__(self, space: Space) -> None:
        self._names = list(space.parameters)
        # Labels and flags by a table, whole numbers as they are.
        self._codes: list[dict[Any, int] | None] = [
            {parameter.value(i): parameter.number(i) for i in range(parameter.size)} if parameter.codes else None
            for parameter in space.parameters.values()
        ]

    def __call__(self, problem: Problem) -> list[int]:
        return [
            MISSING if value is None else int(value) if codes is None else codes[value]
            for (_, value), codes in zip(problem._values, self._codes, strict=True)
        ]

    def frame(self, problems: pl.DataFrame) -> Ints:
        """Valid problems (`problem.*`, in stored types) as rows of numbers."""
        found = np.empty((problems.height, len(self._names)), np.int64)
        for place, (name, codes) in enumerate(zip(self._names, self._codes, strict=True)):
            column = problems[f"problem.{name}"]
            if codes is not None:
                column = column.replace_strict(codes, default=None, return_dtype=pl.Int64)
            found[:, place] = column.cast(pl.Int64).fill_null(MISSING).to_numpy()
        return found
