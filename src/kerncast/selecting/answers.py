"""Answers of a selector, from the numbers of the artefact or of Python: candidates become configs, refusals get their words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
import polars as pl

from kerncast.arrays import Floats, Ints
from kerncast.compiling.binding import Reply, reply_of
from kerncast.compiling.lower import Artefact
from kerncast.errors import InvalidValue
from kerncast.models.answer import Answer, Pin, Tier, refused_outside, unlike_measured, with_fallback
from kerncast.models.hull import OutOfRange, against_facts, trained_words
from kerncast.models.model import Model
from kerncast.models.problem_frames import configs_at
from kerncast.models.statuses import C_STATUSES, Answered, Place
from kerncast.models.tier import C_TIER_NAMES
from kerncast.op import Config, Problem

ANSWERED_BY = {number: Tier(name) for number, name in enumerate(C_TIER_NAMES) if name in set(Tier)}
PINS = {1: Pin.DECIDED, 2: Pin.NOT_APPLIED}
NUMBERS = ("time_ns", "lower_ns", "upper_ns", "efficiency")
UNSURE = "the tree is unsure about this problem"


class Answers:
    """Makes the answers of one artefact."""

    def __init__(self, model: Model, artefact: Artefact) -> None:
        self.model, self.artefact, self._labels = model, artefact, model.labels

    @cached_property
    def configs(self) -> list[Config]:
        """The candidates, in the model's order."""
        names = [f"config.{name}" for name in self.model.family.config.parameters]
        rows = self.model.candidates.select(names).iter_rows() if names else (() for _ in range(self.artefact.candidates))
        keys = list(self.model.family.config.parameters)
        return [Config.trusted(self.model.family, dict(zip(keys, row, strict=True))) for row in rows]

    def label(self, row: int, problem: Problem) -> str | None:
        """What a candidate is called in the training data, for a problem."""
        return None if self._labels is None else self._labels.of(row, problem)

    def chosen(
        self, problem: Problem, tier: Tier, candidate: int, time_ns: float, lower: float, upper: float, efficiency: float
    ) -> Answer:
        """An answer from the artefact's numbers, where negative means unknown."""
        return Answer.quick(
            problem,
            self.configs[candidate],
            time_ns if time_ns >= 0 else None,
            lower if lower >= 0 else None,
            upper if upper >= 0 else None,
            efficiency if efficiency >= 0 else None,
            tier,
            None if self._labels is None else self._labels.of(candidate, problem),
        )

    def of_reply(self, problem: Problem, reply: Reply) -> Answer:
        """What the artefact replied, as an answer."""
        if reply.status is Answered.OK:
            figures = reply.time_ns, reply.lower_ns, reply.upper_ns, reply.efficiency
            answer = self.chosen(problem, Tier(reply.tier), reply.candidate, *figures)
            return answer if not reply.pin else replace(answer, pin=PINS[reply.pin], reason=reply.message)
        if reply.status is Answered.OUT_OF_RANGE and reply.tier in ANSWERED_BY.values():
            figures = reply.time_ns, reply.lower_ns, reply.upper_ns, reply.efficiency
            answer = self.chosen(problem, Tier(reply.tier), reply.candidate, *figures)
            return unlike_measured(replace(answer, pin=PINS.get(reply.pin)), against_facts(self.model, problem))
        if reply.status is Answered.OUT_OF_RANGE:
            name = list(self.model.family.problem.parameters)[reply.parameter]
            fallback = reply.candidate if reply.candidate >= 0 else None
            return replace(self.outside(problem, name, fallback), pin=PINS.get(reply.pin))
        if reply.status is Answered.UNSURE:
            return replace(self.unsure(problem, reply.candidate if reply.candidate >= 0 else None), pin=PINS.get(reply.pin))
        if Place.PYTHON not in reply.status.places:
            raise InvalidValue(reply.message)
        return Answer(reply.status, problem, reason=reply.message)

    def frame(self, problems: pl.DataFrame, replies: npt.NDArray[np.void]) -> pl.DataFrame:
        """What the artefact replied to valid problems (`problem.*`), as columns; only refusals and pins become objects."""
        answered, tier = replies["status"], replies["tier"]
        unlike = (answered == Answered.OUT_OF_RANGE.number) & np.isin(tier, list(ANSWERED_BY))
        chose = (answered == Answered.OK.number) | unlike
        rows = np.where(chose, replies["candidate"], -1)
        reasons: list[str] = [""] * len(replies)
        for place in np.flatnonzero((answered != Answered.OK.number) | (replies["pin"] != 0)):
            values = problems.row(int(place), named=True)
            problem = Problem.trusted(self.model.family, {name.removeprefix("problem."): v for name, v in values.items()})
            reasons[place] = self.of_reply(problem, reply_of(replies[place])).reason
        numbers = {name: np.where(chose & (replies[name] >= 0), replies[name], np.nan) for name in NUMBERS}
        tiers = np.array([*C_TIER_NAMES, None], dtype=object)[np.where(chose, tier, -1)]
        return self._columns(rows, numbers, tiers, np.array(C_STATUSES, dtype=object)[answered], reasons, problems)

    def frame_of(self, answers: Sequence[Answer], problems: pl.DataFrame) -> pl.DataFrame:
        """The same of answers that Python gave."""
        place = {config: row for row, config in enumerate(self.configs)}
        rows = np.array([-1 if item.config is None else place[item.config] for item in answers], np.int64)
        numbers = {name: np.array([getattr(item, name) for item in answers], np.float64) for name in NUMBERS}
        tiers, status = ([getattr(item, name) for item in answers] for name in ("tier", "status"))
        return self._columns(rows, numbers, tiers, status, [item.reason for item in answers], problems)

    def _columns(
        self, rows: Ints, numbers: Mapping[str, Floats], tiers: Iterable[str | None], status: Iterable[str],
        reasons: Sequence[str], problems: pl.DataFrame,
    ) -> pl.DataFrame:  # fmt: skip
        columns = [pl.Series(name, values).fill_nan(None) for name, values in numbers.items()]
        columns.append(pl.Series("tier", [None if tier is None else str(tier) for tier in tiers], pl.String))
        if self._labels is not None:
            by = [problems[f"problem.{name}"].to_list() for name in self._labels.by]
            columns.append(pl.Series("label", self._labels.of_many(rows.tolist(), by), pl.String))
        columns.append(pl.Series("status", [str(item) for item in status], pl.String))
        columns.append(pl.Series("reason", reasons, pl.String).replace("", None))
        return configs_at(self.model, rows).with_columns(columns)

    def untimed(self, problem: Problem, row: int, tier: Tier) -> Answer:
        """A choice without a time."""
        return Answer(Answered.OK, problem, self.configs[row], tier=tier, label=self.label(row, problem))

    def unsure(self, problem: Problem, fallback: int | None) -> Answer:
        """The tree is alone and does not decide: a fallback, if there is one."""
        refused = Answer(Answered.UNSURE, problem, reason=UNSURE)
        if fallback is None:
            return refused
        refused = with_fallback(refused, self.configs[fallback], self.artefact.fallbacks[1])
        return replace(refused, label=self.label(fallback, problem))

    def outside(self, problem: Problem, name: str, fallback: int | None) -> Answer:
        """A problem whose parameter `name` is outside the trained range: a fallback, if there is one."""
        value, rule = (
            problem[name],
            trained_words(self.model.family.problem.parameters[name], self.model.manifest.hull.get(name)),
        )
        assert value is not None
        config = None if fallback is None else self.configs[fallback]
        refused = refused_outside(problem, OutOfRange(name, value, rule), config, self.artefact.fallbacks[1])
        return refused if fallback is None else replace(refused, label=self.label(fallback, problem))
