"""What a listwise loss asks for: a distribution over the configs of each problem, from their measured times."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kerncast.tables.table import Table

Floats = npt.NDArray[np.float64]


def wanted_shares(table: Table, temperature: float) -> Floats:
    """exp(-regret / temperature) of every row, adding up to 1 on each problem; 0 for failures, and where nothing worked.

    Differences within the noise are not asked to be ordered: a row's temperature is never below its noise.
    """
    trials = table.trials
    spread = np.maximum(temperature, np.nan_to_num(table.noise))
    wanted = np.where(trials.share > 0, np.exp(np.log(np.maximum(trials.share, 1e-300)) / spread), 0.0)
    sums = np.add.reduceat(wanted[trials.order], trials.starts)
    return wanted / np.asarray(trials.per_row(np.where(sums > 0, sums, 1.0)), np.float64)
