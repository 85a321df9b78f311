"""What `kc_model` holds of a model, as values (`c/model.h`): its C text and its blob hold the same ones.

Tables are arrays under the names of the fields that point to them, in the types of these fields.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from kerncast.core.arrays import Ints
from kerncast.core.parameters import Bool, Categorical, Choice, Int, Parameter, PowerOfTwo
from kerncast.core.space import Space
from kerncast.errors import InvalidValue, quoted
from kerncast.learning.learners.contract import Boosted
from kerncast.models.limits.envelope import Limit, fact_words
from kerncast.models.limits.widening import WHAT
from kerncast.models.manifest import Range
from kerncast.native import MISSING
from kerncast.native.lower import Artefact
from kerncast.native.tiers.contents import DecisionTree
from kerncast.version import __version__

if TYPE_CHECKING:  # it imports this module
    from kerncast.native.c_forest import ForestPlan

# Characters of a rule in a message of C, which has room for 240 bytes in all.
LONGEST_RULE = 120
# The forests of a gbdt in the order of their outputs, and what the engine calls them.
FORESTS = {"time": "time", "rank": "rank", "valid": "failure", "library": "library"}

Numbers = npt.NDArray[Any]
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


# -- parameters and rules --------------------------------------------------------------------------------


@dataclass(frozen=True)
class ParameterRow:
    """A `kc_parameter`: what a parameter may be, or what was measured of it."""

    name: str
    rule: str
    low: int = 0
    high: int = 0
    step: int = 1
    listed: tuple[int, ...] = ()
    """The only values, where they are not a range."""
    labels: tuple[str, ...] = ()
    """Their names, or nothing where they are numbers."""
    otherwise: int = MISSING
    conditional: bool = False
    optional: bool = False
    inactive: float = 0.0
    flag: bool = False


def parameter_rows(space: Space) -> list[ParameterRow]:
    """Every parameter of a space."""
    rows = []
    for name, parameter in space.parameters.items():
        low, high, step = 0, 0, 1
        if isinstance(parameter, Int):
            low, high, step = parameter.low, parameter.high, parameter.step
        elif isinstance(parameter, Bool):
            high = 1
        listed = range(parameter.size) if isinstance(parameter, Categorical | Choice | PowerOfTwo) else ()
        labels = tuple(str(parameter.value(place)) for place in listed) if isinstance(parameter, Categorical) else ()
        rows.append(ParameterRow(
            name, quoted(parameter.describe(), LONGEST_RULE), low, high, step, tuple(map(parameter.number, listed)), labels,
            number_of(parameter, parameter.default), name in space.active, parameter.optional, float(parameter.inactive),
            isinstance(parameter, Bool),
        ))  # fmt: skip
    return rows


def number_of(parameter: Parameter, value: Any) -> int:
    """A value of a parameter as C reads it; MISSING for none."""
    index = None if value is None else parameter.index(value)
    return MISSING if index is None else parameter.number(index)


def hull_rows(artefact: Artefact) -> list[ParameterRow]:
    """The trained range of every problem parameter."""
    rows = []
    for name, parameter in artefact.model.family.problem.parameters.items():
        seen = artefact.model.manifest.hull.get(name, Range())
        limit, low, high = Limit(parameter, seen), -(2**63) + 1, 2**63 - 1
        listed: tuple[int, ...] = ()
        if limit.only_usual:
            low, high = 1, 0
        elif seen.labels:
            listed = tuple(sorted(parameter.number(place) for place in map(parameter.index, seen.labels) if place is not None))
        elif seen.low is not None and seen.high is not None:
            low, high = seen.low, seen.high
        rows.append(ParameterRow(name, limit.words, low, high, listed=listed))
    return rows


def fact_rows(artefact: Artefact) -> list[tuple[int, int, int, str]]:
    """What measured sizes have in common, in the order in which Python looks at them: place, step, rest, words."""
    places, facts = list(artefact.model.family.problem.parameters), artefact.model.manifest.facts
    return [(places.index(name), fact.step, fact.rest, fact_words(fact)) for name, fact in facts.items()]


# -- candidates ------------------------------------------------------------------------------------------


def label_tables(artefact: Artefact, rows: Ints) -> tuple[list[str], Tables]:
    """What some candidates are called, by the values of the problem parameters that names depend on: the names, and tables."""
    known, parameters = artefact.model.labels, artefact.model.family.problem.parameters
    by, names = (known.by, known.names) if known else ((), {})
    values = [number_of(parameters[name], value) for key in names for name, value in zip(by, key, strict=True)]
    called = [row[place] for row in names.values() for place in rows.tolist()]
    texts = list(dict.fromkeys(name for name in called if name is not None))
    places = {text: place for place, text in enumerate(texts)}
    return texts, {
        "label_places": ints([list(parameters).index(name) for name in by]),
        "label_values": longs(values),
        "label_texts": ints([-1 if name is None else places[name] for name in called]),
    }


def reach_tables(artefact: Artefact) -> Tables:
    """The distinct bands of problems that candidates were tried on."""
    tried, first = artefact.tried, artefact.band_rows
    return {"tried_low": doubles(tried.low[first]), "tried_high": doubles(tried.high[first])}


def override_tables(artefact: Artefact) -> Tables:
    """The candidates that the export denies, and the choices that it fixes."""
    decided = artefact.decided
    if decided is None:
        return {"denied": ints(()), "pin_keys": longs(()), "pin_candidates": ints(())}
    return {"denied": ints(decided.denied), "pin_keys": longs(decided.patterns), "pin_candidates": ints(decided.pinned)}


# -- answers ---------------------------------------------------------------------------------------------


def answer_tables(artefact: Artefact) -> tuple[dict[str, int], Tables, list[tuple[int, ...]]]:
    """Intervals, by time, rarity and size, and the expected efficiency: counts, tables, and rows of the traits that decide how
    wide an interval is. A tree alone gives no times.
    """
    interval, expected = artefact.model.manifest.interval, artefact.tiers.expectation
    if artefact.alone:
        interval, expected = None, None
    wide = None if interval is None else interval.widening
    beyond = None if wide is None else wide.beyond
    traits, places = () if wide is None else wide.traits.traits, list(artefact.model.family.problem.parameters)
    starts = np.cumsum([0, *(len(trait.values) for trait in traits)])
    counts = {
        "bands": 0 if interval is None else len(interval.lower), "rare_bands": 1 if wide is None else len(wide.lower),
        "size_bands": 1 if beyond is None else len(beyond.lower),
    }  # fmt: skip
    bounds = wide or interval
    tables = {
        "band_edges": doubles(interval.edges_ns if interval else ()),
        "band_lower": doubles(bounds.lower if bounds else ()),
        "band_upper": doubles(bounds.upper if bounds else ()),
        "efficiency_edges": doubles(expected.edges_ns if expected else ()),
        "efficiency": doubles(expected.efficiency if expected else ()),
        "rare_edges": doubles(wide.edges_bits if wide else ()),
        "trait_unseen": doubles([trait.unseen for trait in traits]),
        "trait_values": longs([value for trait in traits for value in trait.values]),
        "trait_bits": doubles([bits for trait in traits for bits in trait.bits]),
        "size_edges": doubles(beyond.edges if beyond else ()),
        "size_lower": doubles(beyond.lower if beyond else ()),
        "size_upper": doubles(beyond.upper if beyond else ()),
    }
    rows: list[tuple[int, ...]] = [
        (WHAT.index(trait.what), places.index(trait.of[0]), places.index(trait.of[-1]), int(first), len(trait.values))
        for trait, first in zip(traits, starts[:-1], strict=True)
    ]
    return counts, tables, rows


def described(artefact: Artefact, **more: Sequence[str]) -> str:
    """What an artefact says of its model, in JSON."""
    manifest = artefact.model.manifest
    facts = {
        "family": artefact.model.family.id, "device": artefact.model.device.name, "kind": manifest.kind,
        "software": list(manifest.software), "checksum": manifest.checksum, "fallback": artefact.fallbacks[1],
        "kerncast": __version__, **more,
    }  # fmt: skip
    return json.dumps(facts, sort_keys=True)


# -- from what is learned to times and scores ------------------------------------------------------------


def target_numbers(artefact: Artefact, places: dict[str, int]) -> dict[str, int]:
    """What the learner predicts; `places`: where the numbers of the problem are."""
    target = artefact.model.target
    base = {"relative": "expected_ns", "tflops": "flops", "bandwidth": "bytes"}.get(target.name)
    return {
        "target_log": int(target.log),
        "target_rate": int(target.higher_is_faster),
        "target_base": -1 if base is None else places[base],
        "target_tflops": int(target.name == "tflops"),
    }


def screens(artefact: Artefact) -> bool:
    """Whether scores are sums, so that rounded ones may first find the configs that may be the best."""
    return artefact.model.target.log and not artefact.model.target.higher_is_faster


@dataclass(frozen=True)
class Blend:
    """How the sums of the forests of a gbdt become a score, and how far rounded sums may be off."""

    counts: dict[str, int]
    """Of the forests."""
    numbers: dict[str, float]
    outputs: int

    @classmethod
    def of(cls, boosted: Boosted, plan: ForestPlan) -> Blend:
        trees = boosted.trees
        if list(trees) != [name for name in FORESTS if name in trees]:
            raise InvalidValue(f"the forests {', '.join(trees)} cannot be exported: train the model again")
        counts = {f"{field}_forests": len(trees.get(name, ())) for name, field in FORESTS.items()}
        scale = {"rough_scale": plan.rough_scale(), "rough_error": plan.rough_error()}
        return cls(counts, {"own": boosted.own, "weight": boosted.weight, **scale}, sum(map(len, trees.values())))


def tree_tables(tree: DecisionTree) -> Tables:
    """The tree over problems, with its lists."""
    nodes = tree.tree
    sides = {f"tree_{name}": ints(getattr(nodes, name)) for name in ("feature", "left", "right")}
    return {
        **sides, "tree_threshold": doubles(nodes.threshold), "tree_list": ints(nodes.value.astype(np.int64)),
        "tree_lists": ints(tree.lists), "tree_compares": ints(tree.compares),
    }  # fmt: skip
