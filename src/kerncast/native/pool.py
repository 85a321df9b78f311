"""Candidates as the compiled engine sees them: the distinct combinations of config parts, and which configs have them.

A feature that mixes problem and config depends only on a few parts of the config (`tiles_m` on `tile_m`), so it is
computed once per distinct combination of those parts, not once per config: thousands of configs have only dozens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl

from kerncast.core.arrays import Floats, Ints
from kerncast.core.expr import Expr, Program
from kerncast.native.stages import Stages, reads


@dataclass(frozen=True)
class Group:
    """Mixed outputs that read the same parts of the config."""

    outputs: dict[str, Expr]
    parts: tuple[str, ...]


@dataclass(frozen=True)
class Combinations:
    """The distinct combinations of some parts among the configs of a pool, and which one each config has."""

    values: Floats
    """[combinations, parts]"""
    member: Ints


@dataclass(frozen=True)
class Pool:
    """Some candidates, in the order of `rows`."""

    rows: Ints
    """The rows of the model's candidates."""
    groups: list[Combinations]
    """In the order of the groups."""
    static: dict[str, Combinations]
    """Features of the config alone: their distinct values."""

    @property
    def words(self) -> int:
        """64-bit words of a set of configs; if more than one, a multiple of four, as a vector holds four."""
        words = -(-max(1, len(self.rows)) // 64)
        return words if words == 1 else -(-words // 4) * 4


def group_mixed(stages: Stages) -> list[Group]:
    """Mixed outputs by the parts that they read, in order of first use."""
    found: dict[tuple[str, ...], dict[str, Expr]] = {}
    for name, expr in stages.mixed.items():
        found.setdefault(reads(expr, "t"), {})[name] = expr
    return [Group(outputs, parts) for parts, outputs in found.items()]


def make_pool(stages: Stages, groups: list[Group], configs: pl.DataFrame, rows: Ints) -> Pool:
    """`configs`: all candidates under their symbol names (`c.*`)."""
    chosen = configs[rows] if configs.width else pl.DataFrame({"c.none": np.zeros(len(rows))})
    parts = config_columns(stages.config_parts, chosen, len(rows))
    static = config_columns(stages.config, chosen, len(rows))
    return Pool(
        rows,
        [_combinations(np.column_stack([parts[name] for name in group.parts])) for group in groups],
        {name: _combinations(values[:, None]) for name, values in static.items()},
    )


def config_columns(outputs: Mapping[str, Expr], configs: pl.DataFrame, rows: int) -> dict[str, Floats]:
    """Outputs that read configs alone, by name."""
    if not outputs:
        return {}
    frame = Program(outputs).frame(configs, trusted=True)
    return {name: frame[name].to_numpy() if frame.height == rows else np.full(rows, frame[name][0]) for name in outputs}


def _combinations(values: Floats) -> Combinations:
    distinct, member = np.unique(values, axis=0, return_inverse=True)
    return Combinations(distinct, member.ravel().astype(np.int64))
