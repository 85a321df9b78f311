"""The procedure that makes a learner from a table. Cross-validation scores the procedure, so everything that
looks at labels (tuning, mining, stopping) happens inside it, on its own groups."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np

from kerncast.core.arrays import Floats
from kerncast.core.progress import QUIET, Progress
from kerncast.errors import InvalidValue, NotFound
from kerncast.learning.learners.contract import Fitting, Learner, Options, Target
from kerncast.learning.learners.kinds import learner_class, options_of
from kerncast.learning.scoring.trials import folds_by_group, held_out
from kerncast.learning.tables.table import Table
from kerncast.models.limits.configs import chosen_last, never_worked
from kerncast.training.recipe import Recipe

# Mining judges each problem with models that did not see it: this many folds within the training data.
MINING_FOLDS = 3
# A problem whose choice runs at half speed counts this many times; one with the best choice counts once.
HARDEST = 5.0
TUNING_SHARE = 0.25


Spread = Callable[..., list[Any]]
"""Takes fits, a procedure and a table, runs the fits and returns their results, in order."""


@dataclass(frozen=True)
class Procedure:
    """A recipe that can be run."""

    recipe: Recipe
    progress: Progress = QUIET
    """Is told the steps of every fit and the folds of a cross-validation."""
    rough: bool = False
    """Whether cheaper fits are enough, see `Fitting`."""
    spread: Spread | None = None
    """What runs several fits instead of this process, see `training/spreading.py`."""
    elsewhere: bool = False
    """Fits are asked about devices alone that they have not seen."""

    @property
    def target(self) -> Target:
        assert self.recipe.target is not None
        assert self.recipe.target_log is not None
        return Target(self.recipe.target, self.recipe.target_log)

    @property
    def fitting(self) -> Fitting:
        """The settings that every fit of this procedure gets."""
        return Fitting(self.target, self.recipe.seed, self.recipe.threads, self.progress, self.rough, self.elsewhere)

    def options(self) -> Options:
        """The knobs of the recipe as this kind's options."""
        return options_of(learner_class(self.recipe.kind), {**self.recipe.inherited, **self.recipe.knobs})

    def tuned_knobs(self) -> dict[str, Any]:
        """What `--tune` may change, and how far: nothing that was given."""
        return tuning_ranges(learner_class(self.recipe.kind), self.recipe.knobs) if self.recipe.tune else {}

    def fit(self, table: Table, base: Learner | None = None) -> Learner:
        """Tune, mine and fit on one table; none of the three may look at other data."""
        if not table.ok.any():
            raise InvalidValue("a fold has no row that worked to learn from: measure more problems, or ask for other folds")
        options = self._tuned(table) if self.recipe.tune else self.options()
        if self.recipe.hard_mining:
            table = self._mined(table, options)
        return learner_class(self.recipe.kind)(options).fit(table, self.fitting, base)

    def without_mining(self) -> Procedure:
        """The same fit without mining, for comparison."""
        return replace(self, recipe=replace(self.recipe, hard_mining=0))

    def scores(self, learner: Learner, table: Table, seen: Table | None = None) -> tuple[Floats, Floats]:
        """Predicted nanoseconds, and what to choose by (low is chosen).

        As when serving, configs that never worked in `seen` and those that break a rule of the family come last.
        """
        output = learner.predict(table.rows)
        time_ns = self.target.decode(output.target, table.rows)
        score = time_ns if output.score is None else output.score
        failed = ~table.allowed if seen is None else ~table.allowed | never_worked(seen, table)
        return time_ns, chosen_last(score, failed)

    def _mined(self, table: Table, options: Options) -> Table:
        """Larger weights for problems on which models that did not see them choose badly."""
        kind = learner_class(self.recipe.kind)
        for _ in range(self.recipe.hard_mining):
            fold = folds_by_group(table.group, MINING_FOLDS, self.recipe.seed)
            efficiency = np.ones(int(table.problem.max()) + 1)
            for number in range(MINING_FOLDS):
                own, others = table.take(fold == number), table.take(fold != number)
                learner = kind(options).fit(others, self.fitting)
                chosen = own.trials.choose(self.scores(learner, own, others)[1])
                efficiency[own.trials.problems] = own.trials.share[chosen]
            weight = 1.0 + (HARDEST - 1.0) * np.minimum(1.0, 2.0 * (1.0 - efficiency))
            table = replace(table, weight=weight[table.problem])
        return table

    def _tuned(self, table: Table) -> Options:
        """The knobs that do best on groups set aside from this table."""
        try:
            import optuna
        except ImportError as error:
            raise NotFound.package("`tune`", "optuna", "tune") from error
        kind = learner_class(self.recipe.kind)
        ranges = self.tuned_knobs()
        aside = held_out(table.group, TUNING_SHARE, self.recipe.seed + 1)
        training, judge = table.take(~aside), table.take(aside)
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        start = msgspec.to_builtins(self.options())

        def loss(trial: Any) -> float:
            knobs = {name: suggest(trial, name) for name, suggest in ranges.items()}
            learner = kind(options_of(kind, {**start, **knobs})).fit(training, self.fitting)
            time_ns, score = self.scores(learner, judge, training)
            trials = judge.trials
            if trials.choosing:
                return float(1.0 - trials.share[trials.choose(score)][trials.solvable].mean())
            ok = judge.ok
            return float(np.mean(np.abs(np.log(time_ns[ok] / judge.time_ns[ok]))))

        study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=self.recipe.seed))
        # The recipe's own knobs are tried first, even if they are outside the ranges. The warning filter stays in place:
        # filters belong to the whole process, and parallel fits would restore each other's.
        warnings.filterwarnings("ignore", "Fixed parameter", UserWarning)
        study.enqueue_trial({name: start[name] for name in ranges if start[name] is not None})
        study.optimize(loss, n_trials=self.recipe.tune)
        return options_of(kind, {**start, **study.best_params})


def tuning_ranges(kind: type[Learner], given: Collection[str] = ()) -> dict[str, Any]:
    """What `--tune` may change, and how far; knobs that were given are fixed."""
    known: dict[str, Any] = {
        "leaves": lambda trial, name: trial.suggest_int(name, 7, 127, log=True),
        "trees": lambda trial, name: trial.suggest_int(name, 100, 800, log=True),
        "lr": lambda trial, name: trial.suggest_float(name, 1e-4, 0.3, log=True),
        "temperature": lambda trial, name: trial.suggest_float(name, 0.005, 0.1, log=True),
        "blend": lambda trial, name: trial.suggest_float(name, 0.0, 1.0),
        "batch_size": lambda trial, name: trial.suggest_int(name, 32, 1024, log=True),
    }
    found = {name: known[name] for name in kind.options_type.__struct_fields__ if name in known}
    if not found:
        raise InvalidValue(f"the model {kind.kind} has no knob to tune: leave `tune` out")
    free = {name: suggest for name, suggest in found.items() if name not in given}
    if not free:
        raise InvalidValue(f"every knob of {kind.kind} that `tune` could change was given ({', '.join(found)}): leave one out")
    return free
