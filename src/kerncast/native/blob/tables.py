"""A model as the tables of a blob: parameters, rules, names, intervals, forests, learners."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kerncast.core.expr import Program
from kerncast.core.space import Space
from kerncast.errors import InvalidValue
from kerncast.learning.learners.contract import Boosted, Level, Lines, Network
from kerncast.models.answer import Tier
from kerncast.native.blob.container import Programs, Texts, places_of
from kerncast.native.c_forest import Compared, ForestPlan, tree_nodes
from kerncast.native.c_model import scaling_columns
from kerncast.native.lower import Artefact, Combinations, encoded, make_pool
from kerncast.native.values import (
    Numbers,
    ParameterRow,
    Tables,
    doubles,
    fact_rows,
    hull_rows,
    ints,
    label_tables,
    longs,
    override_tables,
    parameter_rows,
    reach_tables,
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
    rows = artefact.members(tier)
    _refuse_more(len(rows), MOST_CONFIGS, "configs")
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


def _refuse_more(count: int, most: int, what: str) -> None:
    if count > most:
        raise InvalidValue(f"a blob has at most {most:,} {what}, and this model {count:,}: export it to C instead")


def comparing_tables(artefact: Artefact, programs: Programs, place: dict[str, int]) -> tuple[Tables, int, int]:
    """The trees that compare the configs of a list; the programs of what they read of the problem, and of both."""
    compared = Compared.of(artefact)
    tables = {
        **named(compared.tables), "comparing.nodes": ints(compared.trees.nodes),
        "compared.counts": ints([len(compared.of_problem), compared.configs.shape[1], len(compared.mixed)]),
    }  # fmt: skip
    problem = programs.add(compared.of_problem.values(), place.__getitem__)
    return tables, problem, programs.add(compared.mixed.values(), compared.place.__getitem__)


# The numbers that the runtime knows learners by.
KINDS: dict[type, int] = {Boosted: 0, Level: 1, Lines: 2, Network: 3}


def refuse_unknown(artefact: Artefact) -> None:
    """Refuse a learner that the runtime does not know: one of another package writes C, and the runtime is fixed."""
    if artefact.lowered is None:
        raise InvalidValue(
            f"models of kind {artefact.model.manifest.kind} cannot be exported to a blob, whose runtime knows gbdt, roofline, "
            "linear, mlp and deep: export to C, or train another kind"
        )


def line_tables(lines: Lines) -> Tables:
    """The lines in the order of their keys, and what a key reads."""
    return {"lines.keys": doubles(lines.keys), "lines.lines": doubles(lines.lines), "lines.reads": ints(lines.reads)}


def network_tables(network: Network) -> Tables:
    """Scaling, steps and weights."""
    plain, spread, coded = scaling_columns(network)
    return {
        "scaling.plain": ints(plain),
        "scaling.spread": doubles(spread),
        "scaling.coded": ints([place for place, _ in coded]),
        "scaling.codes": doubles([code for _, code in coded]),
        "network.steps": ints(network.steps),
        "network.weights": doubles(network.weights),
    }
