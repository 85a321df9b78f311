"""From a model and its tiers to the parts of an artefact: programs by stage, pools, rules, forests, fallbacks.

Features are split by what they depend on: the problem (once per call), the config (once ever), or both (the rest). One that
mixes both depends only on a few parts of the config (`tiles_m` on `tile_m`), so it is computed once per distinct combination of
those parts, not once per config: thousands of configs have only dozens.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl

from kerncast.core.arrays import Floats, Ints
from kerncast.core.expr import Expr, Program, Symbol, symbol
from kerncast.core.expr.nodes import ConstantTable, node, table_lookup, topological
from kerncast.errors import InvalidValue
from kerncast.learning.learners.contract import Boosted, Lowered
from kerncast.learning.learners.trees import Tree
from kerncast.learning.table import BoundRule, namespaces
from kerncast.models.answer import ALONE, CHOOSING, Tier, named_tiers
from kerncast.models.candidates import library_rows, model_rules, refuse_no_candidates
from kerncast.models.limits.configs import Reach
from kerncast.models.model import Model
from kerncast.native.overrides import Decided
from kerncast.native.tiers.contents import UNSURE, Tiers

PROBLEM, CONFIG = 1, 2
_SIDE = {"p": PROBLEM, "c": CONFIG}


@dataclass(frozen=True)
class Stages:
    """Outputs by what they read. Mixed ones read `s.*` and `t.*`: the largest parts that only one side decides."""

    problem: dict[str, Expr]
    config: dict[str, Expr]
    mixed: dict[str, Expr]
    problem_parts: dict[str, Expr]
    """`s.0`, `s.1` …: expressions over `p.*`."""
    config_parts: dict[str, Expr]
    """`t.0`, `t.1` …: expressions over `c.*`."""


def cut(outputs: Mapping[str, Expr]) -> Stages:
    """Split a program's outputs; hardware numbers must be bound already."""
    side: dict[bytes, int] = {}
    rebuilt: dict[bytes, Expr] = {}
    parts: dict[int, dict[str, Expr]] = {PROBLEM: {}, CONFIG: {}}
    named: dict[bytes, Expr] = {}

    def part(expr: Expr) -> Expr:
        """A one-sided subexpression as an operand of a mixed one: its own symbol, unless it is a constant."""
        own = side[expr.digest]
        if own == 0:
            return expr
        if own == PROBLEM | CONFIG:
            return rebuilt[expr.digest]
        if expr.digest not in named:
            name = f"{'s' if own == PROBLEM else 't'}.{len(parts[own])}"
            parts[own][name] = expr
            named[expr.digest] = symbol(Symbol(name))
        return named[expr.digest]

    for expr in topological(list(outputs.values())):
        if isinstance(expr.payload, Symbol):
            side[expr.digest] = _SIDE[expr.payload.name.split(".")[0]]
            continue
        sides = 0
        for arg in expr.args:
            sides |= side[arg.digest]
        side[expr.digest] = sides
        if sides == PROBLEM | CONFIG:
            args = [part(arg) for arg in expr.args]
            table = isinstance(expr.payload, ConstantTable)
            rebuilt[expr.digest] = table_lookup(expr.payload, args) if table else node(expr.kind, *args)  # type: ignore[arg-type]
    by_side: dict[int, dict[str, Expr]] = {0: {}, PROBLEM: {}, CONFIG: {}, PROBLEM | CONFIG: {}}
    for name, expr in outputs.items():
        own = side[expr.digest]
        by_side[own][name] = rebuilt[expr.digest] if own == PROBLEM | CONFIG else expr
    # What depends on nothing is computed with the problem.
    return Stages({**by_side[0], **by_side[PROBLEM]}, by_side[CONFIG], by_side[3], parts[PROBLEM], parts[CONFIG])


def reads(expr: Expr, prefix: str) -> tuple[str, ...]:
    """The symbols of one prefix that an expression reads, in order."""
    names = [item.name for item in Program({"": expr}).symbols if item.name.startswith(f"{prefix}.")]
    return tuple(sorted(names, key=lambda name: int(name.split(".")[1])))


@dataclass(frozen=True)
class Group:
    """Mixed outputs that read the same parts of the config."""

    outputs: dict[str, Expr]
    parts: tuple[str, ...]


@dataclass(frozen=True)
class Combinations:
    """The distinct combinations of some parts among the configs of a pool, and which one each config has."""

    values: Floats
    """[combinations, parts]"""
    member: Ints


@dataclass(frozen=True)
class Pool:
    """Some candidates, in the order of `rows`."""

    rows: Ints
    """The rows of the model's candidates."""
    groups: list[Combinations]
    """In the order of the groups."""
    static: dict[str, Combinations]
    """Features of the config alone: their distinct values."""

    @property
    def words(self) -> int:
        """64-bit words of a set of configs; if more than one, a multiple of four, as a vector holds four."""
        words = -(-max(1, len(self.rows)) // 64)
        return words if words == 1 else -(-words // 4) * 4


def group_mixed(stages: Stages) -> list[Group]:
    """Mixed outputs by the parts that they read, in order of first use."""
    found: dict[tuple[str, ...], dict[str, Expr]] = {}
    for name, expr in stages.mixed.items():
        found.setdefault(reads(expr, "t"), {})[name] = expr
    return [Group(outputs, parts) for parts, outputs in found.items()]


def make_pool(stages: Stages, groups: list[Group], configs: pl.DataFrame, rows: Ints) -> Pool:
    """`configs`: all candidates under their symbol names (`c.*`)."""
    chosen = configs[rows] if configs.width else pl.DataFrame({"c.none": np.zeros(len(rows))})
    parts = config_columns(stages.config_parts, chosen, len(rows))
    static = config_columns(stages.config, chosen, len(rows))
    return Pool(
        rows,
        [_combinations(np.column_stack([parts[name] for name in group.parts])) for group in groups],
        {name: _combinations(values[:, None]) for name, values in static.items()},
    )


def config_columns(outputs: Mapping[str, Expr], configs: pl.DataFrame, rows: int) -> dict[str, Floats]:
    """Outputs that read configs alone, by name."""
    if not outputs:
        return {}
    frame = Program(outputs).frame(configs, trusted=True)
    return {name: frame[name].to_numpy() if frame.height == rows else np.full(rows, frame[name][0]) for name in outputs}


def _combinations(values: Floats) -> Combinations:
    distinct, member = np.unique(values, axis=0, return_inverse=True)
    return Combinations(distinct, member.ravel().astype(np.int64))


Bags = Sequence[Sequence[Tree]]


@dataclass(frozen=True)
class Forests:
    """All forests of a model, and the conditions that their nodes test."""

    trees: Mapping[str, Bags]
    """By name (time, rank, library, valid) and bag."""
    thresholds: dict[int, Floats]
    """By feature that some node reads: its thresholds, ascending."""

    @classmethod
    def of(cls, trees: Mapping[str, Bags]) -> Forests:
        every = [tree for bags in trees.values() for bag in bags for tree in bag]
        features = np.concatenate([tree.feature for tree in every]) if every else np.empty(0, np.int64)
        thresholds = np.concatenate([tree.threshold for tree in every]) if every else np.empty(0)
        return cls(trees, {int(number): np.unique(thresholds[features == number]) for number in np.unique(features)})

    def condition(self, feature: Ints, threshold: Floats) -> Ints:
        """The numbers of some conditions: features in order, thresholds ascending within each."""
        first, total = {}, 0
        for number, values in self.thresholds.items():
            first[number] = total
            total += len(values)
        found = np.empty(len(feature), np.int64)
        for number in np.unique(feature):
            own = feature == number
            found[own] = first[int(number)] + np.searchsorted(self.thresholds[int(number)], threshold[own])
        return found


@dataclass(frozen=True)
class Artefact:
    """Everything that is written out, still as Python values."""

    model: Model
    tiers: Tiers
    include: tuple[str, ...]
    """The tiers that the artefact answers with, the quickest first."""
    decided: Decided | None = None
    """Which candidates exist and which choices are fixed; None: all, and none."""

    @cached_property
    def configs(self) -> pl.DataFrame:
        """The candidates under their symbol names."""
        columns = {f"config.{name}": f"c.{name}" for name in self.model.family.config.parameters}
        return self.model.candidates.select(list(columns)).rename(columns)

    @cached_property
    def candidates(self) -> int:
        return self.model.candidates.height

    # -- programs ------------------------------------------------------------------------------------

    @cached_property
    def features(self) -> dict[str, Expr]:
        """All features, in the order in which the learner reads them."""
        outputs = self.model.featurizer().program.outputs
        return {name: outputs[name] for name in self.model.manifest.features.names}

    @cached_property
    def work(self) -> dict[str, Expr]:
        """Numbers of the problem that targets and the learner's own C read."""
        return {**self.model.featurizer().work().outputs, **self.model.learner.problem_numbers(self.model.family)}

    @cached_property
    def lowered(self) -> Lowered | None:
        """What the learner computes, as data; None: it writes C itself, or Python answers."""
        return self.model.learner.lowered(self.model.family, self.work)

    @cached_property
    def problem_rules(self) -> list[BoundRule]:
        """Rules of the op: a problem that breaks one is not a problem at all."""
        return [BoundRule(item.name, item.sentence, item.holds) for item in self.model.family.problem.constraints]

    @cached_property
    def family_rules(self) -> list[BoundRule]:
        """Rules of the family, hardware numbers bound; those that need an unknown number are left to the backend."""
        return model_rules(self.model)

    @cached_property
    def unsupported_rules(self) -> list[BoundRule]:
        """The rules that the problem alone decides."""
        return [rule for rule in self.family_rules if namespaces(rule.holds) == {"p"}]

    @cached_property
    def mixed_rules(self) -> list[BoundRule]:
        """The rules that problem and config decide together."""
        return [rule for rule in self.family_rules if namespaces(rule.holds) == {"p", "c"}]

    @cached_property
    def config_rules(self) -> list[BoundRule]:
        """All rules that a config must obey."""
        return [rule for rule in self.family_rules if "c" in namespaces(rule.holds)]

    @property
    def rules(self) -> dict[str, list[BoundRule]]:
        """What the engine tests before it answers: rules of the op, of the family for any config, and of a config."""
        return {"rules": self.problem_rules, "family_rules": self.unsupported_rules, "config_rules": self.config_rules}

    # -- forests -------------------------------------------------------------------------------------

    @cached_property
    def forests(self) -> Forests | None:
        """The forests of a gbdt; None for models that are computed row by row."""
        return Forests.of(self.lowered.trees) if isinstance(self.lowered, Boosted) else None

    @cached_property
    def small_forest(self) -> Forests | None:
        """The small forest that scores the portfolio instead of the model, if the tiers have one."""
        trees = self.tiers.forest
        return None if trees is None or Tier.PORTFOLIO not in self.include else Forests.of({"small": [trees]})

    @property
    def alone(self) -> bool:
        """Whether there is only the tree: no model, no times, nothing to leave an unsure problem to."""
        return self.include == ALONE

    @cached_property
    def stored(self) -> Ints:
        """The candidates whose parameters and names are written out, ascending: those that an answer may name."""
        if Tier.FULL in self.include:
            return np.arange(self.candidates)
        named = [np.array(self.fallbacks[0], np.int64), np.empty(0, np.int64) if self.decided is None else self.decided.pinned]
        if Tier.PORTFOLIO in self.include or self.tiers.tree is None:
            named.append(self.portfolio)
        else:
            named.append(self.portfolio[np.unique(self.tiers.tree.lists[self.tiers.tree.lists != UNSURE])])
        return np.unique(np.concatenate(named)).astype(np.int64)

    @cached_property
    def portfolio(self) -> Ints:
        """The rows of the candidates that the quick tiers choose from."""
        return np.array(self.tiers.portfolio, dtype=np.int64)

    def members(self, tier: str) -> Ints:
        """The rows of the candidates that a tier compares."""
        return np.arange(self.candidates) if tier == Tier.FULL else self.portfolio

    @cached_property
    def tried(self) -> Reach:
        """Where each candidate was tried, in finite numbers; everywhere if nothing is known."""
        found, shape = self.tiers.reach, (self.candidates, len(self.model.family.problem.parameters))
        if found is None:
            found = Reach(np.full(shape, -np.inf), np.full(shape, np.inf), np.full(shape, ~np.uint64(0)))
        most = np.finfo(np.float64).max
        return Reach(np.clip(found.low, -most, most), np.clip(found.high, -most, most), found.labels)

    @cached_property
    def _distinct_bands(self) -> tuple[Ints, Ints]:
        tried, stored = self.tried, self.stored
        # As bytes: numbers of two kinds side by side.
        rows = np.ascontiguousarray(
            np.concatenate([tried.low.view(np.uint64), tried.high.view(np.uint64), tried.labels], axis=1)[stored]
        )
        whole = rows.view(np.dtype((np.void, rows.dtype.itemsize * rows.shape[1]))).ravel()
        _, first, band = np.unique(whole, return_index=True, return_inverse=True)
        bands = np.full(self.candidates, -1, np.int64)
        bands[stored] = band.ravel()
        return stored[first], bands

    @property
    def band_rows(self) -> Ints:
        """One candidate of each band: the stored candidates of a band were tried on the same ranges of problems."""
        return self._distinct_bands[0]

    @property
    def bands(self) -> Ints:
        """The band of each candidate; -1 where it is not stored."""
        return self._distinct_bands[1]

    # -- answers -------------------------------------------------------------------------------------

    @cached_property
    def fallbacks(self) -> tuple[list[int], str]:
        """What runs outside the trained range: candidates in order, and the name of the fallback."""
        library = library_rows(self.model)
        return (library, "library") if library else (list(self.tiers.portfolio), str(Tier.PORTFOLIO))


def lower(model: Model, tiers: Tiers, include: Iterable[str] = CHOOSING, decided: Decided | None = None) -> Artefact:
    """The parts of an export of `model`; models that cannot be exported are refused here."""
    chosen = named_tiers(include)
    if chosen == ALONE and tiers.tree is None:
        raise InvalidValue("a tree needs configs to choose from, and there are none: use `tiers=full`, which gives times")
    if chosen == ALONE and not tiers.alone:
        raise InvalidValue("this tree leaves problems to the portfolio: build one with `TierOptions(alone=True)`")
    refuse_several_devices(model)
    refuse_no_candidates(model)
    return Artefact(model, tiers, chosen, decided)


def encoded(frame: pl.DataFrame, model: Model) -> Floats:
    """The candidates' parameters as numbers, inactive ones as NaN."""
    columns = []
    for name, parameter in model.family.config.parameters.items():
        column = frame[f"config.{name}"]
        if column.dtype == pl.String:
            codes = dict(parameter.codes)
            column = column.replace_strict(codes, return_dtype=pl.Float64)
        columns.append(column.cast(pl.Float64).fill_null(float("nan")).to_numpy())
    return np.column_stack(columns) if columns else np.empty((frame.height, 0))


def refuse_several_devices(model: Model) -> None:
    """Refuse a model that is not bound to one device."""
    if len(model.manifest.devices) > 1:
        raise InvalidValue(
            f"the model was trained for {len(model.manifest.devices)} devices together, but an artefact serves one: name one "
            f"of {', '.join(record.name for record in model.manifest.devices)} with `device`"
        )
