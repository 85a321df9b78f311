"""The tree as C tables: its nodes and lists, and the few trees that compare the configs of a list."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from kerncast.compiling.c_forest import at_least_16
from kerncast.compiling.lower import Artefact
from kerncast.compiling.pool import config_columns
from kerncast.compiling.stages import cut
from kerncast.compiling.tiers import COMPARED_BY_ALL, COMPARING_FIRST, DecisionTree
from kerncast.expr import Expr
from kerncast.expr.to_c import statements
from kerncast.learners.trees import Tree
from kerncast.models.tier import Tier
from kerncast.writing.c import Sealed, define, integer_type

Function = Callable[[str, Mapping[str, Expr], str], str]
"""Writes a function of the problem: its name, its outputs, its arguments."""


def tree_tables(artefact: Artefact, sealed: Sealed, function: Function) -> str:
    """What `kc_decide` reads; without a tree, that there is none."""
    tree = artefact.tiers.tree if "tree" in artefact.include else None
    text = define(KC_TREE_ALONE=int(artefact.alone))
    if tree is None:
        return text + define(KC_HAS_TREE=0, KC_MOST_COMPARED=1)
    nodes = tree.tree
    text += define(KC_HAS_TREE=1, KC_TREE_NODES=len(nodes.feature), KC_TREE_FEATURES=max(1, len(tree.program.outputs)))
    text += function("kc_tree_values", tree.program.outputs, "const double *p")
    for name in ("feature", "left", "right"):
        text += sealed.array("int32_t", f"kc_tree_{name}", getattr(nodes, name))
    text += sealed.array("double", "kc_tree_threshold", nodes.threshold)
    kind = integer_type([*tree.lists.ravel().tolist(), *tree.compares.tolist()])[0]
    text += f"typedef {kind} kc_place;\n" + define(KC_TREE_PLACES=tree.lists.shape[1])
    text += sealed.array("int32_t", "kc_tree_list", nodes.value.astype(np.int64))
    text += sealed.array("kc_place", "kc_tree_lists", tree.lists.ravel())
    # The portfolio's own array comes with its pool.
    if Tier.PORTFOLIO in artefact.include:
        text += define(kc_tree_members="kc_portfolio_members")
    else:
        text += sealed.array("int32_t", "kc_tree_members", artefact.members("portfolio"))
    return text + _comparing(artefact, tree, sealed, function)


def _comparing(artefact: Artefact, tree: DecisionTree, sealed: Sealed, function: Function) -> str:
    """The trees that compare, and what they read: of the problem once per question, of each config from a table."""
    trees, most = artefact.tiers.comparing, int(tree.compares.max(initial=1))
    text = define(KC_MOST_COMPARED=most)
    if most == 1:
        return text
    names = artefact.model.manifest.features.names
    read = sorted({int(number) for each in trees for number in each.feature})
    stages = cut({names[number]: artefact.features[names[number]] for number in read})
    of_problem = {**stages.problem, **stages.problem_parts}
    of_config = config_columns({**stages.config, **stages.config_parts}, artefact.configs, artefact.candidates)
    place = {name: number for number, name in enumerate([*of_problem, *of_config, *stages.mixed])}
    members = artefact.members("portfolio")
    table = np.column_stack([values[members] for values in of_config.values()]) if of_config else np.zeros((0, 0))
    text += define(
        KC_COMPARED_OF_PROBLEM=len(of_problem), KC_COMPARED_OF_CONFIG=len(of_config), KC_COMPARED_VALUES=max(1, len(place))
    )
    text += sealed.array("kc_place", "kc_tree_compares", tree.compares)
    text += function("kc_compared_problem", of_problem, "const double *p")
    text += sealed.array("double", "kc_compared_configs", table.ravel())
    first = len(of_problem) + len(of_config)
    tables, lines = statements(
        "kc_compared_mixed", stages.mixed, lambda name: f"x[{place[name]}]", lambda number: f"x[{first + number}]"
    )
    body = "\n".join(lines)
    text += f"{tables}static void kc_compared_mixed(double *x) {{\n    (void)x;\n{body}\n}}\n"
    return text + Joined.of(trees, {number: place[names[number]] for number in read}).tables(sealed)


@dataclass(frozen=True)
class Joined:
    """Trees in one row of nodes and one of leaves."""

    nodes: np.ndarray
    threshold: np.ndarray
    leaves: np.ndarray
    root: np.ndarray

    @classmethod
    def of(cls, trees: tuple[Tree, ...], place: Mapping[int, int]) -> Joined:
        nodes, roots, first, leaf = [], [], 0, 0
        for tree in trees:
            children = [np.where(side >= 0, side + first, side - leaf) for side in (tree.left, tree.right)]
            nodes.append(np.column_stack([[place[int(number)] for number in tree.feature], *children]).reshape(-1, 3))
            roots.append(first if len(tree.feature) else -1 - leaf)
            first, leaf = first + len(tree.feature), leaf + len(tree.value)
        joined = np.concatenate(nodes).astype(np.int64)
        threshold, leaves = (np.concatenate([getattr(tree, name) for tree in trees]) for name in ("threshold", "value"))
        return cls(joined, threshold, leaves, np.array(roots, np.int64))

    def tables(self, sealed: Sealed) -> str:
        kind = at_least_16(integer_type(self.nodes.ravel().tolist())[0])
        text = f"typedef struct {{ {kind} feature, left, right; }} kc_comparing_node;\n"
        first = min(COMPARING_FIRST, len(self.root))
        text += define(KC_COMPARING=len(self.root), KC_COMPARING_FIRST=first, KC_COMPARED_BY_ALL=COMPARED_BY_ALL)
        text += sealed.array("int32_t", "kc_comparing_root", self.root)
        text += sealed.triples("kc_comparing_node", "kc_comparing_nodes", ("feature", "left", "right"), self.nodes)
        text += sealed.array("double", "kc_comparing_threshold", self.threshold)
        return text + sealed.array("double", "kc_comparing_leaves", self.leaves)
