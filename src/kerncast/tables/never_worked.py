"""Configs that were tried in training and never worked: they are never served, so scoring chooses them last.

Configs that were not tried stay eligible, since nothing is known about them.
"""

from __future__ import annotations

import numpy as np

from kerncast.arrays import Flags, Floats
from kerncast.tables.table import Table


def never_worked(seen: Table, judged: Table) -> Flags:
    """Which rows have a config that failed wherever it was `seen`; both are parts of one table."""
    count = int(max(seen.config.max(initial=0), judged.config.max(initial=0))) + 1
    tried = np.bincount(seen.config, minlength=count)
    worked = np.bincount(seen.config[seen.ok], minlength=count)
    return np.asarray(((tried > 0) & (worked == 0))[judged.config])


def chosen_last(score: Floats, failed: Flags) -> Floats:
    """Scores (low is chosen) with failed configs moved behind all others; within each part the order stays."""
    known = score[np.isfinite(score)]
    if not failed.any() or not len(known):
        return score
    return np.where(failed, score + 2.0 * (known.max() - known.min()) + 1.0, score)
