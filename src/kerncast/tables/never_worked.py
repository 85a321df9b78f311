"""Configs that were tried in training and never worked: none is ever served, so in scoring they are chosen last.

What was not tried stays eligible: of that nothing is known.
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
    """Scores (low is chosen) with those that failed behind all others, whatever the scale; within either the order stays."""
    known = score[np.isfinite(score)]
    if not failed.any() or not len(known):
        return score
    return np.where(failed, score + 2.0 * (known.max() - known.min()) + 1.0, score)
