"""Forests and pools as C tables: nodes, thresholds, combinations, and the functions that compute mixed features."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from kerncast.arrays import Ints
from kerncast.compiling.forest import Forests
from kerncast.compiling.lower import Artefact
from kerncast.compiling.packaged import packaged
from kerncast.compiling.pool import Group, Pool, group_mixed, make_pool
from kerncast.compiling.stages import Stages, cut
from kerncast.expr import Expr
from kerncast.expr.to_c import statements
from kerncast.learners.trees import Tree
from kerncast.writing.c import Sealed, array, define, integer_type, renamed

# A set per combination takes memory; above this many, configs are put into their sets one by one.
MOST_SETS = 128


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

    def tables(self, sealed: Sealed, rough: bool) -> str:
        """Nodes, thresholds and leaves; rounded ones too where a pool is screened by them first."""
        forests, name = self.forests, f"kc_{self.name}"
        trees = [tree for bags in forests.trees.values() for bag in bags for tree in bag]
        rules = len(self.artefact.mixed_rules)
        # A rule is the condition `holds <= 0.5`: it is met by the configs that break the rule.
        thresholds = np.concatenate([*forests.thresholds.values(), np.full(rules, 0.5)])
        nodes = np.concatenate([tree_nodes(forests, tree) for tree in trees])
        starts = np.cumsum([0, *(len(bag) for bags in forests.trees.values() for bag in bags)])
        most_rows = len(thresholds) + 2 * len(self.slots) + 2
        text = f"typedef {at_least_16(integer_type([most_rows], unsigned=True)[0])} {name}_id;\n"
        text += f"typedef {at_least_16(integer_type(nodes[:, 1:].ravel().tolist())[0])} {name}_child;\n"
        text += f"typedef struct {{ {name}_id condition; {name}_child left, right; }} {name}_node;\n"
        upper = name.upper()
        text += define(**{
            f"{upper}_FORESTS": len(starts) - 1, f"{upper}_CONDITIONS": len(thresholds),
            f"{upper}_FIRST_RULE": len(thresholds) - rules, f"{upper}_DEPTH": max([1, *(_depth(tree) for tree in trees)]),
            f"{upper}_MOST_THRESHOLDS": max([1, *(len(item) for item in forests.thresholds.values())]),
        })  # fmt: skip
        text += sealed.array("double", f"{name}_thresholds", thresholds)
        if self.name == "model":
            text += self._features()
        text += sealed.triples(f"{name}_node", f"{name}_nodes", ("condition", "left", "right"), nodes)
        text += sealed.array("double", f"{name}_leaves", np.concatenate([tree.value for tree in trees]))
        text += self._rough_leaves(sealed) if rough else ""
        text += sealed.array("uint32_t", f"{name}_first_node", np.cumsum([0, *(len(tree.feature) for tree in trees)]))
        text += sealed.array("uint32_t", f"{name}_first_leaf", np.cumsum([0, *(len(tree.value) for tree in trees)]))
        return text + sealed.array("int32_t", f"{name}_first_tree", starts)

    def _features(self) -> str:
        """Where the thresholds of each feature are, for rows that are walked one by one."""
        slots = zip(self.forests.thresholds, self.slots.values(), strict=False)
        rows = [f"{{{first}, {count}, {number}}}" for number, (first, count) in slots]
        text = define(KC_MODEL_FEATURES=len(rows))
        text += f"static const struct {{ int32_t first, count, feature; }} kc_model_features[{max(1, len(rows))}] = "
        return text + f"{{{', '.join(rows) or '{0, 0, 0}'}}};\n"

    def rough_scale(self) -> float:
        """A power of two by which leaf values become whole numbers whose sums fit into 31 bits."""
        sums = [sum(float(np.abs(tree.value).max()) for tree in bag) for bags in self.forests.trees.values() for bag in bags]
        return float(2.0 ** np.floor(np.log2(2.0**30 / max([1e-9, *sums]))))

    def rough_error(self) -> float:
        """The largest error of a sum of rounded leaves."""
        most = max(len(bag) for bags in self.forests.trees.values() for bag in bags)
        return most * 0.5 / self.rough_scale() * 1.01 + 1e-12

    def _rough_leaves(self, sealed: Sealed) -> str:
        """Leaves in whole numbers."""
        trees = [tree for bags in self.forests.trees.values() for bag in bags for tree in bag]
        whole = np.rint(np.concatenate([tree.value for tree in trees]) * self.rough_scale()).astype(np.int64)
        return sealed.array("int32_t", "kc_model_rough", whole)

    # -- what is computed before the trees -------------------------------------------------------------

    def functions(self, places: dict[str, int]) -> str:
        """The problem's slots, and a function per group: `out[output × count + combination]`."""
        name, text, pointers = f"kc_{self.name}", "", []
        rows = [f"{{{first}, {count}, {places[self.values[feature]]}}}"
                for feature, (first, count) in ((feature, self.slots[feature]) for feature in self.stages.problem)]  # fmt: skip
        text += define(**{f"{name.upper()}_PROBLEM_SLOTS": len(rows)})
        text += f"static const struct {{ int32_t first, count, value; }} {name}_problem_slots[{max(1, len(rows))}] = "
        text += f"{{{', '.join(rows) or '{0, 0, 0}'}}};\n"
        for number, group in enumerate(self.groups):
            function = f"{name}_group_{number}"

            def read(symbol: str, parts: tuple[str, ...] = group.parts) -> str:
                return f"u[{parts.index(symbol)}]" if symbol in parts else f"v[{places[self.values[symbol]]}]"

            tables, lines = statements(function, group.outputs, read, lambda place: f"out[(ptrdiff_t){place} * count + i]")
            body = "\n".join(f"    {line}" for line in lines)
            text += f"{tables}static void {function}(const double *v, const double *u, int32_t count, double *out) {{\n"
            text += "    (void)v;\n"
            text += f"    for (int32_t i = 0; i < count; i++, u += {len(group.parts)}) {{\n{body}\n    }}\n}}\n"
            pointers.append(function)
        kind = f"static void (*const {name}_compute[])(const double *, const double *, int32_t, double *)"
        return text + f"{kind} = {{{', '.join(pointers) or 'NULL'}}};\n"

    # -- one pool ------------------------------------------------------------------------------------

    def pool_tables(self, tier: str, sealed: Sealed) -> str:
        """The configs of a tier: combinations by group, and where each output's sets of configs go."""
        pool = make_pool(self.stages, self.groups, self.artefact.configs, self.artefact.members(tier))
        names = [list(group.outputs) for group in self.groups] + [[name] for name in pool.static]
        groups = [*pool.groups, *pool.static.values()]
        member = at_least_16(integer_type([len(pool.rows)], unsigned=True)[0])
        text, bits, row, entries = "", 0, 2, []
        slots: dict[str, list[tuple[int, ...]]] = {"slots": [], "static_slots": []}
        for number, (group, outputs) in enumerate(zip(groups, names, strict=True)):
            text += sealed.array(member, f"kc_{tier}_member_{number}", group.member)
            text += sealed.array("double", f"kc_{tier}_values_{number}", group.values.ravel())
            own = bits if len(group.values) <= MOST_SETS else -1
            bits += len(group.values) if own >= 0 else 0
            entries.append(f"{{{len(group.values)}, {own}, kc_{tier}_member_{number}, kc_{tier}_values_{number}}}")
            kind = "slots" if number < len(pool.groups) else "static_slots"
            for place, name in enumerate(outputs):
                first, count = self.slots[name]
                slots[kind].append((first, count, row, number, place))
                row += min(len(group.values), count) + 1
        text += f"typedef struct {{ int32_t count, bits; const {member} *member; const double *values; }} kc_{tier}_group;\n"
        text += f"typedef struct {{ int32_t first, count, row, group, output; }} kc_{tier}_slot;\n"
        listed = ", ".join(entries) or "{0, -1, NULL, NULL}"
        text += f"static const kc_{tier}_group kc_{tier}_groups[{max(1, len(entries))}] = {{{listed}}};\n"
        for word, found in slots.items():
            rows = ", ".join("{" + ", ".join(map(str, slot)) + "}" for slot in found) or "{0, 0, 0, 0, 0}"
            text += f"static const kc_{tier}_slot kc_{tier}_{word}[{max(1, len(found))}] = {{{rows}}};\n"
        most = max([1, *(len(group.values) * len(outputs) for group, outputs in zip(groups, names, strict=True))])
        return text + self._state(tier, pool, row, bits, len(entries), slots, most)

    def _state(
        self, tier: str, pool: Pool, rows: int, bits: int, groups: int, slots: dict[str, list[tuple[int, ...]]], most: int
    ) -> str:
        upper, words, name = f"KC_{tier.upper()}", pool.words, f"kc_{self.name}"
        combinations = max([1, *(len(group.values) for group in (*pool.groups, *pool.static.values()))])
        bands, own = np.unique(self.artefact.bands[pool.rows], return_inverse=True)
        kind = at_least_16(integer_type([len(bands)], unsigned=True)[0])
        text = array("int32_t", f"kc_{tier}_band_of", bands) + array(kind, f"kc_{tier}_band", own.ravel())
        text += define(**{
            f"{upper}_BANDS": len(bands), f"{upper}_WORDS": words, f"{upper}_GROUPS": groups,
            f"{upper}_SLOTS": len(slots["slots"]),
            f"{upper}_STATIC_SLOTS": len(slots["static_slots"]), f"{upper}_MOST_COMBINATIONS": combinations,
            f"{upper}_MOST_OUTPUTS": most, f"{upper}_BITS": max(1, bits), f"{upper}_ROWS": rows if words > 1 else 2,
            f"{upper}_ROUGH": words * 64 if words > 1 else 1,
        })  # fmt: skip
        # A condition is the set of configs that meet it, or the index of that set among the rows.
        text += f"typedef {'uint64_t' if words == 1 else f'{name}_id'} kc_{tier}_condition;\n"
        names = {"kc_pool": f"kc_{tier}", "KC_POOL": upper, "kc_trees": name, "KC_TREES": name.upper()}
        return text + renamed(packaged("pool_state.c"), names)


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
