"""LightGBM forests as flat arrays, their thresholds shared: a split is the number of a condition `feature <= threshold`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from kerncast.errors import InvalidValue
from kerncast.learners.trees import Tree

if TYPE_CHECKING:
    from lightgbm import Booster

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

CATEGORICAL_BIT = 1
# Bits 2 and 3 of a decision say what counts as missing; 1 is "zero is missing", which ours never asks for.
ZERO_IS_MISSING = 1


@dataclass(frozen=True)
class Forests:
    """All forests of a model, and the conditions that their nodes test."""

    trees: dict[str, list[list[Tree]]]
    """By name (time, rank, library, valid) and bag."""
    names: tuple[str, ...]
    thresholds: dict[int, Floats]
    """By feature that some node reads: its thresholds, ascending."""

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


def read_forests(boosters: Mapping[str, Sequence[Booster]], library: Sequence[Tree] = ()) -> Forests:
    """Flat arrays of LightGBM's own text; what C could not follow bit for bit is refused."""
    trees = {name: [_parse(booster.model_to_string(num_iteration=-1)) for booster in bag] for name, bag in boosters.items()}
    if library:
        trees["library"] = [list(library)]
    every = [tree for bags in trees.values() for bag in bags for tree in bag]
    features = np.concatenate([tree.feature for tree in every]) if every else np.empty(0, np.int64)
    thresholds = np.concatenate([tree.threshold for tree in every]) if every else np.empty(0)
    first = next(iter(boosters.values()))[0]
    by_feature = {int(number): np.unique(thresholds[features == number]) for number in np.unique(features)}
    return Forests(trees, tuple(first.feature_name()), by_feature)


def _parse(text: str) -> list[Tree]:
    """The trees of one booster, in the order in which their values are added."""
    if "\naverage_output" in text:
        raise InvalidValue("a random forest averages its trees, which C code is not written for: train with boosting")
    trees = []
    for block in text.split("\nTree=")[1:]:
        fields = dict(line.split("=", 1) for line in block.split("\n\n")[0].splitlines() if "=" in line)
        value = _numbers(fields["leaf_value"])
        if int(fields["num_leaves"]) == 1:
            none = np.empty(0, np.int64)
            trees.append(Tree(none, np.empty(0), none, none, value))
            continue
        decision = _numbers(fields["decision_type"]).astype(np.int64)
        if (
            (decision & CATEGORICAL_BIT).any()
            or ((decision >> 2) & 3 == ZERO_IS_MISSING).any()
            or fields.get("is_linear") == "1"
        ):
            raise InvalidValue("the forest has categorical, linear or zero-as-missing splits, which C code is not written for")
        raw = Tree(
            _numbers(fields["split_feature"]).astype(np.int64),
            _numbers(fields["threshold"]),
            _numbers(fields["left_child"]).astype(np.int64),
            _numbers(fields["right_child"]).astype(np.int64),
            value,
        )
        trees.append(raw.preorder())
    return trees


def _numbers(text: str) -> Floats:
    return np.array([float(word) for word in text.split()])
