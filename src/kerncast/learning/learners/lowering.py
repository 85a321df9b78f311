"""What a learner computes, as data: the C of an export and the tables of a blob are both written from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kerncast.core.arrays import Floats
from kerncast.learning.learners.trees import Tree

# The buffers of a network, and the steps over them.
INPUT, A, B, D, RAW = range(5)
DENSE, ADD, COPY = range(3)


@dataclass(frozen=True)
class Level:
    """The same for every row."""

    value: float


@dataclass(frozen=True)
class Lines:
    """Lines in the order of their keys; the last one, which has no key, is for any other key."""

    keys: Floats
    lines: Floats
    """[line, (intercept, slope, shortest)]"""
    reads: tuple[int, ...]
    """What each column is compared with: a problem parameter by its place, or, after these, a config parameter."""
    size: str
    """The number of the problem that the time grows with."""


@dataclass(frozen=True)
class Boosted:
    """Forests, and how their sums become a score: `own` × the time's − `weight` × the order's."""

    trees: Mapping[str, Sequence[Sequence[Tree]]]
    """By name (time, rank, valid, library) and bag."""
    own: float = 1.0
    weight: float = 0.0


@dataclass
class Network:
    """Layers over scaled features. What is predicted is the first output × `spread` + `middle`."""

    scaling: Any
    middle: float
    spread: float
    blend: tuple[float, float] | None = None
    """Shares of the time and of the second output in the score; None: there is one output."""
    steps: list[tuple[int, ...]] = field(default_factory=list)
    """Operation, source, offset, rows, first weight, first bias or -1, columns, rectify, target."""
    kept: list[Floats] = field(default_factory=list)

    def dense(self, source: int, offset: int, weights: Any, bias: Any, rectify: bool, target: int) -> None:
        """target = source · weights + bias."""
        rows, columns = np.asarray(weights).shape
        first = self._keep(weights)
        self.steps.append((DENSE, source, offset, rows, first, self._keep(bias), columns, int(rectify), target))

    def move(self, operation: int, source: int, columns: int, target: int) -> None:
        """target = source, or target += source."""
        self.steps.append((operation, source, 0, 0, 0, -1, columns, 0, target))

    @property
    def outputs(self) -> int:
        return self.steps[-1][6]

    @property
    def weights(self) -> Floats:
        """All weights, in one row."""
        return np.concatenate(self.kept)

    def _keep(self, weights: Any) -> int:
        if weights is None:
            return -1
        first = sum(len(each) for each in self.kept)
        self.kept.append(np.asarray(weights, np.float64).ravel())
        return first


Lowered = Level | Lines | Boosted | Network
