"""A model as one binary file: its values as tables, its expressions as bytecode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from kerncast.core.arrays import Floats
from kerncast.core.expr import Expr, Program
from kerncast.core.space import Space
from kerncast.errors import InvalidValue
from kerncast.learning.learners.contract import Boosted, Level, Lines, Network
from kerncast.models.answer import Tier
from kerncast.native.blob.container import Programs, Texts, packed, places_of
from kerncast.native.c_forest import QUICK, Compared, ForestPlan, forest_plans, tree_nodes, values_of_problems
from kerncast.native.c_model import scaling_columns
from kerncast.native.header import schema_number
from kerncast.native.lower import Artefact, Combinations, encoded, make_pool
from kerncast.native.tiers.contents import COMPARED_BY_ALL, COMPARING_FIRST
from kerncast.native.values import (
    Blend,
    Numbers,
    ParameterRow,
    Tables,
    answer_tables,
    described,
    doubles,
    fact_rows,
    hull_rows,
    ints,
    label_tables,
    longs,
    override_tables,
    parameter_rows,
    reach_tables,
    screens,
    target_numbers,
    tree_tables,
)

NO_PROGRAM = -1


def named(tables: Tables) -> Tables:
    """Fields of `kc_model` by the names of a blob: `band_edges` is `band.edges`."""
    return {name.replace("_", ".", 1): values for name, values in tables.items()}


def parameter_tables(word: str, rows: Sequence[ParameterRow]) -> Tables:
    """What parameters may be, or what was measured of them."""
    firsts = np.cumsum([0, *(len(row.listed) for row in rows)])
    return {
        f"{word}.numbers": longs([
            (row.low, row.high, row.step, first, len(row.listed), row.otherwise, row.conditional, row.optional, row.flag)
            for row, first in zip(rows, firsts.tolist(), strict=False)
        ]),
        f"{word}.values": longs([number for row in rows for number in row.listed]),
    }  # fmt: skip


def space_tables(word: str, space: Space, texts: Texts, programs: Programs) -> Tables:
    """Every parameter with its rule, the order of reading, and when it applies."""
    rows, names = parameter_rows(space), list(space.parameters)
    place = places_of(f"{space.namespace}.{name}" for name in names)

    def program(found: Program | None) -> int:
        return NO_PROGRAM if found is None else programs.add(found.outputs.values(), place)

    labels = [-1 if label is None else texts.place(label) for row in rows for label in row.labels or [None] * len(row.listed)]
    return {
        **parameter_tables(word, rows),
        f"{word}.labels": ints(labels),
        f"{word}.names": ints([texts.place(row.name) for row in rows]),
        f"{word}.rules": ints([texts.place(row.rule) for row in rows]),
        f"{word}.inactive": doubles([row.inactive for row in rows]),
        f"{word}.order": ints([names.index(name) for name in space.reading_order]),
        f"{word}.applies": ints([program(space.active.get(name)) for name in names]),
        f"{word}.usual": ints([program(space.optional.get(name)) for name in names]),
    }


def hull_tables(artefact: Artefact, texts: Texts) -> Tables:
    """The trained range of every problem parameter, and what the measured values have in common."""
    rows, facts = hull_rows(artefact), fact_rows(artefact)
    return {
        **parameter_tables("hull", rows),
        "hull.rules": ints([texts.place(row.rule) for row in rows]),
        "fact.numbers": longs([numbers for *numbers, _ in facts]),
        "fact.rules": ints([texts.place(words) for *_, words in facts]),
    }


def name_tables(artefact: Artefact, texts: Texts) -> Tables:
    """The sentences of the rules, whose programs `sections` adds; and what the candidates are called."""
    rules = {name: ints([texts.place(rule.sentence) for rule in found]) for name, found in artefact.rules.items()}
    labels, tables = label_tables(artefact, np.arange(artefact.candidates))
    return {**rules, **named(tables), "label.names": ints([texts.place(name) for name in labels])}


def candidate_tables(artefact: Artefact) -> Tables:
    """The candidates, where each was tried, which are denied, and which choices are fixed."""
    numbers = encoded(artefact.model.candidates, artefact.model)
    known = np.isfinite(numbers)
    return {
        "configs": _narrowed(numbers[known].astype(np.int64), known),
        **named(reach_tables(artefact)),
        "tried.labels": np.ascontiguousarray(artefact.tried.labels[artefact.band_rows]).view(np.int64).ravel(),
        # Of candidates that are in no tier of the artefact, it is never read.
        "tried.band": ints(np.maximum(artefact.bands, 0)),
        **named(override_tables(artefact)),
        "fallbacks": ints(artefact.fallbacks[0]),
    }


def _narrowed(numbers: Numbers, known: Numbers) -> Numbers:
    """Known numbers in the smallest type, whose lowest number stands for those that are missing."""
    kind = next(kind for kind in (np.int16, np.int32, np.int64) if (np.abs(numbers) <= np.iinfo(kind).max).all())
    found = np.full(known.shape, np.iinfo(kind).min, kind)
    found[known] = numbers
    return found.ravel()


# The runtime numbers conditions, nodes of a tree and combinations with 16 bits.
MOST_CONDITIONS, MOST_NODES, MOST_CONFIGS = 60_000, 32_000, 60_000


def forest_tables(plan: ForestPlan, places: dict[str, int], programs: Programs) -> Tables:
    """The trees of a plan, and what is computed before them."""
    forests, name = plan.forests, plan.name
    trees, thresholds = plan.every_tree, plan.thresholds
    refuse_more(plan.most_rows, MOST_CONDITIONS, "conditions")
    refuse_more(max(len(tree.value) for tree in trees), MOST_NODES, "leaves in a tree")
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
    rows = artefact.members(tier)
    refuse_more(len(rows), MOST_CONFIGS, "configs")
    members = {f"{tier}.members": ints(rows)} if tier == Tier.PORTFOLIO else {}
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


def refuse_more(count: int, most: int, what: str) -> None:
    """Refuse a model that the runtime cannot hold, by name."""
    if count > most:
        raise InvalidValue(f"a blob has at most {most:,} {what}, and this model {count:,}: export it to C instead")


# The numbers that the runtime knows learners by.
KINDS: dict[type, int] = {Boosted: 0, Level: 1, Lines: 2, Network: 3}


@dataclass(frozen=True)
class Golden:
    """One problem and the model's best candidate for it: its features, score and time, as Python computes them."""

    problem: list[int]
    candidate: int
    config: list[int]
    features: Floats
    score: float
    time_ns: float


# Limits of the runtime, most of them sizes of arrays on its stack.
MOST = {"parameters": 48, "values": 2_048, "features": 1_024, "raw": 64, "listed": 64, "programs": 60_000}
# The numbers in the table `facts`, in order. Append only, with a new version.
FACTS = (
    "problem", "config", "candidates", "features", "values", "kind", "raw", "schema", "describe",
    "target_log", "target_rate", "target_base", "target_tflops", "line_size",
    "time_forests", "rank_forests", "failure_forests", "library_forests",
    "has_tree", "has_portfolio", "has_full", "has_quick", "tree_places", "most_compared", "compared_first", "compared_by_all",
    "problem_values", "feature_values", "rule_values", "family_rule_values", "config_rule_values", "size_values", "tree_values",
    "compared_problem", "compared_mixed", "screens", "bands", "rare_bands", "size_bands", "mixed_rules",
    "fallback_library",
)  # fmt: skip
# The numbers in the table `numbers`, in order.
NUMBERS = ("own", "weight", "rough_scale", "rough_error", "level", "middle", "spread", "blend_own", "blend_other")


def blob(artefact: Artefact, golden: Sequence[Golden] = ()) -> bytes:
    """The bytes of the file, with golden vectors for its self-test; models that the runtime cannot hold are refused by name."""
    if artefact.lowered is None:  # a learner of another package writes C, and the runtime is fixed
        raise InvalidValue(
            f"models of kind {artefact.model.manifest.kind} cannot be exported to a blob, whose runtime knows gbdt, roofline, "
            "linear, mlp and deep: export to C, or train another kind"
        )
    if artefact.alone:
        raise InvalidValue("a tree alone is small enough as C: use `to=c`, or name more `tiers`")
    configs = len(artefact.model.family.config.parameters)
    vectors = {
        "golden.problems": longs([item.problem for item in golden]),
        "golden.configs": longs([item.config[:configs] for item in golden]),
        "golden.candidates": ints([item.candidate for item in golden]),
        "golden.times": doubles([item.time_ns for item in golden]),
        "golden.features": doubles([item.features for item in golden]),
    }
    return packed(_Sections(artefact).tables() | vectors)


class _Sections:
    def __init__(self, artefact: Artefact) -> None:
        self.artefact, self.model, self.family = artefact, artefact.model, artefact.model.family
        self.texts, self.programs = Texts(), Programs()
        self.facts: dict[str, int] = dict.fromkeys(FACTS, 0)
        self.numbers: dict[str, float] = dict.fromkeys(NUMBERS, 0.0)
        self.plans = forest_plans(artefact)
        parameters = max(len(self.family.problem.parameters), len(self.family.config.parameters))
        refuse_more(parameters, MOST["parameters"] - 1, "parameters")
        refuse_more(len(self.values), MOST["values"] - 1, "values")
        refuse_more(len(artefact.features), MOST["features"] - 1, "features")

    # -- what is computed ----------------------------------------------------------------------------

    @cached_property
    def values(self) -> dict[str, Expr]:
        return values_of_problems(self.artefact, self.plans.values())

    @cached_property
    def places(self) -> dict[str, int]:
        return {name: place for place, name in enumerate(self.values)}

    @cached_property
    def symbols(self) -> dict[str, int]:
        """Where a program reads the parameters: those of the problem, then those of the config."""
        spaces = (self.family.problem, self.family.config)
        names = [f"{space.namespace}.{name}" for space in spaces for name in space.parameters]
        return {name: place for place, name in enumerate(names)}

    def _programs(self) -> None:
        """The programs with a fixed role."""
        outputs: dict[str, Mapping[str, Expr]] = {"problem_values": self.values, "feature_values": self.artefact.features}
        for name, rules in self.artefact.rules.items():
            outputs[f"{name.removesuffix('s')}_values"] = {rule.name: rule.holds for rule in rules}
        interval = self.model.manifest.interval
        beyond = None if interval is None else interval.beyond
        if beyond is not None:
            outputs["size_values"] = {"size": self.artefact.work[beyond.sizes.measure]}
        for role, found in outputs.items():
            self.facts[role] = self.programs.add(found.values(), places_of(self.symbols))

    # -- tables --------------------------------------------------------------------------------------

    def tables(self) -> Tables:
        family, artefact, texts = self.family, self.artefact, self.texts
        self._programs()
        found: Tables = {}
        for word, space in (("problem", family.problem), ("config", family.config)):
            found |= space_tables(word, space, texts, self.programs)
        found |= hull_tables(artefact, texts) | name_tables(artefact, texts) | candidate_tables(artefact)
        counts, answers, traits = answer_tables(artefact)
        self.facts |= counts
        found |= named(answers) | {"trait.numbers": ints(traits)}
        found |= self._learner() | self._pools() | self._tree()
        description = described(artefact, tiers=artefact.include, features=list(artefact.features))
        self.facts |= {
            "problem": len(family.problem.parameters), "config": len(family.config.parameters), "values": len(self.values),
            "candidates": artefact.candidates, "features": len(artefact.features), "kind": KINDS[type(artefact.lowered)],
            "describe": texts.place(description), "schema": int(np.uint64(schema_number(artefact)).astype(np.int64)),
            **target_numbers(artefact, self.places), "mixed_rules": len(artefact.mixed_rules),
            "fallback_library": int(artefact.fallbacks[1] == "library"),
        }  # fmt: skip
        found |= self.programs.tables()
        return {
            "facts": longs([self.facts[name] for name in FACTS]),
            "numbers": doubles([self.numbers[name] for name in NUMBERS]),
            "text": texts.table(),
            **found,
        }

    def _learner(self) -> Tables:
        lowered = self.artefact.lowered
        self.facts["raw"] = 1
        match lowered:
            case Boosted():
                # How the sums of the forests become a score, and how far rounded sums may be off.
                blend = Blend.of(lowered, self.plans["model"])
                refuse_more(blend.outputs, MOST["raw"], "forests")
                self.facts |= {**blend.counts, "raw": blend.outputs, "screens": int(screens(self.artefact))}
                self.numbers |= blend.numbers
            case Level():
                self.numbers["level"] = lowered.value
            case Lines():
                self.facts["line_size"] = self.places[lowered.size]
                keys, lines = doubles(lowered.keys), doubles(lowered.lines)
                return {"lines.keys": keys, "lines.lines": lines, "lines.reads": ints(lowered.reads)}
            case Network():
                self.facts["raw"] = lowered.outputs
                self.numbers["middle"], self.numbers["spread"] = lowered.middle, lowered.spread
                if lowered.blend is not None:
                    self.numbers["blend_own"], self.numbers["blend_other"] = lowered.blend
                plain, spread, coded = scaling_columns(lowered)
                return {
                    "scaling.plain": ints(plain), "scaling.spread": doubles(spread),
                    "scaling.coded": ints([place for place, _ in coded]), "scaling.codes": doubles([code for _, code in coded]),
                    "network.steps": ints(lowered.steps), "network.weights": doubles(lowered.weights),
                }  # fmt: skip
        return {}

    def _pools(self) -> Tables:
        found: Tables = {}
        for plan in self.plans.values():
            found |= forest_tables(plan, self.places, self.programs)
        for tier in (Tier.PORTFOLIO, Tier.FULL):
            if tier in self.artefact.include:
                self.facts[f"has_{tier}"] = 1
                found |= pool_tables(self.plans.get("model"), self.artefact, tier)
        if "small" in self.plans:
            self.facts["has_quick"] = 1
            found |= pool_tables(self.plans["small"], self.artefact, QUICK)
        if "portfolio.members" not in found:
            found["portfolio.members"] = np.empty(0, np.int32)
        return found

    def _tree(self) -> Tables:
        tree = self.artefact.tiers.tree if "tree" in self.artefact.include else None
        self.facts["most_compared"] = 1
        if tree is None:
            return {}
        self.facts |= {
            "has_tree": 1, "tree_places": tree.lists.shape[1],
            "tree_values": self.programs.add(tree.program.outputs.values(), places_of(self.symbols)),
        }  # fmt: skip
        found, most = named(tree_tables(tree)), int(tree.compares.max(initial=1))
        if most > 1:
            if most > MOST["listed"]:
                raise InvalidValue(f"a blob compares at most {MOST['listed']} configs, and this tree {most}: export it to C")
            first = min(COMPARING_FIRST, len(self.artefact.tiers.comparing))
            self.facts |= {"most_compared": most, "compared_first": first, "compared_by_all": COMPARED_BY_ALL}
            compared = Compared.of(self.artefact)
            # The programs of what the comparing trees read of the problem, and of both.
            of_problem, mixed = compared.of_problem.values(), compared.mixed.values()
            self.facts["compared_problem"] = self.programs.add(of_problem, self.symbols.__getitem__)
            self.facts["compared_mixed"] = self.programs.add(mixed, compared.place.__getitem__)
            found |= {
                **named(compared.tables), "comparing.nodes": ints(compared.trees.nodes),
                "compared.counts": ints([len(compared.of_problem), compared.configs.shape[1], len(compared.mixed)]),
            }  # fmt: skip
        return found
