"""Forests and pools as tables: nodes, thresholds, combinations, and the programs of mixed features."""

from __future__ import annotations

import numpy as np

from kerncast.compiling.blob.bytecode import Programs, places_of
from kerncast.compiling.blob.spaces import Tables, doubles, ints
from kerncast.compiling.c_forest import ForestPlan, tree_nodes
from kerncast.compiling.c_tree import Joined
from kerncast.compiling.lower import Artefact
from kerncast.compiling.pool import Combinations, config_columns, make_pool
from kerncast.compiling.stages import cut
from kerncast.compiling.tiers import DecisionTree
from kerncast.errors import InvalidValue

# The runtime numbers conditions, nodes of a tree and combinations with 16 bits.
MOST_CONDITIONS, MOST_NODES, MOST_CONFIGS = 60_000, 32_000, 60_000


def forest_tables(plan: ForestPlan, places: dict[str, int], programs: Programs) -> Tables:
    """The trees of a plan, and what is computed before them."""
    forests, name = plan.forests, plan.name
    trees = [tree for bags in forests.trees.values() for bag in bags for tree in bag]
    rules = len(plan.artefact.mixed_rules)
    # A rule is the condition `holds <= 0.5`: it is met by the configs that break the rule.
    thresholds = np.concatenate([*forests.thresholds.values(), np.full(rules, 0.5)])
    _refuse_more(len(thresholds) + 2 * len(plan.slots) + 2, MOST_CONDITIONS, "conditions")
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
    trees, names = artefact.tiers.comparing, artefact.model.manifest.features.names
    read = sorted({int(number) for each in trees for number in each.feature})
    stages = cut({names[number]: artefact.features[names[number]] for number in read})
    of_problem = {**stages.problem, **stages.problem_parts}
    of_config = config_columns({**stages.config, **stages.config_parts}, artefact.configs, artefact.candidates)
    own = {name: number for number, name in enumerate([*of_problem, *of_config, *stages.mixed])}
    members = artefact.members("portfolio")
    table = np.column_stack([values[members] for values in of_config.values()]) if of_config else np.zeros((0, 0))
    joined = Joined.of(trees, {number: own[names[number]] for number in read})
    tables = {
        "compared.configs": doubles(table),
        "comparing.root": ints(joined.root),
        "comparing.nodes": ints(joined.nodes),
        "comparing.threshold": doubles(joined.threshold),
        "comparing.leaves": doubles(joined.leaves),
        "compared.counts": ints([len(of_problem), len(of_config), len(stages.mixed)]),
    }
    problem = programs.add(of_problem.values(), place.__getitem__)
    return tables, problem, programs.add(stages.mixed.values(), own.__getitem__)
