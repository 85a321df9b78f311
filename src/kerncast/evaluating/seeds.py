"""`evaluate --split … --seeds N`: the recipe refitted with other seeds, which says how much of a figure is chance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from kerncast.core.progress import QUIET, Progress
from kerncast.evaluating.evaluation import folds_of, split_groups
from kerncast.evaluating.unseen import Paths, folded_for, open_all, recipe_of, table_for
from kerncast.learning.scoring.metrics import Predicted, scorecard
from kerncast.models.model import Model
from kerncast.training.folds import cross_validate_seeds
from kerncast.training.procedure import Procedure, Spread

FIGURES = ("efficiency_mean", "efficiency_p10", "mape")


def seed_lines(
    model: Model, datasets: Paths, split: str, seeds: int, overall: Mapping[str, Any], where: Sequence[str] = (),
    threads: int = 0, *, spread: Spread | None = None, progress: Progress = QUIET,
) -> list[dict[str, Any]]:  # fmt: skip
    """A line of figures per seed. `overall` are those of the recipe's own seed; the folds of all others may run in parallel."""
    recipe = recipe_of(model, threads)
    table = table_for(model, folded_for(model, open_all(datasets), where))
    asked = replace(table, group=split_groups(table, split))
    folds = {seed: folds_of(table, split, replace(recipe, seed=seed)) for seed in range(recipe.seed + 1, recipe.seed + seeds)}
    lines = [_line(recipe.seed, overall)]
    for seed, found in cross_validate_seeds(asked, Procedure(recipe, progress, spread=spread), folds).items():
        keep = np.isfinite(found.score)
        lines.append(_line(seed, scorecard(table.take(keep).trials, Predicted(found.score[keep], found.time_ns[keep]))))
    return lines


def _line(seed: int, card: Mapping[str, Any]) -> dict[str, Any]:
    return {"seed": seed, **{name: None if card[name] is None else card[name]["value"] for name in FIGURES}}
