"""Splits into training and scoring: whole groups on one side or the other, never single rows."""

from __future__ import annotations

import numpy as np

from kerncast.core.arrays import Flags, Floats, Ints
from kerncast.errors import InvalidValue

CONFIG = "config"
"""What is held out if there is only one problem: configs, not groups of problems."""


def folds_by_group(groups: Ints, folds: int, seed: int) -> Ints:
    """The fold of every row: groups are shuffled and dealt out, so all folds have nearly the same number of groups."""
    distinct, dense = np.unique(groups, return_inverse=True)
    if folds < 2:
        raise InvalidValue(f"cross-validation needs at least 2 folds, got {folds}")
    if len(distinct) < folds:
        raise InvalidValue(
            f"there are {len(distinct)} groups of problems and {folds} folds: measure more problems, or ask for "
            f"fewer folds (`folds={max(2, len(distinct))}`)"
        )
    dealt = np.empty(len(distinct), dtype=np.int64)
    dealt[np.random.default_rng(seed).permutation(len(distinct))] = np.arange(len(distinct)) % folds
    return dealt[dense]


def held_out(groups: Ints, share: float, seed: int) -> Flags:
    """The rows of a random share of the groups: at least one group, and never all."""
    distinct, dense = np.unique(groups, return_inverse=True)
    count = min(max(1, round(share * len(distinct))), len(distinct) - 1)
    chosen = np.zeros(len(distinct), dtype=bool)
    chosen[np.random.default_rng(seed).permutation(len(distinct))[:count]] = True
    return chosen[dense]


def folds_by_size(size: Floats, folds: int) -> Ints:
    """Bands of equal count from the smallest to the largest: each is predicted from sizes outside it."""
    order = np.argsort(size, kind="stable")
    bands = np.empty(len(size), dtype=np.int64)
    bands[order] = np.arange(len(size)) * folds // len(size)
    # Rows of one size must stay together: all follow the first of them.
    _, first, dense = np.unique(size[order], return_index=True, return_inverse=True)
    bands[order] = bands[order][first][dense]
    return bands
