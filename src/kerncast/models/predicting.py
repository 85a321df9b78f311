"""`Model.predict`: from a user's problems and configs to answers, without a compiler and without tiers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import polars as pl

from kerncast.arrays import Flags, Ints
from kerncast.data import schema
from kerncast.device import Device
from kerncast.errors import InvalidValue
from kerncast.expr import Program
from kerncast.models.answer import Answer, Tier, refused_outside, unlike_measured, without_choice
from kerncast.models.candidates import Candidates, by_share, library_rows
from kerncast.models.elsewhere import away_from, no_peak, without_peak
from kerncast.models.expectation import Expectation, expectation_of
from kerncast.models.hull import OutOfRange, against_facts, only_absent, outside_hull
from kerncast.models.problem_frames import configs_at, problems_in, vectors_in
from kerncast.models.reach import reach_of, worked_on
from kerncast.models.rules import Rule, config_rules, model_rules, problem_rules
from kerncast.models.statuses import Answered
from kerncast.op import Config, Problem

if TYPE_CHECKING:
    from kerncast.models.model import Bests, Model

Point = Mapping[str, Any]

NO_CONFIG = "no config that the model knows can run this problem"
# Vectors that Python scores in about the time in which a model is compiled.
WORTH_COMPILING = 300_000
TIMES = ("time_ns", "lower_ns", "upper_ns")


class Predictor:
    """Predicts with a model on one device."""

    def __init__(self, model: Model, device: Device) -> None:
        self.model, self.device, self.family = model, device, model.family
        self._chooses = bool(self.family.config.parameters)
        self._note = "" if model.recorded else model.NO_ERRORS
        self._away = away_from(model, device)
        """Set if the model never saw this device: times are then extrapolated."""
        self._without_peak = without_peak(model, device) if self._away is not None else frozenset()

    # -- what is known ---------------------------------------------------------------------------------

    @cached_property
    def _rules(self) -> list[Rule]:
        return model_rules(self.model, self.device)

    @cached_property
    def _problem_rules(self) -> list[tuple[Rule, Program]]:
        return [(rule, Program({rule.name: rule.holds})) for rule in problem_rules(self._rules)]

    @cached_property
    def _candidates(self) -> Candidates:
        found = Candidates(self.model, reach_of(self.model), self.device)
        if self._away is not None and len(self.model.manifest.devices) > 1 and found.reach is not None:
            # A kernel of another generation may not exist here: those of the device that is most alike come first.
            found.preferred = worked_on(self.model, self._away.nearest)
        return found

    @cached_property
    def _expectation(self) -> Expectation | None:
        return expectation_of(self.model)

    @cached_property
    def _compiled(self) -> Bests | None:
        """The same choices, compiled; None if they cannot be, or if the device was not measured."""
        return None if self._away is not None else type(self.model).compiled(self.model)

    @cached_property
    def _configs(self) -> list[Config]:
        names = list(self.family.config.parameters)
        rows = self.model.candidates.select([f"config.{name}" for name in names]).iter_rows()
        return [Config.trusted(self.family, dict(zip(names, row, strict=True))) for row in rows]

    def problem(self, values: Point) -> Problem:
        """A problem of the model's family, validated; names may have `problem.` before them."""
        if isinstance(values, Problem):
            if values.family is self.family:
                return values
            if values.op is not self.family.op:
                raise InvalidValue(f"the model is of {self.family.op.name}, the problem of {values.op.name}")
        elif not isinstance(values, Mapping):
            raise InvalidValue(f"a problem is a mapping of parameters to values, got {type(values).__name__}")
        return self.model.problem({str(n).removeprefix("problem."): v for n, v in values.items() if v is not None})

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
        answers = [self._refusal(problem) for problem in asked]
        open_ = [place for place, answer in enumerate(answers) if answer is None]
        if open_:
            frame = self.vectors([asked[place] for place in open_], [chosen[place] for place in open_])
            broken = self._first_broken(config_rules(self._rules), frame)
            times = iter(self._times(frame.filter(pl.Series([rule is None for rule in broken]))))
            for place, rule in zip(open_, broken, strict=True):
                answers[place] = (
                    Answer(Answered.UNSUPPORTED, asked[place], reason=rule.sentence)
                    if rule is not None
                    else self._judged(Answer(Answered.OK, asked[place], chosen[place], *next(times), note=self._note))
                )
        return [answer for answer in answers if answer is not None]

    def _judged(self, answer: Answer) -> Answer:
        """The answer, if its device and the like of its problem were measured; else what is left of it."""
        away = self._away
        if away is None:
            return unlike_measured(answer, against_facts(self.model, answer.problem))
        assert answer.time_ns is not None
        lower, upper = (None, None) if away.factors is None else _widened(answer, away.factors)
        answer = replace(answer, lower_ns=lower, upper_ns=upper, efficiency=None)
        if away.believed:
            return unlike_measured(replace(answer, note=away.words), against_facts(self.model, answer.problem))
        own = ", ".join(record.name for record in self.model.manifest.devices)
        return replace(
            answer, status=Answered.OUT_OF_RANGE, reason=away.words, outside=OutOfRange("device", self.device.name, own)
        )

    def _times(self, frame: pl.DataFrame) -> list[tuple[float, float | None, float | None]]:
        """The time and its bounds, by row."""
        if not frame.height:
            return []
        rows = self.model.predict_vectors(frame, self.device).iter_rows(named=True)
        return [(row["time_ns"], row.get("lower_ns"), row.get("upper_ns")) for row in rows]

    def vectors(self, problems: Sequence[Problem], configs: Sequence[Config]) -> pl.DataFrame:
        """Problems, each with its config, as stored in a dataset."""
        kinds = schema.schema_of(self.family)
        columns = {f"config.{name}": [item[name] for item in configs] for name in self.family.config.parameters}
        given = [pl.Series(name, values, dtype=kinds[name]) for name, values in columns.items()]
        return self._problem_frame(problems).with_columns(given)

    def _problem_frame(self, problems: Sequence[Problem]) -> pl.DataFrame:
        kinds, rows = schema.schema_of(self.family), [problem.as_dict() for problem in problems]
        columns = {f"problem.{name}": [row[name] for row in rows] for name in self.family.problem.parameters}
        return pl.DataFrame({name: pl.Series(name, values, dtype=kinds[name]) for name, values in columns.items()})

    def _first_broken(self, rules: Sequence[Rule], frame: pl.DataFrame) -> list[Rule | None]:
        """The first rule that does not hold, by row."""
        found: list[Rule | None] = [None] * frame.height
        symbols = schema.symbol_columns(self.family, frame)
        for rule in reversed(rules):
            for place in np.flatnonzero(~_holds(rule, symbols)):
                found[int(place)] = rule
        return found

    def _refusal(self, problem: Problem) -> Answer | None:
        values = self.family.problem.qualified(problem)
        for rule, program in self._problem_rules:
            if not program.scalar(values)[rule.name]:
                return Answer(Answered.UNSUPPORTED, problem, reason=rule.sentence)
        outside = outside_hull(self.model, problem)
        if not outside and problem.get("dtype") in self._without_peak:
            return Answer(Answered.OUT_OF_RANGE, problem, reason=no_peak(self.device, str(problem["dtype"])))
        if not outside:
            return None
        library = library_rows(self.model) if self._chooses else []
        rows = np.array(library, np.int64) if library else by_share(self.model) if self._chooses else np.empty(0, np.int64)
        allowed = self._candidates.allowed(problem, rows) if len(rows) else np.zeros(0, dtype=bool)
        fallback = self._configs[int(rows[int(allowed.argmax())])] if allowed.any() else None
        return without_choice(
            self.family, refused_outside(problem, outside[0], fallback, "library" if library else "portfolio")
        )

    def ranked(self, problem: Point, k: int) -> list[Answer]:
        """The k best configs for a problem, best first: the first one is the answer of `one`. A refusal is a list of one."""
        asked = self.problem(problem)
        if not self._chooses:
            return self.many([asked], None)
        every, refused = self._every(), self._refusal(asked)
        if refused is not None:
            return [refused]
        scores, times = self._candidates.scores(asked.as_dict(), every)
        order = [int(row) for row in np.lexsort((every, scores))[:k] if np.isfinite(scores[row])]
        if not order:
            return [Answer(Answered.NO_VALID_CONFIG, asked, reason=NO_CONFIG)]
        bounds = self._bounds(self._problem_frame([asked] * len(order)), times[order])
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
        answers = [self._refusal(problem) for problem in problems]
        open_ = [place for place, answer in enumerate(answers) if answer is None]
        if not open_:
            return [answer for answer in answers if answer is not None]
        asked = [problems[place] for place in open_]
        frame = self._problem_frame(asked)
        rows, times = self._best_rows(frame, among)
        bounds = self._bounds(frame, times)
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
        names = [name.removeprefix("problem.") for name in problems.columns]
        rows = (dict(zip(names, row, strict=True)) for row in problems.iter_rows())
        first = next(rows)
        if self.model.built_for(first) is None:
            scores, times = self._candidates.scores_of_many(problems, every)
        else:  # which of them are there depends on the problem
            found_ = [self._candidates.scores(values, every) for values in (first, *rows)]
            scores, times = (np.stack(part) for part in zip(*found_, strict=True))
        best = scores.argmin(axis=1)
        chosen = np.where(np.isfinite(scores).any(axis=1), times[np.arange(len(best)), best], np.nan)
        return every[best], chosen

    def _bounds(self, problems: pl.DataFrame, time_ns: npt.NDArray[np.float64]) -> list[tuple[float | None, float | None]]:
        """The interval of each time; a time that is not known has any."""
        if self.model.manifest.interval is None:
            return [(None, None)] * len(time_ns)
        lower, upper = self.model.bounds_of(problems, np.where(np.isfinite(time_ns), time_ns, 1.0))
        return list(zip(lower.tolist(), upper.tolist(), strict=True))

    def _chosen(self, problem: Problem, row: int, time_ns: float, bounds: tuple[float | None, float | None]) -> Answer:
        if np.isnan(time_ns):
            return Answer(Answered.NO_VALID_CONFIG, problem, reason=NO_CONFIG)
        efficiency = None if self._expectation is None else self._expectation.of(time_ns)
        answer = Answer(Answered.OK, problem, self._configs[row], time_ns, *bounds, efficiency, Tier.FULL)
        return self._judged(self.model.mark(answer, row))

    # -- frames ----------------------------------------------------------------------------------------

    def frame(self, given: pl.DataFrame, config: Point | None) -> pl.DataFrame:
        """Columns for a frame: `time_ns`, `lower_ns`, `upper_ns` and `status`; without configs, the best ones too."""
        own = [name for name in given.columns if name.startswith("config.")]
        if own and config is not None:
            raise InvalidValue(f"the frame already has configs ('{own[0]}'): leave out config=, or drop the column")
        if self._chooses and not own and config is None:
            return self._bests_of_frame(given)
        frame = vectors_in(self.model, given, self.device.name, None if config is None else self.config(config))
        status, symbols = self._status(frame), schema.symbol_columns(self.family, frame)
        for rule in config_rules(self._rules):
            status[~_holds(rule, symbols) & (status == Answered.OK)] = Answered.UNSUPPORTED
        fine, found = status == Answered.OK, {name: np.full(frame.height, np.nan) for name in TIMES}
        if fine.any():
            predicted = self.model.predict_vectors(frame.filter(pl.Series(fine)), self.device)
            for name in TIMES:
                if name in predicted.columns:
                    found[name][fine] = predicted[name].to_numpy()
        return pl.DataFrame(self._told(frame, status, found))

    def _bests_of_frame(self, given: pl.DataFrame) -> pl.DataFrame:
        """The best config of each problem, its time and the status."""
        self._every()
        problems = problems_in(self.model, given, self.device.name)
        status, rows = self._status(problems), np.full(problems.height, -1)
        fine, found = status == Answered.OK, {name: np.full(problems.height, np.nan) for name in TIMES}
        if fine.any():
            asked = problems.filter(pl.Series(fine))
            rows[fine], found["time_ns"][fine] = self._best_rows(asked)
            none = np.isnan(found["time_ns"])
            rows[none] = -1
            status[fine & none] = Answered.NO_VALID_CONFIG
            if self.model.manifest.interval is not None:
                known = ~none
                bounds = self.model.bounds_of(problems.filter(pl.Series(known)), found["time_ns"][known])
                found["lower_ns"][known], found["upper_ns"][known] = bounds
        return configs_at(self.model, rows).with_columns(self._told(problems, status, found))

    def _status(self, problems: pl.DataFrame) -> npt.NDArray[np.object_]:
        """By row: what the rules and the trained range say against a problem (`problem.*`); ok: nothing."""
        status = np.full(problems.height, Answered.OK, dtype=object)
        symbols = schema.symbol_columns(self.family, problems, "problem.")
        outside, labels = self._outside(problems)
        status[outside] = Answered.OUT_OF_RANGE
        if not self._chooses:
            status[labels] = Answered.UNSUPPORTED
        for rule, _ in self._problem_rules:  # they come before its range
            status[~_holds(rule, symbols)] = Answered.UNSUPPORTED
        return status

    def _told(
        self, frame: pl.DataFrame, status: npt.NDArray[np.object_], found: dict[str, npt.NDArray[np.float64]]
    ) -> list[pl.Series]:
        """The columns of an answer, if its device and the like of its problem were measured; else what is left of them."""
        fine, away = status == Answered.OK, self._away
        if away is not None:
            time_ns = found["time_ns"]
            for name, place, wider in zip(TIMES[1:], (0, 1), (np.fmin, np.fmax), strict=True):
                factor = np.nan if away.factors is None else away.factors[place]
                found[name] = np.full(len(time_ns), np.nan) if away.factors is None else wider(found[name], factor * time_ns)
            status[fine] = Answered.OK if away.believed else Answered.OUT_OF_RANGE
        status[fine & self._against_facts(frame)] = Answered.OUT_OF_RANGE
        columns = [pl.Series(name, values).fill_nan(None) for name, values in found.items()]
        return [*columns, pl.Series("status", [str(item) for item in status], dtype=pl.String)]

    def _against_facts(self, frame: pl.DataFrame) -> Flags:
        """Which rows are unlike all measured ones."""
        unlike = np.zeros(frame.height, dtype=bool)
        for name, fact in self.model.manifest.facts.items():
            column = frame[f"problem.{name}"]
            unlike |= (column.is_not_null() & (column % fact.step != fact.rest)).to_numpy()
        return unlike

    def _outside(self, frame: pl.DataFrame) -> tuple[Flags, Flags]:
        """Which rows are outside the trained range, and which of them because of a label."""
        outside, labels = np.zeros(frame.height, dtype=bool), np.zeros(frame.height, dtype=bool)
        for name, parameter in self.family.problem.parameters.items():
            seen, column = self.model.manifest.hull.get(name), frame[f"problem.{name}"]
            if only_absent(parameter, seen):
                inside = column.is_null()
                labels |= (~inside).to_numpy() & ~outside & bool(parameter.codes)
            elif seen is None:
                continue
            elif seen.labels:
                inside = column.is_null() | column.is_in(list(seen.labels))
                labels |= (~inside).to_numpy() & ~outside  # the first parameter outside decides
            elif seen.low is None or seen.high is None:
                continue
            else:
                inside = column.is_null() | column.is_between(seen.low, seen.high)
            outside |= (~inside).to_numpy()
        if self._without_peak:
            outside |= frame["problem.dtype"].is_in(list(self._without_peak)).to_numpy()
        return outside, labels


def _widened(answer: Answer, factors: tuple[float, float]) -> tuple[float, float]:
    """The bounds of a time on a device that was not measured: never narrower than on those that were."""
    time_ns = answer.time_ns or 0.0
    lower = time_ns if answer.lower_ns is None else answer.lower_ns
    upper = time_ns if answer.upper_ns is None else answer.upper_ns
    return min(lower, factors[0] * time_ns), max(upper, factors[1] * time_ns)


def _each(given: Sequence[Point], read: Any, what: str) -> list[Any]:
    """Validate every point; if there are several, the error says which one is wrong."""
    found = []
    for number, values in enumerate(given, 1):
        try:
            found.append(read(values))
        except InvalidValue as error:
            raise InvalidValue(f"{what} {number} of {len(given)}: {error}" if len(given) > 1 else str(error)) from error
    return found


def _holds(rule: Rule, symbols: pl.DataFrame) -> Flags:
    return np.asarray(Program({rule.name: rule.holds}).frame(symbols, trusted=True).to_series().to_numpy() != 0.0)
