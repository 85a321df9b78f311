"""LightGBM's text of a forest as flat arrays; features that C could not reproduce bit for bit are refused."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kerncast.errors import InvalidValue
from kerncast.learners.trees import Tree

Floats = npt.NDArray[np.float64]

CATEGORICAL_BIT = 1
# Bits 2 and 3 of a decision say what counts as missing; 1 is "zero is missing", which kerncast never uses.
ZERO_IS_MISSING = 1


def read_trees(text: str) -> tuple[Tree, ...]:
    """The trees of one booster, in the order in which their values are added."""
    if "\naverage_output" in text:
        raise InvalidValue("a random forest averages its trees, which exported C does not support: train with boosting")
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
            raise InvalidValue("the forest has categorical, linear or zero-as-missing splits, which C does not support")
        raw = Tree(
            _numbers(fields["split_feature"]).astype(np.int64),
            _numbers(fields["threshold"]),
            _numbers(fields["left_child"]).astype(np.int64),
            _numbers(fields["right_child"]).astype(np.int64),
            value,
        )
        trees.append(raw.preorder())
    return tuple(trees)


def _numbers(text: str) -> Floats:
    return np.array([float(word) for word in text.split()])
