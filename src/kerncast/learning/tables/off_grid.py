"""Problems unlike the others, held out whole: badly aligned ones, the smallest and largest, the most lopsided.

Folds at random ask for problems between those that were measured. What is asked later is often of another kind, and models
are worse there. Holding out a kind shows how much worse.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kerncast.core.arrays import Flags, Floats, Ints
from kerncast.core.parameters import Int
from kerncast.learning.tables.table import Table

# Sizes are parameters that took at least this many values, up to at least LARGE; others are modes, such as strides.
FEWEST_VALUES, LARGE = 5, 16
# A parameter is laid out on a grid if at least half of the problems have a multiple of this.
GRID = 8
# Alignment beyond this power of two makes no difference: 2 ** 7 = 128.
MOST_ALIGNED = 7
# What is held out is about a quarter of the groups; a kind with fewer than the least share or more than the most is left out.
SHARE, LEAST, MOST = 0.25, 0.02, 0.5
# With fewer groups, the rest is too little to learn from and the part held out too little to judge by.
FEWEST_GROUPS = 50


@dataclass(frozen=True)
class Kind:
    """One way in which problems differ from the others."""

    name: str
    """`alignment`, `size` or `aspect`."""
    words: str
    """Which problems are held out, in words."""
    held: Flags
    """By row of the table."""


def alignment(values: Ints) -> Ints:
    """The largest power of two that divides each value, as its exponent, up to `MOST_ALIGNED`; zero is aligned."""
    found = np.full(values.shape, MOST_ALIGNED, np.int64)
    for power in reversed(range(MOST_ALIGNED)):
        found[values % (2 << power) != 0] = power
    return found


def kinds_of(table: Table) -> list[Kind]:
    """The kinds that a table has; none if it has too few groups of problems."""
    groups, dense = np.unique(table.group, return_inverse=True)
    if len(groups) < FEWEST_GROUPS:
        return []
    sizes = _sizes(table)
    found = [_by_alignment(sizes, dense), _by_size(table, sizes, dense), _by_aspect(sizes, dense)]
    return [kind for kind in found if kind is not None and _is_enough(kind.held, dense, table.ok)]


def _sizes(table: Table) -> dict[str, Ints]:
    found = {}
    for name, parameter in table.family.problem.parameters.items():
        column = table.rows.frame[f"problem.{name}"]
        if not isinstance(parameter, Int) or column.null_count() or column.n_unique() < FEWEST_VALUES:
            continue
        values = column.to_numpy().astype(np.int64)
        if values.max() >= LARGE:
            found[name] = values
    return found


def _by_alignment(sizes: dict[str, Ints], dense: Ints) -> Kind | None:
    gridded = {name: values for name, values in sizes.items() if _per_group(values % GRID == 0, dense).mean() >= 0.5}
    if not gridded:
        return None
    worst = np.minimum.reduce([alignment(values) for values in gridded.values()])
    per_group = _per_group(worst, dense)
    cuts = [(abs(share - SHARE), power) for power in range(MOST_ALIGNED)
            if LEAST <= (share := float((per_group <= power).mean())) <= MOST]  # fmt: skip
    if not cuts:
        return None
    power = min(cuts)[1]
    names = list(gridded)
    listed = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"
    return Kind("alignment", f"{listed} not a multiple of {2 << power}", worst <= power)


def _by_size(table: Table, sizes: dict[str, Ints], dense: Ints) -> Kind | None:
    work = table.rows.roofline_ns if table.rows.roofline_ns is not None else table.rows.bytes
    if work is None:
        if not sizes:
            return None
        work = np.sum([np.log2(np.maximum(values, 1)) for values in sizes.values()], axis=0)
    # A shape counts with its largest dtype, so that all its dtypes are on one side.
    largest = _per_group(work, dense)
    low, high = np.quantile(largest, [SHARE / 2, 1 - SHARE / 2])
    held = (largest <= low) | (largest >= high)
    return Kind("size", "the smallest and the largest eighth", held[dense])


def _by_aspect(sizes: dict[str, Ints], dense: Ints) -> Kind | None:
    if len(sizes) < 2:
        return None
    logs = np.stack([_per_group(np.log2(np.maximum(values, 1)), dense) for values in sizes.values()])
    # Sizes of an op differ by nature (channels, pixels), so each is compared with what is usual for it.
    unusual = logs - np.median(logs, axis=1, keepdims=True)
    aspect = unusual.max(axis=0) - unusual.min(axis=0)
    held = aspect > np.quantile(aspect, 1 - SHARE)
    return Kind("aspect", f"the quarter with the most unequal {', '.join(sizes)}", held[dense])


def _per_group(values: Floats | Ints | Flags, dense: Ints) -> Floats:
    """The largest value of each group."""
    found = np.full(int(dense.max()) + 1, -np.inf)
    np.maximum.at(found, dense, values.astype(np.float64))
    return found


def _is_enough(held: Flags, dense: Ints, ok: Flags) -> bool:
    share = float(_per_group(held, dense).mean())
    return LEAST <= share <= MOST and bool((held & ok).any() and (~held & ok).any())
