"""Every figure of one chooser on one set of trials: the block that `evaluation.json` holds under `overall`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kerncast.core.arrays import Floats, Ints
from kerncast.learning.scoring.metrics import (
    RUNTIME,
    SELECTION,
    FigureJson,
    figure,
    mean_figure,
    resampled,
    runtime_figures,
    selection_figures,
)
from kerncast.learning.scoring.trials import Trials

# The numbers of best-scored configs that are measured, in the top-k-then-measure curve.
TOP_K = (1, 2, 3, 5, 10, 20)


@dataclass(frozen=True)
class Predicted:
    """A model's predictions for every row: the lowest score of a problem is chosen."""

    score: Floats
    time_ns: Floats | None = None
    lower_ns: Floats | None = None
    upper_ns: Floats | None = None

    @classmethod
    def joined(cls, parts: Sequence[Predicted]) -> Predicted:
        """The predictions of several blocks of rows, one after the other."""

        def both(name: str) -> Floats | None:
            values = [getattr(part, name) for part in parts]
            return None if any(item is None for item in values) else np.concatenate(values)

        return cls(np.concatenate([part.score for part in parts]), both("time_ns"), both("lower_ns"), both("upper_ns"))


def scorecard(trials: Trials, predicted: Predicted) -> dict[str, Any]:
    """All figures of a model; what does not apply is None."""
    chosen = trials.choose(predicted.score)
    card: dict[str, Any] = {"n_problems": int(trials.solvable.sum())}
    card |= choice_figures(trials, chosen)
    card |= _runtime(trials, predicted)
    return card


def choice_figures(trials: Trials, chosen: Ints) -> dict[str, FigureJson | None]:
    """The efficiency figures of one chosen row per problem, with and without ties."""
    if _nothing_to_choose(trials):
        return dict.fromkeys((*SELECTION, "noise_ceiling", "efficiency_mean_ties", "top1_ties"))
    figures: dict[str, FigureJson | None] = dict(selection_figures(trials.share[chosen][trials.solvable]))
    ceiling = trials.noise_ceiling
    figures["noise_ceiling"] = None if ceiling is None else figure(float(ceiling.mean()), resampled(ceiling, _mean))
    # A choice within the noise of the best counts as the best: only certain losses count.
    merciful = np.where(trials.tied(chosen), 1.0, trials.share[chosen])[trials.solvable]
    figures["efficiency_mean_ties"] = figure(float(merciful.mean()), resampled(merciful, _mean))
    hits = (merciful >= 1.0).astype(np.float64)
    figures["top1_ties"] = figure(float(hits.mean()), resampled(hits, _mean))
    return figures


def baseline_card(efficiency: Floats | None, expected: Mapping[str, Floats] | None = None) -> dict[str, Any]:
    """The figures of a baseline that only chooses.

    If the efficiency is itself an expectation, `expected` has the figures per problem that do not follow from it.
    """
    empty: dict[str, Any] = {
        "n_problems": 0 if efficiency is None else len(efficiency),
        **dict.fromkeys((*SELECTION, "noise_ceiling", *RUNTIME)),
    }
    if efficiency is None:
        return empty
    means = {name: mean_figure(values) for name, values in (expected or {}).items()}
    return {**empty, **selection_figures(efficiency), **means}


def runtime_card(trials: Trials, time_ns: Floats) -> dict[str, Any]:
    """The figures of a baseline that only predicts."""
    return {**baseline_card(None), "n_problems": int(trials.solvable.sum()), **_runtime(trials, Predicted(time_ns, time_ns))}


def top_k(trials: Trials, score: Floats) -> list[dict[str, float]]:
    """The efficiency after measuring the k best-scored configs, and how often the best is among them."""
    most = int(np.diff(np.r_[trials.starts, len(trials.order)]).max())
    curve = []
    for k in TOP_K:
        if k <= most:
            got = trials.top(score, k)
            curve.append({"k": k, "efficiency_mean": float(got.mean()), "hit": float((got >= 1.0).mean())})
    return curve


def _mean(values: Floats) -> Floats:
    return np.asarray(values.mean(axis=-1))


def _nothing_to_choose(trials: Trials) -> bool:
    return not trials.choosing or not trials.solvable.any()


def _runtime(trials: Trials, predicted: Predicted) -> Mapping[str, FigureJson | None]:
    if predicted.time_ns is None:
        return dict.fromkeys(RUNTIME)
    rows = np.isfinite(trials.time_ns) & np.isfinite(predicted.time_ns)
    if not rows.any():
        return dict.fromkeys(RUNTIME)
    covered = None
    if predicted.lower_ns is not None and predicted.upper_ns is not None:
        covered = ((predicted.lower_ns <= trials.time_ns) & (trials.time_ns <= predicted.upper_ns))[rows]
    return runtime_figures(trials.problem[rows], trials.time_ns[rows], predicted.time_ns[rows], covered)
