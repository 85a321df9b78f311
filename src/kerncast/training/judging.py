"""Figures of out-of-fold predictions, and the interval that is calibrated on their errors."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import polars as pl

from kerncast.core.arrays import Floats, Ints
from kerncast.learning import assess
from kerncast.learning.assess import HeldOutKind
from kerncast.learning.learners.contract import Learner
from kerncast.learning.metrics import Predicted, scorecard
from kerncast.learning.table import Table
from kerncast.learning.trials import CONFIG
from kerncast.models.conformal import Interval, calibrate, cross_bounds, widened_like
from kerncast.models.limits.devices import Elsewhere
from kerncast.models.limits.widening import Errors, ProblemTraits, Sizes, known_measure, octaves_outside
from kerncast.models.model import Model
from kerncast.training.folds import DevicePart, Predictions, judge_left_out
from kerncast.training.procedure import Recipe


@dataclass(frozen=True)
class Trained:
    """A learner with the out-of-fold predictions of the procedure that made it."""

    learner: Learner
    table: Table
    """The rows with out-of-fold predictions; all rows if there are none."""
    fold: Ints
    predictions: Predictions | None
    """None: the model was not judged."""
    extra: dict[str, Any] = field(default_factory=dict)
    kinds: tuple[tuple[HeldOutKind, Predictions], ...] = ()
    devices: tuple[tuple[DevicePart, Predictions], ...] = ()
    adapted: bool = False
    """Whether a model was moved to another device, with predictions out of fold; False: trained, or continued."""


@dataclass(frozen=True)
class Judgement:
    """`evaluation.json`, the interval, and the bounds of the out-of-fold predictions."""

    evaluation: dict[str, Any]
    interval: Interval | None
    lower_ns: Floats | None
    upper_ns: Floats | None
    elsewhere: Elsewhere | None = None
    """The interval on devices that were not measured; None: too few devices to say."""


def judge(trained: Trained, recipe: Recipe, base: Model | None) -> Judgement:
    """The figures of a training, problems at random and by kind, and the interval calibrated on all these errors."""
    held, fold, predictions = trained.table, trained.fold, trained.predictions
    assert predictions is not None
    by_config = recipe.hold_out == CONFIG
    errors, harder, traits, sizes = _errors(trained, by_config)
    lower, upper = cross_bounds(errors, harder, traits, sizes)
    if base is not None and base.manifest.interval is not None and not trained.adapted:
        # A single hold-out has no other folds to calibrate on, so the reported coverage is that of the base's interval.
        lower, upper = base.envelope.bounds(held.rows.frame, predictions.time_ns)
    known = bool(np.isfinite(lower).any())
    predicted = Predicted(predictions.score, predictions.time_ns, *((lower, upper) if known else (None, None)))
    # Baselines that learn from other problems have nothing to learn from.
    evaluation = assess.assess(held, predicted, np.zeros_like(fold) if by_config else fold) | {
        "folds": recipe.folds if base is None or trained.adapted else 1,
        "split": CONFIG if by_config else ",".join(held.family.op.split_group),
    }
    if harder:
        evaluation["off_grid"] = lines_by_kind(trained)
    interval = calibrate(errors, harder, traits, sizes)
    if interval is not None and base is not None and base.manifest.interval is not None:
        old = base.manifest.interval.beyond
        sizes = None if old is None else Sizes.of(old.sizes.measure, base.envelope.sizes_of(held.rows.frame))
        # What is rare is what was rarely measured on the devices that the base knows: a few rows do not say.
        traits = base.manifest.interval.traits if trained.adapted else None
        if traits is None:  # those of the new problems and of those that the base was trained on
            earlier, columns = base.out_of_fold, held.problems.columns
            both = held.problems
            if earlier is not None:
                both = pl.concat([both, earlier.select(columns)], how="vertical_relaxed").unique()
            traits = ProblemTraits.of(held.family, both)
        interval = widened_like(interval, base.manifest.interval, traits, sizes)
    elsewhere = judge_left_out(held, [(part, found.time_ns) for part, found in trained.devices])
    if elsewhere is not None:
        evaluation["unseen_devices"] = msgspec.to_builtins(elsewhere.devices)
    return Judgement(evaluation, interval, lower if known else None, upper if known else None, elsewhere)


def _errors(trained: Trained, by_config: bool) -> tuple[Errors, list[Errors], ProblemTraits | None, Sizes | None]:
    """The errors at random and by kind, the traits that their rarity is counted in, and the range of sizes."""
    held, fold, predictions = trained.table, trained.fold, trained.predictions
    assert predictions is not None
    # Errors are correlated within a problem, or within a config if there is only one problem.
    unit = held.config if by_config else held.problem
    if not trained.kinds:
        return Errors(unit, held.time_ns, predictions.time_ns, fold), [], None, None
    measure, known = _sizes(held)
    rarity, octaves = np.full(len(fold), np.nan), np.full(len(fold), np.nan)
    for number in np.unique(fold):
        own = fold == number
        rarity[own] = _rarity(held, own)
        octaves[own] = _octaves(known, own)
    harder = [
        Errors(unit[kind.held], held.time_ns[kind.held], found.time_ns, fold[kind.held], _rarity(held, kind.held),
               _octaves(known, kind.held))
        for kind, found in trained.kinds
    ]  # fmt: skip
    sizes = None if measure is None else Sizes.of(measure, known)
    return Errors(unit, held.time_ns, predictions.time_ns, fold, rarity, octaves), harder, traits_of(held), sizes


def _sizes(table: Table) -> tuple[str | None, Floats]:
    """How large each row's problem is, and by which measure; without one, all are equally large."""
    # The same problem takes another time on another device, so rooflines of several do not compare.
    numbers = {"bytes": table.rows.bytes} | ({"roofline_ns": table.rows.roofline_ns} if len(table.devices) == 1 else {})
    known = {name: values for name, values in numbers.items() if values is not None and (values > 0.0).all()}
    measure = known_measure(known)
    return measure, np.ones(len(table.time_ns)) if measure is None else known[measure]


def _octaves(sizes: Floats, own: Any) -> Floats:
    """How far outside the range of the other rows the sizes of some rows are."""
    return octaves_outside(sizes[own], sizes[~own])


def traits_of(table: Table) -> ProblemTraits:
    """The traits of the problems of a table."""
    return ProblemTraits.of(table.family, table.problems)


def _rarity(table: Table, own: Any) -> Floats:
    """The rarity of the problems of some rows among those of the other rows."""
    return traits_of(table.take(~own)).rarity(table.family, table.rows.frame.filter(pl.Series(own)))


def lines_by_kind(trained: Trained) -> list[dict[str, Any]]:
    """A line per kind that was held out whole; the interval of each problem is calibrated on the problems of other folds."""
    errors, harder, traits, sizes = _errors(trained, by_config=False)
    lines = []
    for of, (kind, found) in zip(harder, trained.kinds, strict=True):
        bounds = cross_bounds(errors, harder, traits, sizes, of)
        card = scorecard(trained.table.take(kind.held).trials, Predicted(found.score, found.time_ns, *bounds))
        figures = {name: card[name] for name in ("efficiency_mean", "efficiency_p10", "mape", "coverage_90")}
        lines.append({"kind": kind.name, "held_out": kind.words, "n_problems": card["n_problems"], **figures})
    return lines
