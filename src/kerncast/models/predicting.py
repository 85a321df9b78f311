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
from kerncast.errors import InvalidValue, NotFound
from kerncast.expr import Program
from kerncast.models.answer import Answer, Tier, refused_outside, unlike_measured, without_choice
from kerncast.models.candidates import Candidates, by_share, library_rows
from kerncast.models.elsewhere import away_from, no_peak, without_peak
from kerncast.models.expectation import Expectation, expectation_of
from kerncast.models.hull import OutOfRange, against_facts, only_absent, outside_hull
from kerncast.models.reach import reach_of, worked_on
from kerncast.models.rules import Rule, config_rules, model_rules, namespaces, problem_rules
from kerncast.models.statuses import Answered
from kerncast.op import Config, Problem

if TYPE_CHECKING:
    from kerncast.models.model import Model

Point = Mapping[str, Any]

NO_CONFIG = "no config that the model knows can run this problem"
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
        for rule in problem_rules(self._rules):
            if not Program({rule.name: rule.holds}).scalar(values)[rule.name]:
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
        every = self._every() if among is None else among
        answers = [self._refusal(problem) for problem in problems]
        open_ = [place for place, answer in enumerate(answers) if answer is None]
        if not open_:
            return [answer for answer in answers if answer is not None]
        asked = [problems[place] for place in open_]
        frame = self._problem_frame(asked)
        if self.model.built_for(asked[0]) is None:
            scores, times = self._candidates.scores_of_many(frame, every)
        else:  # which of them are there depends on the problem
            found = [self._candidates.scores(problem, every) for problem in asked]
            scores, times = (np.stack(part) for part in zip(*found, strict=True))
        rows = scores.argmin(axis=1)
        chosen = np.where(np.isfinite(scores).any(axis=1), times[np.arange(len(rows)), rows], np.nan)
        bounds = self._bounds(frame, chosen)
        for number, place in enumerate(open_):
            answers[place] = self._chosen(asked[number], int(every[rows[number]]), float(chosen[number]), bounds[number])
        return [answer for answer in answers if answer is not None]

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
        """The frame with `time_ns`, `lower_ns`, `upper_ns` and `status`; without configs, the best ones are added too."""
        own = [name for name in given.columns if name.startswith("config.")]
        if own and config is not None:
            raise InvalidValue(f"the frame already has configs ('{own[0]}'): leave out config=, or drop the column")
        if self._chooses and not own and config is None:
            answers = self.many(list(self._problems(given).iter_rows(named=True)), None)
            return self._with_answers(given, answers)
        frame = self._vectors(given, config)
        status = np.full(frame.height, str(Answered.OK), dtype=object)
        symbols = schema.symbol_columns(self.family, frame)
        outside, labels = self._outside(frame)
        status[outside] = str(Answered.OUT_OF_RANGE)
        if not self._chooses:
            status[labels] = str(Answered.UNSUPPORTED)
        for rule in self._rules:
            # Rules of the problem are checked before its range, rules of the config after it.
            judged = namespaces(rule.holds) == {"p"} or status == str(Answered.OK)
            status[~_holds(rule, symbols) & judged] = str(Answered.UNSUPPORTED)
        fine = status == str(Answered.OK)
        found: dict[str, npt.NDArray[np.float64]] = {name: np.full(frame.height, np.nan) for name in TIMES}
        if fine.any():
            predicted = self.model.predict_vectors(frame.filter(pl.Series(fine)), self.device)
            for name in TIMES if self._away is None else TIMES[:1]:
                if name in predicted.columns:
                    found[name][fine] = predicted[name].to_numpy()
            if self._away is not None:
                self._widen(predicted, found, fine)
                status[fine] = str(Answered.OK if self._away.believed else Answered.OUT_OF_RANGE)
        status[fine & self._against_facts(frame)] = str(Answered.OUT_OF_RANGE)
        return given.with_columns(
            *(pl.Series(name, values).fill_nan(None) for name, values in found.items()),
            pl.Series("status", status.tolist(), dtype=pl.String),
        )

    def _widen(self, predicted: pl.DataFrame, found: dict[str, npt.NDArray[np.float64]], fine: Flags) -> None:
        """The bounds of times on a device that was not measured."""
        assert self._away is not None
        if self._away.factors is None:
            return
        time_ns = found["time_ns"][fine]
        for name, factor, wider in zip(TIMES[1:], self._away.factors, (np.minimum, np.maximum), strict=True):
            own = predicted[name].to_numpy() if name in predicted.columns else time_ns
            found[name][fine] = wider(own, factor * time_ns)

    def _with_answers(self, given: pl.DataFrame, answers: Sequence[Answer]) -> pl.DataFrame:
        kinds = schema.schema_of(self.family)
        columns = [
            pl.Series(
                f"config.{name}", [None if a.config is None else a.config[name] for a in answers], kinds[f"config.{name}"]
            )
            for name in self.family.config.parameters
        ]
        columns += [pl.Series(name, [getattr(answer, name) for answer in answers], pl.Float64) for name in TIMES]
        return given.with_columns(*columns, pl.Series("status", [str(answer.status) for answer in answers], dtype=pl.String))

    def _problems(self, given: pl.DataFrame) -> pl.DataFrame:
        """The columns of the problem under their plain names; sizes in the place of a product that is given instead of them."""
        names = {}
        for name in (*self.family.problem.parameters, *self.family.op.products):
            column = f"problem.{name}" if f"problem.{name}" in given.columns else name
            if column in given.columns:
                names[column] = name
        known = {*names, *(f"config.{name}" for name in self.family.config.parameters)}
        unknown = [name for name in given.columns if name.startswith(("problem.", "config.")) and name not in known]
        if unknown:
            what, _, name = unknown[0].partition(".")
            space = self.family.problem if what == "problem" else self.family.config
            raise NotFound.named(f"{what} parameter of {self.family.id}", name, space.parameters)
        self._refuse_other_case(given.columns)
        return self._by_sizes(given.select(list(names)).rename(names))

    def _by_sizes(self, problems: pl.DataFrame) -> pl.DataFrame:
        """Problems with two sizes instead of each product; a product next to its sizes is only another column."""
        for product in self.model.products:
            if product.name not in problems.columns:
                continue
            if not set(product.factors) & set(problems.columns):
                distinct = problems.unique(maintain_order=True)
                rows = [product.whole(row) for row in distinct.iter_rows(named=True)]
                sizes = distinct.with_columns(
                    pl.Series(name, [row[name] for row in rows], dtype=pl.Int64) for name in product.factors
                )
                problems = problems.join(sizes, on=problems.columns, how="left", nulls_equal=True, maintain_order="left")
            problems = problems.drop(product.name)
        return problems

    def _refuse_other_case(self, columns: Sequence[str]) -> None:
        """Foreign columns are kept, but `m` instead of `M` would leave a parameter at its default without a word."""
        spaces = {"": self.family.problem, "config.": self.family.config}
        own = {name.lower(): (prefix, name) for prefix, space in reversed(spaces.items()) for name in space.parameters}
        exact = {*self.family.problem.parameters, *self.family.config.parameters}
        for column in columns:
            prefix, name = own.get(column.lower(), ("", column))
            if column not in exact and not {name, f"problem.{name}", f"config.{name}"} & set(columns):
                raise InvalidValue(
                    f"the column '{column}' is not a parameter of {self.family.id}: did you mean '{prefix}{name}'? "
                    "Rename it, or drop it"
                )

    def _vectors(self, given: pl.DataFrame, config: Point | None) -> pl.DataFrame:
        """Every parameter in its stored type, defaults filled in; values outside the declared space are refused."""
        kinds = schema.schema_of(self.family)
        columns = {f"problem.{series.name}": series for series in self._problems(given)}
        columns |= {name: given[name] for name in given.columns if name.startswith("config.")}
        given_columns = set(columns)
        if config is not None:
            same = self.config(config)
            columns |= {f"config.{n}": pl.Series([v], dtype=kinds[f"config.{n}"]) for n, v in same.items()}
        filled = []
        for name, (space, bare) in schema.parameter_columns(self.family).items():
            parameter = space.parameters[bare]
            if name not in columns and parameter.default is None and not parameter.nullable:
                raise InvalidValue(f"the frame has no column '{name}', which {self.family.id} needs")
            series = columns.get(name, pl.Series([parameter.default], dtype=kinds[name]))
            try:
                series = series.cast(kinds[name]).alias(name)
            except pl.exceptions.PolarsError as error:
                raise InvalidValue(
                    f"the column '{name}' must be {parameter.describe()}, got {series.dtype}: convert it"
                ) from error
            if name in given_columns and parameter.default is not None and bare not in space.active:
                series = series.fill_null(pl.lit(parameter.default, kinds[name]))
            filled.append(series if name in given_columns else series.new_from_index(0, given.height))
        frame = pl.DataFrame(filled)
        absent = [name for name in schema.parameter_columns(self.family) if name not in columns]
        frame = self._without_inactive(frame, absent)
        schema.check_parameters(self.family, frame)
        frame = self.family.problem.without_usual(frame, "problem.")
        frame = self.family.config.without_usual(frame, "config.")
        symbols = schema.symbol_columns(self.family, frame)
        for constraint in self.family.problem.constraints:
            bad = np.flatnonzero(~_holds(Rule(constraint.name, constraint.sentence, constraint.holds), symbols))
            if len(bad):
                raise InvalidValue(f"row {bad[0] + 1}: {constraint.sentence} ({len(bad)} such rows)")
        return frame

    def _without_inactive(self, frame: pl.DataFrame, absent: Sequence[str]) -> pl.DataFrame:
        """A default is filled in only where its parameter applies."""
        for name in absent:
            space, bare = schema.parameter_columns(self.family)[name]
            if bare in space.active:
                applies = space.active[bare].frame(schema.symbol_columns(self.family, frame), trusted=True).to_series() != 0.0
                frame = frame.with_columns(pl.when(applies).then(pl.col(name)).alias(name))
        return frame

    def _against_facts(self, frame: pl.DataFrame) -> Flags:
        """Which rows are unlike all measured ones."""
        unlike = np.zeros(frame.height, dtype=bool)
        for name, fact in self.model.manifest.known_facts.items():
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
