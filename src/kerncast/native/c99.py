"""The C99 text of an artefact: tables and generated functions, then the engine that is the same in all of them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import numpy as np

from kerncast.core.arrays import MOST_ALIGNED
from kerncast.core.expr import Expr
from kerncast.core.expr.to_c import prelude
from kerncast.core.io.quoting import Sealed, array, c_integer, c_number, c_string, define, filled, integer_type, with_prefix
from kerncast.errors import InvalidValue
from kerncast.learning.learners.contract import LEAST_RATE, Boosted, CScope, CSource, Level, Lines, Network
from kerncast.learning.learners.gbdt import BEHIND, LIKELY_TO_FAIL
from kerncast.models.answer import C_STATUSES, C_TIERS, Tier, fallback_words
from kerncast.models.limits.widening import ABSENT
from kerncast.models.model import Model
from kerncast.native import packaged
from kerncast.native.c_forest import QUICK, at_least_16, forest_plans, tree_in_c, values_of_problems
from kerncast.native.c_model import CModel, rule_functions, space_tables, structure, written
from kerncast.native.header import MOST_PINS
from kerncast.native.lower import Artefact, encoded
from kerncast.native.query import identity_of, query_source
from kerncast.native.tiers.contents import Tiers
from kerncast.native.values import (
    Blend,
    answer_tables,
    described,
    ints,
    label_tables,
    override_tables,
    reach_tables,
    screens,
    target_numbers,
)

MEMO = 1024
# Configs that one word of a set holds.
WORD = 64
# The engine, in order: the same text for every model, compiled in or loaded.
ENGINE = ("problems.c", "configs.c", "rows.c", "answers.c", "pools.c", "tree.c", "engine.c", "overrides.c", "contexts.c")


def c_source(artefact: Artefact, prefix: str) -> str:
    """The text of `PREFIX.c`: the model, the engine, and the reader of JSON."""
    writer = _Writer(artefact)
    writer.write()
    family, out = artefact.model.family, writer.out
    public = filled(packaged("public.c"), prefix, parts=out.sealed.parts, total=out.sealed.total)
    return "".join([
        filled(packaged("begin.c"), prefix), prelude(), out.head(), with_prefix(packaged("model.h"), prefix),
        formulas() if not artefact.alone else "", out.text(), engine(prefix), public,
        writer.many(prefix), query_source(prefix, family.problem, family.config, identity_of(artefact.model)),
    ])  # fmt: skip


def formulas() -> str:
    """From what is learned to times and scores."""
    numbers = {"least_rate": LEAST_RATE, "likely_to_fail": LIKELY_TO_FAIL, "behind": BEHIND}
    return filled(packaged("formulas.c"), "kerncast", **{name: c_number(value) for name, value in numbers.items()})


def engine(prefix: str) -> str:
    """What is the same for every model."""
    names = {"status_names": C_STATUSES, "tier_names": C_TIERS}
    blocks = {name: ", ".join(map(c_string, listed)) for name, listed in names.items()}
    return "".join(filled(packaged(name), prefix, **blocks) for name in ENGINE)


def common_sizes() -> dict[str, int | str]:
    """The sizes that all models have."""
    return {
        "KC_MEMO": MEMO, "KC_MOST_PINS": MOST_PINS, "KC_MOST_ALIGNED": MOST_ALIGNED, "KC_ABSENT": f"({c_integer(ABSENT)})",
    }  # fmt: skip


class NotInC(InvalidValue):
    """The learner of a model writes no C."""


def refuse_without_c(model: Model) -> None:
    """Raise NotInC early, before tiers are built for an export that would fail."""
    artefact = Artefact(model, Tiers((0,)), ("full",))
    if not isinstance(artefact.lowered, Boosted):
        _row_source(artefact, Sealed())


def _row_source(artefact: Artefact, sealed: Sealed, values: Mapping[str, int] | None = None) -> CSource:
    """The C source of a learner that is computed row by row."""
    model = artefact.model
    places = {name: place for place, name in enumerate(artefact.work)} if values is None else values
    scope = CScope(model.family, places, sealed)
    if isinstance(artefact.lowered, Level | Lines | Network):
        return written(artefact.lowered, scope)
    source = model.learner.c_source(scope)
    if source is None:
        raise NotInC(
            f"models of kind {model.manifest.kind} cannot be exported to C (their learner writes none): export "
            "a JSON table, or train another kind"
        )
    return source


class _Writer:
    """One artefact, section by section."""

    def __init__(self, artefact: Artefact) -> None:
        self.artefact = artefact
        self.model = artefact.model
        self.family = artefact.model.family
        self.plans = forest_plans(artefact)
        self.tiers = [str(tier) for tier in (Tier.PORTFOLIO, Tier.FULL) if tier in artefact.include]
        self.out = CModel(self.family)

    def write(self) -> None:
        """Everything that differs between models."""
        artefact, out = self.artefact, self.out
        out.sizes |= common_sizes() | {
            "KC_LOADED": 0, "KC_ALONE": int(artefact.alone), "KC_WITH_FORESTS": int(bool(self.plans)),
            "KC_WITH_ROWS": int(bool(self.tiers) and "model" not in self.plans), "KC_MOST_BYTES": "(SIZE_MAX / 2)",
            "KC_MOST_FEATURES": len(artefact.features) + 1, "KC_MOST_VALUES": max(1, len(self.values)),
            "KC_MOST_DEPTH": max([1, *(plan.depth for plan in self.plans.values())]) + 1,
        }  # fmt: skip
        self._types()
        space_tables(artefact, out)
        rule_functions(artefact, out)
        self._candidates()
        self._labels()
        self._overrides()
        self._reach()
        self._answers()
        if not artefact.alone:
            self._learner()
        tree_in_c(artefact, out)
        self._pools()

    # -- what depends on the problem alone -------------------------------------------------------------

    @cached_property
    def values(self) -> dict[str, Expr]:
        return values_of_problems(self.artefact, self.plans.values())

    @cached_property
    def places(self) -> dict[str, int]:
        return {name: place for place, name in enumerate(self.values)}

    # -- from what is learned to times and scores ------------------------------------------------------

    def _types(self) -> None:
        """The widths of what forests and pools are numbered with."""
        plans = self.plans.values()
        most = max([1, *(plan.most_rows for plan in plans)])
        children = [number for plan in plans for number in plan.nodes[:, 1:].ravel().tolist()]
        configs = max([1, *(len(self.artefact.members(tier)) for tier in self.tiers)])
        self.out.types |= {
            "kc_id": at_least_16(integer_type([most], unsigned=True)[0]), "kc_child": at_least_16(integer_type(children)[0]),
            "kc_member": at_least_16(integer_type([configs], unsigned=True)[0]), "kc_comparing_id": "int16_t",
        }  # fmt: skip

    def _learner(self) -> None:
        """The numbers of a problem, the features, and what the model says of a row."""
        out, lowered = self.out, self.artefact.lowered
        out.function("kc_problem_values", self.values)
        out.function("kc_features", self.artefact.features, "const double *p, const double *c")
        out.fields |= {"features": len(self.artefact.features), **target_numbers(self.artefact, self.places)}
        if isinstance(lowered, Boosted):
            blend = Blend.of(lowered, self.plans["model"])
            out.fields |= {**blend.counts, **{name: c_number(value) for name, value in blend.numbers.items()}}
            out.sizes["KC_MOST_RAW"] = blend.outputs
            # A macro: what it calls comes later.
            out.add("#define kc_learned(m, x, p, c, v, raw) ((void)(p), (void)(c), kc_learn_forests(m, x, raw))\n")
            out.add("#define kc_score_of(m, v, raw, time_ns) kc_forest_score(m, v, raw, time_ns)\n")
            return
        source = _row_source(self.artefact, out.sealed, self.places)
        out.sizes["KC_MOST_RAW"] = max(1, source.outputs)
        out.add("#define kc_encode(time_ns, v) kc_encoded(&kc_this, time_ns, v)\n")
        out.add("#define kc_log_time(target, v) kc_log_of_time(&kc_this, target, v)\n")
        out.add(source.text)
        out.add("#define kc_learned(m, x, p, c, v, raw) ((void)(m), kc_learn(x, p, c, v, raw))\n")
        out.add(
            "static double kc_score_of(const kc_model *m, const double *v, const double *raw, double time) {\n"
            "    const double *const time_ns = &time;\n    (void)m, (void)v, (void)raw, (void)time_ns;\n"
            f"    return {source.score};\n}}\n"
        )

    # -- candidates and answers ------------------------------------------------------------------------

    def _candidates(self) -> None:
        """The configs that an answer may name; all keep the numbers that they have in the model."""
        stored, out = self.artefact.stored, self.out
        numbers = encoded(self.model.candidates[stored], self.model)
        out.fields |= {"candidates": self.artefact.candidates, "stored": len(stored)}
        if len(stored) < self.artefact.candidates:
            out.table("int32_t", "stored_candidates", stored)
        kind, missing, _ = integer_type(numbers[np.isfinite(numbers)].astype(np.int64).tolist())
        out.types["kc_config_number"] = kind
        out.sizes["KC_CONFIG_MISSING"] = c_integer(missing)
        if numbers.shape[1]:
            whole = np.where(np.isfinite(numbers), numbers, float(missing)).astype(np.int64)
            out.table("kc_config_number", "configs", whole.ravel())

    def _labels(self) -> None:
        known, out = self.model.labels, self.out
        if known is None:
            return
        texts, tables = label_tables(self.artefact, self.artefact.stored)
        out.fields |= {"label_variants": len(known.names), "label_keys": len(known.by)}
        out.rows("char *const", "label_names", map(c_string, texts), nothing='""')
        out.tables(tables)

    def _overrides(self) -> None:
        tables = override_tables(self.artefact)
        self.out.fields |= {"denied_count": tables["denied"].size, "pin_count": tables["pin_candidates"].size}
        self.out.tables(tables)

    def _reach(self) -> None:
        """The distinct bands of problems that candidates were tried on, and the band of every stored candidate."""
        artefact, out, first = self.artefact, self.out, self.artefact.band_rows
        out.tables(reach_tables(artefact))
        out.table("uint64_t", "tried_labels", artefact.tried.labels[first].ravel(), sealed=False)
        out.types["kc_band"] = integer_type([len(first)], unsigned=True)[0]
        out.table("kc_band", "tried_band", artefact.bands[artefact.stored])

    def _answers(self) -> None:
        out, interval, (fallbacks, name) = self.out, self.model.manifest.interval, self.artefact.fallbacks
        counts, tables, traits = answer_tables(self.artefact)
        unseen = tables.pop("trait_unseen").tolist()
        out.fields |= {**counts, "efficiency_bands": tables["efficiency"].size, "trait_count": len(traits)}
        rows = [f"{{{', '.join(map(str, row))}, {c_number(own)}}}" for row, own in zip(traits, unseen, strict=True)]
        out.rows("kc_trait", "traits", rows)
        out.tables(tables | {"fallbacks": ints(fallbacks)}, sealed=False)
        out.fields |= {
            "fallback_count": len(fallbacks), "fallback_words": c_string(fallback_words(name)),
            "describe": c_string(described(self.artefact)),
        }  # fmt: skip
        if counts["size_bands"] == 1:
            out.add("static void kc_size(const kc_model *m, const double *p, double *out) { (void)m, (void)p, *out = 0.0; }\n")
            return
        assert interval is not None
        assert interval.beyond is not None
        measure = interval.beyond.sizes.measure
        out.function("kc_size", {measure: self.artefact.work[measure]})

    # -- pools -----------------------------------------------------------------------------------------

    def _pools(self) -> None:
        """The configs of each tier, with what scores them."""
        out, members = self.out, {tier: self.artefact.members(tier) for tier in self.tiers}
        screened = [tier for tier in self.tiers if screens(self.artefact) and len(members[tier]) > WORD]
        conditions = len(self.plans["model"].thresholds) if "model" in self.plans else 1
        out.sizes |= {
            "KC_MODEL_CONDITIONS": conditions, "KC_HOLDS(m, holds)": "unsigned char holds[KC_MODEL_CONDITIONS]; (void)(m)",
        }  # fmt: skip
        for name, plan in self.plans.items():
            plan.tables(out, self.places, rough=name == "model" and bool(screened))
        for tier in self.tiers:
            out.add(array("int32_t", f"kc_{tier}_members", members[tier]))
            if "model" in self.plans:
                self.plans["model"].pool_tables(tier, out, screens=tier in screened)
            else:
                field = f"pools[KC_{tier.upper()}]"
                out.fields[field] = structure({"members": f"kc_{tier}_members", "configs": len(members[tier])})
        if "small" in self.plans:
            self.plans["small"].pool_tables(QUICK, out, screens=False)
        if self.plans:
            out.add(packaged("compute.c"))

    def many(self, prefix: str) -> str:
        """`select_many`: one by one; or, where a forest times a family with nothing to choose, 64 problems at once."""
        if self.family.config.parameters or not isinstance(self.artefact.lowered, Boosted):
            return with_prefix(packaged("select_many.c"), prefix)
        most = max([1, *(len(tree.value) for tree in self.plans["model"].every_tree)])
        return define(KC_MANY_LEAVES=most) + with_prefix(packaged("many.c"), prefix)
