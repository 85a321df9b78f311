"""Forests and the tree as C: nodes, thresholds, leaves, and what is computed before them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from kerncast.core.arrays import Floats, Ints
from kerncast.core.expr import Expr
from kerncast.core.expr.nodes import as_expr
from kerncast.core.expr.to_c import statements
from kerncast.core.io.quoting import integer_type
from kerncast.learning.learners.trees import Tree
from kerncast.models.answer import Tier
from kerncast.native.c_model import CModel, structure
from kerncast.native.lower import Artefact, Forests, Group, Pool, Stages, config_columns, cut, group_mixed, make_pool
from kerncast.native.tiers.contents import COMPARED_BY_ALL, COMPARING_FIRST
from kerncast.native.values import Tables, doubles, ints, tree_tables

# A set per combination takes memory; above this many, configs are put into their sets one by one.
MOST_SETS = 128
# The pool that is the portfolio once more, ranked by the small forest.
QUICK = "quick"


@dataclass(frozen=True)
class ForestPlan:
    """The trees that score a pool, with their inputs split by stage. `name` distinguishes the tables of several plans."""

    artefact: Artefact
    forests: Forests
    name: str

    @cached_property
    def stages(self) -> Stages:
        """The features that some tree reads, and the mixed rules, by what they depend on."""
        names = self.artefact.model.manifest.features.names
        used = {names[number]: self.artefact.features[names[number]] for number in self.forests.thresholds}
        rules = {f"rule {rule.name}": rule.holds for rule in self.artefact.mixed_rules}
        return cut({**used, **rules})

    @cached_property
    def groups(self) -> list[Group]:
        return group_mixed(self.stages)

    @cached_property
    def slots(self) -> dict[str, tuple[int, int]]:
        """The first condition of each feature (and rule), and their number."""
        names, first, found = self.artefact.model.manifest.features.names, 0, {}
        for number, values in self.forests.thresholds.items():
            found[names[number]] = (first, len(values))
            first += len(values)
        for place, rule in enumerate(self.artefact.mixed_rules):
            found[f"rule {rule.name}"] = (first + place, 1)
        return found

    @cached_property
    def values(self) -> dict[str, str]:
        """What the trees read of the problem: the name among the problem's numbers, by feature or part."""
        own = {name: f"feature {name}" for name in self.stages.problem}
        return own | {part: f"{self.name} {part}" for part in self.stages.problem_parts}

    # -- trees ---------------------------------------------------------------------------------------

    @cached_property
    def every_tree(self) -> list[Tree]:
        return [tree for bags in self.forests.trees.values() for bag in bags for tree in bag]

    @cached_property
    def thresholds(self) -> Floats:
        """Those of all conditions. A rule is the condition `holds <= 0.5`: it is met by the configs that break the rule."""
        return np.concatenate([*self.forests.thresholds.values(), np.full(len(self.artefact.mixed_rules), 0.5)])

    @cached_property
    def nodes(self) -> Ints:
        return np.concatenate([tree_nodes(self.forests, tree) for tree in self.every_tree])

    def tables(self, out: CModel, places: dict[str, int], rough: bool) -> None:
        """Nodes, thresholds and leaves; rounded ones too where a pool is screened by them first."""
        name, trees = self.name, self.every_tree
        starts = np.cumsum([0, *(len(bag) for bags in self.forests.trees.values() for bag in bags)])
        rows = CModel(out.family, out.sealed)
        rows.table("double", f"{name}_thresholds", self.thresholds)
        rows.add(out.sealed.triples("kc_node", f"kc_{name}_nodes", ("condition", "left", "right"), self.nodes))
        rows.fields[f"{name}_nodes"] = f"kc_{name}_nodes"
        rows.table("double", f"{name}_leaves", np.concatenate([tree.value for tree in trees]))
        if rough:
            rows.table("int32_t", f"{name}_rough", self._rough_leaves())
        rows.table("uint32_t", f"{name}_first_node", np.cumsum([0, *(len(tree.feature) for tree in trees)]))
        rows.table("uint32_t", f"{name}_first_leaf", np.cumsum([0, *(len(tree.value) for tree in trees)]))
        rows.table("int32_t", f"{name}_first_tree", starts)
        features = [
            (first, count, number) for number, (first, count) in zip(self.forests.thresholds, self.slots.values(), strict=False)
        ]
        problem = [(*self.slots[feature], places[self.values[feature]]) for feature in self.stages.problem]
        for word, slots in (("features", features), ("problem_slots", problem)):
            rows.rows("kc_slot", f"{name}_{word}", (structured(slot) for slot in slots))
        rows.rows("kc_group_function", f"{name}_compute", self._functions(rows, places), nothing="NULL")
        out.parts += rows.parts
        out.fields[name] = structure({
            **{key.removeprefix(f"{name}_"): value for key, value in rows.fields.items()},
            "forests": len(starts) - 1, "conditions": len(self.thresholds),
            "first_rule": len(self.thresholds) - len(self.artefact.mixed_rules), "feature_count": len(features),
            "problem_slot_count": len(problem), "depth": self.depth,
        })  # fmt: skip

    @cached_property
    def depth(self) -> int:
        """The largest number of sets that wait."""
        return max([1, *(_depth(tree) for tree in self.every_tree)])

    @property
    def most_rows(self) -> int:
        """The largest number that stands for a set of configs."""
        return len(self.thresholds) + 2 * len(self.slots) + 2

    def rough_scale(self) -> float:
        """A power of two by which leaf values become whole numbers whose sums fit into 31 bits."""
        sums = [sum(float(np.abs(tree.value).max()) for tree in bag) for bags in self.forests.trees.values() for bag in bags]
        return float(2.0 ** np.floor(np.log2(2.0**30 / max([1e-9, *sums]))))

    def rough_error(self) -> float:
        """The largest error of a sum of rounded leaves."""
        most = max(len(bag) for bags in self.forests.trees.values() for bag in bags)
        return most * 0.5 / self.rough_scale() * 1.01 + 1e-12

    def _rough_leaves(self) -> Ints:
        """Leaves in whole numbers."""
        return np.rint(np.concatenate([tree.value for tree in self.every_tree]) * self.rough_scale()).astype(np.int64)

    # -- what is computed before the trees -------------------------------------------------------------

    def _functions(self, out: CModel, places: dict[str, int]) -> list[str]:
        """A function per group of features: `out[output × count + combination]`."""
        functions = []
        for number, group in enumerate(self.groups):
            function = f"kc_{self.name}_group_{number}"

            def read(symbol: str, parts: tuple[str, ...] = group.parts) -> str:
                return f"u[{parts.index(symbol)}]" if symbol in parts else f"v[{places[self.values[symbol]]}]"

            tables, lines = statements(function, group.outputs, read, lambda place: f"out[(ptrdiff_t){place} * count + i]")
            body = "\n".join(f"    {line}" for line in lines)
            out.add(
                f"{tables}static void {function}(const double *v, const double *u, int32_t count, double *out) {{\n"
                f"    (void)v;\n    for (int32_t i = 0; i < count; i++, u += {len(group.parts)}) {{\n{body}\n    }}\n}}\n"
            )
            functions.append(function)
        return functions

    # -- one pool ------------------------------------------------------------------------------------

    def pool(self, tier: str) -> Pool:
        """The configs of a tier, by their combinations."""
        return make_pool(self.stages, self.groups, self.artefact.configs, self.artefact.members(tier))

    def pool_tables(self, tier: str, out: CModel, screens: bool) -> None:
        """The configs of a tier: combinations by group, and where each output's sets of configs go."""
        pool = self.pool(tier)
        names = [list(group.outputs) for group in self.groups] + [[name] for name in pool.static]
        groups = [*pool.groups, *pool.static.values()]
        bits, row, entries = 0, 2, []
        rows = CModel(out.family, out.sealed)
        slots: dict[str, list[tuple[int, ...]]] = {"slots": [], "static_slots": []}
        for number, (group, outputs) in enumerate(zip(groups, names, strict=True)):
            member, values = f"kc_{tier}_member_{number}", f"kc_{tier}_values_{number}"
            rows.add(
                out.sealed.array("kc_member", member, group.member) + out.sealed.array("double", values, group.values.ravel())
            )
            own = bits if len(group.values) <= MOST_SETS else -1
            bits += len(group.values) if own >= 0 else 0
            entries.append(f"{{{len(group.values)}, {own}, {member}, {values}}}")
            kind = "slots" if number < len(pool.groups) else "static_slots"
            for place, name in enumerate(outputs):
                first, count = self.slots[name]
                slots[kind].append((first, count, row, number, place))
                row += min(len(group.values), count) + 1
        rows.rows("kc_pool_group", f"{tier}_groups", entries)
        for word, found in slots.items():
            rows.rows("kc_pool_slot", f"{tier}_{word}", map(structured, found))
        bands, own_band = np.unique(self.artefact.bands[pool.rows], return_inverse=True)
        rows.table("int32_t", f"{tier}_band_of", bands, sealed=False)
        rows.table("kc_member", f"{tier}_band", own_band.ravel(), sealed=False)
        out.parts += rows.parts
        out.fields[f"pools[KC_{tier.upper()}]"] = structure({
            **{key.removeprefix(f"{tier}_"): value for key, value in rows.fields.items()},
            "trees": f"&kc_this.{self.name}", "members": f"kc_{Tier.PORTFOLIO if tier == QUICK else tier}_members",
            "configs": len(pool.rows), "words": pool.words, "group_count": len(entries), "slot_count": len(slots["slots"]),
            "static_slot_count": len(slots["static_slots"]), "bands": len(bands), "rows": row, "bits": bits,
            "most_combinations": max([1, *(len(group.values) for group in groups)]),
            "most_outputs": max([1, *(len(group.values) * len(outputs) for group, outputs in zip(groups, names, strict=True))]),
            "screens": int(screens), "imitates": int(self.name == "small"),
        })  # fmt: skip


def structured(numbers: Iterable[int]) -> str:
    """A struct of numbers, in order."""
    return f"{{{', '.join(map(str, numbers))}}}"


def at_least_16(kind: str) -> str:
    """An integer type of two bytes or more."""
    return kind.replace("int8_t", "int16_t")


def tree_nodes(forests: Forests, tree: Tree) -> Ints:
    """The nodes of a tree: condition, left, right."""
    return np.column_stack([forests.condition(tree.feature, tree.threshold), tree.left, tree.right])


def _depth(tree: Tree) -> int:
    """The largest number of waiting sets: the length of the longest path."""
    depth = np.zeros(len(tree.feature), np.int64)
    for node in range(len(tree.feature)):  # parents come before their children
        for child in (tree.left[node], tree.right[node]):
            if child >= 0:
                depth[child] = depth[node] + 1
    return int(depth.max()) + 2 if len(depth) else 1


def forest_plans(artefact: Artefact) -> dict[str, ForestPlan]:
    """The model's own trees, and the small ones that imitate them, if there are any."""
    forests = {"model": None if artefact.alone else artefact.forests, "small": artefact.small_forest}
    return {name: ForestPlan(artefact, found, name) for name, found in forests.items() if found is not None}


def values_of_problems(artefact: Artefact, plans: Iterable[ForestPlan]) -> dict[str, Expr]:
    """What is computed once per call: work, and the parts of features that the problem decides."""
    found = dict(artefact.work)
    for plan in plans:
        found |= {plan.values[name]: expr for name, expr in plan.stages.problem.items()}
        found |= {plan.values[name]: expr for name, expr in plan.stages.problem_parts.items()}
    return found


def tree_in_c(artefact: Artefact, out: CModel) -> None:
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
    tables = tree_tables(tree)
    places = {name: tables.pop(name) for name in ("tree_lists", "tree_compares")}
    out.tables({**tables, "tree_members": ints(artefact.portfolio)})
    out.table("kc_place", "tree_lists", places["tree_lists"])
    if most > 1:
        out.sizes["KC_MOST_COMPARED"] = most
        out.table("kc_place", "tree_compares", places["tree_compares"])
        _comparing(artefact, out)


def _comparing(artefact: Artefact, out: CModel) -> None:
    """The trees that compare, and what they read: of the problem once per question, of each config from a table."""
    compared = Compared.of(artefact)
    out.fields |= {"compared_of_problem": len(compared.of_problem), "compared_of_config": compared.configs.shape[1]}
    out.sizes["KC_MOST_COMPARED_VALUES"] = max(1, len(compared.place))
    out.function("kc_compared_problem", compared.of_problem)
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
    out.tables(compared.tables)
    out.add(out.sealed.triples("kc_comparing_node", "kc_comparing_nodes", ("feature", "left", "right"), trees.nodes))
    out.fields["comparing_nodes"] = "kc_comparing_nodes"


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
        members = artefact.portfolio
        configs = (
            np.column_stack([values[members] for values in of_config.values()]) if of_config else np.zeros((len(members), 0))
        )
        joined = Joined.of(trees, {number: place[names[number]] for number in read})
        return cls(of_problem, configs, dict(stages.mixed), place, joined)

    @property
    def tables(self) -> Tables:
        """What the comparing trees are, but for their nodes."""
        trees = self.trees
        return {
            "compared_configs": doubles(self.configs), "comparing_root": ints(trees.root),
            "comparing_threshold": doubles(trees.threshold), "comparing_leaves": doubles(trees.leaves),
        }  # fmt: skip


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
