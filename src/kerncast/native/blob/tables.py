"""A model as the tables of a blob: parameters, rules, names, intervals, forests, learners."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from kerncast.core.expr import Program
from kerncast.core.parameters import Bool, Categorical, Choice, Int, Parameter, PowerOfTwo
from kerncast.core.space import Space
from kerncast.errors import InvalidValue
from kerncast.learning.learners.contract import Boosted, Level, Lines, Network
from kerncast.models.limits.trained import Limit, fact_words
from kerncast.models.limits.widening import WHAT
from kerncast.models.manifest import Range
from kerncast.native import MISSING
from kerncast.native.blob.container import Numbers, Programs, Texts, places_of
from kerncast.native.c_forest import Compared, ForestPlan, tree_nodes
from kerncast.native.c_model import rule_in_message, scaling_columns
from kerncast.native.lower import Artefact, Combinations, encoded, make_pool
from kerncast.native.tiers.contents import DecisionTree
from kerncast.version import __version__

NO_PROGRAM = -1
LISTED = (Categorical, Choice, PowerOfTwo)
Tables = dict[str, Numbers]


def ints(values: Any) -> Numbers:
    """Whole numbers of 32 bits."""
    return np.asarray(values, np.int64).astype(np.int32).ravel()


def longs(values: Any) -> Numbers:
    """Whole numbers of 64 bits."""
    return np.asarray(values, np.int64).ravel()


def doubles(values: Any) -> Numbers:
    """Floating-point numbers."""
    return np.asarray(values, np.float64).ravel()


def space_tables(word: str, space: Space, texts: Texts, programs: Programs) -> Tables:
    """Every parameter with its rule, the order of reading, and when it applies."""
    rows: list[tuple[int, ...]] = []
    values: list[int] = []
    labels: list[int] = []
    for name, parameter in space.parameters.items():
        first = len(values)
        if isinstance(parameter, LISTED):
            values += [parameter.number(index) for index in range(parameter.size)]
            by_code = {code: label for label, code in parameter.codes}
            labels += [texts.place(by_code[code]) if code in by_code else -1 for code in values[first:]]
        rows.append((*_span(parameter), first, len(values) - first, _default(parameter), int(name in space.active),
                     int(parameter.optional), int(isinstance(parameter, Bool))))  # fmt: skip
    names = list(space.parameters)
    place = places_of(f"{space.namespace}.{name}" for name in names)

    def program(found: Program | None) -> int:
        return NO_PROGRAM if found is None else programs.add(found.outputs.values(), place)

    return {
        f"{word}.numbers": longs(rows),
        f"{word}.values": longs(values),
        f"{word}.labels": ints(labels),
        f"{word}.names": ints([texts.place(name) for name in names]),
        f"{word}.rules": ints([texts.place(rule_in_message(parameter)) for parameter in space.parameters.values()]),
        f"{word}.inactive": doubles([float(parameter.inactive) for parameter in space.parameters.values()]),
        f"{word}.order": ints([names.index(name) for name in space.reading_order]),
        f"{word}.applies": ints([program(space.active.get(name)) for name in names]),
        f"{word}.usual": ints([program(space.optional.get(name)) for name in names]),
    }


def _span(parameter: Parameter) -> tuple[int, int, int]:
    """Low, high and step of a range."""
    match parameter:
        case Int():
            return parameter.low, parameter.high, parameter.step
        case Bool():
            return 0, 1, 1
        case _:
            return 0, 0, 1


def _default(parameter: Parameter) -> int:
    index = None if parameter.default is None else parameter.index(parameter.default)
    return MISSING if index is None else parameter.number(index)


def hull_tables(artefact: Artefact, texts: Texts) -> Tables:
    """The trained range of every problem parameter, and what the measured values have in common."""
    space, manifest = artefact.model.family.problem, artefact.model.manifest
    rows: list[tuple[int, ...]] = []
    values: list[int] = []
    rules: list[int] = []
    for name, parameter in space.parameters.items():
        seen, first, low, high = manifest.hull.get(name, Range()), len(values), -(2**63) + 1, 2**63 - 1
        limit = Limit(parameter, seen)
        if limit.only_usual:
            low, high = 1, 0
        elif seen.labels:
            values += sorted(parameter.number(index) for index in map(parameter.index, seen.labels) if index is not None)
        elif seen.low is not None and seen.high is not None:
            low, high = seen.low, seen.high
        rows.append((low, high, 1, first, len(values) - first, MISSING, 0, 0, 0))
        rules.append(texts.place(limit.words))
    places = list(space.parameters)
    facts = manifest.facts
    return {
        "hull.numbers": longs(rows),
        "hull.values": longs(values),
        "hull.rules": ints(rules),
        "fact.numbers": longs([(places.index(name), fact.step, fact.rest) for name, fact in facts.items()]),
        "fact.rules": ints([texts.place(fact_words(fact)) for fact in facts.values()]),
    }


def rule_tables(artefact: Artefact, texts: Texts) -> Tables:
    """The sentences of the rules; the programs that test them are added by `sections`."""
    rules = {
        "rules": artefact.problem_rules, "family_rules": artefact.unsupported_rules, "config_rules": artefact.config_rules,
    }  # fmt: skip
    return {name: ints([texts.place(rule.sentence) for rule in found]) for name, found in rules.items()}


def label_tables(artefact: Artefact, texts: Texts) -> Tables:
    """What the candidates are called, by the values of the problem parameters that names depend on."""
    known, space = artefact.model.labels, artefact.model.family.problem
    by, names = (known.by, known.names) if known else ((), {})
    numbers = [_number(space.parameters[name], value) for key in names for name, value in zip(by, key, strict=True)]
    labels = list(dict.fromkeys(name for row in names.values() for name in row if name is not None))
    places = {name: place for place, name in enumerate(labels)}
    return {
        "label.places": ints([list(space.parameters).index(name) for name in by]),
        "label.values": longs(numbers),
        "label.names": ints([texts.place(name) for name in labels]),
        "label.texts": ints([-1 if name is None else places[name] for row in names.values() for name in row]),
    }


def _number(parameter: Parameter, value: Any) -> int:
    index = None if value is None else parameter.index(value)
    return MISSING if index is None else parameter.number(index)


def candidate_tables(artefact: Artefact) -> Tables:
    """The candidates, where each was tried, which are denied, and which choices are fixed."""
    numbers = encoded(artefact.model.candidates, artefact.model)
    known = np.isfinite(numbers)
    tried, first, decided = artefact.tried, artefact.band_rows, artefact.decided
    none = np.empty(0, np.int64)
    return {
        "configs": _narrowed(numbers[known].astype(np.int64), known),
        "tried.low": doubles(tried.low[first]),
        "tried.high": doubles(tried.high[first]),
        "tried.labels": np.ascontiguousarray(tried.labels[first]).view(np.int64).ravel(),
        # Of candidates that are in no tier of the artefact, it is never read.
        "tried.band": ints(np.maximum(artefact.bands, 0)),
        "denied": ints(decided.denied if decided else none),
        "pin.keys": longs(decided.patterns if decided else none),
        "pin.candidates": ints(decided.pinned if decided else none),
        "fallbacks": ints(artefact.fallbacks[0]),
    }


def _narrowed(numbers: Numbers, known: Numbers) -> Numbers:
    """Known numbers in the smallest type, whose lowest number stands for those that are missing."""
    kind = next(kind for kind in (np.int16, np.int32, np.int64) if (np.abs(numbers) <= np.iinfo(kind).max).all())
    found = np.full(known.shape, np.iinfo(kind).min, kind)
    found[known] = numbers
    return found.ravel()


def answer_tables(artefact: Artefact) -> Tables:
    """Intervals, by time, rarity and size; and the expected efficiency."""
    interval, expected = artefact.model.manifest.interval, artefact.tiers.expectation
    wide = None if interval is None else interval.widening
    beyond = None if wide is None else wide.beyond
    traits, places = () if wide is None else wide.traits.traits, list(artefact.model.family.problem.parameters)
    starts = np.cumsum([0, *(len(trait.values) for trait in traits)])
    lower, upper = ((), ()) if interval is None else (interval.lower, interval.upper)
    return {
        "band.edges": doubles(interval.edges_ns if interval else ()),
        "band.lower": doubles(wide.lower if wide else lower),
        "band.upper": doubles(wide.upper if wide else upper),
        "efficiency.edges": doubles(expected.edges_ns if expected else ()),
        "efficiency": doubles(expected.efficiency if expected else ()),
        "rare.edges": doubles(wide.edges_bits if wide else ()),
        "trait.numbers": ints([
            (WHAT.index(trait.what), places.index(trait.of[0]), places.index(trait.of[-1]), first, len(trait.values))
            for trait, first in zip(traits, starts[:-1], strict=True)
        ]),
        "trait.unseen": doubles([trait.unseen for trait in traits]),
        "trait.values": longs([value for trait in traits for value in trait.values]),
        "trait.bits": doubles([bits for trait in traits for bits in trait.bits]),
        "size.edges": doubles(beyond.edges if beyond else ()),
        "size.lower": doubles(beyond.lower if beyond else ()),
        "size.upper": doubles(beyond.upper if beyond else ()),
    }  # fmt: skip


def described(artefact: Artefact) -> str:
    """What `kerncast_describe` returns: the model in JSON."""
    manifest = artefact.model.manifest
    facts = {
        "family": artefact.model.family.id, "device": artefact.model.device.name, "kind": manifest.kind,
        "software": list(manifest.software), "checksum": manifest.checksum, "fallback": artefact.fallbacks[1],
        "kerncast": __version__, "tiers": list(artefact.include), "features": list(artefact.features),
    }  # fmt: skip
    return json.dumps(facts, sort_keys=True)


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
