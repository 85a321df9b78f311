"""The procedure that makes a learner from a table. Cross-validation scores the procedure, so everything that
looks at labels (tuning, mining, stopping) happens inside it, on groups of its own."""

from __future__ import annotations

import warnings
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt

from kerncast.errors import InvalidValue
from kerncast.learners.contract import Fitting, Learner, Options, Step, _silent, options_of
from kerncast.learners.kinds import learner_class
from kerncast.learners.target import Target, default_target
from kerncast.scoring.splits import CONFIG, folds_by_group, held_out
from kerncast.tables.never_worked import chosen_last, never_worked
from kerncast.tables.table import Table

if TYPE_CHECKING:
    from kerncast.models.model import Model

Floats = npt.NDArray[np.float64]

# Mining looks at each problem through models that did not see it: this many folds within the training data.
MINING_FOLDS = 3
# A problem chosen at half speed counts this many times; one chosen right counts once.
HARDEST = 5.0
TUNING_SHARE = 0.25


@dataclass(frozen=True)
class Recipe:
    """How to train: the kind of model, its knobs, the target, the folds."""

    kind: str = "gbdt"
    knobs: dict[str, Any] = field(default_factory=dict)
    target: str | None = None
    """`relative` where there is a roofline, else `latency`."""
    target_log: bool | None = None
    folds: int = 5
    seed: int = 0
    threads: int = 0
    hard_mining: int = 0
    tune: int = 0
    hold_out: str | None = None
    """What folds are made of: groups of problems, or configs (`config`) where there is one problem only."""
    inherited: dict[str, Any] = field(default_factory=dict)
    """Knobs of the base of a warm start, for those that are not given."""

    def __post_init__(self) -> None:
        for name in ("seed", "threads", "hard_mining", "tune"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 0:
                raise InvalidValue(f"{name} is a whole number from 0 on, got {value!r}")

    def resolved(self, table: Table, base: Model | None) -> Recipe:
        """With the target decided, by the base of a warm start or by what is known of the work."""
        by = CONFIG if len(np.unique(table.group)) < 2 and table.trials.choosing else None
        if base is not None:
            given = Target(
                self.target or base.manifest.target, base.manifest.target_log if self.target_log is None else self.target_log
            )
            # Knobs that are not given are the base's: its weights have its shape.
            inherited = base.manifest.options if base.manifest.kind == self.kind else {}
            return replace(self, inherited=inherited, target=given.name, target_log=given.log, hold_out=by)
        name = self.target or default_target(table.rows).name
        target = Target(name, True if self.target_log is None else self.target_log)
        target.encode(table.time_ns[table.ok][:1], table.rows.take(np.flatnonzero(table.ok)[:1]))  # refuses what is unknown
        return replace(self, target=target.name, target_log=target.log, hold_out=by)

    def grouped(self, table: Table) -> Table:
        """The table as folds and early stopping divide it."""
        return replace(table, group=table.config) if self.hold_out == CONFIG else table

    def as_options(self) -> dict[str, Any]:
        """As `model.json` keeps it; threads change nothing but the time it takes."""
        return {
            "kind": self.kind, "knobs": dict(sorted(self.knobs.items())), "target": self.target, "target_log": self.target_log,
            "folds": self.folds, "seed": self.seed, "hard_mining": self.hard_mining, "tune": self.tune,
            **({} if self.hold_out is None else {"hold_out": self.hold_out}),
            **({"inherited": dict(sorted(self.inherited.items()))} if self.inherited else {}),
        }  # fmt: skip

    @classmethod
    def from_options(cls, stored: dict[str, Any], threads: int = 0) -> Recipe:
        """The recipe that a model was made by."""
        return cls(**stored, threads=threads)


@dataclass(frozen=True)
class Procedure:
    """A recipe that can be run."""

    recipe: Recipe
    step: Step = _silent

    @property
    def target(self) -> Target:
        assert self.recipe.target is not None
        assert self.recipe.target_log is not None
        return Target(self.recipe.target, self.recipe.target_log)

    @property
    def fitting(self) -> Fitting:
        """What every fit of this procedure is given."""
        return Fitting(self.target, self.recipe.seed, self.recipe.threads, self.step)

    def options(self) -> Options:
        """The knobs of the recipe as this kind's options."""
        return options_of(learner_class(self.recipe.kind), {**self.recipe.inherited, **self.recipe.knobs})

    def tuned_knobs(self) -> dict[str, Any]:
        """What `--tune` may change, and how far: nothing that was given."""
        return tuning_ranges(learner_class(self.recipe.kind), self.recipe.knobs) if self.recipe.tune else {}

    def fit(self, table: Table, base: Learner | None = None) -> Learner:
        """Tune, mine and fit on one table, which is all that any of the three may look at."""
        if not table.ok.any():
            raise InvalidValue("a fold leaves no row that worked to learn from: measure more problems, or ask for other folds")
        options = self._tuned(table) if self.recipe.tune else self.options()
        if self.recipe.hard_mining:
            table = self._mined(table, options)
        return learner_class(self.recipe.kind)(options).fit(table, self.fitting, base)

    def without_mining(self) -> Procedure:
        """The same without re-weighting: what mining is reported beside."""
        return replace(self, recipe=replace(self.recipe, hard_mining=0))

    def scores(self, learner: Learner, table: Table, seen: Table | None = None) -> tuple[Floats, Floats]:
        """Predicted nanoseconds, and what to choose by (low is chosen): what never worked where it was `seen` comes last."""
        output = learner.predict(table.rows)
        time_ns = self.target.decode(output.target, table.rows)
        score = time_ns if output.score is None else output.score
        return time_ns, score if seen is None else chosen_last(score, never_worked(seen, table))

    def _mined(self, table: Table, options: Options) -> Table:
        """Weights for the problems that models which did not see them choose badly."""
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
            raise InvalidValue("--tune needs optuna: pip install 'kerncast[tune]'") from error
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
        with warnings.catch_warnings():
            # The recipe's own knobs are tried first, even where they lie outside the ranges.
            warnings.simplefilter("ignore", UserWarning)
            study.enqueue_trial({name: start[name] for name in ranges if start[name] is not None})
            study.optimize(loss, n_trials=self.recipe.tune)
        return options_of(kind, {**start, **study.best_params})


def tuning_ranges(kind: type[Learner], given: Collection[str] = ()) -> dict[str, Any]:
    """What `--tune` may change, and how far; the knobs that were given stay as they are."""
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
        raise InvalidValue(f"the model {kind.kind} has no knob to tune: leave --tune out")
    free = {name: suggest for name, suggest in found.items() if name not in given}
    if not free:
        raise InvalidValue(f"every knob of {kind.kind} that --tune could change was given ({', '.join(found)}): leave one out")
    return free
