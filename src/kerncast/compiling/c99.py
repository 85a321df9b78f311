"""The C99 text of an artefact: tables and generated functions, then the engine that is the same in all of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np

from kerncast.compiling.c_forest import ForestPlan, forest_plans, values_of_problems
from kerncast.compiling.c_formulas import failing, gbdt_combine, rough_bounds, target_functions
from kerncast.compiling.c_spaces import rule_functions, space_tables, symbol_reader
from kerncast.compiling.c_tree import tree_tables
from kerncast.compiling.encoding import MISSING
from kerncast.compiling.header import MOST_PINS
from kerncast.compiling.lower import Artefact, encoded
from kerncast.compiling.packaged import packaged
from kerncast.compiling.query import query_source
from kerncast.compiling.request import identity_of
from kerncast.compiling.tiers import Tiers
from kerncast.errors import InvalidValue
from kerncast.expr import Expr, Table
from kerncast.expr.to_c import prelude, statements
from kerncast.learners.c_source import CScope, CSource
from kerncast.learners.gbdt import Gbdt
from kerncast.models.answer import fallback_words
from kerncast.models.conformal import Widening
from kerncast.models.limits.widening import ABSENT, WHAT
from kerncast.models.model import Model
from kerncast.models.statuses import C_STATUSES
from kerncast.models.tier import C_TIERS, Tier
from kerncast.tables.off_grid import MOST_ALIGNED
from kerncast.version import __version__
from kerncast.writing.c import Sealed, array, c_integer, c_number, c_string, define, filled, integer_type, renamed

MEMO = 1024
POOLS = ("portfolio", "full", "quick")
# Configs that one word of a set holds.
WORD = 64


def c_source(artefact: Artefact, prefix: str) -> str:
    """The text of `PREFIX.c`."""
    writer = _Writer(artefact, prefix)
    sections = [
        writer.packaged("begin.c"),
        prelude(),
        writer.packaged("spaces.c"),
        space_tables(artefact),
        rule_functions(artefact),
        *((writer.packaged("no_model.c"),) if artefact.alone else writer.answering()),
        writer.candidates(),
        writer.labels(),
        writer.overrides(),
        writer.reach(),
        writer.packaged("configs.c"),
        tree_tables(artefact, writer.sealed, writer.function),
        writer.answers(),
        writer.pools(),
        writer.packaged("checksum.c", parts=writer.sealed.parts, total=writer.sealed.total),
        writer.comparing(),
        writer.packaged(
            "engine.c", status_names=", ".join(map(c_string, C_STATUSES)), tier_names=", ".join(map(c_string, C_TIERS))
        ),
        writer.packaged("overrides.c"),
        writer.many(),
    ]
    family = artefact.model.family
    asked = query_source(prefix, family.problem, family.config, identity_of(artefact.model))
    return "".join(sections) + asked


class NotInC(InvalidValue):
    """The learner of a model writes no C."""


def refuse_without_c(model: Model) -> None:
    """Raise NotInC early, before tiers are built for an export that would fail."""
    if not isinstance(model.learner, Gbdt):
        _row_source(Artefact(model, Tiers((0,)), ("full",)), Sealed())


def _row_source(artefact: Artefact, sealed: Sealed, values: Mapping[str, int] | None = None) -> CSource:
    """The C source of a learner that is computed row by row."""
    model = artefact.model
    places = {name: place for place, name in enumerate(artefact.work)} if values is None else values
    found = model.learner.c_source(CScope(model.family, places, sealed))
    if found is None:
        raise NotInC(
            f"models of kind {model.manifest.kind} cannot be exported to C (their learner writes none): export "
            "a JSON table, or train another kind"
        )
    return found


class _Writer:
    """One artefact, section by section."""

    def __init__(self, artefact: Artefact, prefix: str) -> None:
        self.artefact = artefact
        self.prefix = prefix
        self.model = artefact.model
        self.family = artefact.model.family
        self.sealed = Sealed()
        # The tables of an op may be large, and both functions read them.
        self.tables: dict[Table, str] = {}
        self.plans = forest_plans(artefact)

    def packaged(self, name: str, **blocks: str) -> str:
        """A file of `c/` under the artefact's prefix. Generated text is not changed: it may contain data."""
        return filled(packaged(name), self.prefix, **blocks)

    def function(self, name: str, outputs: Mapping[str, Expr], arguments: str) -> str:
        tables, lines = statements(name, outputs, symbol_reader(self.family), lambda place: f"out[{place}]", self.tables)
        unused = [f"    (void){item.rsplit('*', 1)[1]};" for item in arguments.split(", ")]
        body = "\n".join([*unused, *lines])
        return f"{tables}static void {name}({arguments}, double *out) {{\n    (void)out;\n{body}\n}}\n"

    def answering(self) -> tuple[str, ...]:
        """The model: from a problem and a config to a time and a score."""
        return self.problem_values(), self.features(), self.target(), self.learner()

    # -- what depends on the problem alone -------------------------------------------------------------

    @cached_property
    def values(self) -> dict[str, Expr]:
        return values_of_problems(self.artefact, self.plans.values())

    @cached_property
    def places(self) -> dict[str, int]:
        return {name: place for place, name in enumerate(self.values)}

    def problem_values(self) -> str:
        text = self.function("kc_problem_values", self.values, "const double *p")
        return define(KC_VALUES=max(1, len(self.values))) + text

    def features(self) -> str:
        text = self.function("kc_features", self.artefact.features, "const double *p, const double *c")
        return define(KC_FEATURES=len(self.artefact.features)) + text

    # -- from what is learned to times and scores ------------------------------------------------------

    def target(self) -> str:
        target = self.model.target
        base = {"relative": "expected_ns", "tflops": "flops", "bandwidth": "bytes"}.get(target.name)
        number = "1.0" if base is None else f"v[{self.places[base]}]"
        return target_functions(target, f"({number} / 1e3)" if target.name == "tflops" else number)

    def learner(self) -> str:
        """`kc_learn` (or the forests), `kc_combine` and `kc_row`."""
        learner = self.model.learner
        text = self.packaged("forest.c") if self.plans else ""
        text += self.packaged("lanes.c") if self.plans and self.wide else ""
        text += "".join(plan.tables(self.sealed, self.screens and name == "model") for name, plan in self.plans.items())
        if isinstance(learner, Gbdt):
            forests = self.plans["model"].forests
            text, count = text + self.packaged("walk.c"), sum(len(bags) for bags in forests.trees.values())
            combine = gbdt_combine(learner, forests)
        else:
            source = _row_source(self.artefact, self.sealed, self.places)
            text, count, combine = text + source.text, source.outputs, f"    *score = {source.score};\n"
        head = "static void kc_combine(const double *v, const double *raw, double *time_ns, double *score) {\n"
        text += f"{head}    *time_ns = kc_decode(raw[0], v);\n{combine}}}\n"
        text += rough_bounds(learner, self.plans["model"]) if isinstance(learner, Gbdt) and self.screens else ""
        timing = self.packaged("walked_time.c" if self.plans else "row_time.c")
        imitation = self.packaged("small_forest.c") if "small" in self.plans else ""
        text += define(KC_RAW=count) + self.packaged("row.c") + failing(self.artefact.forests) + timing
        return text + self.packaged("runs.c") + imitation

    @cached_property
    def wide(self) -> bool:
        """Whether some tier has more configs than a word has bits."""
        return any(len(self.artefact.members(tier)) > WORD for tier in POOLS[:2] if tier in self.artefact.include)

    @cached_property
    def screens(self) -> bool:
        """Whether rounded sums first find the configs that may be the best: if scores are sums, and there are many configs."""
        return self.wide and "model" in self.plans and self.model.target.log and not self.model.target.higher_is_faster

    # -- candidates and answers ------------------------------------------------------------------------

    def candidates(self) -> str:
        """The configs that an answer may name; all keep the numbers that they have in the model."""
        stored = self.artefact.stored
        numbers = encoded(self.model.candidates[stored], self.model)
        text = define(KC_CANDIDATES=self.artefact.candidates, KC_STORED=len(stored))
        if len(stored) < self.artefact.candidates:
            text += self.sealed.array(integer_type([self.artefact.candidates])[0], "kc_stored_candidates", stored)
        text += self.packaged("stored.c")
        if not numbers.shape[1]:
            return text
        kind, missing, _ = integer_type(numbers[np.isfinite(numbers)].astype(np.int64).tolist())
        whole = np.where(np.isfinite(numbers), numbers, float(missing)).astype(np.int64)
        text += f"typedef {kind} kc_config_number;\n#define KC_CONFIG_MISSING {c_integer(missing)}\n"
        return text + self.sealed.array("kc_config_number", "kc_configs", whole.ravel())

    def labels(self) -> str:
        """What the candidates are called, by the values of the problem parameters that names depend on."""
        known, space = self.model.labels, self.family.problem
        by = known.by if known else ()
        rows = self.artefact.stored.tolist()
        names = {key: [row[place] for place in rows] for key, row in known.names.items()} if known else {}
        texts = list(dict.fromkeys(name for row in names.values() for name in row if name is not None))
        numbers = {text: number for number, text in enumerate(texts)}
        values = [MISSING if number is None else number for key in names for number in map(self._number, by, key)]
        index = [-1 if name is None else numbers[name] for row in names.values() for name in row]
        text = define(KC_LABEL_VARIANTS=len(names), KC_LABEL_KEYS=len(by))
        strings = ",\n    ".join(map(c_string, texts)) or '""'
        text += f"static const char *const kc_label_texts[] = {{\n    {strings}\n}};\n"
        places = [list(space.parameters).index(name) for name in by]
        text += self.sealed.array("int32_t", "kc_label_places", np.array(places, np.int64))
        text += self.sealed.array("int64_t", "kc_label_values", np.array(values, np.int64))
        return text + self.sealed.array("int32_t", "kc_label_texts_of", np.array(index, np.int64)) + self.packaged("labels.c")

    def _number(self, name: str, value: Any) -> int | None:
        """A value of a problem parameter as C reads it."""
        parameter = self.family.problem.parameters[name]
        index = None if value is None else parameter.index(value)
        return None if index is None else parameter.number(index)

    def overrides(self) -> str:
        """The candidates that the export denies, and the choices that it fixes."""
        decided = self.artefact.decided
        denied = decided.denied if decided else np.empty(0, np.int64)
        patterns, pinned = (decided.patterns, decided.pinned) if decided else (np.empty(0, np.int64), np.empty(0, np.int64))
        text = define(KC_DENIED=len(denied), KC_PINS=len(pinned), KC_MOST_PINS=MOST_PINS)
        text += self.sealed.array("int32_t", "kc_denied", denied)
        text += self.sealed.array("int64_t", "kc_pin_keys", patterns.ravel())
        return text + self.sealed.array("int32_t", "kc_pin_candidates", pinned)

    def reach(self) -> str:
        """The distinct bands of problems that candidates were tried on, and the band of every stored candidate."""
        tried, first = self.artefact.tried, self.artefact.band_rows
        text = self.sealed.array("double", "kc_tried_low", tried.low[first].ravel())
        text += self.sealed.array("double", "kc_tried_high", tried.high[first].ravel())
        text += array("uint64_t", "kc_tried_labels", [int(value) for value in tried.labels[first].ravel()])
        kind = integer_type([len(first)], unsigned=True)[0]
        return text + self.sealed.array(kind, "kc_tried_band", self.artefact.bands[self.artefact.stored])

    def comparing(self) -> str:
        """Which candidates fit a problem; and, where the tree compares some, how."""
        tree = self.artefact.tiers.tree if "tree" in self.artefact.include else None
        compares = tree is not None and bool((tree.compares > 1).any())
        return self.packaged("fits.c") + (self.packaged("comparing.c") if compares else "")

    def answers(self) -> str:
        interval, expected = self.model.manifest.interval, self.artefact.tiers.expectation
        if self.artefact.alone:  # it gives no times
            interval, expected = None, None
        wide = None if interval is None else interval.widening
        lower, upper = ((), ()) if interval is None else (interval.lower, interval.upper)
        parts: dict[str, Any] = {
            "kc_band_edges": interval.edges_ns if interval else (),
            "kc_band_lower": np.ravel(wide.lower) if wide else lower, "kc_band_upper": np.ravel(wide.upper) if wide else upper,
            "kc_efficiency_edges": expected.edges_ns if expected else (),
            "kc_efficiency": expected.efficiency if expected else (),
        }  # fmt: skip
        text = define(KC_BANDS=len(lower), KC_EFFICIENCY_BANDS=len(parts["kc_efficiency"])) + self._rarity(wide)
        text += "".join(array("double", name, np.array(values, np.float64)) for name, values in parts.items())
        fallbacks, name = self.artefact.fallbacks
        text += define(KC_FALLBACKS=len(fallbacks)) + array("int32_t", "kc_fallbacks", fallbacks)
        text += f"static const char kc_fallback_words[] = {c_string(fallback_words(name))};\n"
        facts = {
            "family": self.family.id, "device": self.model.device.name, "kind": self.model.manifest.kind,
            "software": list(self.model.manifest.software), "checksum": self.model.manifest.checksum, "fallback": name,
            "kerncast": __version__,
        }  # fmt: skip
        return text + f"static const char kc_model[] = {c_string(json.dumps(facts, sort_keys=True))};\n"

    def _rarity(self, wide: Widening | None) -> str:
        """The traits that decide how wide an interval is, with the code that reads them."""
        traits, places = () if wide is None else wide.traits.traits, list(self.family.problem.parameters)
        text = define(KC_TRAITS=len(traits), KC_RARE_BANDS=1 if wide is None else len(wide.lower))
        if wide is not None and traits:
            text += define(KC_MOST_ALIGNED=MOST_ALIGNED, KC_ABSENT=f"({c_integer(ABSENT)})") + self.packaged("trait.c")
            starts = np.cumsum([0, *(len(trait.values) for trait in traits)])
            lines = [
                f"    {{{WHAT.index(trait.what)}, {places.index(trait.of[0])}, {places.index(trait.of[-1])}, {first}, "
                f"{len(trait.values)}, {c_number(trait.unseen)}}},\n"
                for trait, first in zip(traits, starts[:-1], strict=True)
            ]
            text += f"static const kc_trait kc_traits[] = {{\n{''.join(lines)}}};\n"
            text += array("int64_t", "kc_trait_values", [value for trait in traits for value in trait.values])
            text += array("double", "kc_trait_bits", np.array([bits for trait in traits for bits in trait.bits], np.float64))
            text += array("double", "kc_rare_edges", np.array(wide.edges_bits, np.float64))
        return text + self._beyond(wide) + self.packaged("rarity.c")

    def _beyond(self, wide: Widening | None) -> str:
        """The bounds of problems smaller or larger than all measured ones, and how large a problem is."""
        beyond = None if wide is None else wide.beyond
        if beyond is None:
            return define(KC_SIZE_BANDS=1)
        measure = beyond.sizes.measure
        text = define(KC_SIZE_BANDS=len(beyond.lower))
        text += self.function("kc_size", {measure: self.artefact.work[measure]}, "const double *p")
        text += array("double", "kc_size_edges", beyond.edges)
        text += array("double", "kc_size_lower", np.ravel(beyond.lower))
        return text + array("double", "kc_size_upper", np.ravel(beyond.upper))

    # -- pools -----------------------------------------------------------------------------------------

    def pools(self) -> str:
        """The configs of each tier with the code that scores them, and the context that holds their state.

        `quick` is the portfolio once more, ranked by the small forest.
        """
        tiers = [str(tier) for tier in (Tier.PORTFOLIO, Tier.FULL) if tier in self.artefact.include]
        plans: dict[str, ForestPlan | None] = {tier: self.plans.get("model") for tier in tiers}
        if "small" in self.plans:
            plans["quick"] = self.plans["small"]
        text = self.packaged("memo.c") + define(KC_MEMO=MEMO)
        if self.plans:
            text += "".join(plan.functions(self.places) for plan in self.plans.values())
        states, code = "", ""
        for tier in POOLS:
            plan, members = plans.get(tier), self.artefact.members(tier) if tier in plans else np.empty(0, np.int64)
            upper = tier.upper()
            text += define(**{f"KC_HAS_{upper}": int(tier in plans), f"KC_{upper}_CONFIGS": len(members)})
            text += array("int32_t", f"kc_{tier}_members", members) if tier != "quick" else ""
            text += define(kc_quick_members="kc_portfolio_members") if tier == "quick" else ""
            if plan is not None:
                screens = self.screens and plan.name == "model" and len(members) > WORD
                text += define(**{f"KC_{upper}_SCREENS": int(screens)}) + plan.pool_tables(tier, self.sealed)
                states += f"    kc_{tier}_state {tier};\n"
            source = self.packaged("no_pool.c") if tier not in plans else self.packaged("rows.c" if plan is None else "pool.c")
            names = {"kc_pool": f"kc_{tier}", "KC_POOL": f"KC_{upper}", "context->pool": f"context->{tier}"}
            if plan is not None:
                names |= {"kc_trees": f"kc_{plan.name}", "KC_TREES": f"KC_{plan.name.upper()}"}
            code += renamed(source, names)
        most = max([1, *(len(self.artefact.members(tier)) for tier in tiers)])
        text += self.packaged("context.c", most=str(most), states=states)
        prepare = "".join(f"    kc_{tier}_prepare(context);\n" for tier, plan in plans.items() if plan is not None)
        # Referenced, so that no compiler warns that they are unused: which of them are called depends on the model.
        unused = PERHAPS_UNUSED if self.artefact.alone else (*PERHAPS_UNUSED, *PERHAPS_UNUSED_OF_MODEL)
        named = ", ".join(f"(void){name}" for name in unused)
        mask = "".join(f"    kc_{tier}_mask(context);\n" for tier, plan in plans.items() if plan is not None)
        return text + code + self.packaged("prepare.c", named=named, prepare=prepare, mask=mask)

    def many(self) -> str:
        """`select_many`: one by one; or, where a forest times a family with nothing to choose, 64 problems at once."""
        if self.family.config.parameters or not isinstance(self.model.learner, Gbdt):
            return self.packaged("select_many.c")
        trees = [tree for bags in self.plans["model"].forests.trees.values() for bag in bags for tree in bag]
        return define(KC_MANY_LEAVES=max([1, *(len(tree.value) for tree in trees)])) + self.packaged("many.c")


PERHAPS_UNUSED = (
    "kc_read", "kc_div", "kc_min", "kc_max", "kc_sqrt", "kc_log2", "kc_log1p", "kc_index", "kc_saturate", "kc_within",
    "kc_config_applies", "kc_config_order", "kc_tried_band", "kc_time", "kc_runs", "kc_fallback_words",
)  # fmt: skip
PERHAPS_UNUSED_OF_MODEL = ("kc_encode", "kc_decode", "kc_log_time", "kc_combine", "kc_row", "kc_fails")
