"""Whole problems drawn by a hash of their parameters, so that a part of a large dataset can be read without the rest.

The hash is arithmetic over columns: polars computes it while it reads, for any number of rows. It depends on values alone,
not on their order, on the version of a library or on optional parameters that are not given, so the same data and seed
always give the same rows.
"""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import reduce

import numpy as np
import polars as pl

from kerncast.core.arrays import Ints
from kerncast.core.op import Family
from kerncast.core.parameters import Categorical

# Problems are told apart by this many values of their hash: a device with 10^8 rows has some thousand rows in each.
SHARES = 2**16
# An odd number that mixes well: that of splitmix64.
_FACTOR = 0x94D049BB133111EB


def columns_of(family: Family) -> list[str]:
    """The columns that a draw reads."""
    return ["device", *(f"problem.{name}" for name in family.problem.parameters)]


@dataclass(frozen=True)
class DrawnProblems:
    """A condition on rows: of each device, the problems whose hash is below a limit."""

    family: Family
    seed: int
    limits: Mapping[str, int]
    """By device: how many of all `SHARES` of its problems."""

    def __str__(self) -> str:
        return "drawn problems"

    @property
    def expression(self) -> pl.Expr:
        """Which rows are kept."""
        names, shares = list(self.limits), list(self.limits.values())
        limit = pl.col("device").replace_strict(names, shares, default=0, return_dtype=pl.UInt64)
        return problem_share(self.family, self.seed) < limit


def problem_share(family: Family, seed: int) -> pl.Expr:
    """A number below `SHARES` for each row: equal for all rows of a problem, as good as random otherwise."""
    # A sum of products, mixed once: an expression that reads the one before it twice doubles with each parameter.
    terms = [pl.lit(_number(f"seed {seed}"), pl.UInt64)]
    for name, parameter in family.problem.parameters.items():
        column = pl.col(f"problem.{name}")
        if isinstance(parameter, Categorical):
            labels = [label for label, _ in parameter.labels]
            cells = column.replace_strict(labels, [_number(label) for label in labels], default=0, return_dtype=pl.UInt64)
        else:
            cells = column.cast(pl.Int64).reinterpret(signed=False)
        terms.append(cells.fill_null(0) * pl.lit(_number(f"{name} {seed}") | 1, pl.UInt64))
    total = reduce(operator.add, terms)
    return (total ^ (total // 2**32)) * pl.lit(_FACTOR, pl.UInt64) // (2**64 // SHARES)


def _number(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def draw_problems(family: Family, pieces: Iterable[pl.DataFrame], rows: int, seed: int) -> tuple[DrawnProblems, int]:
    """A draw of about `rows` rows in whole problems, of each device about as many, and how many rows it takes.

    Of the rows that are drawn from, the pieces need `columns_of` only. They are counted one at a time: polars' streaming engine
    took 13 GB for 10^8 rows. A device whose first problem alone has more rows keeps that one.
    """
    counts: dict[str, Ints] = {}
    for piece in pieces:
        shared = piece.select("device", share=problem_share(family, seed))
        for (name,), own in shared.group_by("device", maintain_order=True):
            found = np.bincount(own["share"].to_numpy(), minlength=SHARES)
            counts[str(name)] = counts[str(name)] + found if str(name) in counts else found
    by_device = {name: np.cumsum(found) for name, found in sorted(counts.items())}
    left, taken, limits = rows, 0, dict[str, int]()
    # The smallest devices first: what they do not need is divided among the others.
    for place, (name, total) in enumerate(sorted(by_device.items(), key=lambda item: (int(item[1][-1]), item[0]))):
        quota = min(int(total[-1]), left // (len(by_device) - place))
        first = int(np.argmax(total > 0)) + 1
        limits[name] = max(first, int(np.searchsorted(total, quota, side="right")))
        drawn = int(total[limits[name] - 1])
        left, taken = max(0, left - drawn), taken + drawn
    return DrawnProblems(family, seed, dict(sorted(limits.items()))), taken
