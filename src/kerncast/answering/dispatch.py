"""Picks a kernel for a caller's arrays and runs it.

    multiply = Dispatcher("gemm/cpu", "models/gemm")
    c = multiply.run(a, b)

The first call with arrays of some shapes, strides and types chooses a kernel: it asks the model or, without one,
measures configs for a while. Later calls with such arrays reuse the bound kernel and only pass it the data.
"""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain, zip_longest
from pathlib import Path
from typing import Protocol

from kerncast.answering.measure import ChoiceCache, measure_top
from kerncast.core.arrays import Array
from kerncast.core.op import Config, Family, Problem
from kerncast.errors import InvalidValue, NotFound
from kerncast.library.registry import FAMILIES
from kerncast.measuring.backends import backend_that_runs
from kerncast.measuring.backends.contract import Backend, Bound, Call, Failed, WrongResult
from kerncast.models.answer import Answer, Answered, Tier
from kerncast.models.model import Model

BUDGET_SECONDS = 1.0
# Tried before the backend's first configs: the winners of similar problems, and the best on the small problem of the same
# kind. That one gets more time, because it serves all the others.
NEARBY, BEST_OF_SMALL, TIME_FOR_SMALL = 6, 12, 8.0
# Signatures that are kept bound (some 2 KB each). The oldest is dropped; the choice for its problem is still known.
MOST_BOUND = 4096


class ConfigChooser(Protocol):
    """What a dispatcher asks: a `Selector`, or anything that answers like one."""

    def select(self, problem: Problem) -> Answer:
        """The config for a problem, or why there is none."""
        ...


@dataclass(frozen=True)
class DispatchChoice:
    """The kernel that runs a problem."""

    config: Config
    by: str
    """What chose it: a tier of the selector, `fallback` (outside the trained range), `measure` or `remembered`."""
    time_ns: float | None
    """Predicted (by a model) or measured."""


class Dispatcher:
    """Picks and runs kernels of one family on numpy arrays. Safe to share between threads.

    `model` is a model directory, a `Model`, or anything with `select(problem) -> Answer`. Without a model, or if it has
    neither an answer nor a fallback that runs here, each new problem is measured for up to `budget` seconds;
    `remember` is the file that keeps what was measured. `threads` is how many threads the kernels may use. `verify`
    checks the result of a model's choice before its first use, as is always done for measured ones.
    """

    def __init__(
        self,
        family: str | Family,
        model: str | Path | Model | ConfigChooser | None = None,
        *,
        threads: int = 1,
        budget: float = BUDGET_SECONDS,
        remember: str | Path | None = None,
        verify: bool = False,
        backend: Backend | None = None,
    ) -> None:
        self.family = FAMILIES.get(family) if isinstance(family, str) else family
        kind = backend_that_runs(self.family.id, here=False) if backend is None else type(backend)
        if self.family.id not in kind.calls:
            raise NotFound(
                f"backend {kind.name} runs {self.family.id}, but not on a caller's arrays: it dispatches "
                f"{', '.join(kind.calls) or 'no family'}"
            )
        self.backend = backend_that_runs(self.family.id)("0") if backend is None else backend
        if not 0 < budget < math.inf:
            raise InvalidValue(f"budget must be a positive number of seconds, got {budget}: 1 is enough for most problems")
        self._call: type[Call] = kind.calls[self.family.id]
        self._signature = self._call.signature
        self._environment = _environment(self.family, threads)
        self._chooser = _chooser(model, self.family)
        self.budget, self.verify = budget, verify
        # Without a file it is made when something is first measured, because it has to ask the device for its numbers.
        self._remembered = None if remember is None else ChoiceCache(self.family, self.backend, remember)
        self._lock = threading.RLock()
        self._bound: dict[Hashable, Bound] = {}
        self._choices: dict[Problem, DispatchChoice] = {}
        self._in_small: dict[Problem, list[Config]] = {}

    def __repr__(self) -> str:
        asked = "measures" if self._chooser is None else "asks a model"
        by = ", ".join(f"{count:,} by {name}" for name, count in self.answered.items()) or "none yet"
        threads = "".join(f", {name}={count}" for name, count in self._environment.items())
        return f"Dispatcher({self.family.id} on {self.backend.name}{threads}; {asked}; problems answered: {by})"

    def run(self, *arrays: Array, out: Array | None = None, **attributes: Hashable) -> Array:
        """Run the kernel and return the result, in `out` if that is given: for gemm, `run(a, b)` is `a @ b`."""
        try:
            bound = self._bound[self._signature(*arrays, **attributes)]
        except (KeyError, AttributeError, TypeError, ValueError):
            bound = self._bind(arrays, attributes)
        return bound(*arrays, out=out)

    def choice(self, *arrays: Array, **attributes: Hashable) -> DispatchChoice | None:
        """The kernel that runs these arrays, chosen now if it is not known; None if no kernel is needed (empty arrays)."""
        call = self._call.of(*arrays, **attributes)
        if call.without_kernel() is not None:
            return None
        self._bind(arrays, attributes)
        return self._choices[self._problem(call)]

    @property
    def answered(self) -> dict[str, int]:
        """Number of problems answered by each tier of the selector, `fallback`, `measure` and `remembered`."""
        with self._lock:
            return dict(sorted(Counter(choice.by for choice in self._choices.values()).items()))

    def problem(self, *arrays: Array, **attributes: Hashable) -> Problem:
        """The problem that these arrays make."""
        return self._problem(self._call.of(*arrays, **attributes))

    def _problem(self, call: Call) -> Problem:
        return Problem(self.family, {**call.values, **self._environment})

    def _bind(self, arrays: tuple[Array, ...], attributes: Mapping[str, Hashable]) -> Bound:
        """Choose and bind a kernel: what the first call does."""
        call = self._call.of(*arrays, **attributes)
        bound = call.without_kernel()
        signature = self._signature(*arrays, **attributes)
        with self._lock:
            if signature in self._bound:
                return self._bound[signature]
            if bound is None:
                bound = self._chosen(call, self._problem(call))
            while len(self._bound) >= MOST_BOUND:
                del self._bound[next(iter(self._bound))]
            self._bound[signature] = bound
        return bound

    def _chosen(self, call: Call, problem: Problem) -> Bound:
        """The kernel of the first choice that can be bound; that choice is kept for the problem."""
        known = self._choices.get(problem)
        if known is not None:
            return self.backend.bind(call, problem, known.config)
        for choice in chain(self._from_model(problem), self._from_measuring(problem)):
            try:
                bound = self.backend.bind(call, problem, choice.config)
                if self.verify and choice.by not in (Tier.MEASURE, "remembered"):
                    self._check(problem, choice.config)
            except Failed:
                # The model was trained on another machine: this one lacks an instruction, a compiler that builds it, or memory.
                continue
            self._choices[problem] = choice
            return bound
        raise InvalidValue(f"no kernel of {self.family.id} could be bound for {problem!r} on this machine")

    def _from_model(self, problem: Problem) -> Iterator[DispatchChoice]:
        if self._chooser is None:
            return
        answer = self._chooser.select(problem)
        usual = problem.usual()
        if answer.status is Answered.OUT_OF_RANGE and answer.config is None and usual != problem:
            # The model has not seen such strides or epilogues: the kernel for the same sizes without them is a good guess.
            other = self._chooser.select(usual)
            answer = answer if other.config is None else replace(other, time_ns=None)
        if answer.config is not None:
            yield DispatchChoice(answer.config, str(answer.tier or "model"), answer.time_ns)
        if answer.fallback is not None:
            yield DispatchChoice(answer.fallback, "fallback", None)

    def _from_measuring(self, problem: Problem) -> Iterator[DispatchChoice]:
        # Strides and epilogues hardly change which kernel is fastest: they are not worth another second.
        problem = problem.usual()
        if self._remembered is None:
            self._remembered = ChoiceCache(self.family, self.backend)
        known = self._remembered.get(problem)
        if known is not None:
            yield DispatchChoice(known[0], "remembered", known[1])
        best = measure_top(self.backend, problem, self._candidates(problem, self._remembered), self.budget)[0]
        self._remembered.put(problem, best.config, best.time_ns)
        yield DispatchChoice(best.config, str(Tier.MEASURE), best.time_ns)

    def _candidates(self, problem: Problem, remembered: ChoiceCache) -> Iterator[Config]:
        """The configs to try, promising ones first; they may repeat."""
        small = self.backend.smaller(problem)
        if small != problem:
            if small not in self._in_small:
                found = measure_top(self.backend, small, self.backend.first_configs(small), TIME_FOR_SMALL * self.budget)
                self._in_small[small] = [timed.config for timed in found[:BEST_OF_SMALL]]
                remembered.put(small, found[0].config, found[0].time_ns)
            both = zip_longest(self._in_small[small], remembered.nearby(problem, NEARBY))
            yield from (config for pair in both for config in pair if config is not None)
        else:
            yield from remembered.nearby(problem, NEARBY)
        yield from self.backend.first_configs(problem)

    def _check(self, problem: Problem, config: Config) -> None:
        prepared = self.backend.prepare(problem, config)
        try:
            error = prepared.check()
        finally:
            prepared.close()
        if not error <= self.backend.tolerance(problem):
            raise WrongResult(error)


def _environment(family: Family, threads: int) -> dict[str, int]:
    if "threads" in family.environment.parameters:
        rule = family.environment.parameters["threads"]
        if isinstance(threads, bool) or rule.index(threads) is None:
            raise InvalidValue(f"threads must be {rule.describe()}, got {threads!r}")
        return {"threads": threads}
    if threads != 1:
        raise InvalidValue(f"{family.id} has no `threads`, got threads={threads}: leave it out")
    return {}


def _chooser(model: str | Path | Model | ConfigChooser | None, family: Family) -> ConfigChooser | None:
    if model is None:
        return None
    known = Model.load(model) if isinstance(model, str | Path) else model
    # A selector has a model, which has a family; any other chooser may have a `family` itself.
    trained = getattr(getattr(known, "model", known), "family", family)
    if trained is not family:
        raise InvalidValue(f"the model is for {trained.id}, not for {family.id}: give one that was trained for it")
    if not isinstance(known, Model):
        return known
    from kerncast.answering.selector import Selector
    from kerncast.native.lower import refuse_several_devices

    refuse_several_devices(known)
    return Selector(known)
