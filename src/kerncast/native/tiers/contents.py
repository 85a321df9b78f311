"""What the quick tiers of a selector are made of: plain data, built by `kerncast.answering`, written out by `export`."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from kerncast.core.arrays import Array, Ints
from kerncast.core.expr import Program
from kerncast.learning.learners.trees import Tree, as_arrays
from kerncast.models.limits.configs import Expectation, Reach

UNSURE = -1
# How the configs of a list are compared: the first trees of the small forest compare all of them, more trees the best few. The
# first trees of a boosted forest say most: on made-up CK Tile kernels this loses 0.01 % more than all 70 trees for all configs.
COMPARING_FIRST, COMPARED_BY_ALL, COMPARING = 8, 3, 48


@dataclass(frozen=True)
class DecisionTree:
    """Problem → a list of configs: the first that can run the problem is the answer, or the best of the first few that can."""

    program: Program
    """The inputs of splits: exact features of the problem alone (a last-bit difference must not change a split)."""
    tree: Tree
    """Reads the outputs of `program` by number; a leaf's value is a row of `lists`."""
    lists: Ints
    """[list, place]: places in the portfolio in the order in which they are tried; UNSURE ends a list."""
    compares: Ints
    """By list: how many configs that can run the problem are compared, by trees of the small forest; 1: none."""

    @property
    def ranked(self) -> Ints:
        """By leaf: its list."""
        return np.asarray(self.lists[self.tree.value.astype(np.int64)])

    @property
    def choices(self) -> Ints:
        """By leaf: the first of its list; UNSURE if it is empty."""
        return self.ranked[:, 0]

    def decide(self, values: Mapping[str, Any]) -> tuple[list[int], int]:
        """The places in the portfolio to try for a problem's values under their symbol names (`p.M`), none if it is unsure;
        and how many of those that can run it are compared.
        """
        found = np.array([list(self.program.scalar(values).values())], np.float64)
        number = int(self.tree.leaf_values(found)[0])
        return [int(place) for place in self.lists[number] if place != UNSURE], int(self.compares[number])


@dataclass(frozen=True)
class Tiers:
    """The portfolio by rows of the model's candidates, in the order in which each adds most; and the tree over it."""

    portfolio: tuple[int, ...]
    tree: DecisionTree | None = None
    forest: tuple[Tree, ...] | None = None
    """A small forest over the model's features that ranks the portfolio as the model does; None: the
    model itself does it."""
    reach: Reach | None = None
    """Candidates are used only where they were tried, unless none was tried there; None: anywhere."""
    expectation: Expectation | None = None
    """None: nothing was chosen in training."""
    alone: bool = False
    """Whether the tree can do without another tier: its leaves compare nothing and list no config that fails there."""
    judged: tuple[float, float] | None = None
    """Of such a tree: the share of held-out problems that it answers, and what it loses there to the model's own choice."""

    @property
    def comparing(self) -> tuple[Tree, ...]:
        """The trees that compare the configs of a list."""
        return (self.forest or ())[:COMPARING]

    @cached_property
    def digest(self) -> str:
        """A hash that distinguishes sets of tiers."""
        hasher = hashlib.blake2b(repr((self.portfolio, self.expectation, self.alone)).encode(), digest_size=10)
        parts: list[Array] = []
        if self.reach is not None:
            parts += [self.reach.low, self.reach.high, self.reach.labels]
        if self.tree is not None:
            hasher.update(self.tree.program.digest.encode())
            parts += [self.tree.lists, self.tree.compares]
        trees = [*(self.forest or ()), *([self.tree.tree] if self.tree is not None else [])]
        parts += as_arrays(trees).values() if trees else []
        for part in parts:
            hasher.update(np.ascontiguousarray(part).tobytes())
        return hasher.hexdigest()
