"""The procedure that makes a learner from a table. Cross-validation scores the procedure, so everything that
looks at labels (tuning, mining, stopping) happens inside it, on its own groups."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Self

import msgspec
import numpy as np

from kerncast.core.arrays import Floats, Ints
from kerncast.core.progress import QUIET, Progress
from kerncast.errors import BadFile, InvalidValue, NotFound
from kerncast.learning.feature_rows import Rows
from kerncast.learning.learners.contract import Fitting, Learner, LearnerOptions, Target, default_target
from kerncast.learning.learners.kinds import learner_class, options_of
from kerncast.learning.table import Table
from kerncast.learning.trials import CONFIG, folds_by_group, held_out
from kerncast.models.limits.configs import chosen_last, never_worked

if TYPE_CHECKING:
    from kerncast.models.model import Model


# Fields that `model.json` does not keep, and why.
LEFT_OUT = {"threads": "it changes only how long training takes; a refit has its own"}


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
    """What folds consist of: groups of problems, or configs (`config`) if there is only one problem."""
    inherited: dict[str, Any] = field(default_factory=dict)
    """Knobs of the base of a warm start, used for those that are not given."""
    features: tuple[str, ...] = ()
    """The features to learn from, if not all of them."""
    rows: int = 0
    """At most this many rows, drawn by the seed, whole problems and as evenly over devices as they go; 0: all of them."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "features", tuple(self.features))  # JSON has lists only
        for name in ("seed", "threads", "hard_mining", "tune", "rows"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 0:
                raise InvalidValue(f"{name} must be a whole number, 0 or more, got {value!r}")

    def resolved(self, table: Table, base: Model | None) -> Recipe:
        """The recipe with its target decided: that of a warm start's base, or by what is known of the work."""
        by = CONFIG if len(np.unique(table.group)) < 2 and table.trials.choosing else None
        if base is not None:
            given = Target(
                self.target or base.manifest.target, base.manifest.target_log if self.target_log is None else self.target_log
            )
            # Knobs that are not given are the base's: its weights have its shape.
            inherited = base.manifest.options if base.manifest.kind == self.kind else {}
            features = self.features or tuple(base.manifest.recipe.get("features", ()))
            return replace(self, inherited=inherited, target=given.name, target_log=given.log, hold_out=by, features=features)
        name = self.target or default_target(table.rows).name
        target = Target(name, True if self.target_log is None else self.target_log)
        target.encode(table.time_ns[table.ok][:1], table.rows.take(np.flatnonzero(table.ok)[:1]))  # refuses unknown work
        return replace(self, target=target.name, target_log=target.log, hold_out=by)

    def sampled(self, table: Table) -> Table:
        """The table with at most `rows` rows: whole problems drawn by the seed, as evenly over devices as they go."""
        if not self.rows or len(table.time_ns) <= self.rows:
            return table
        sizes = np.bincount(table.device)
        left, quota = self.rows, np.zeros(len(sizes), np.int64)
        # The smallest devices first: what they do not need is divided among the others.
        for place, number in enumerate(np.argsort(sizes, kind="stable")):
            quota[number] = min(int(sizes[number]), left // (len(sizes) - place))
            left -= int(quota[number])
        # The problems of a device are drawn in one random order, until the next one would not fit.
        order = np.random.default_rng(self.seed).permutation(int(table.problem.max()) + 1)
        rank = np.lexsort((np.arange(len(table.problem)), order[table.problem], table.device))
        before = np.arange(len(rank)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        last = np.full(len(order), -1, np.int64)
        last[table.problem[rank]] = before  # the last row of each problem, in its device's order
        kept = last[table.problem] < quota[table.device]
        return table.take(np.flatnonzero(kept)).renumbered()

    def narrowed(self, table: Table) -> Table:
        """The table with the features to learn from, in the order in which the family has them."""
        if not self.features:
            return table
        for name in self.features:
            if name not in table.rows.names:
                raise NotFound.named(f"feature of {table.family.id} in these data", name, table.rows.names)
        return replace(table, rows=table.rows.only([name for name in table.rows.names if name in self.features]))

    def grouped(self, table: Table) -> Table:
        """The table as folds and early stopping divide it."""
        return replace(table, group=table.config) if self.hold_out == CONFIG else table

    def as_options(self) -> dict[str, Any]:
        """The recipe as `model.json` keeps it: every field except those in `LEFT_OUT`."""
        kept = {item.name: getattr(self, item.name) for item in fields(self) if item.name not in LEFT_OUT}
        return {name: dict(sorted(value.items())) if isinstance(value, dict) else value for name, value in kept.items()}

    @classmethod
    def from_options(cls, stored: dict[str, Any], threads: int = 0) -> Self:
        """The recipe that a model was trained with."""
        unknown = sorted(set(stored) - {item.name for item in fields(cls)})
        if unknown:
            raise BadFile(f"the model was trained with '{unknown[0]}', which this kerncast does not know: upgrade kerncast")
        return cls(**stored, threads=threads)


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
    """What runs several fits instead of this process, see `training/fits.py`."""
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

    def options(self) -> LearnerOptions:
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

    def scores(self, learner: Learner, table: Table, seen: Table | None = None) -> tuple[Floats, Floats]:
        """Predicted nanoseconds, and what to choose by (low is chosen).

        As when serving, configs that never worked in `seen` and those that break a rule of the family come last.
        """
        output = learner.predict(table.rows)
        time_ns = self.target.decode(output.target, table.rows)
        score = time_ns if output.score is None else output.score
        failed = ~table.allowed if seen is None else ~table.allowed | never_worked(seen, table)
        return time_ns, chosen_last(score, failed)

    def _mined(self, table: Table, options: LearnerOptions) -> Table:
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

    def _tuned(self, table: Table) -> LearnerOptions:
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


# Learners that differ in their seed and in the half of the groups they saw: where they disagree, the model is unsure.
COMMITTEE = 3


def acquisition(known: Table, rest: Rows, problem: Ints, procedure: Procedure) -> Floats:
    """How much each remaining vector is worth measuring, in log time: its optimistic gain over the best expected.

    For a vector with mean m and deviation s (over the committee), and b the best mean of its problem, that is
    b - (m - 2 s): large for vectors that may be fastest, small for those that are surely slow, however uncertain.
    """
    opinions = []
    for member in range(COMMITTEE):
        rng = np.random.default_rng([procedure.recipe.seed, member])
        groups = np.unique(known.group)
        some = rng.permutation(groups)[: max(2, (2 * len(groups) + 2) // 3)]
        recipe = replace(procedure.recipe, seed=procedure.recipe.seed + member, tune=0, hard_mining=0)
        one = replace(procedure, recipe=recipe)
        part = known.take(np.isin(known.group, some))
        learner = one.fit(part if part.ok.any() else known)
        opinions.append(np.log(one.target.decode(learner.predict(rest).target, rest)))
    mean, deviation = np.mean(opinions, axis=0), np.std(opinions, axis=0)
    best = np.full(int(problem.max()) + 1, np.inf)
    np.minimum.at(best, problem, mean)
    return np.asarray(best[problem] - (mean - 2.0 * deviation))
