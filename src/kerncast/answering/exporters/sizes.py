"""How many bytes each tier of an artefact needs: only its tables, without the engine's code."""

from __future__ import annotations

import numpy as np

from kerncast.native.c_forest import ForestPlan
from kerncast.native.lower import Artefact
from kerncast.native.tiers.contents import DecisionTree

NODE, TREE_NODE, TREE_LEAF, NUMBER = 6, 20, 4, 8


def tier_bytes(artefact: Artefact) -> dict[str, int]:
    """Bytes of tree, portfolio and full; tables that several share are counted in each."""
    parameters = len(artefact.model.family.config.parameters)
    model = _model_bytes(artefact)
    tree = artefact.tiers.tree
    small = artefact.small_forest
    chosen = 2 * parameters * len(artefact.tiers.portfolio)
    portfolio = chosen + model + (_forest_bytes(ForestPlan(artefact, small, "small")) if small is not None else 0)
    deciding = 0 if tree is None else _tree_bytes(artefact, tree)
    return {
        "tree": chosen + deciding,
        "portfolio": portfolio,
        "full": model + 2 * parameters * artefact.candidates,
    }


def _tree_bytes(artefact: Artefact, tree: DecisionTree) -> int:
    """Nodes, leaves and their lists; and, if some configs are compared, the trees that do it."""
    trees = artefact.tiers.comparing if (tree.compares > 1).any() else ()
    own = TREE_NODE * len(tree.tree.feature) + TREE_LEAF * len(tree.tree.value) + tree.lists.size
    return own + sum((NODE + NUMBER) * len(each.feature) + NUMBER * len(each.value) for each in trees)


def _model_bytes(artefact: Artefact) -> int:
    if artefact.forests is not None:
        return _forest_bytes(ForestPlan(artefact, artefact.forests, "model"))
    return NUMBER * sum(artefact.model.manifest.size.values())


def _forest_bytes(plan: ForestPlan) -> int:
    trees = [tree for bags in plan.forests.trees.values() for bag in bags for tree in bag]
    nodes, leaves = sum(len(tree.feature) for tree in trees), sum(len(tree.value) for tree in trees)
    return NODE * nodes + NUMBER * (leaves + int(np.sum([len(item) for item in plan.forests.thresholds.values()])))
