"""A whole model as one binary file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from kerncast.core.arrays import Floats
from kerncast.core.expr import Expr
from kerncast.errors import InvalidValue
from kerncast.learning.learners.contract import Boosted, Level, Lines, Network
from kerncast.models.answer import Tier
from kerncast.native.blob.container import Programs, Texts, packed, places_of
from kerncast.native.blob.tables import (
    KINDS,
    candidate_tables,
    comparing_tables,
    forest_tables,
    hull_tables,
    line_tables,
    name_tables,
    named,
    network_tables,
    pool_tables,
    refuse_unknown,
    space_tables,
)
from kerncast.native.c_forest import QUICK, forest_plans, values_of_problems
from kerncast.native.header import schema_number
from kerncast.native.lower import Artefact
from kerncast.native.tiers.contents import COMPARED_BY_ALL, COMPARING_FIRST
from kerncast.native.values import (
    Blend,
    Tables,
    answer_tables,
    described,
    doubles,
    ints,
    longs,
    screens,
    target_numbers,
    tree_tables,
)


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
    refuse_unknown(artefact)
    if artefact.alone:
        raise InvalidValue("a tree alone is small enough as C: use `to=c`, or name more `tiers`")
    return packed(_Sections(artefact).tables() | _golden(artefact, golden))


def _golden(artefact: Artefact, golden: Sequence[Golden]) -> Tables:
    configs = len(artefact.model.family.config.parameters)
    return {
        "golden.problems": longs([item.problem for item in golden]),
        "golden.configs": longs([item.config[:configs] for item in golden]),
        "golden.candidates": ints([item.candidate for item in golden]),
        "golden.times": doubles([item.time_ns for item in golden]),
        "golden.features": doubles([item.features for item in golden]),
    }


class _Sections:
    def __init__(self, artefact: Artefact) -> None:
        self.artefact, self.model, self.family = artefact, artefact.model, artefact.model.family
        self.texts, self.programs = Texts(), Programs()
        self.facts: dict[str, int] = dict.fromkeys(FACTS, 0)
        self.numbers: dict[str, float] = dict.fromkeys(NUMBERS, 0.0)
        self.plans = forest_plans(artefact)
        self._refuse_large()

    def _refuse_large(self) -> None:
        counts = {
            "parameters": max(len(self.family.problem.parameters), len(self.family.config.parameters)),
            "values": len(self.values), "features": len(self.artefact.features),
        }  # fmt: skip
        for name, count in counts.items():
            if count > MOST[name] - 1:
                raise InvalidValue(
                    f"a blob has at most {MOST[name] - 1:,} {name}, and this model {count:,}: export it to C instead"
                )

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
        self._counts()
        found |= self.programs.tables()
        return {
            "facts": longs([self.facts[name] for name in FACTS]),
            "numbers": doubles([self.numbers[name] for name in NUMBERS]),
            "text": texts.table(),
            **found,
        }

    def _counts(self) -> None:
        description = described(self.artefact, tiers=self.artefact.include, features=list(self.artefact.features))
        self.facts |= {
            "problem": len(self.family.problem.parameters), "config": len(self.family.config.parameters),
            "candidates": self.artefact.candidates, "features": len(self.artefact.features), "values": len(self.values),
            "kind": KINDS[type(self.artefact.lowered)], "describe": self.texts.place(description),
            "schema": int(np.uint64(schema_number(self.artefact)).astype(np.int64)),
            **target_numbers(self.artefact, self.places),
            "mixed_rules": len(self.artefact.mixed_rules),
            "fallback_library": int(self.artefact.fallbacks[1] == "library"),
        }  # fmt: skip

    def _learner(self) -> Tables:
        lowered = self.artefact.lowered
        self.facts["raw"] = 1
        match lowered:
            case Boosted():
                self._blend(lowered)
            case Level():
                self.numbers["level"] = lowered.value
            case Lines():
                self.facts["line_size"] = self.places[lowered.size]
                return line_tables(lowered)
            case Network():
                self.facts["raw"] = lowered.outputs
                self.numbers["middle"], self.numbers["spread"] = lowered.middle, lowered.spread
                if lowered.blend is not None:
                    self.numbers["blend_own"], self.numbers["blend_other"] = lowered.blend
                return network_tables(lowered)
        return {}

    def _blend(self, boosted: Boosted) -> None:
        """How the sums of the forests become a score, and how far rounded sums may be off."""
        plan = self.plans["model"]
        blend = Blend.of(boosted, plan)
        self.facts |= blend.counts
        self.facts["raw"] = blend.outputs
        if blend.outputs > MOST["raw"]:
            raise InvalidValue(
                f"a blob has at most {MOST['raw']} forests, and this model {blend.outputs}: export it to C instead"
            )
        self.numbers |= blend.numbers
        self.facts["screens"] = int(screens(self.artefact))

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
            more, self.facts["compared_problem"], self.facts["compared_mixed"] = comparing_tables(
                self.artefact, self.programs, self.symbols
            )
            found |= more
        return found
