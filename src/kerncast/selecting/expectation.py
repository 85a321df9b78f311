"""What a choice is expected to be worth: the efficiency that out-of-fold choices of about the same length had."""

from __future__ import annotations

import numpy as np

from kerncast.compiling.tiers import Expectation
from kerncast.models.model import Model
from kerncast.selecting.tiers.shares import measured_by_model

MOST_BANDS = 4
PROBLEMS_PER_BAND = 40


def expectation_of(model: Model) -> Expectation | None:
    """By bands of predicted time; None where nothing was chosen in training."""
    if model.out_of_fold is None:
        return None
    measured = measured_by_model(model)
    trials = measured.trials
    assert measured.score is not None
    assert measured.predicted_ns is not None
    if not trials.choosing:
        return None
    chosen = trials.choose(measured.score)[trials.solvable]
    share, predicted = trials.share[chosen], measured.predicted_ns[chosen]
    known = np.isfinite(predicted)
    if not known.any():
        return None
    bands = int(np.clip(known.sum() // PROBLEMS_PER_BAND, 1, MOST_BANDS))
    edges = np.quantile(predicted[known], np.arange(1, bands) / bands)
    band = np.searchsorted(edges, predicted[known], side="right")
    # Choices that all take equally long leave bands empty: those are as good as all.
    means = [
        float(share[known][band == number].mean() if (band == number).any() else share[known].mean()) for number in range(bands)
    ]
    return Expectation(tuple(float(edge) for edge in edges), tuple(means))
