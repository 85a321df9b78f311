"""Forests with their thresholds shared: a split is the number of a condition `feature <= threshold`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kerncast.core.arrays import Floats, Ints
from kerncast.learning.learners.trees import Tree

Bags = Sequence[Sequence[Tree]]


@dataclass(frozen=True)
class Forests:
    """All forests of a model, and the conditions that their nodes test."""

    trees: Mapping[str, Bags]
    """By name (time, rank, library, valid) and bag."""
    thresholds: dict[int, Floats]
    """By feature that some node reads: its thresholds, ascending."""

    @classmethod
    def of(cls, trees: Mapping[str, Bags]) -> Forests:
        every = [tree for bags in trees.values() for bag in bags for tree in bag]
        features = np.concatenate([tree.feature for tree in every]) if every else np.empty(0, np.int64)
        thresholds = np.concatenate([tree.threshold for tree in every]) if every else np.empty(0)
        return cls(trees, {int(number): np.unique(thresholds[features == number]) for number in np.unique(features)})

    def condition(self, feature: Ints, threshold: Floats) -> Ints:
        """The numbers of some conditions: features in order, thresholds ascending within each."""
        first, total = {}, 0
        for number, values in self.thresholds.items():
            first[number] = total
            total += len(values)
        found = np.empty(len(feature), np.int64)
        for number in np.unique(feature):
            own = feature == number
            found[own] = first[int(number)] + np.searchsorted(self.thresholds[int(number)], threshold[own])
        return found
