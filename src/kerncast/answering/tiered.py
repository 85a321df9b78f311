"""What answers for one model: its artefact's rules, trained range, pins, tiers and rankings.

In Python, and compiled: problems become numbers of C, and its replies become the same answers, in the words of Python.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from kerncast.core.arrays import Floats, Ints
from kerncast.core.expr import Program
from kerncast.core.op import Config, Problem
from kerncast.core.space import Space
from kerncast.errors import InvalidValue
from kerncast.models.answer import (
    C_STATUSES,
    C_TIER_NAMES,
    CHOOSING,
    Answer,
    Answered,
    Pin,
    StatusPlace,
    Tier,
    as_judged,
    refused_outside,
    with_fallback,
)
from kerncast.models.answerer import NO_CONFIG, PythonAnswerer
from kerncast.models.limits.configs import Expectation
from kerncast.models.limits.envelope import OutOfRange
from kerncast.models.problem_frames import configs_at
from kerncast.native import MISSING
from kerncast.native.binding import Binding, Reply, reply_of
from kerncast.native.interpreter import Interpreter
from kerncast.native.lower import Artefact
from kerncast.native.overrides import Decided

NONE_GIVEN = "none of the configs that were given can run this problem"
UNSURE = "the tree is unsure about this problem"
NUMBERS = ("time_ns", "lower_ns", "upper_ns", "efficiency")
# A call takes tens of milliseconds in Python: after this long, and so many calls, the others would say nothing new.
TIMED_SECONDS, FEWEST_TIMED = 1.0, 20


class TieredAnswerer(PythonAnswerer):
    """Answers by the tiers of an artefact, under the overrides that apply."""

    is_compiled = False

    def __init__(self, artefact: Artefact) -> None:
        super().__init__(artefact.model, artefact.model.device)
        self.artefact, self.labels = artefact, artefact.model.labels
        self.decided: Decided | None = None
        """What is overridden; None: nothing."""
        self._no_config = NO_CONFIG if self.model.given is None else NONE_GIVEN

    @cached_property
    def candidates(self) -> Interpreter:
        return Interpreter(self.artefact)

    @property
    def expectation(self) -> Expectation | None:
        return self.artefact.tiers.expectation

    @cached_property
    def fallbacks(self) -> tuple[Ints, str]:
        rows, called = self.artefact.fallbacks
        return np.array(rows, np.int64), called

    def override(self, decided: Decided | None, applied: Decided) -> None:
        """Apply other overrides; `applied` says the same where there are none."""
        self.candidates.available = applied.available
        self.decided = decided

    def label(self, row: int, problem: Problem) -> str | None:
        """What a candidate is called in the training data, for a problem."""
        return None if self.labels is None else self.labels.of(row, problem)

    # -- answers without a time ------------------------------------------------------------------------

    def untimed(self, problem: Problem, row: int, tier: Tier) -> Answer:
        """A choice without a time."""
        return Answer(Answered.OK, problem, self.configs[row], tier=tier, label=self.label(row, problem))

    def unsure(self, problem: Problem, fallback: int | None) -> Answer:
        """The tree is alone and does not decide: a fallback, if there is one."""
        refused = Answer(Answered.UNSURE, problem, reason=UNSURE)
        if fallback is None:
            return refused
        refused = with_fallback(refused, self.configs[fallback], self.fallbacks[1])
        return replace(refused, label=self.label(fallback, problem))

    def outside(self, problem: Problem, outside: OutOfRange, fallback: int | None) -> Answer:
        config = None if fallback is None else self.configs[fallback]
        refused = refused_outside(problem, outside, config, self.fallbacks[1])
        return refused if fallback is None else replace(refused, label=self.label(fallback, problem))

    # -- pins ------------------------------------------------------------------------------------------

    def with_pin(self, answer: Answer, pin: Pin) -> Answer:
        """The answer with what became of a pin; if the pin is not applied, a choice says why."""
        reason = answer.reason
        if pin is Pin.NOT_APPLIED and answer.ok:
            row = self._pinned(answer.problem)
            reason = f"the pin to candidate {row} is not applied: {self._pin_refusal(answer.problem, row)}"
        return replace(answer, pin=pin, reason=reason)

    def _pinned(self, problem: Problem) -> int:
        return -1 if self.decided is None else self.decided.pin_for(problem.as_dict())

    def _pin_refusal(self, problem: Problem, row: int) -> str | None:
        """Why a pinned config is not used on a problem."""
        if self.decided is not None and not self.decided.available[row]:
            return "it is not available"
        values = {
            **self.family.problem.qualified(problem.as_dict()),
            **self.family.config.qualified(self.configs[row].as_dict()),
        }
        for rule in self.artefact.config_rules:
            if not Program({rule.name: rule.holds}).scalar(values)[rule.name]:
                return rule.sentence
        return None

    def _before_asking(self, problem: Problem) -> tuple[Answer | None, Answer | None]:
        """What a pin says (an answer, decided or not applied), and what the rules and the trained range say: a refusal."""
        refused, row = self.refusal(problem), self._pinned(problem)
        if row < 0 or (refused is not None and refused.status is not Answered.OUT_OF_RANGE):
            return None, refused
        if self._pin_refusal(problem, row) is not None:
            return Answer(Answered.OK, problem, pin=Pin.NOT_APPLIED), refused
        if refused is not None:  # a pin decides outside the trained range too, without a time
            return replace(self.untimed(problem, row, Tier.PIN), pin=Pin.DECIDED), refused
        alone = self.artefact.alone
        chosen = self.untimed(problem, row, Tier.PIN) if alone else self._timed(problem, row, Tier.PIN)
        return replace(chosen, pin=Pin.DECIDED), None

    # -- one problem -----------------------------------------------------------------------------------

    def ask(self, problem: Problem, tier: Tier) -> Answer:
        """The answer of a tier."""
        decided, refused = self._before_asking(problem)
        if decided is not None and decided.pin is Pin.DECIDED:
            return decided
        answer = refused or self._judged(self._first_tier(problem, tier))
        return answer if decided is None else self.with_pin(answer, Pin.NOT_APPLIED)

    def _first_tier(self, problem: Problem, tier: Tier) -> Answer:
        """The answer of the first tier, from the one asked for on, that has a config which can run."""
        values = problem.as_dict()
        if tier is Tier.TREE:
            row = self.candidates.tree_choice(values)
            if row is not None:
                return self.untimed(problem, row, Tier.TREE)
        if self.artefact.alone:
            return self.unsure(problem, self.fallback(problem))
        if tier is not Tier.FULL and Tier.PORTFOLIO in self.artefact.include:
            row = self.candidates.portfolio_choice(values)
            if row is not None:
                return self._timed(problem, row, Tier.PORTFOLIO)
        if Tier.FULL not in self.artefact.include:
            return Answer(Answered.NO_VALID_CONFIG, problem, reason=NO_CONFIG)
        rows = self.artefact.members(Tier.FULL)
        scores, times = self.candidates.scores(values, rows)
        if not np.isfinite(scores).any():
            return Answer(Answered.NO_VALID_CONFIG, problem, reason=self._no_config)
        best = int(scores.argmin())
        return self._accepted(problem, best, float(times[best]), Tier.FULL)

    def _timed(self, problem: Problem, row: int, tier: Tier) -> Answer:
        return self._accepted(problem, row, self.candidates.time_of(problem.as_dict(), row), tier)

    def _accepted(self, problem: Problem, row: int, time_ns: float, tier: Tier) -> Answer:
        (bounds,) = self.bounds(self.problem_frame([problem]), np.array([time_ns]))
        return replace(self.accepted(problem, row, time_ns, bounds, tier), label=self.label(row, problem))

    # -- more than the best ----------------------------------------------------------------------------

    def rank(self, problem: Problem, tier: Tier, k: int) -> list[Answer]:
        """The k best configs, best first: those of the tier, then all others."""
        decided, refused = self._before_asking(problem)
        if refused is not None:
            if decided is not None:
                return [decided if decided.pin is Pin.DECIDED else self.with_pin(refused, Pin.NOT_APPLIED)]
            return [refused]
        ranked = [decided] if decided is not None and decided.pin is Pin.DECIDED else []
        listed = {item.config for item in ranked}
        if self.artefact.alone:
            rows = self.candidates.leaf(problem.as_dict())[0]
            found = [self.untimed(problem, int(row), Tier.TREE) for row in rows]
            if not found and not ranked:
                ranked.append(self.unsure(problem, self.fallback(problem)))
            ranked = [*ranked, *(item for item in found if item.config not in listed)][:k]
        pools = [Tier.PORTFOLIO, Tier.FULL] if tier is not Tier.FULL else [Tier.FULL]
        for each in [pool for pool in pools if pool in self.artefact.include]:
            ranked += self._others(problem, each, k - len(ranked), {item.config for item in ranked})
            if len(ranked) >= k:
                break
        if not ranked:
            return [Answer(Answered.NO_VALID_CONFIG, problem, reason=self._no_config)]
        if decided is not None and decided.pin is Pin.NOT_APPLIED:
            ranked[0] = self.with_pin(ranked[0], Pin.NOT_APPLIED)
        return [item if item.pin is Pin.DECIDED else self._judged(item) for item in ranked]

    def _others(self, problem: Problem, tier: Tier, count: int, listed: set[Config | None]) -> list[Answer]:
        """The best configs of a tier that are not listed yet, at most `count`."""
        rows = self.artefact.members(tier)
        scores, times = self.candidates.scores(problem.as_dict(), rows)
        order = [i for i in np.lexsort((rows, scores)) if np.isfinite(scores[i]) and self.configs[rows[i]] not in listed]
        return [self._accepted(problem, int(rows[i]), float(times[i]), tier) for i in order[: max(0, count)]]

    def scores(self, problem: Problem, tier: Tier) -> tuple[Floats, Floats]:
        """Scores and times of the configs of a tier."""
        return self.candidates.scores(problem.as_dict(), self.scored(tier))

    def scored(self, tier: Tier) -> Ints:
        """The candidates that a tier compares; a tree leaves the problem to the portfolio."""
        return self.artefact.members(Tier.FULL if tier is Tier.FULL else Tier.PORTFOLIO)

    def latencies_us(self, problems: Sequence[Problem], tier: Tier) -> Floats:
        """Microseconds per call, without the memo, for about a second."""
        found: list[float] = []
        for problem in problems:
            if len(found) >= FEWEST_TIMED and sum(found) > TIMED_SECONDS:
                break
            begin = time.perf_counter()
            self.ask(problem, tier)
            found.append(time.perf_counter() - begin)
        return np.array(found) * 1e6

    # -- frames ----------------------------------------------------------------------------------------

    def columns_of(self, answers: Sequence[Answer], problems: pl.DataFrame) -> pl.DataFrame:
        """Answers to valid problems (`problem.*`), as columns."""
        place = {config: row for row, config in enumerate(self.configs)}
        rows = np.array([-1 if item.config is None else place[item.config] for item in answers], np.int64)
        numbers = {name: np.array([getattr(item, name) for item in answers], np.float64) for name in NUMBERS}
        tiers, status = ([getattr(item, name) for item in answers] for name in ("tier", "status"))
        return self.columns(rows, numbers, tiers, status, [item.reason for item in answers], problems)

    def columns(
        self, rows: Ints, numbers: Mapping[str, Floats], tiers: Iterable[str | None], status: Iterable[str],
        reasons: Sequence[str], problems: pl.DataFrame,
    ) -> pl.DataFrame:  # fmt: skip
        """The columns of answers: candidates by their numbers (negative: none), figures (NaN: unknown), and words."""
        columns = [pl.Series(name, values).fill_nan(None) for name, values in numbers.items()]
        columns.append(pl.Series("tier", [None if tier is None else str(tier) for tier in tiers], pl.String))
        if self.labels is not None:
            by = [problems[f"problem.{name}"].to_list() for name in self.labels.by]
            columns.append(pl.Series("label", self.labels.of_many(rows.tolist(), by), pl.String))
        columns.append(pl.Series("status", [str(item) for item in status], pl.String))
        columns.append(pl.Series("reason", reasons, pl.String).replace("", None))
        return configs_at(self.model, rows).with_columns(columns)


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
        if StatusPlace.PYTHON not in reply.status.places:
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
