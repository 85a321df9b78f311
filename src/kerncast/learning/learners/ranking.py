"""The goal of a listwise loss: a distribution over the configs of each problem, from their measured times."""

from __future__ import annotations

from typing import Any

import numpy as np

from kerncast.core.arrays import Floats
from kerncast.learning.tables.table import Table

# Descriptions of two knobs that all ranking learners share.
TEMPERATURE = "regret (log time over the best) at which a config's weight in the ranking is 1/e"
BLEND = "share of the ranking in the choice; 0 chooses by time alone"


def wanted_shares(table: Table, temperature: float) -> Floats:
    """exp(-regret / temperature) of every row, adding up to 1 on each problem; 0 for failures, and where nothing worked.

    Differences within the noise need not be ordered: a row's temperature is never below its noise.
    """
    trials = table.trials
    spread = np.maximum(temperature, np.nan_to_num(table.noise))
    wanted = np.where(trials.share > 0, np.exp(np.log(np.maximum(trials.share, 1e-300)) / spread), 0.0)
    sums = np.add.reduceat(wanted[trials.order], trials.starts)
    return wanted / np.asarray(trials.per_row(np.where(sums > 0, sums, 1.0)), np.float64)


class ListwiseLoss:
    """Soft cross-entropy between the scores of each problem and the goal from its measured times, for LightGBM."""

    def __init__(self, table: Table, temperature: float) -> None:
        trials = table.trials
        self.starts = trials.starts
        # Rows are usually sorted by problem already: then nothing is moved.
        self.order = None if (np.diff(trials.order) == 1).all() else trials.order
        counts = np.diff(np.r_[self.starts, len(trials.order)])
        self.place = np.repeat(np.arange(len(counts)), counts)
        self.wanted = wanted_shares(table, temperature)[trials.order]
        # Probabilities shrink with the number of configs; scaled by it, gradients keep their size. A problem on which
        # nothing worked has no order.
        self.scale = np.where(trials.solvable, counts, 0)[self.place] * table.weight[trials.order]

    def _believed(self, raw: Floats) -> Floats:
        scores = raw if self.order is None else raw[self.order]
        powers = np.exp(scores - np.maximum.reduceat(scores, self.starts)[self.place])
        return np.asarray(powers / np.add.reduceat(powers, self.starts)[self.place])

    def _as_given(self, values: Floats) -> Floats:
        if self.order is None:
            return values
        back = np.empty_like(values)
        back[self.order] = values
        return back

    def gradients(self, raw: Floats, _: Any) -> tuple[Floats, Floats]:
        """First and second derivatives with respect to the score, as LightGBM expects them."""
        believed = self._believed(raw)
        gradient = self.scale * (believed - self.wanted)
        curvature = np.maximum(self.scale * np.maximum(believed * (1.0 - believed), 1e-3), 1e-6)
        return self._as_given(gradient), self._as_given(curvature)

    def error(self, raw: Floats, _: Any) -> tuple[str, float, bool]:
        """The cross-entropy per problem, for early stopping: smaller is better."""
        logs = np.log(np.maximum(self._believed(raw), 1e-300))
        return "cross_entropy", float(-(self.wanted * logs).sum() / len(self.starts)), False
