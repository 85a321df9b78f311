"""The selector: chooses a config with a model, tier by tier, or says why there is none."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import polars as pl

from kerncast.answering.inputs import SelectorParts, listed, named_tier
from kerncast.answering.measure import MOST_CONTENDERS, contenders, measure_top
from kerncast.answering.tiered import NativeAnswerer, TieredAnswerer
from kerncast.core.arrays import Floats, Ints
from kerncast.core.device import Device
from kerncast.core.io.terminal import printable
from kerncast.core.op import Config, Problem
from kerncast.core.progress import QUIET, Progress
from kerncast.data.tables import Frame, as_polars, is_frame, with_columns
from kerncast.errors import InvalidValue
from kerncast.measuring.backends.contract import Backend
from kerncast.models.answer import CHOOSING, Answer, Answered, Pin, Tier
from kerncast.models.model import Model
from kerncast.models.problem_frames import DEVICE, problems_in, without_device
from kerncast.native.overrides import Overrides
from kerncast.native.tiers.build import TierOptions
from kerncast.native.tiers.contents import Tiers

if TYPE_CHECKING:  # they import this module
    from kerncast.answering.explain import Explanation
    from kerncast.answering.inputs import Configs
    from kerncast.answering.search import Search
    from kerncast.data.dataset import Dataset
    from kerncast.native.tiers.smallest_set import Portfolio

# Problems in the memo and ways to ask about them, a kilobyte each; a full memo is emptied.
MOST_REMEMBERED = 50_000


class NoDevice(InvalidValue, AttributeError):
    """What is prepared for one device was asked of a selector of several. For `hasattr`, it is not there."""


class Selector:
    """Picks a config for a problem, or says why there is none: `Selector(model)`, with a model or its path.

    The first selector of a model takes some seconds: its quick tiers are built, compiled and cached. Without a C compiler, or
    with a learner that writes no C, or if this user has neither trained nor trusted the model, it runs in Python; the answers
    are the same. Threads may share a selector; they take turns.

    `device` is one of a model of several devices. Without it each question names one: `pick(M=…, device="h100")`; for all
    else there is `pick.on("h100")`.
    """

    def __init__(
        self,
        model: Model | str | Path,
        *,
        device: Device | str | None = None,
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
        loaded = model if isinstance(model, Model) else Model.load(model)
        self.model = loaded if device is None else loaded.on(device)
        self._of_device: dict[str, Selector] = {}
        self._making = threading.Lock()
        # Tiers that are built and lists of configs are of one device: they are refused below.
        one = isinstance(tiers, Tiers) or self.model.given is not None
        self._several = len(self.model.manifest.devices) > 1 and not one
        if self._several:
            # What answers for a device is prepared when it is asked about for the first time.
            self._options: dict[str, Any] = {
                "tier": tier, "compile": compile, "options": options, "tiers": tiers, "configs": configs,
                "overrides": overrides, "progress": progress,
            }  # fmt: skip
            return
        self._prepared = SelectorParts.of(self.model, tiers, options, configs, progress)
        self.model, self.tiers, self.artefact = self._prepared.model, self._prepared.tiers, self._prepared.artefact
        # By default, as in C.
        usual = next(one for one in (Tier.PORTFOLIO, Tier.FULL, Tier.TREE) if one in self.artefact.include)
        self.tier = usual if tier is None else self._included(tier)
        self._python = TieredAnswerer(self.artefact)
        binding, self.note = self._prepared.compiled(progress) if compile and configs is None else (None, "")
        """`note`: why the model is not compiled, if the user can change that; every answer has it."""
        self.answerer = self._python if binding is None else NativeAnswerer(self._python, binding)
        self._overriding = threading.Lock()
        self._forget()
        if overrides is not None:
            for note in self.override(overrides):
                progress.say(note)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """What is prepared for one device is missing as long as none is named."""
            if name.startswith("__") or not vars(self).get("_several"):
                raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")
            raise NoDevice(self._which)

    @property
    def _which(self) -> str:
        names = ", ".join(record.name for record in self.model.manifest.devices)
        return f"the model is for several devices ({names}): name one with `device`, or ask `selector.on(device)`"

    def on(self, device: Device | str) -> Selector:
        """The selector for one of the model's devices, made when it is first asked for."""
        found = self._of_device.get(device) if isinstance(device, str) else None
        if found is None:
            with self._making:
                bound = self.model.on(device)
                name = bound.device.name
                found = self._of_device.get(name) or (type(self)(bound, **self._options) if self._several else self)
                self._of_device |= {name: found, device if isinstance(device, str) else name: found}
        return found

    def _included(self, given: Tier | str) -> Tier:
        tier = named_tier(given)
        if tier not in self.artefact.include:
            raise InvalidValue(
                f"this selector has the tiers {', '.join(self.artefact.include)}, and '{tier}' was asked for: ask another, or "
                "make a selector that has it"
            )
        return tier

    def _forget(self) -> None:
        """An empty memo in a new place: an answer that is being looked up right now ends in the old one."""
        self._memo: dict[tuple[Tier, Hashable], Answer] = {}

    def override(self, overrides: Overrides | Mapping[str, Any] | str | Path | None) -> tuple[str, ...]:
        """Say which configs exist and which choices are fixed, from the next question on; None: as the model has it.

        `overrides` is an `overrides.toml`, or a mapping of the same form: `available` (only these), `deny` (never these) and
        `pin` (a problem with its kernel). Kernels are named by label, by candidate number or by parameters of their config.
        Returns notes about what of it the model does not know.
        """
        with self._overriding:
            decided, applied = self._prepared.decided(overrides)
            self.answerer.override(decided, applied)
            self._forget()
        return applied.notes

    def __call__(
        self, problem: Problem | Mapping[str, Any] | None = None, /, *, device: Device | str | None = None, **parameters: Any
    ) -> Answer:
        """`pick(M=300, N=500, K=700, dtype="fp16", layout="rcr")`: as `select`, with the problem's parameters as arguments."""
        if problem is not None and parameters:
            raise InvalidValue("give the problem as one value or as arguments, not both")
        return self.select(parameters if problem is None else problem, device=device)

    def __reduce__(self) -> Any:
        raise TypeError("a selector cannot be pickled: make it again in the other process, where it is read from the cache")

    def __repr__(self) -> str:
        if self._several:
            names = ", ".join(record.name for record in self.model.manifest.devices)
            return printable(f"Selector({self.model.family.id} on one of {names}, as each question says)")
        count = f"{self.artefact.candidates:,} configs"
        parts = (
            [f"{count} that were given"]
            if self.model.given is not None
            else [count, f"portfolio of {len(self.tiers.portfolio):,}"]
        )
        if self.tiers.tree is not None:
            parts.append("a tree")
        parts.append("compiled" if self.is_compiled else "interpreted")
        decided = self._python.decided
        if decided is not None:
            parts.append(f"{len(decided.denied):,} denied, {len(decided.pinned):,} pinned")
        asked = self._there(self.tier)
        return printable(
            f"Selector({self.model.family.id} on {self.model.device.name}; {', '.join(parts)}; asks the {asked} tier)"
        )

    @property
    def is_compiled(self) -> bool:
        return isinstance(self.answerer, NativeAnswerer)

    @property
    def configs(self) -> list[Config]:
        """The candidates, in the model's order."""
        return self._python.configs

    def problem(self, values: Mapping[str, Any] | Problem) -> Problem:
        """A problem of the model's family, validated."""
        if not isinstance(values, Mapping):
            raise InvalidValue(f"one problem is a mapping, got {type(values).__name__}: ask `select_many` about several")
        if isinstance(values, Problem):
            return self.model.problem(values)
        named: Any = values.get(DEVICE)
        bound = self.model.on(named) if self._several and DEVICE in values else self.model
        return self.model.problem(without_device(self.model.family, values, bound.device.name))

    # -- one problem ---------------------------------------------------------------------------------

    def select(
        self, problem: Problem | Mapping[str, Any], tier: Tier | str | None = None, *, device: Device | str | None = None
    ) -> Answer:
        """The config to run, from the tier asked for (by default the selector's own).

        `device` is one of the model's; a problem that is a mapping may have it too, as a JSON request does.
        """
        if device is not None:
            return self.on(device).select(problem, tier)
        if self._several and isinstance(problem, Mapping) and DEVICE in problem:
            named = dict(problem)
            return self.select(named, tier, device=named.pop(DEVICE))
        memo, asked = self._memo, self.tier if tier is None else self._included(tier)
        question = problem if isinstance(problem, Problem) else _question(problem)
        try:
            found = memo.get((asked, question))
        except TypeError:  # a value that cannot be hashed: what is wrong with it is said below
            found = None
        if found is not None:
            return found
        problem = self.problem(problem)
        answer = memo.get((asked, problem)) or self._ask(problem, asked)
        if answer.ok:
            if len(memo) >= MOST_REMEMBERED:
                memo.clear()
            memo[asked, question] = memo[asked, problem] = answer.remembered()
        return answer

    def _ask(self, problem: Problem, tier: Tier) -> Answer:
        return self._noted(self.answerer.ask(problem, self._there(tier)))

    def _there(self, given: Tier | str) -> Tier:
        """The tier that answers when this one is asked: the portfolio if there is no tree, since one config needs none.

        Configs that were given have no tiers: the model scores all of them.
        """
        tier = self._included(given)
        if self.model.given is not None:
            return Tier.FULL
        if tier is not Tier.TREE or self.tiers.tree is not None:
            return tier
        return Tier.PORTFOLIO if Tier.PORTFOLIO in self.artefact.include else Tier.FULL

    @property
    def answering(self) -> tuple[Tier, ...]:
        """The tiers that a JSON request may name."""
        return tuple(Tier(tier) for tier in self.artefact.include if tier != Tier.TREE or self.tiers.tree is not None)

    def _noted(self, answer: Answer) -> Answer:
        """The answer, which says why the model is not compiled if the user can change that."""
        return replace(answer, note=self.note) if self.note else answer

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
        return [self._noted(item) for item in self.answerer.rank(problem, asked, k)]

    def scores(self, problem: Problem | Mapping[str, Any], tier: Tier | str | None = None) -> tuple[Floats, Floats]:
        """Scores (low is chosen, infinite where a config cannot run) and times of the configs of a tier (the widest)."""
        if self.artefact.alone:
            raise InvalidValue("a tree alone has no scores: make a selector with the tier portfolio or full")
        problem, asked = self.problem(problem), self._widest if tier is None else self._there(tier)
        return self.answerer.scores(problem, asked)

    def predict(self, problem: Problem | Mapping[str, Any], config: Config | Mapping[str, Any] | None = None) -> Answer:
        """How long a config takes; for a family with nothing to choose, how long the problem takes."""
        problem = self.problem(problem)
        if config is None:
            if self.model.family.config.parameters:
                raise InvalidValue(
                    f"{self.model.family.id} has configs to choose from: name one, or ask `select` for the best one's time"
                )
            config = {}
        refused = self._python.refusal(problem)
        if refused is not None:
            return refused
        return self.model.predict(problem, config)

    def vectors(self, problem: Problem, rows: Sequence[int]) -> pl.DataFrame:
        """One problem with some candidates, as stored in a dataset."""
        return self._python.candidates.vectors(problem.as_dict(), np.array(rows, np.int64))

    def measure(self, problem: Problem | Mapping[str, Any], backend: Backend, seconds: float = 1.0) -> Answer:
        """Measure the configs that the model cannot tell apart and return the fastest; the result is remembered."""
        problem = self.problem(problem)
        memo, question = self._memo, (Tier.MEASURE, problem)
        if question in memo:
            return memo[question]
        ranked = self.rank(problem, MOST_CONTENDERS)
        if ranked[0].config is None or ranked[0].pin is Pin.DECIDED:
            return ranked[0]
        if ranked[0].upper_ns is not None:
            places = contenders([item.lower_ns or 0.0 for item in ranked], [item.upper_ns or 0.0 for item in ranked])
            ranked = [ranked[place] for place in places]
        timed = measure_top(backend, problem, [item.config for item in ranked if item.config is not None], seconds)[0]
        name = self._python.label(self.configs.index(timed.config), problem)
        memo[question] = Answer(Answered.OK, problem, timed.config, timed.time_ns, tier=Tier.MEASURE, label=name)
        return memo[question]

    def explain(self, answer: Answer, tier: Tier | str | None = None) -> Explanation:
        """Why this config: what each feature contributed, the nearest measured problems, the runners-up.

        Runners-up are those of one tier: of `tier`, else of the one that answered (for a memo: the selector's own).
        """
        from kerncast.answering.explain import explain

        if not isinstance(answer, Answer) or answer.config is None:
            got = f"one that is {answer.status}" if isinstance(answer, Answer) else type(answer).__name__
            raise InvalidValue(f"an answer with a config can be explained, got {got}: ask `explain(pick(problem))`")
        given = answer.tier if answer.tier in CHOOSING else self.tier
        return explain(self, answer, named_tier(tier if tier is not None else given))

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
        device: Device | str | None = None,
        progress: Progress = QUIET,
    ) -> Search:
        """Search all configs that the family declares, measured or not; with `measure`, time the best on this machine.

        With `configs`, only these are scored (see `Selector`).
        """
        if self._several or device is not None:
            named = dict(problem) if isinstance(problem, Mapping) else problem
            if device is None and isinstance(named, dict):
                device = named.pop(DEVICE, None)
            if device is None:
                raise NoDevice(self._which)
            return self.on(device).search(
                named, strategy=strategy, budget=budget, top_k=top_k, seed=seed, configs=configs, measure=measure,
                backend=backend, progress=progress,
            )  # fmt: skip
        from kerncast.answering import search
        from kerncast.measuring.backends import backend_that_runs

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
        max_configs: int = 64,
        family: str | None = None,
        where: Sequence[str] | str = (),
        out: str | Path | None = None,
        build_list: str | Path | None = None,
    ) -> Portfolio:
        """The smallest set of configs of a model or a dataset that is enough: the other kernels need not be built."""
        from kerncast.native.tiers.smallest_set import portfolio_of

        conditions = (where,) if isinstance(where, str) else where
        return portfolio_of(
            source, loss=loss, max_configs=max_configs, family=family, where=conditions, out=out, build_list=build_list
        )

    # -- many problems -----------------------------------------------------------------------------------

    @overload
    def select_many(
        self, problems: Sequence[Problem | Mapping[str, Any]], tier: Tier | str | None = None, *,
        device: Device | str | None = None,
    ) -> list[Answer]: ...  # fmt: skip
    @overload
    def select_many(self, problems: Frame, tier: Tier | str | None = None, *, device: Device | str | None = None) -> Frame: ...
    def select_many(self, problems: Any, tier: Tier | str | None = None, *, device: Device | str | None = None) -> Any:
        """An answer for every problem, in order: a list of answers to a list of problems, a frame to a frame.

        A frame (polars or pandas; columns `problem.M` or `M`) comes back with `config.*`, `time_ns`, `lower_ns`, `upper_ns`,
        `efficiency`, `tier`, `label` if kernels have names, `status` and `reason`; its other columns are kept.
        """
        if device is not None:
            return self.on(device).select_many(problems, tier)
        if self._several:
            return self._select_by_device(problems, tier)
        if is_frame(problems):
            return with_columns(problems, self._columns(as_polars(problems), tier))
        asked = self._there(self.tier if tier is None else tier)
        built = [self.problem(item) for item in listed(problems)]
        if not built:
            return []
        if isinstance(self.answerer, NativeAnswerer):
            return self.answerer.ask_many(built, asked)
        return [self.select(item, asked) for item in built]

    def _select_by_device(self, problems: Any, tier: Tier | str | None) -> Any:
        """The same of several devices: each problem names its own."""
        if is_frame(problems):
            frame = as_polars(problems)
            names = frame[DEVICE].to_list() if DEVICE in frame.columns else [None] * frame.height
            named = self._by_device(names)
            parts = [self.on(name)._columns(frame[rows], tier) for name, rows in named]
            return with_columns(problems, pl.concat(parts, how="diagonal_relaxed")[_places(named)]) if parts else problems
        given = listed(problems)
        named = self._by_device([item.get(DEVICE) if isinstance(item, Mapping) else None for item in given])
        told = [answer for name, rows in named for answer in self.on(name).select_many([given[row] for row in rows], tier)]
        return [told[place] for place in _places(named)]

    def _by_device(self, names: Sequence[Any]) -> list[tuple[Any, list[int]]]:
        """The rows of each device that problems name."""
        if None in names:
            raise NoDevice(f"problem {names.index(None) + 1} of {len(names)} names no device: {self._which}")
        rows: dict[Any, list[int]] = {}
        for place, name in enumerate(names):
            if not isinstance(name, str | Device):
                raise InvalidValue(f"problem {place + 1} of {len(names)} names the device {name!r}: {self._which}")
            rows.setdefault(name, []).append(place)
        return list(rows.items())

    def _columns(self, problems: pl.DataFrame, tier: Tier | str | None) -> pl.DataFrame:
        """The answers to a frame, as columns."""
        asked = self._there(self.tier if tier is None else tier)
        return self._frame(problems_in(self.model, problems, self.model.device.name), asked)

    def _frame(self, problems: pl.DataFrame, tier: Tier) -> pl.DataFrame:
        """The answers to valid problems (`problem.*`), as columns."""
        if isinstance(self.answerer, NativeAnswerer):
            return self.answerer.frame(problems, tier)
        names, rows = list(self.model.family.problem.parameters), problems.iter_rows()
        built = [Problem.trusted(self.model.family, dict(zip(names, row, strict=True))) for row in rows]
        return self._python.columns_of([self.select(item, tier) for item in built], problems)

    def rank_many(
        self, problems: Sequence[Problem | Mapping[str, Any]] | Frame, k: int = 10, tier: Tier | str | None = None
    ) -> list[list[Answer]]:
        """A ranking for every problem, in order."""
        given = as_polars(problems).iter_rows(named=True) if is_frame(problems) else problems
        return [self.rank(self.problem(item), k, tier) for item in listed(given)]

    def latencies_us(self, problems: Sequence[Problem], tier: Tier | str) -> Floats:
        """Microseconds per call without the memo: of the artefact itself, or of Python if there is none, for about a second."""
        return self.answerer.latencies_us(problems, self._there(tier))

    def query(self, text: str | bytes) -> bytes:
        """Answer a JSON request, or a list of them, in JSON: by the exported C, or in Python without a compiler."""
        if isinstance(self.answerer, NativeAnswerer):
            return self.answerer.binding.query(text)
        from kerncast.answering.query import answer_text

        return answer_text(self, text)


def _places(named: Sequence[tuple[Any, list[int]]]) -> Ints:
    """Where the answers to problems of several devices, one device after the other, belong."""
    return np.argsort(np.array([row for _, rows in named for row in rows], np.int64))


def _question(values: Mapping[str, Any]) -> Hashable:
    """A problem as it was given, for the memo. The types belong to it: True equals 1, and is no size."""
    given = values.values() if isinstance(values, Mapping) else ()
    return *values, *given, *map(type, given)
