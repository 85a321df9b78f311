"""The selector: chooses a config with a model, tier by tier, or says why there is none."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from kerncast.arrays import Floats
from kerncast.backends.contract import Backend, CannotCompile
from kerncast.compiling.binding import Binding, Reply, reply_of
from kerncast.compiling.c99 import NotInC
from kerncast.compiling.encoding import MISSING
from kerncast.compiling.header import MOST_PINS
from kerncast.compiling.interpreter import Interpreter
from kerncast.compiling.loading import NotTrusted, load
from kerncast.compiling.lower import Artefact, lower
from kerncast.compiling.overrides import Decided, Overrides, decide
from kerncast.compiling.request import identity_of
from kerncast.compiling.tiers import Tiers
from kerncast.errors import CannotWrite, InvalidValue
from kerncast.expr import Program
from kerncast.models.answer import Answer, Pin, Tier, refused_outside, unlike_measured, with_fallback
from kerncast.models.hull import OutOfRange, against_facts, outside_hull, trained_words
from kerncast.models.model import Model
from kerncast.models.offered import OfferedModel
from kerncast.models.statuses import Answered, Place
from kerncast.models.tier import ALONE, C_TIER_NAMES, CHOOSING
from kerncast.op import Config, Problem
from kerncast.progress import QUIET, Progress
from kerncast.selecting.measure import MOST_CONTENDERS, contenders, measure_top
from kerncast.selecting.tiers.build import TierOptions, plain_tiers, tiers_named
from kerncast.writing.terminal import printable

if TYPE_CHECKING:  # they import this module
    from kerncast.data.dataset import Dataset
    from kerncast.selecting.explain import Explanation
    from kerncast.selecting.offering import Configs
    from kerncast.selecting.search import Search
    from kerncast.selecting.tiers.portfolio_of import Portfolio

# Problems in the memo of a tier, a kilobyte each; a full memo is emptied.
MOST_REMEMBERED = 50_000


class Selector:
    """Picks a config for a problem, or says why there is none: `Selector(model)`, with a model or its path.

    The first selector of a model takes some seconds: its quick tiers are built, compiled and cached. Without a C compiler, or
    with a learner that writes no C, or if this user has neither trained nor trusted the model, it runs in Python; the answers
    are the same. Threads may share a selector; they take turns.
    """

    def __init__(
        self,
        model: Model | str | Path,
        *,
        tier: Tier | str | None = None,
        compile: bool = True,
        options: TierOptions | None = None,
        tiers: Tiers | str | Sequence[str] | None = None,
        configs: Configs | None = None,
        overrides: Overrides | Mapping[str, Any] | str | Path | None = None,
        progress: Progress = QUIET,
    ) -> None:
        """`tier` is the one to ask if a question names none: the portfolio, or what there is instead.

        `tiers` names those that there are (`tree,portfolio`, or `tree` alone), so that the answers are those of an export with
        the same tiers; or they are tiers that are already built. `options` say how to build them; `overrides` is for
        `override`.

        `configs` are the configs to choose from, instead of those that worked in training: `kernels:FILE`, `build:DIR`,
        `portfolio:FILE`, a dataset or a benchmark file, `all`, `sample:N`, a list of kernel names, or configs. There are no
        tiers of them then: the model scores each one, in Python.
        """
        self.model = model if isinstance(model, Model) else Model.load(model)
        if configs is not None:
            from kerncast.selecting.offering import offering

            self.model = offering(self.model, configs, progress=progress)
            tiers, compile = plain_tiers(self.model), False
        if not isinstance(tiers, Tiers) and not self.model.candidates.height:
            raise InvalidValue(
                f"{self.model.path} does not record which configs work, so there is nothing to choose from: give the configs "
                "with `configs` (kernels:FILE, build:DIR, a dataset or benchmark file, all)"
            )
        if tiers is None and self.model.slim and self.model.family.config.parameters:
            tiers = plain_tiers(self.model)  # the others are built from measurements, which it does not have
        self._given = isinstance(self.model, OfferedModel)
        if isinstance(tiers, Tiers):
            self.tiers = tiers
            self.artefact: Artefact = lower(self.model, tiers, ALONE if tiers.alone else CHOOSING)
        else:
            named = CHOOSING if tiers is None else tiers
            self.tiers, include = tiers_named(self.model, named, options, progress=progress)
            self.artefact = lower(self.model, self.tiers, include)
        self.tier = self._usual if tier is None else self._included(tier)
        self._interpreter = Interpreter(self.artefact)
        self.note = ""
        """Why the model is not compiled, if the user can change that; every answer has it."""
        self._binding = self._compiled(progress) if compile else None
        self._labels = self.model.labels
        self._overriding = threading.Lock()
        self._decided: Decided | None = None
        self._forget()
        if overrides is not None:
            for note in self.override(overrides):
                progress.say(note)

    @property
    def _usual(self) -> Tier:
        """The tier that is asked by default, as in C."""
        return next(tier for tier in (Tier.PORTFOLIO, Tier.FULL, Tier.TREE) if tier in self.artefact.include)

    def _included(self, given: Tier | str) -> Tier:
        tier = _tier(given)
        if tier not in self.artefact.include:
            raise InvalidValue(
                f"this selector has the tiers {', '.join(self.artefact.include)}, and '{tier}' was asked for: ask another, or "
                "make a selector that has it"
            )
        return tier

    def _forget(self) -> None:
        """Empty memos in new places: an answer that is being looked up right now ends in the old one."""
        self._memo: dict[Tier, dict[Problem, Answer]] = {each: {} for each in CHOOSING}
        self._default = self._memo[self.tier]
        self._measured: dict[Problem, Answer] = {}

    def override(self, overrides: Overrides | Mapping[str, Any] | str | Path | None) -> tuple[str, ...]:
        """Say which configs exist and which choices are fixed, from the next question on; None: as the model has it.

        `overrides` is an `overrides.toml`, or a mapping of the same form: `available` (only these), `deny` (never these) and
        `pin` (a problem with its kernel). Kernels are named by label, by candidate number or by parameters of their config.
        Returns notes about what of it the model does not know.
        """
        with self._overriding:
            decided = None if overrides is None else decide(self.model, overrides)
            if decided is not None and len(decided.pinned) > MOST_PINS:
                raise InvalidValue(
                    f"a selector has room for {MOST_PINS:,} pins, got {len(decided.pinned):,}: pin several problems at once by "
                    "leaving parameters out, or export them, for which there is no limit"
                )
            applied = self._everything if decided is None else decided
            if (absent := np.setdiff1d(applied.pinned, self.artefact.stored)).size:
                raise InvalidValue(
                    f"the pinned candidate {absent[0]} is in no tier of this selector: pin it in one with `full`"
                )
            if self._binding is not None:
                self._binding.override(applied)
            self._interpreter.available = applied.available
            self._decided = decided
            self._forget()
        return applied.notes

    @property
    def _everything(self) -> Decided:
        space = self.model.family.problem
        none = np.empty((0, len(space.parameters)), np.int64)
        return Decided(np.ones(self.artefact.candidates, dtype=bool), none, np.empty(0, np.int64), space)

    def __call__(self, problem: Problem | Mapping[str, Any] | None = None, /, **parameters: Any) -> Answer:
        """`pick(M=300, N=500, K=700, dtype="fp16", layout="rcr")`: as `select`, with the problem's parameters as arguments."""
        if problem is not None and parameters:
            raise InvalidValue("give the problem as one value or as arguments, not both")
        return self.select(parameters if problem is None else problem)

    def _compiled(self, progress: Progress) -> Binding | None:
        """The compiled artefact; if the user has not trusted the model, None, and every answer says so."""
        try:
            known = f"selector {self.model.manifest.checksum} {self.tiers.digest} {','.join(self.artefact.include)}"
            return load(self.artefact, known, progress=progress)
        except NotTrusted as refused:
            self.note = str(refused)
            progress.say(self.note)
        except (CannotCompile, CannotWrite, NotInC) as error:
            progress.say(f"{error}; Python answers instead")
        return None

    def __reduce__(self) -> Any:
        raise TypeError("a selector cannot be pickled: make it again in the other process, where it is read from the cache")

    def __repr__(self) -> str:
        count = f"{self.artefact.candidates:,} configs"
        parts = [f"{count} that were given"] if self._given else [count, f"portfolio of {len(self.tiers.portfolio):,}"]
        if self.tiers.tree is not None:
            parts.append("a tree")
        parts.append("compiled" if self.is_compiled else "interpreted")
        if self._decided is not None:
            parts.append(f"{len(self._decided.denied):,} denied, {len(self._decided.pinned):,} pinned")
        asked = self._there(self.tier)
        return printable(
            f"Selector({self.model.family.id} on {self.model.device.name}; {', '.join(parts)}; asks the {asked} tier)"
        )

    @property
    def is_compiled(self) -> bool:
        return self._binding is not None

    @cached_property
    def configs(self) -> list[Config]:
        """The candidates, in the model's order."""
        names = [f"config.{name}" for name in self.model.family.config.parameters]
        rows = self.model.candidates.select(names).iter_rows() if names else (() for _ in range(self.artefact.candidates))
        keys = list(self.model.family.config.parameters)
        return [Config.trusted(self.model.family, dict(zip(keys, row, strict=True))) for row in rows]

    def problem(self, values: Mapping[str, Any] | Problem) -> Problem:
        """A problem of the model's family, validated."""
        if isinstance(values, Problem):
            if values.family is self.model.family:
                return values
            if values.op is not self.model.family.op:
                raise InvalidValue(f"the model is of {self.model.manifest.op}, the problem of {values.op.name}")
        elif not isinstance(values, Mapping):
            raise InvalidValue(
                f"a problem is a mapping of parameters to values, got {type(values).__name__}: ask `select_many` about several"
            )
        return self.model.problem(values)

    # -- one problem ---------------------------------------------------------------------------------

    def select(self, problem: Problem | Mapping[str, Any], tier: Tier | str | None = None) -> Answer:
        """The config to run, from the tier asked for (by default the selector's own)."""
        memo = self._default if tier is None else self._memo[self._included(tier)]
        if isinstance(problem, Problem):
            found = memo.get(problem)
            if found is not None:
                return found
        problem, asked = self.problem(problem), self.tier if tier is None else Tier(tier)
        answer = self._ask(problem, asked)
        if answer.ok:
            if len(memo) >= MOST_REMEMBERED:
                memo.clear()
            memo[problem] = answer.remembered()
        return answer

    def _ask(self, problem: Problem, tier: Tier) -> Answer:
        tier = self._there(tier)
        if self._binding is not None:
            numbers = self._encode(problem)
            found = self._binding.quick(numbers, TIER_NUMBERS[tier])
            if isinstance(found, Reply):
                return self._answer(problem, found)
            answered, candidate, time_ns, lower, upper, efficiency, pin = found
            answer = self._chosen(problem, ANSWERED_BY[answered], candidate, time_ns, lower, upper, efficiency)
            return answer if not pin else self._with_pin(answer, PINS[pin])
        return self._noted(self._asked_in_python(problem, tier))

    # -- pins ------------------------------------------------------------------------------------------

    def _with_pin(self, answer: Answer, pin: Pin) -> Answer:
        """The answer with what became of a pin; if the pin is not applied, a choice says why."""
        reason = answer.reason
        if pin is Pin.NOT_APPLIED and answer.ok:
            row = self._pinned(answer.problem)
            reason = f"the pin to candidate {row} is not applied: {self._pin_refusal(answer.problem, row)}"
        return replace(answer, pin=pin, reason=reason)

    def _pinned(self, problem: Problem) -> int:
        return -1 if self._decided is None else self._decided.pin_for(problem.as_dict())

    def _pin_refusal(self, problem: Problem, row: int) -> str | None:
        """Why a pinned config is not used on a problem."""
        if self._decided is not None and not self._decided.available[row]:
            return "it is not available"
        values = {
            **self.model.family.problem.qualified(problem.as_dict()),
            **self.model.family.config.qualified(self.configs[row].as_dict()),
        }
        for rule in self.artefact.config_rules:
            if not Program({rule.name: rule.holds}).scalar(values)[rule.name]:
                return rule.sentence
        return None

    def _before_asking(self, problem: Problem) -> tuple[Answer | None, Answer | None]:
        """What a pin says (an answer, decided or not applied), and what the rules and the trained range say: a refusal."""
        refused, row = self._refusal(problem), self._pinned(problem)
        if row < 0 or (refused is not None and refused.status is not Answered.OUT_OF_RANGE):
            return None, refused
        if self._pin_refusal(problem, row) is not None:
            return Answer(Answered.OK, problem, pin=Pin.NOT_APPLIED), refused
        if refused is not None:  # a pin decides outside the trained range too, without a time
            return replace(self._untimed(problem, row, Tier.PIN), pin=Pin.DECIDED), refused
        chosen = self._untimed(problem, row, Tier.PIN) if self.artefact.alone else self._timed(problem, row, Tier.PIN)
        return replace(chosen, pin=Pin.DECIDED), None

    def _label(self, row: int, problem: Problem) -> str | None:
        return None if self._labels is None else self._labels.of(row, problem)

    def _there(self, given: Tier | str) -> Tier:
        """The tier that answers when this one is asked: the portfolio if there is no tree, since one config needs none.

        Configs that were given have no tiers: the model scores all of them.
        """
        tier = self._included(given)
        if self._given:
            return Tier.FULL
        if tier is not Tier.TREE or self.tiers.tree is not None:
            return tier
        return Tier.PORTFOLIO if Tier.PORTFOLIO in self.artefact.include else Tier.FULL

    @cached_property
    def _codes(self) -> list[tuple[str, dict[Any, int] | None]]:
        """How each parameter becomes a number: labels and flags by a table, whole numbers as they are."""
        return [
            (name, {parameter.value(i): parameter.number(i) for i in range(parameter.size)} if parameter.codes else None)
            for name, parameter in self.model.family.problem.parameters.items()
        ]

    def _encode(self, problem: Problem) -> list[int]:
        values = problem._values
        return [
            MISSING if value is None else int(value) if codes is None else codes[value]
            for (_, value), (_, codes) in zip(values, self._codes, strict=True)
        ]

    def _chosen(
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

    def _answer(self, problem: Problem, reply: Reply) -> Answer:
        if reply.status is Answered.OK:
            figures = reply.time_ns, reply.lower_ns, reply.upper_ns, reply.efficiency
            answer = self._chosen(problem, Tier(reply.tier), reply.candidate, *figures)
            return answer if not reply.pin else replace(answer, pin=PINS[reply.pin], reason=reply.message)
        if reply.status is Answered.OUT_OF_RANGE and reply.tier in ANSWERED_BY.values():
            figures = reply.time_ns, reply.lower_ns, reply.upper_ns, reply.efficiency
            answer = self._chosen(problem, Tier(reply.tier), reply.candidate, *figures)
            return unlike_measured(replace(answer, pin=PINS.get(reply.pin)), against_facts(self.model, problem))
        if reply.status is Answered.OUT_OF_RANGE:
            name = list(self.model.family.problem.parameters)[reply.parameter]
            fallback = reply.candidate if reply.candidate >= 0 else None
            return replace(self._outside(problem, name, fallback), pin=PINS.get(reply.pin))
        if reply.status is Answered.UNSURE:
            return replace(self._unsure(problem, reply.candidate if reply.candidate >= 0 else None), pin=PINS.get(reply.pin))
        if Place.PYTHON not in reply.status.places:
            raise InvalidValue(reply.message)
        return Answer(reply.status, problem, reason=reply.message)

    # -- the same in Python ----------------------------------------------------------------------------

    def _noted(self, answer: Answer) -> Answer:
        """The answer, which says why the model is not compiled if the user can change that."""
        return replace(answer, note=self.note) if self.note else answer

    def _asked_in_python(self, problem: Problem, tier: Tier) -> Answer:
        decided, refused = self._before_asking(problem)
        if decided is not None and decided.pin is Pin.DECIDED:
            return decided
        answer = refused if refused is not None else self._interpreted(problem, tier)
        return answer if decided is None else self._with_pin(answer, Pin.NOT_APPLIED)

    def _refusal(self, problem: Problem) -> Answer | None:
        values = self.model.family.problem.qualified(problem.as_dict())
        for rule in self.artefact.unsupported_rules:
            if not Program({rule.name: rule.holds}).scalar(values)[rule.name]:
                return Answer(Answered.UNSUPPORTED, problem, reason=rule.sentence)
        outside = outside_hull(self.model, problem)
        if not outside:
            return None
        return self._outside(problem, outside[0].parameter, self._fallback(problem))

    def _fallback(self, problem: Problem) -> int | None:
        """The first fallback that can run the problem, by the rules."""
        rows, _ = self.artefact.fallbacks
        allowed = self._interpreter.allowed(problem.as_dict(), np.array(rows, np.int64))
        return rows[int(allowed.argmax())] if allowed.any() else None

    def _unsure(self, problem: Problem, fallback: int | None) -> Answer:
        """The tree is alone and does not decide: a fallback, if there is one."""
        refused = Answer(Answered.UNSURE, problem, reason=UNSURE)
        if fallback is None:
            return refused
        refused = with_fallback(refused, self.configs[fallback], self.artefact.fallbacks[1])
        return replace(refused, label=self._label(fallback, problem))

    def _outside(self, problem: Problem, name: str, fallback: int | None) -> Answer:
        value, rule = (
            problem[name],
            trained_words(self.model.family.problem.parameters[name], self.model.manifest.hull.get(name)),
        )
        assert value is not None
        config = None if fallback is None else self.configs[fallback]
        refused = refused_outside(problem, OutOfRange(name, value, rule), config, self.artefact.fallbacks[1])
        return refused if fallback is None else replace(refused, label=self._label(fallback, problem))

    def _interpreted(self, problem: Problem, tier: Tier) -> Answer:
        return unlike_measured(self._first_tier(problem, tier), against_facts(self.model, problem))

    def _first_tier(self, problem: Problem, tier: Tier) -> Answer:
        """The answer of the first tier, from the one asked for on, that has a config which can run."""
        values = problem.as_dict()
        if tier is Tier.TREE:
            row = self._interpreter.tree_choice(values)
            if row is not None:
                return self._untimed(problem, row, Tier.TREE)
        if self.artefact.alone:
            return self._unsure(problem, self._fallback(problem))
        if tier is not Tier.FULL and Tier.PORTFOLIO in self.artefact.include:
            row = self._interpreter.portfolio_choice(values)
            if row is not None:
                return self._timed(problem, row, Tier.PORTFOLIO)
        if Tier.FULL not in self.artefact.include:
            return Answer(Answered.NO_VALID_CONFIG, problem, reason=NO_CONFIG)
        rows = self.artefact.members("full")
        scores, times = self._interpreter.scores(values, rows)
        if not np.isfinite(scores).any():
            return Answer(Answered.NO_VALID_CONFIG, problem, reason=self._no_config)
        best = int(scores.argmin())
        return self._accepted(problem, best, float(times[best]), Tier.FULL)

    @property
    def _no_config(self) -> str:
        return NONE_GIVEN if self._given else NO_CONFIG

    def _untimed(self, problem: Problem, row: int, tier: Tier) -> Answer:
        return Answer(Answered.OK, problem, self.configs[row], tier=tier, label=self._label(row, problem))

    def _timed(self, problem: Problem, row: int, tier: Tier) -> Answer:
        return self._accepted(problem, row, self._interpreter.time_of(problem.as_dict(), row), tier)

    def _accepted(self, problem: Problem, row: int, time_ns: float, tier: Tier) -> Answer:
        expected = self.tiers.expectation
        lower, upper = self.model.bounds(problem, time_ns)
        efficiency = None if expected is None else expected.of(time_ns)
        label = self._label(row, problem)
        answer = Answer(Answered.OK, problem, self.configs[row], time_ns, lower, upper, efficiency, tier, label=label)
        return self.model.mark(answer, row)

    # -- more than the best ----------------------------------------------------------------------------

    @property
    def _widest(self) -> Tier:
        return self._there(self.artefact.include[-1])

    def rank(self, problem: Problem | Mapping[str, Any], k: int = 10, tier: Tier | str | None = None) -> list[Answer]:
        """The k best configs, best first: those of the tier, then all others. A refusal is a list of one answer.

        Without a `tier` the widest one ranks, that is `full`. A tree that is alone lists what is in the problem's leaf.
        """
        if k < 1:
            raise InvalidValue(f"`k` must be at least 1, got {k}")
        problem, asked = self.problem(problem), self._widest if tier is None else self._there(tier)
        if self._binding is not None:
            return [self._answer(problem, reply) for reply in self._binding.rank(self._encode(problem), asked, k)]
        return [self._noted(item) for item in self._ranked_in_python(problem, k, asked)]

    def _ranked_in_python(self, problem: Problem, k: int, asked: Tier) -> list[Answer]:
        decided, refused = self._before_asking(problem)
        if refused is not None:
            if decided is not None:
                return [decided if decided.pin is Pin.DECIDED else self._with_pin(refused, Pin.NOT_APPLIED)]
            return [refused]
        ranked = [decided] if decided is not None and decided.pin is Pin.DECIDED else []
        listed = {item.config for item in ranked}
        if self.artefact.alone:
            found = [self._untimed(problem, int(row), Tier.TREE) for row in self._interpreter.leaf(problem.as_dict())[0]]
            if not found and not ranked:
                ranked.append(self._unsure(problem, self._fallback(problem)))
            ranked = [*ranked, *(item for item in found if item.config not in listed)][:k]
        pools = [Tier.PORTFOLIO, Tier.FULL] if asked is not Tier.FULL else [Tier.FULL]
        for each in [tier for tier in pools if tier in self.artefact.include]:
            rows = self.artefact.members(each)
            scores, times = self._interpreter.scores(problem.as_dict(), rows)
            order = [i for i in np.lexsort((rows, scores)) if np.isfinite(scores[i]) and self.configs[rows[i]] not in listed]
            ranked += [self._accepted(problem, int(rows[i]), float(times[i]), each) for i in order[: max(0, k - len(ranked))]]
            listed = {item.config for item in ranked}
            if len(ranked) >= k:
                break
        if not ranked:
            return [Answer(Answered.NO_VALID_CONFIG, problem, reason=self._no_config)]
        if decided is not None and decided.pin is Pin.NOT_APPLIED:
            ranked[0] = self._with_pin(ranked[0], Pin.NOT_APPLIED)
        unlike = against_facts(self.model, problem)
        return [item if item.pin is Pin.DECIDED else unlike_measured(item, unlike) for item in ranked]

    def scores(self, problem: Problem | Mapping[str, Any], tier: Tier | str | None = None) -> tuple[Floats, Floats]:
        """Scores (low is chosen, infinite where a config cannot run) and times of the configs of a tier (the widest)."""
        if self.artefact.alone:
            raise InvalidValue("a tree alone has no scores: make a selector with the tier portfolio or full")
        problem, asked = self.problem(problem), self._widest if tier is None else self._there(tier)
        rows = self.artefact.members("full" if asked is Tier.FULL else "portfolio")
        if self._binding is not None:
            return self._binding.scores(self._encode(problem), asked, len(rows))
        return self._interpreter.scores(problem.as_dict(), rows)

    def predict(self, problem: Problem | Mapping[str, Any], config: Config | Mapping[str, Any] | None = None) -> Answer:
        """How long a config takes; for a family with nothing to choose, how long the problem takes."""
        problem = self.problem(problem)
        if config is None:
            if self.model.family.config.parameters:
                raise InvalidValue(
                    f"{self.model.family.id} has configs to choose from: name one, or ask `select` for the best one's time"
                )
            config = {}
        refused = self._refusal(problem)
        if refused is not None:
            return refused
        return self.model.predict(problem, config)

    def vectors(self, problem: Problem, rows: Sequence[int]) -> pl.DataFrame:
        """One problem with some candidates, as stored in a dataset."""
        return self._interpreter.vectors(problem.as_dict(), np.array(rows, np.int64))

    def measure(self, problem: Problem | Mapping[str, Any], backend: Backend, seconds: float = 1.0) -> Answer:
        """Measure the configs that the model cannot tell apart and return the fastest; the result is remembered."""
        problem = self.problem(problem)
        measured = self._measured
        if problem in measured:
            return measured[problem]
        ranked = self.rank(problem, MOST_CONTENDERS)
        if ranked[0].config is None or ranked[0].pin is Pin.DECIDED:
            return ranked[0]
        if ranked[0].upper_ns is not None:
            places = contenders([item.lower_ns or 0.0 for item in ranked], [item.upper_ns or 0.0 for item in ranked])
            ranked = [ranked[place] for place in places]
        timed = measure_top(backend, problem, [item.config for item in ranked if item.config is not None], seconds)[0]
        row = self.configs.index(timed.config)
        answer = Answer(Answered.OK, problem, timed.config, timed.time_ns, tier=Tier.MEASURE, label=self._label(row, problem))
        measured[problem] = answer
        return answer

    def explain(self, answer: Answer, tier: Tier | str | None = None) -> Explanation:
        """Why this config: what each feature contributed, the nearest measured problems, the runners-up.

        Runners-up are those of one tier: of `tier`, else of the one that answered (for a memo: the selector's own).
        """
        from kerncast.selecting.explain import explain

        if not isinstance(answer, Answer) or answer.config is None:
            got = f"one that is {answer.status}" if isinstance(answer, Answer) else type(answer).__name__
            raise InvalidValue(f"an answer with a config can be explained, got {got}: ask `explain(pick(problem))`")
        given = answer.tier if answer.tier in CHOOSING else self.tier
        return explain(self, answer, _tier(tier if tier is not None else given))

    def search(
        self,
        problem: Problem | Mapping[str, Any],
        *,
        strategy: str | None = None,
        budget: int | None = None,
        top_k: int = 10,
        seed: int = 0,
        configs: Configs | None = None,
        measure: bool = False,
        backend: str | None = None,
        progress: Progress = QUIET,
    ) -> Search:
        """Search all configs that the family declares, measured or not; with `measure`, time the best on this machine.

        With `configs`, only these are scored (see `Selector`).
        """
        from kerncast.backends import backend_that_runs
        from kerncast.selecting import search

        if backend is not None and not measure:
            raise InvalidValue("`backend` needs `measure`: without it nothing is run")
        if measure:
            backend_that_runs(self.model.family.id, backend)  # raises before the search starts
        found = search.search(
            self.model,
            self.problem(problem),
            strategy,
            budget=budget,
            top_k=top_k,
            seed=seed,
            configs=configs,
            progress=progress,
        )
        return search.measure(found, backend, progress=progress).search if measure else found

    @staticmethod
    def portfolio(
        source: Model | Dataset | str | Path,
        *,
        loss: float = 0.002,
        max: int = 64,
        family: str | None = None,
        where: Sequence[str] | str = (),
        out: str | Path | None = None,
        build_list: str | Path | None = None,
    ) -> Portfolio:
        """The smallest set of configs of a model or a dataset that is enough: the other kernels need not be built."""
        from kerncast.selecting.tiers.portfolio_of import portfolio_of

        conditions = (where,) if isinstance(where, str) else where
        return portfolio_of(source, loss=loss, max=max, family=family, where=conditions, out=out, build_list=build_list)

    # -- many problems -----------------------------------------------------------------------------------

    def select_many(
        self, problems: Sequence[Problem | Mapping[str, Any]] | pl.DataFrame, tier: Tier | str | None = None
    ) -> list[Answer]:
        """An answer for every problem, in order."""
        asked = self._there(self.tier if tier is None else tier)
        listed = problems.iter_rows(named=True) if isinstance(problems, pl.DataFrame) else problems
        built = [self.problem(_bare(item)) for item in listed]
        if not built:
            return []
        if self._binding is None:
            return [self.select(item, asked) for item in built]
        numbers = np.array([self._encode(item) for item in built], np.int64).reshape(len(built), -1)
        answers = self._binding.select_many(numbers, asked)
        return [self._answer(item, reply_of(row)) for item, row in zip(built, answers, strict=True)]

    def rank_many(
        self, problems: Sequence[Problem | Mapping[str, Any]] | pl.DataFrame, k: int = 10, tier: Tier | str | None = None
    ) -> list[list[Answer]]:
        """A ranking for every problem, in order."""
        listed = problems.iter_rows(named=True) if isinstance(problems, pl.DataFrame) else problems
        return [self.rank(self.problem(_bare(item)), k, tier) for item in listed]

    def latencies_us(self, problems: Sequence[Problem], tier: Tier | str) -> Floats:
        """Microseconds per call without the memo: of the artefact itself, or of Python if there is none."""
        asked = self._there(tier)
        if self._binding is not None:
            return self._binding.latencies_us([self._encode(problem) for problem in problems], asked)
        found = []
        for problem in problems:
            begin = time.perf_counter()
            self._ask(problem, asked)
            found.append(time.perf_counter() - begin)
        return np.array(found) * 1e6

    def query(self, text: str | bytes) -> bytes:
        """Answer a JSON request, or a list of them, in JSON: by the exported C, or in Python without a compiler."""
        if self._binding is not None:
            return self._binding.query(text)
        from kerncast.compiling.json_request import RequestReader, answer_json

        tiers = [tier for tier in self.artefact.include if tier != "tree" or self.tiers.tree is not None]
        reader = RequestReader(self.model.family, identity_of(self.model))
        return answer_json(reader, lambda values, tier: self.select(self.problem(values), tier), text, tiers)


TIER_NUMBERS = {tier: C_TIER_NAMES.index(tier) for tier in CHOOSING}
ANSWERED_BY = {number: Tier(name) for number, name in enumerate(C_TIER_NAMES) if name in set(Tier)}
PINS = {1: Pin.DECIDED, 2: Pin.NOT_APPLIED}
NO_CONFIG = "no config that the model knows can run this problem"
NONE_GIVEN = "none of the configs that were given can run this problem"
UNSURE = "the tree is unsure about this problem"


def _tier(given: Tier | str) -> Tier:
    try:
        found = Tier(given)
    except ValueError:
        found = Tier.MEMO
    if found not in CHOOSING:
        raise InvalidValue(f"`tier` must be one of {', '.join(CHOOSING)}, got '{given}'")
    return found


def _bare(values: Problem | Mapping[str, Any]) -> Problem | Mapping[str, Any]:
    """Columns `problem.M` or `M`; empty cells are parameters that were not given."""
    if isinstance(values, Problem):
        return values
    return {name.removeprefix("problem."): value for name, value in values.items() if value is not None}
