"""A vector: one (problem, config) to measure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import polars as pl

from kerncast.core.op import Config, Family, Problem, key

PROBLEM, CONFIG = "problem.", "config."


@dataclass(frozen=True)
class Vector:
    """What to run: both halves validated."""

    problem: Problem
    config: Config

    def key(self, device: str) -> str:
        """The key of its measurement."""
        return key(self.problem, self.config, device)


def vectors_of(family: Family, block: pl.DataFrame) -> Iterator[Vector]:
    """The rows of a block as values; one problem's rows share their `Problem`."""
    last: tuple[dict[str, object], Problem] | None = None
    for row in block.iter_rows(named=True):
        values = {name: row[PROBLEM + name] for name in family.problem.parameters}
        if last is None or last[0] != values:
            last = values, Problem(family, values)
        config = {name: row[CONFIG + name] for name in family.config.parameters if row[CONFIG + name] is not None}
        yield Vector(last[1], Config(family, config))
