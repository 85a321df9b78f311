"""What a choice is expected to be worth: the efficiency that out-of-fold choices of about the same length had."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from kerncast.models.model import Model
from kerncast.score.trials import Trials

MOST_BANDS = 4
PROBLEMS_PER_BAND = 40


@dataclass(frozen=True)
class Expectation:
    """Bands of predicted time, and the mean efficiency in each."""

    edges_ns: tuple[float, ...]
    """Between the bands; one fewer than there are bands."""
    efficiency: tuple[float, ...]

    def of(self, time_ns: float) -> float:
        """The expected efficiency of a choice that is predicted to take so long."""
        return self.efficiency[int(np.searchsorted(np.array(self.edges_ns), time_ns, side="right"))]


def training_trials(model: Model) -> tuple[Trials, pl.DataFrame] | None:
    """What was measured in training with what was said of it out of fold; None where it is not recorded."""
    frame = model.out_of_fold
    if frame is None or "measured_ns" not in frame.columns or not frame.height:
        return None
    problems = [name for name in frame.columns if name.startswith("problem.")]
    configs = [name for name in frame.columns if name.startswith("config.")]
    candidates = model.candidates.select(configs).with_row_index("__candidate") if configs else None
    numbered = frame.with_columns(__problem=pl.struct(problems).rank("dense") - 1)
    if candidates is not None:
        numbered = numbered.join(candidates, on=configs, how="left", nulls_equal=True, maintain_order="left")
        # Configs that never worked come behind all candidates.
        never = model.candidates.height + pl.struct(configs).rank("dense") - 1
        numbered = numbered.with_columns(__candidate=pl.coalesce(pl.col("__candidate").cast(pl.Int64), never))
    else:
        numbered = numbered.with_columns(__candidate=pl.lit(0, pl.Int64))
    unknown = np.full(frame.height, np.nan)
    trials = Trials(
        numbered["__problem"].cast(pl.Int64).to_numpy(),
        numbered["__candidate"].cast(pl.Int64).to_numpy(),
        frame["measured_ns"].fill_null(float("inf")).to_numpy(),
        frame["noise"].fill_null(float("nan")).to_numpy(),
        unknown,
        unknown,
    )
    return trials, frame


def expectation_of(model: Model) -> Expectation | None:
    """By bands of predicted time; None where nothing was chosen in training."""
    found = training_trials(model)
    if found is None or not found[0].choosing:
        return None
    trials, frame = found
    chosen = trials.choose(frame["score"].to_numpy())[trials.solvable]
    share, predicted = trials.share[chosen], frame["time_ns"].to_numpy()[chosen]
    known = np.isfinite(predicted)
    if not known.any():
        return None
    bands = int(np.clip(known.sum() // PROBLEMS_PER_BAND, 1, MOST_BANDS))
    edges = np.quantile(predicted[known], np.arange(1, bands) / bands)
    band = np.searchsorted(edges, predicted[known], side="right")
    means = [float(share[known][band == number].mean()) for number in range(bands)]
    return Expectation(tuple(float(edge) for edge in edges), tuple(means))
