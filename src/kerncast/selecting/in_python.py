"""What a compiled artefact does, in Python: rules, trained range, pins, tiers and rankings, with the same answers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from kerncast.arrays import Floats
from kerncast.compiling.interpreter import Interpreter
from kerncast.compiling.overrides import Decided
from kerncast.compiling.tiers import Tiers
from kerncast.expr import Program
from kerncast.models.answer import Answer, Pin, Tier, unlike_measured
from kerncast.models.hull import against_facts, outside_hull
from kerncast.models.offered import OfferedModel
from kerncast.models.statuses import Answered
from kerncast.op import Config, Problem
from kerncast.selecting.answers import Answers

NO_CONFIG = "no config that the model knows can run this problem"
NONE_GIVEN = "none of the configs that were given can run this problem"


class InPython:
    """Answers for one artefact without a compiler; `decided` are the overrides that apply."""

    def __init__(self, answers: Answers, tiers: Tiers) -> None:
        self.answers, self.tiers, self.model, self.artefact = answers, tiers, answers.model, answers.artefact
        self.interpreter = Interpreter(self.artefact)
        self.decided: Decided | None = None
        self._no_config = NONE_GIVEN if isinstance(self.model, OfferedModel) else NO_CONFIG

    def override(self, decided: Decided | None, applied: Decided) -> None:
        """Apply other overrides; `applied` says the same where there are none."""
        self.interpreter.available = applied.available
        self.decided = decided

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
            **self.model.family.problem.qualified(problem.as_dict()),
            **self.model.family.config.qualified(self.answers.configs[row].as_dict()),
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
            return replace(self.answers.untimed(problem, row, Tier.PIN), pin=Pin.DECIDED), refused
        alone = self.artefact.alone
        chosen = self.answers.untimed(problem, row, Tier.PIN) if alone else self._timed(problem, row, Tier.PIN)
        return replace(chosen, pin=Pin.DECIDED), None

    # -- one problem -----------------------------------------------------------------------------------

    def ask(self, problem: Problem, tier: Tier) -> Answer:
        """The answer of a tier."""
        decided, refused = self._before_asking(problem)
        if decided is not None and decided.pin is Pin.DECIDED:
            return decided
        answer = refused if refused is not None else self._interpreted(problem, tier)
        return answer if decided is None else self.with_pin(answer, Pin.NOT_APPLIED)

    def refusal(self, problem: Problem) -> Answer | None:
        """What the rules and the trained range say against a problem."""
        values = self.model.family.problem.qualified(problem.as_dict())
        for rule in self.artefact.unsupported_rules:
            if not Program({rule.name: rule.holds}).scalar(values)[rule.name]:
                return Answer(Answered.UNSUPPORTED, problem, reason=rule.sentence)
        outside = outside_hull(self.model, problem)
        if not outside:
            return None
        return self.answers.outside(problem, outside[0].parameter, self._fallback(problem))

    def _fallback(self, problem: Problem) -> int | None:
        """The first fallback that can run the problem, by the rules."""
        rows, _ = self.artefact.fallbacks
        allowed = self.interpreter.allowed(problem.as_dict(), np.array(rows, np.int64))
        return rows[int(allowed.argmax())] if allowed.any() else None

    def _interpreted(self, problem: Problem, tier: Tier) -> Answer:
        return unlike_measured(self._first_tier(problem, tier), against_facts(self.model, problem))

    def _first_tier(self, problem: Problem, tier: Tier) -> Answer:
        """The answer of the first tier, from the one asked for on, that has a config which can run."""
        values = problem.as_dict()
        if tier is Tier.TREE:
            row = self.interpreter.tree_choice(values)
            if row is not None:
                return self.answers.untimed(problem, row, Tier.TREE)
        if self.artefact.alone:
            return self.answers.unsure(problem, self._fallback(problem))
        if tier is not Tier.FULL and Tier.PORTFOLIO in self.artefact.include:
            row = self.interpreter.portfolio_choice(values)
            if row is not None:
                return self._timed(problem, row, Tier.PORTFOLIO)
        if Tier.FULL not in self.artefact.include:
            return Answer(Answered.NO_VALID_CONFIG, problem, reason=NO_CONFIG)
        rows = self.artefact.members("full")
        scores, times = self.interpreter.scores(values, rows)
        if not np.isfinite(scores).any():
            return Answer(Answered.NO_VALID_CONFIG, problem, reason=self._no_config)
        best = int(scores.argmin())
        return self._accepted(problem, best, float(times[best]), Tier.FULL)

    def _timed(self, problem: Problem, row: int, tier: Tier) -> Answer:
        return self._accepted(problem, row, self.interpreter.time_of(problem.as_dict(), row), tier)

    def _accepted(self, problem: Problem, row: int, time_ns: float, tier: Tier) -> Answer:
        expected = self.tiers.expectation
        lower, upper = self.model.bounds(problem, time_ns)
        efficiency = None if expected is None else expected.of(time_ns)
        config, label = self.answers.configs[row], self.answers.label(row, problem)
        answer = Answer(Answered.OK, problem, config, time_ns, lower, upper, efficiency, tier, label=label)
        return self.model.mark(answer, row)

    # -- more than the best ----------------------------------------------------------------------------

    def ranked(self, problem: Problem, k: int, asked: Tier) -> list[Answer]:
        """The k best configs, best first: those of the tier, then all others."""
        decided, refused = self._before_asking(problem)
        if refused is not None:
            if decided is not None:
                return [decided if decided.pin is Pin.DECIDED else self.with_pin(refused, Pin.NOT_APPLIED)]
            return [refused]
        ranked = [decided] if decided is not None and decided.pin is Pin.DECIDED else []
        listed = {item.config for item in ranked}
        if self.artefact.alone:
            rows = self.interpreter.leaf(problem.as_dict())[0]
            found = [self.answers.untimed(problem, int(row), Tier.TREE) for row in rows]
            if not found and not ranked:
                ranked.append(self.answers.unsure(problem, self._fallback(problem)))
            ranked = [*ranked, *(item for item in found if item.config not in listed)][:k]
        pools = [Tier.PORTFOLIO, Tier.FULL] if asked is not Tier.FULL else [Tier.FULL]
        for each in [tier for tier in pools if tier in self.artefact.include]:
            ranked += self._others(problem, each, k - len(ranked), {item.config for item in ranked})
            if len(ranked) >= k:
                break
        if not ranked:
            return [Answer(Answered.NO_VALID_CONFIG, problem, reason=self._no_config)]
        if decided is not None and decided.pin is Pin.NOT_APPLIED:
            ranked[0] = self.with_pin(ranked[0], Pin.NOT_APPLIED)
        unlike = against_facts(self.model, problem)
        return [item if item.pin is Pin.DECIDED else unlike_measured(item, unlike) for item in ranked]

    def _others(self, problem: Problem, tier: Tier, count: int, listed: set[Config | None]) -> list[Answer]:
        """The best configs of a tier that are not listed yet, at most `count`."""
        rows, configs = self.artefact.members(tier), self.answers.configs
        scores, times = self.interpreter.scores(problem.as_dict(), rows)
        order = [i for i in np.lexsort((rows, scores)) if np.isfinite(scores[i]) and configs[rows[i]] not in listed]
        return [self._accepted(problem, int(rows[i]), float(times[i]), tier) for i in order[: max(0, count)]]

    def scores(self, problem: Problem, tier: Tier) -> tuple[Floats, Floats]:
        """Scores and times of the configs of a tier."""
        return self.interpreter.scores(problem.as_dict(), self.artefact.members(tier))
