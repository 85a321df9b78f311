"""The expected efficiency of a choice: that of out-of-fold choices of about the same length."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kerncast.models.measured import measured_by_model

if TYPE_CHECKING:
    from kerncast.models.model import Model

MOST_BANDS = 4
PROBLEMS_PER_BAND = 40


@dataclass(frozen=True)
class Expectation:
    """Bands of predicted time, and the mean efficiency of out-of-fold choices in each."""

    edges_ns: tuple[float, ...]
    """The edges between the bands; one fewer than there are bands."""
    efficiency: tuple[float, ...]

    def of(self, time_ns: float) -> float:
        """The expected efficiency of a choice with this predicted time."""
        return self.efficiency[int(np.searchsorted(np.array(self.edges_ns), time_ns, side="right"))]


def expectation_of(model: Model) -> Expectation | None:
    """The expectation by bands of predicted time; None if nothing was chosen out of fold."""
    if model.serving is not None:
        return model.serving.expectation
    if model.out_of_fold is None or not model.evaluated:
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
    # If all choices take equally long, some bands are empty: they get the overall mean.
    means = [
        float(share[known][band == number].mean() if (band == number).any() else share[known].mean()) for number in range(bands)
    ]
    return Expectation(tuple(float(edge) for edge in edges), tuple(means))
