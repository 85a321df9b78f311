"""From a model and its tiers to the parts of an artefact: programs split by stage, pools, rules, fallbacks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl

from kerncast.arrays import Floats, Ints
from kerncast.compiling.forest import Forests
from kerncast.compiling.overrides import Decided
from kerncast.compiling.tiers import Tiers
from kerncast.errors import InvalidValue
from kerncast.expr import Expr
from kerncast.learners.gbdt import Gbdt
from kerncast.models.candidates import library_rows
from kerncast.models.model import Model
from kerncast.models.reach import Reach
from kerncast.models.rules import Rule, model_rules, namespaces
from kerncast.models.tier import CHOOSING


@dataclass(frozen=True)
class Artefact:
    """Everything that is written out, still as Python values."""

    model: Model
    tiers: Tiers
    include: tuple[str, ...]
    """The tiers that the artefact answers with."""
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
    def problem_rules(self) -> list[Rule]:
        """Rules of the op: a problem that breaks one is not a problem at all."""
        return [Rule(item.name, item.sentence, item.holds) for item in self.model.family.problem.constraints]

    @cached_property
    def family_rules(self) -> list[Rule]:
        """Rules of the family, hardware numbers bound; those that need an unknown number are left to the backend."""
        return model_rules(self.model)

    @cached_property
    def unsupported_rules(self) -> list[Rule]:
        """The rules that the problem alone decides."""
        return [rule for rule in self.family_rules if namespaces(rule.holds) == {"p"}]

    @cached_property
    def mixed_rules(self) -> list[Rule]:
        """The rules that problem and config decide together."""
        return [rule for rule in self.family_rules if namespaces(rule.holds) == {"p", "c"}]

    @cached_property
    def config_rules(self) -> list[Rule]:
        """All rules that a config must obey."""
        return [rule for rule in self.family_rules if "c" in namespaces(rule.holds)]

    # -- forests -------------------------------------------------------------------------------------

    @cached_property
    def forests(self) -> Forests | None:
        """The forests of a gbdt; None for models that are computed row by row."""
        learner = self.model.learner
        return Forests.of(learner.trees) if isinstance(learner, Gbdt) else None

    @cached_property
    def small_forest(self) -> Forests | None:
        """The small forest that scores the portfolio instead of the model, if the tiers have one."""
        trees = self.tiers.forest
        return None if trees is None or "portfolio" not in self.include else Forests.of({"small": [trees]})

    def members(self, tier: str) -> Ints:
        """Rows of the model's candidates; `quick` is the portfolio, ranked by the small forest."""
        return np.arange(self.candidates) if tier == "full" else np.array(self.tiers.portfolio, dtype=np.int64)

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
        tried = self.tried
        # As bytes: numbers of two kinds side by side.
        rows = np.ascontiguousarray(
            np.concatenate([tried.low.view(np.uint64), tried.high.view(np.uint64), tried.labels], axis=1)
        )
        whole = rows.view(np.dtype((np.void, rows.dtype.itemsize * rows.shape[1]))).ravel()
        _, first, band = np.unique(whole, return_index=True, return_inverse=True)
        return first.astype(np.int64), band.ravel().astype(np.int64)

    @property
    def band_rows(self) -> Ints:
        """One candidate of each band: the candidates of a band were tried on the same ranges of problems."""
        return self._distinct_bands[0]

    @property
    def bands(self) -> Ints:
        """The band of each candidate."""
        return self._distinct_bands[1]

    # -- answers -------------------------------------------------------------------------------------

    @cached_property
    def fallbacks(self) -> tuple[list[int], str]:
        """What runs outside the trained range: candidates in order, and the name of the fallback."""
        library = library_rows(self.model)
        return (library, "library") if library else (list(self.tiers.portfolio), "portfolio")


def lower(model: Model, tiers: Tiers, include: Iterable[str] = CHOOSING, decided: Decided | None = None) -> Artefact:
    """The parts of an export of `model`; models that cannot be exported are refused here."""
    chosen = tuple(str(tier) for tier in CHOOSING if tier in set(include))
    unknown = sorted(set(include) - set(CHOOSING))
    if unknown or not chosen:
        raise InvalidValue(f"`tiers` are {', '.join(CHOOSING)} (the memo is always there), got '{', '.join(sorted(include))}'")
    if "tree" in chosen and "portfolio" not in chosen:
        raise InvalidValue("the tree leaves unsure problems to the portfolio: export both, `tiers=tree,portfolio`")
    if len(model.manifest.devices) > 1:
        raise InvalidValue(
            f"the model was trained for {len(model.manifest.devices)} devices together, but an artefact serves one: train it "
            "on the rows of one device"
        )
    if not model.candidates.height:
        raise InvalidValue(
            f"{model.path} does not record which configs work, so there is nothing to choose from: give the configs with "
            "`configs` (kernels:FILE, build:DIR, a dataset or benchmark file, all)"
        )
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
