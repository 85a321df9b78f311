"""The answers of one model on one device, computed in Python: `Model.predict`, and what selectors do without a compiler."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import polars as pl

from kerncast.core.arrays import Flags, Floats, Ints
from kerncast.core.device import Device
from kerncast.core.expr import Program
from kerncast.core.op import Config, Problem
from kerncast.data import schema
from kerncast.errors import InvalidValue
from kerncast.learning.table import BoundRule, config_rules, problem_rules
from kerncast.models.answer import Answer, Answered, Tier, as_judged, refused_outside, without_choice
from kerncast.models.candidates import Candidates, by_share, library_rows, model_rules
from kerncast.models.limits.configs import Expectation, expectation_of, reach_of, worked_on
from kerncast.models.limits.envelope import NO_ERRORS, AnswerWorth, Envelope, OutOfRange, Verdicts, Worth
from kerncast.models.problem_frames import bare, config_columns, configs_at, problem_frame, problems_in, vectors_in

if TYPE_CHECKING:
    from kerncast.models.model import Bests, Model

Point = Mapping[str, Any]
Bounds = tuple[float | None, float | None]
"""An interval; None: the model has none."""

NO_CONFIG = "no config that the model knows can run this problem"
# Vectors that Python scores in about the time in which a model is compiled.
WORTH_COMPILING = 300_000
TIMES = ("time_ns", "lower_ns", "upper_ns")


class PythonAnswerer:
    """Answers with the configs of a model on one device, by the model itself: without tiers and overrides."""

    def __init__(self, model: Model, device: Device) -> None:
        self.model, self.device, self.family = model, device, model.family
        self._chooses = bool(self.family.config.parameters)
        self.envelope = Envelope(model, device)
        self._away = self.envelope.away
        """Set if the model never saw this device: times are then extrapolated."""

    # -- what is known ---------------------------------------------------------------------------------

    @cached_property
    def _rules(self) -> list[BoundRule]:
        return model_rules(self.model, self.device)

    @cached_property
    def _problem_rules(self) -> list[tuple[BoundRule, Program]]:
        return [(rule, Program({rule.name: rule.holds})) for rule in problem_rules(self._rules)]

    @cached_property
    def candidates(self) -> Candidates:
        """The configs to choose from."""
        found = Candidates(self.model, reach_of(self.model), self.device)
        if self._away is not None and len(self.model.manifest.devices) > 1 and found.reach is not None:
            # A kernel of another generation may not exist here: those of the device that is most alike come first.
            found.preferred = worked_on(self.model, self._away.nearest)
        return found

    @cached_property
    def expectation(self) -> Expectation | None:
        """How good choices are; None: nothing was chosen in training."""
        return expectation_of(self.model)

    @cached_property
    def _compiled(self) -> Bests | None:
        """The same choices, compiled; None if they cannot be, or if the device was not measured."""
        return None if self._away is not None else type(self.model).compiled(self.model)

    @cached_property
    def configs(self) -> list[Config]:
        """The candidates, in the model's order."""
        names, there = list(self.family.config.parameters), self.model.candidates
        # A family with nothing to choose has one config, without parameters.
        rows = there.select([f"config.{name}" for name in names]).iter_rows() if names else (() for _ in range(there.height))
        return [Config.trusted(self.family, dict(zip(names, row, strict=True))) for row in rows]

    def problem(self, values: Point) -> Problem:
        """A problem of the model's family, validated; names may have `problem.` before them."""
        return self.model.problem(bare(values))

    def config(self, values: Point) -> Config:
        """A config of the model's family, validated; names may have `config.` before them."""
        if isinstance(values, Config) and values.family is self.family:
            return values
        return Config(self.family, {str(n).removeprefix("config."): v for n, v in values.items() if v is not None})

    # -- one problem and many --------------------------------------------------------------------------

    def one(self, problem: Point, config: Point | None) -> Answer:
        """The answer to one problem."""
        return self.many([problem], None if config is None else [config])[0]

    def many(self, problems: Sequence[Point], configs: Sequence[Point] | None) -> list[Answer]:
        """An answer for each problem, in order; without configs, for the best config."""
        asked = _each(problems, self.problem, "problem")
        if configs is None and self._chooses:
            return self._bests(asked)
        chosen = _each(configs if configs is not None else [{}] * len(asked), self.config, "config")
        answers = [self.refusal(problem) for problem in asked]
        open_ = [place for place, answer in enumerate(answers) if answer is None]
        if open_:
            frame = self.vectors([asked[place] for place in open_], [chosen[place] for place in open_])
            broken = self._first_broken(config_rules(self._rules), frame)
            note = "" if self.model.recorded else NO_ERRORS
            times = iter(self._times(frame.filter(pl.Series([rule is None for rule in broken]))))
            for place, rule in zip(open_, broken, strict=True):
                answers[place] = (
                    Answer(Answered.UNSUPPORTED, asked[place], reason=rule.sentence)
                    if rule is not None
                    else self.model.promising(
                        self._judged(Answer(Answered.OK, asked[place], chosen[place], *next(times), note=note))
                    )
                )
        return [answer for answer in answers if answer is not None]

    def _judged(self, answer: Answer) -> Answer:
        """The answer, if its device and the like of its problem were measured; else what is left of it."""
        return as_judged(answer, self.envelope.judge(answer.problem))

    def _times(self, frame: pl.DataFrame) -> list[tuple[float, float | None, float | None]]:
        """The time and its bounds, by row."""
        if not frame.height:
            return []
        time_ns, *bounds = self._predicted(frame)
        none = [None] * frame.height
        lower, upper = (none if bound is None else bound.tolist() for bound in bounds)
        return list(zip(time_ns.tolist(), lower, upper, strict=True))

    def _predicted(self, vectors: pl.DataFrame) -> tuple[Floats, Floats | None, Floats | None]:
        """The times of vectors, and their bounds if the model has intervals."""
        predicted = self.model.predict_rows(self.model.describe(vectors, self.device))
        assert predicted.time_ns is not None
        return predicted.time_ns, predicted.lower_ns, predicted.upper_ns

    def vectors(self, problems: Sequence[Problem], configs: Sequence[Config]) -> pl.DataFrame:
        """Problems, each with its config, as stored in a dataset."""
        kinds = schema.schema_of(self.family)
        columns = {f"config.{name}": [item[name] for item in configs] for name in self.family.config.parameters}
        given = [pl.Series(name, values, dtype=kinds[name]) for name, values in columns.items()]
        return self.problem_frame(problems).with_columns(given)

    def problem_frame(self, problems: Sequence[Problem]) -> pl.DataFrame:
        """Problems, as stored in a dataset."""
        return problem_frame(self.family, [problem.as_dict() for problem in problems])

    def _first_broken(self, rules: Sequence[BoundRule], frame: pl.DataFrame) -> list[BoundRule | None]:
        """The first rule that does not hold, by row."""
        found: list[BoundRule | None] = [None] * frame.height
        symbols = schema.symbol_columns(self.family, frame)
        for rule in reversed(rules):
            for place in np.flatnonzero(~_holds(rule, symbols)):
                found[int(place)] = rule
        return found

    def refusal(self, problem: Problem) -> Answer | None:
        """What the rules and the trained range say against a problem."""
        values = self.family.problem.qualified(problem)
        for rule, program in self._problem_rules:
            if not program.scalar(values)[rule.name]:
                return Answer(Answered.UNSUPPORTED, problem, reason=rule.sentence)
        verdict = self.envelope.judge(problem)
        if verdict.worth is not Worth.OUTSIDE:
            return None
        if verdict.outside is None:
            return Answer(Answered.OUT_OF_RANGE, problem, reason=verdict.words)
        return self.outside(problem, verdict.outside, self.fallback(problem))

    @cached_property
    def fallbacks(self) -> tuple[Ints, str]:
        """What runs outside the trained range: candidates in order, and the name of the fallback."""
        if not self._chooses:
            return np.empty(0, np.int64), str(Tier.PORTFOLIO)
        library = library_rows(self.model)
        return (np.array(library, np.int64), "library") if library else (by_share(self.model), str(Tier.PORTFOLIO))

    def fallback(self, problem: Problem) -> int | None:
        """The first fallback that can run the problem, by the rules."""
        rows, _ = self.fallbacks
        allowed = self.candidates.allowed(problem.as_dict(), rows) if len(rows) else np.zeros(0, dtype=bool)
        return int(rows[int(allowed.argmax())]) if allowed.any() else None

    def outside(self, problem: Problem, outside: OutOfRange, fallback: int | None) -> Answer:
        """The refusal of a problem that is outside the trained range: with a fallback, if there is one."""
        config = None if fallback is None else self.configs[fallback]
        return without_choice(self.family, refused_outside(problem, outside, config, self.fallbacks[1]))

    def ranked(self, problem: Point, k: int) -> list[Answer]:
        """The k best configs for a problem, best first: the first one is the answer of `one`. A refusal is a list of one."""
        asked = self.problem(problem)
        if not self._chooses:
            return self.many([asked], None)
        every, refused = self._every(), self.refusal(asked)
        if refused is not None:
            return [refused]
        scores, times = self.candidates.scores(asked.as_dict(), every)
        order = [int(row) for row in np.lexsort((every, scores))[:k] if np.isfinite(scores[row])]
        if not order:
            return [Answer(Answered.NO_VALID_CONFIG, asked, reason=NO_CONFIG)]
        bounds = self.bounds(self.problem_frame([asked] * len(order)), times[order])
        labels = self.model.labels
        return [
            replace(self._chosen(asked, row, float(times[row]), own), label=None if labels is None else labels.of(row, asked))
            for row, own in zip(order, bounds, strict=True)
        ]

    def _every(self) -> Ints:
        """All candidates; a model that records none is refused."""
        if not self.model.candidates.height:
            raise InvalidValue(
                f"{self.model.path} does not record which configs work, so there is nothing to choose from: name a config, or "
                "choose from a list of yours with `Selector(model, configs=…)`"
            )
        return np.arange(self.model.candidates.height)

    def bests(self, problems: Sequence[Point], among: Ints) -> list[Answer]:
        """For each problem the best of some candidates, by their numbers."""
        return self._bests(_each(problems, self.problem, "problem"), among)

    def _bests(self, problems: Sequence[Problem], among: Ints | None = None) -> list[Answer]:
        """For each problem the best config by the model among those that can run it."""
        if among is None:
            self._every()
        answers = [self.refusal(problem) for problem in problems]
        open_ = [place for place, answer in enumerate(answers) if answer is None]
        if not open_:
            return [answer for answer in answers if answer is not None]
        asked = [problems[place] for place in open_]
        frame = self.problem_frame(asked)
        rows, times = self._best_rows(frame, among)
        bounds = self.bounds(frame, times)
        for number, place in enumerate(open_):
            answers[place] = self._chosen(asked[number], int(rows[number]), float(times[number]), bounds[number])
        return [answer for answer in answers if answer is not None]

    def _best_rows(self, problems: pl.DataFrame, among: Ints | None = None) -> tuple[Ints, npt.NDArray[np.float64]]:
        """The best candidate of each problem (`problem.*`) and its time; NaN where none can run it."""
        every = self._every() if among is None else among
        if among is None and problems.height * len(every) >= WORTH_COMPILING and self._compiled is not None:
            return self._compiled(problems)
        if not problems.height:
            return np.empty(0, np.int64), np.empty(0)
        scores, times = self.candidates.scores_of_many(problems, every)
        best = scores.argmin(axis=1)
        chosen = np.where(np.isfinite(scores).any(axis=1), times[np.arange(len(best)), best], np.nan)
        return every[best], chosen

    def bounds(self, problems: pl.DataFrame, time_ns: npt.NDArray[np.float64]) -> list[Bounds]:
        """The interval of each time; a time that is not known has any."""
        if self.model.manifest.interval is None:
            return [(None, None)] * len(time_ns)
        lower, upper = self.envelope.bounds(problems, np.where(np.isfinite(time_ns), time_ns, 1.0))
        return list(zip(lower.tolist(), upper.tolist(), strict=True))

    def _chosen(self, problem: Problem, row: int, time_ns: float, bounds: Bounds) -> Answer:
        if np.isnan(time_ns):
            return Answer(Answered.NO_VALID_CONFIG, problem, reason=NO_CONFIG)
        return self._judged(self.accepted(problem, row, time_ns, bounds, Tier.FULL))

    def accepted(self, problem: Problem, row: int, time_ns: float, bounds: Bounds, tier: Tier) -> Answer:
        """A choice with its time, as a tier answers it."""
        efficiency = None if self.expectation is None else self.expectation.of(time_ns)
        answer = Answer(Answered.OK, problem, self.configs[row], time_ns, *bounds, efficiency, tier)
        judged = as_judged(answer, self.envelope.judge_config(row))
        return self.model.promising(judged) if judged.known is False else judged

    # -- frames ----------------------------------------------------------------------------------------

    def frame(self, given: pl.DataFrame, config: Point | None) -> pl.DataFrame:
        """Columns for a frame: `time_ns`, `lower_ns`, `upper_ns` and `status`; without configs, the best ones too."""
        own = list(config_columns(self.family, given).values())
        if own and config is not None:
            raise InvalidValue(f"the frame already has configs ('{own[0]}'): leave out config=, or drop the column")
        if self._chooses and not own and config is None:
            return self._bests_of_frame(given)
        frame = vectors_in(self.model, given, self.device.name, None if config is None else self.config(config))
        verdicts, symbols = self.envelope.judge_frame(frame), schema.symbol_columns(self.family, frame)
        status = self._status(frame, verdicts)
        for rule in config_rules(self._rules):
            status[~_holds(rule, symbols) & (status == Answered.OK)] = Answered.UNSUPPORTED
        fine, found = status == Answered.OK, {name: np.full(frame.height, np.nan) for name in TIMES}
        if fine.any():
            for name, values in zip(TIMES, self._predicted(frame.filter(pl.Series(fine))), strict=True):
                if values is not None:
                    found[name][fine] = values
        told = pl.DataFrame(self._told(verdicts, status, found))
        if not self.model.always_failed:
            return told
        configs = frame.select(f"config.{item}" for item in self.family.config.parameters).rows()
        failed = pl.Series([config in self.model.always_failed for config in configs], dtype=pl.Boolean)
        return told.with_columns(pl.when(~failed).then(pl.col(*TIMES[1:])))

    def _bests_of_frame(self, given: pl.DataFrame) -> pl.DataFrame:
        """The best config of each problem, its time and the status."""
        self._every()
        problems = problems_in(self.model, given, self.device.name)
        verdicts, rows = self.envelope.judge_frame(problems), np.full(problems.height, -1)
        status = self._status(problems, verdicts)
        fine, found = status == Answered.OK, {name: np.full(problems.height, np.nan) for name in TIMES}
        if fine.any():
            asked = problems.filter(pl.Series(fine))
            rows[fine], found["time_ns"][fine] = self._best_rows(asked)
            none = np.isnan(found["time_ns"])
            rows[none] = -1
            status[fine & none] = Answered.NO_VALID_CONFIG
            if self.model.manifest.interval is not None:
                known = ~none
                bounds = self.envelope.bounds(problems.filter(pl.Series(known)), found["time_ns"][known])
                found["lower_ns"][known], found["upper_ns"][known] = bounds
        return configs_at(self.model, rows).with_columns(self._told(verdicts, status, found))

    def _status(self, problems: pl.DataFrame, verdicts: Verdicts) -> npt.NDArray[np.object_]:
        """By row: what the rules and the trained range say against a problem (`problem.*`); ok: nothing."""
        status = np.full(problems.height, Answered.OK, dtype=object)
        symbols = schema.symbol_columns(self.family, problems, "problem.")
        status[verdicts.outside] = Answered.OUT_OF_RANGE
        if not self._chooses:
            status[verdicts.by_label] = Answered.UNSUPPORTED
        for rule, _ in self._problem_rules:  # they come before its range
            status[~_holds(rule, symbols)] = Answered.UNSUPPORTED
        return status

    def _told(
        self, verdicts: Verdicts, status: npt.NDArray[np.object_], found: dict[str, npt.NDArray[np.float64]]
    ) -> list[pl.Series]:
        """The columns of an answer, if its device and the like of its problem were measured; else what is left of them."""
        fine, away = status == Answered.OK, self._away
        if away is not None:
            bounds = AnswerWorth(away=away).widened(*(found[name] for name in TIMES))
            nothing = np.full(len(status), np.nan)
            found |= {name: nothing if bound is None else bound for name, bound in zip(TIMES[1:], bounds, strict=True)}
            status[fine] = Answered.OK if away.believed else Answered.OUT_OF_RANGE
        status[fine & verdicts.unlike] = Answered.OUT_OF_RANGE
        columns = [pl.Series(name, values).fill_nan(None) for name, values in found.items()]
        return [*columns, pl.Series("status", [str(item) for item in status], dtype=pl.String)]


def _each(given: Sequence[Point], read: Any, what: str) -> list[Any]:
    """Validate every point; if there are several, the error says which one is wrong."""
    found = []
    for number, values in enumerate(given, 1):
        try:
            found.append(read(values))
        except InvalidValue as error:
            raise InvalidValue(f"{what} {number} of {len(given)}: {error}" if len(given) > 1 else str(error)) from error
    return found


def _holds(rule: BoundRule, symbols: pl.DataFrame) -> Flags:
    return np.asarray(Program({rule.name: rule.holds}).frame(symbols, trusted=True).to_series().to_numpy() != 0.0)
