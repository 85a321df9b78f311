"""Forests and pools as tables: nodes, thresholds, combinations, and the programs of mixed features."""

from __future__ import annotations

import numpy as np

from kerncast.errors import InvalidValue
from kerncast.native.blob.bytecode import Programs, places_of
from kerncast.native.blob.spaces import Tables, doubles, ints
from kerncast.native.c_forest import ForestPlan, tree_nodes
from kerncast.native.c_tree import Compared
from kerncast.native.lower import Artefact
from kerncast.native.pool import Combinations, make_pool
from kerncast.native.tiers.contents import DecisionTree

# The runtime numbers conditions, nodes of a tree and combinations with 16 bits.
MOST_CONDITIONS, MOST_NODES, MOST_CONFIGS = 60_000, 32_000, 60_000


def forest_tables(plan: ForestPlan, places: dict[str, int], programs: Programs) -> Tables:
    """The trees of a plan, and what is computed before them."""
    forests, name = plan.forests, plan.name
    trees, thresholds = plan.every_tree, plan.thresholds
    _refuse_more(plan.most_rows, MOST_CONDITIONS, "conditions")
    _refuse_more(max(len(tree.value) for tree in trees), MOST_NODES, "leaves in a tree")
    ordered = [tree.preorder() for tree in trees]
    nodes = np.concatenate([tree_nodes(forests, tree) for tree in ordered])
    slots = [(first, count, number) for number, (first, count) in zip(forests.thresholds, plan.slots.values(), strict=False)]
    return {
        f"{name}.thresholds": doubles(thresholds),
        f"{name}.features": ints(slots),
        f"{name}.conditions": nodes[:, 0].astype(np.uint16),
        # Each node comes right before its left subtree, and leaves are in order: two bits say where the children are.
        f"{name}.shape": ((nodes[:, 1] < 0) + 2 * (nodes[:, 2] < 0)).astype(np.uint8),
        f"{name}.nodes": ints([len(tree.feature) for tree in ordered]),
        f"{name}.leaves": doubles(np.concatenate([tree.value for tree in ordered])),
        f"{name}.first_tree": ints(np.cumsum([0, *(len(bag) for bags in forests.trees.values() for bag in bags)])),
        **_slot_tables(plan, places, programs),
    }


def _slot_tables(plan: ForestPlan, places: dict[str, int], programs: Programs) -> Tables:
    """Which conditions the problem decides, which a group of mixed features, and which the config alone."""
    problem = [(*plan.slots[feature], places[plan.values[feature]]) for feature in plan.stages.problem]
    groups: list[tuple[int, ...]] = []
    mixed: list[tuple[int, ...]] = []
    for number, group in enumerate(plan.groups):
        program = programs.add(group.outputs.values(), places_of([*plan.stages.problem_parts, *group.parts]))
        groups.append((program, len(group.parts)))
        mixed += [(*plan.slots[name], number, place) for place, name in enumerate(group.outputs)]
    reads = [places[plan.values[part]] for part in plan.stages.problem_parts]
    static = [plan.slots[name] for name in plan.stages.config]
    return {
        f"{plan.name}.problem_slots": ints(problem),
        f"{plan.name}.groups": ints(groups),
        f"{plan.name}.parts": ints(reads),
        f"{plan.name}.slots": ints(mixed),
        f"{plan.name}.static_slots": ints(static),
    }


def pool_tables(plan: ForestPlan | None, artefact: Artefact, tier: str) -> Tables:
    """The configs of a tier; with a forest also their combinations, by group of features and by feature of the config."""
    rows = artefact.members("portfolio" if tier == "quick" else tier)
    _refuse_more(len(rows), MOST_CONFIGS, "configs")
    members = {f"{tier}.members": ints(rows)} if tier == "portfolio" else {}
    if plan is None:
        return members
    pool = make_pool(plan.stages, plan.groups, artefact.configs, rows)
    groups: list[Combinations] = [*pool.groups, *(pool.static[name] for name in plan.stages.config)]
    bands, own = np.unique(artefact.bands[rows], return_inverse=True)
    member = np.concatenate([group.member for group in groups]) if groups else np.empty(0, np.int64)
    # By part, then by combination: the runtime computes many combinations at a time.
    values = np.concatenate([group.values.T.ravel() for group in groups]) if groups else np.empty(0)
    return {
        **members,
        f"{tier}.combinations": ints([len(group.values) for group in groups]),
        f"{tier}.member": member.astype(np.uint8 if member.max(initial=0) < 256 else np.uint16),
        f"{tier}.values": doubles(values),
        f"{tier}.band_of": ints(bands),
        f"{tier}.band": own.ravel().astype(np.uint8 if len(bands) <= 256 else np.uint16),
    }


def _refuse_more(count: int, most: int, what: str) -> None:
    if count > most:
        raise InvalidValue(f"a blob has at most {most:,} {what}, and this model {count:,}: export it to C instead")


def tree_tables(tree: DecisionTree) -> Tables:
    """The tree over problems, with its lists."""
    nodes = tree.tree
    return {
        "tree.feature": ints(nodes.feature),
        "tree.left": ints(nodes.left),
        "tree.right": ints(nodes.right),
        "tree.threshold": doubles(nodes.threshold),
        "tree.list": ints(nodes.value.astype(np.int64)),
        "tree.lists": ints(tree.lists),
        "tree.compares": ints(tree.compares),
    }


def comparing_tables(artefact: Artefact, programs: Programs, place: dict[str, int]) -> tuple[Tables, int, int]:
    """The trees that compare the configs of a list; the programs of what they read of the problem, and of both."""
    compared = Compared.of(artefact)
    trees, configs = compared.trees, compared.configs
    tables = {
        "compared.configs": doubles(configs),
        "comparing.root": ints(trees.root),
        "comparing.nodes": ints(trees.nodes),
        "comparing.threshold": doubles(trees.threshold),
        "comparing.leaves": doubles(trees.leaves),
        "compared.counts": ints([len(compared.of_problem), configs.shape[1], len(compared.mixed)]),
    }
    problem = programs.add(compared.of_problem.values(), place.__getitem__)
    return tables, problem, programs.add(compared.mixed.values(), compared.place.__getitem__)
