"""The tree as C tables: its nodes and lists, and the few trees that compare the configs of a list."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from kerncast.core.arrays import Floats
from kerncast.core.expr import Expr
from kerncast.core.expr.nodes import as_expr
from kerncast.core.expr.to_c import statements
from kerncast.core.io.c import integer_type
from kerncast.learning.learners.trees import Tree
from kerncast.native.c_forest import at_least_16
from kerncast.native.c_model import CModel
from kerncast.native.lower import Artefact
from kerncast.native.pool import config_columns
from kerncast.native.stages import cut
from kerncast.native.tiers.contents import COMPARED_BY_ALL, COMPARING_FIRST, DecisionTree


def tree_tables(artefact: Artefact, out: CModel) -> None:
    """What the tree reads; without one, that there is none."""
    tree = artefact.tiers.tree if "tree" in artefact.include else None
    most = 1 if tree is None else int(tree.compares.max(initial=1))
    out.sizes |= {"KC_WITH_TREE": int(tree is not None), "KC_WITH_COMPARING": int(most > 1)}
    if tree is None:
        out.types["kc_place"] = "int8_t"
        return
    nodes = tree.tree
    out.fields |= {"has_tree": 1, "tree_nodes": len(nodes.feature), "tree_places": tree.lists.shape[1]}
    out.sizes["KC_MOST_TREE_FEATURES"] = max(1, len(tree.program.outputs))
    out.types["kc_place"] = integer_type([*tree.lists.ravel().tolist(), *tree.compares.tolist()])[0]
    # A tree of one leaf reads nothing, and compilers look for what writes the number that it does not read.
    out.function("kc_tree_values", tree.program.outputs or {"nothing": as_expr(0.0)})
    for name in ("feature", "left", "right"):
        out.table("int32_t", f"tree_{name}", getattr(nodes, name))
    out.table("double", "tree_threshold", nodes.threshold)
    out.table("int32_t", "tree_list", nodes.value.astype(np.int64))
    out.table("kc_place", "tree_lists", tree.lists.ravel())
    out.table("int32_t", "tree_members", artefact.members("portfolio"))
    if most > 1:
        out.sizes["KC_MOST_COMPARED"] = most
        _comparing(artefact, tree, out)


def _comparing(artefact: Artefact, tree: DecisionTree, out: CModel) -> None:
    """The trees that compare, and what they read: of the problem once per question, of each config from a table."""
    compared = Compared.of(artefact)
    out.fields |= {"compared_of_problem": len(compared.of_problem), "compared_of_config": compared.configs.shape[1]}
    out.sizes["KC_MOST_COMPARED_VALUES"] = max(1, len(compared.place))
    out.table("kc_place", "tree_compares", tree.compares)
    out.function("kc_compared_problem", compared.of_problem)
    out.table("double", "compared_configs", compared.configs.ravel())
    first = len(compared.of_problem) + compared.configs.shape[1]
    tables, lines = statements(
        "kc_compared_mixed", compared.mixed, lambda name: f"x[{compared.place[name]}]", lambda number: f"x[{first + number}]"
    )
    body = "\n".join(["    (void)m, (void)x;", *lines])
    out.add(f"{tables}static void kc_compared_mixed(const kc_model *m, double *x) {{\n{body}\n}}\n")
    trees = compared.trees
    out.types["kc_comparing_id"] = at_least_16(integer_type(trees.nodes.ravel().tolist())[0])
    out.fields |= {
        "comparing_count": len(trees.root), "comparing_first": min(COMPARING_FIRST, len(trees.root)),
        "compared_by_all": COMPARED_BY_ALL,
    }  # fmt: skip
    out.table("int32_t", "comparing_root", trees.root)
    out.add(out.sealed.triples("kc_comparing_node", "kc_comparing_nodes", ("feature", "left", "right"), trees.nodes))
    out.fields["comparing_nodes"] = "kc_comparing_nodes"
    out.table("double", "comparing_threshold", trees.threshold)
    out.table("double", "comparing_leaves", trees.leaves)


@dataclass(frozen=True)
class Compared:
    """What the comparing trees read: of the problem, of each config of the portfolio, and of both."""

    of_problem: dict[str, Expr]
    configs: Floats
    """[config of the portfolio, value]"""
    mixed: dict[str, Expr]
    place: dict[str, int]
    """Where each value is: those of the problem, then those of the config, then mixed ones."""
    trees: Joined

    @classmethod
    def of(cls, artefact: Artefact) -> Compared:
        trees, names = artefact.tiers.comparing, artefact.model.manifest.features.names
        read = sorted({int(number) for each in trees for number in each.feature})
        stages = cut({names[number]: artefact.features[names[number]] for number in read})
        of_problem = {**stages.problem, **stages.problem_parts}
        of_config = config_columns({**stages.config, **stages.config_parts}, artefact.configs, artefact.candidates)
        place = {name: number for number, name in enumerate([*of_problem, *of_config, *stages.mixed])}
        members = artefact.members("portfolio")
        configs = (
            np.column_stack([values[members] for values in of_config.values()]) if of_config else np.zeros((len(members), 0))
        )
        joined = Joined.of(trees, {number: place[names[number]] for number in read})
        return cls(of_problem, configs, dict(stages.mixed), place, joined)


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
