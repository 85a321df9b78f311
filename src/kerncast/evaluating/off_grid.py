"""`evaluate --off-grid`: kinds of problems held out whole, and what a model without them chooses, tier by tier."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kerncast.answering.selector import Selector
from kerncast.core.arrays import Floats
from kerncast.core.progress import QUIET, Progress
from kerncast.errors import InvalidValue
from kerncast.evaluating.evaluation import cross_validated
from kerncast.evaluating.tier_choices import TierChoices, Tried, tier_choices, tiers_in
from kerncast.evaluating.unseen import Paths, folded_for, open_all, recipe_of, table_for
from kerncast.learning.scoring.metrics import figure, resampled
from kerncast.learning.tables.assess import FEWEST_GROUPS, kinds_of
from kerncast.learning.tables.table import Table
from kerncast.models.answer import Tier
from kerncast.models.model import Model
from kerncast.native.tiers.build import TierOptions, build_tiers
from kerncast.training.folds import Predictions
from kerncast.training.judging import Trained, lines_by_kind
from kerncast.training.procedure import Procedure
from kerncast.training.train import fit_table


def off_grid(
    model: Model,
    datasets: Paths,
    where: Sequence[str] = (),
    threads: int = 0,
    *,
    tiers: bool = True,
    options: TierOptions | None = None,
    progress: Progress = QUIET,
) -> list[dict[str, Any]]:
    """A line per kind: the model's recipe fitted without that kind, and scored on it, whatever the status of its answers."""
    opened = open_all(datasets)
    table = table_for(model, folded_for(model, opened, where))
    kinds = kinds_of(table)
    if not kinds:  # refused before anything is fitted
        raise InvalidValue(
            f"`off_grid` holds out whole kinds of problems, which needs {FEWEST_GROUPS} groups of problems of different "
            f"alignment, size or shape; the data have {len(np.unique(table.group))}: measure more, or leave it out"
        )
    procedure = Procedure(recipe_of(model, threads), progress)
    _, predicted, fold = cross_validated(model, opened, where, threads, progress=progress)
    found, by_tier = [], []
    for place, kind in enumerate(kinds, 1):
        progress.stage(f"without {kind.words}", place, len(kinds))
        with tempfile.TemporaryDirectory() as folder:
            fitted = fit_table(table.take(~kind.held), procedure, Path(folder, "model"))
            own = table.take(kind.held)
            said = fitted.rank_rows(own.rows)
            assert said.time_ns is not None
            found.append((kind, Predictions(said.time_ns, said.score)))
            asked = tiers and own.trials.choosing and len(model.manifest.devices) == 1
            by_tier.append(_tier_lines(fitted, own, options or TierOptions(), progress) if asked else None)
    assert predicted.time_ns is not None
    at_random = Predictions(predicted.time_ns, predicted.score)
    lines = lines_by_kind(Trained(model.learner, table, fold, at_random, kinds=tuple(found)))
    return [line | ({} if own is None else {"tiers": own}) for line, own in zip(lines, by_tier, strict=True)]


def _tier_lines(model: Model, own: Table, options: TierOptions, progress: Progress) -> list[dict[str, Any]]:
    """What each tier of a model would run on problems of a kind that it has not seen."""
    # The model is thrown away, so compiling it for speed would not pay.
    selector = Selector(model, tiers=build_tiers(model, options, progress=progress), compile=False)
    tried = Tried.in_table(own)
    found = {tier: tier_choices(selector, tried, tier) for tier in tiers_in(selector)}
    return [_tier_line(each, found[Tier.FULL].efficiency) for each in found.values()]


def _tier_line(found: TierChoices, full: Floats) -> dict[str, Any]:
    known = np.isfinite(found.efficiency)
    both = known & np.isfinite(full)
    values = found.efficiency[known]
    mean = figure(float(values.mean()), resampled(values, lambda e: np.asarray(e.mean(axis=-1)))) if known.any() else None
    return {
        "tier": str(found.tier), "efficiency": mean, "efficiency_p10": float(np.quantile(values, 0.1)) if known.any() else None,
        "of_full": float(found.efficiency[both].mean() / full[both].mean()) if both.any() and full[both].any() else None,
        "n_problems": int(known.sum()), "not_tried": int((~known).sum()), "answers_itself": float(found.itself.mean()),
        "not_ok": float((~found.ok).mean()),
    }  # fmt: skip
