"""What each tier of a selector would run on measured problems, how good and how fast that is, and its size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from kerncast.answering.exporters.golden import tier_bytes
from kerncast.answering.selector import Selector
from kerncast.core.arrays import Flags, Floats, Ints
from kerncast.core.op import Config, Family, Problem
from kerncast.evaluating.evaluation import Evaluation
from kerncast.learning.assess import TRIED_ENOUGH
from kerncast.learning.metrics import figure, resampled
from kerncast.learning.table import Table, row_numbers
from kerncast.models.answer import CHOOSING, Tier
from kerncast.native.tiers.teaching import draw_problems

# The row of a config that was not tried on the problem, and of a problem without any config to run.
NOT_TRIED, NOTHING = -1, -2


@dataclass(frozen=True)
class Tried:
    """Problems on which something worked, and the row of every config that was tried on each."""

    problems: Sequence[Problem]
    configs: Mapping[Config, int]
    """A number for every config that was tried anywhere."""
    tried: Ints
    """Sorted: the problem's place times the number of configs, plus the config's number. A million dictionaries of configs
    would take a gigabyte."""
    rows: Ints
    """The row of each entry of `tried` in `time_ns`."""
    time_ns: Floats
    """By row; infinite where it failed."""
    best_ns: Floats
    """By problem."""

    @classmethod
    def of(cls, family: Family, problems: pl.DataFrame, vectors: pl.DataFrame) -> Tried:
        """`problems`: `problem.*`, `number`, `best_ns`. `vectors`: `config.*`, `number`, `measured_ns` (infinite: failed)."""
        names, keys = list(family.problem.parameters), list(family.config.parameters)
        asked = [
            Problem.trusted(family, dict(zip(names, values, strict=True)))
            for values in problems.select(f"problem.{name}" for name in names).iter_rows()
        ]
        columns = [f"config.{name}" for name in keys]
        config = row_numbers(vectors, columns)
        _, first = np.unique(config, return_index=True)
        configs = {
            Config.trusted(family, dict(zip(keys, values, strict=True))): number
            for number, (_, *values) in enumerate(vectors.select("number", *columns)[first].iter_rows())
        }
        places = pl.DataFrame({"number": problems["number"], "__place": np.arange(problems.height)})
        place = vectors.select("number").join(places, on="number", how="left", maintain_order="left")["__place"]
        rows = np.flatnonzero(place.is_not_null().to_numpy())
        tried = place.fill_null(0).to_numpy()[rows] * len(configs) + config[rows]
        order = np.argsort(tried, kind="stable")
        return cls(asked, configs, tried[order], rows[order], vectors["measured_ns"].to_numpy(), problems["best_ns"].to_numpy())

    def row(self, place: int, config: Config) -> int:
        """The row of a config on the problem at a place; `NOT_TRIED` if there is none."""
        number = self.configs.get(config)
        if number is None:
            return NOT_TRIED
        key = place * len(self.configs) + number
        at = int(np.searchsorted(self.tried, key, side="right")) - 1
        return int(self.rows[at]) if at >= 0 and self.tried[at] == key else NOT_TRIED

    @classmethod
    def in_table(cls, table: Table) -> Tried:
        """Everything that a table holds. Rows are the table's."""
        trials = table.trials
        problems = table.problems.with_columns(number=pl.Series(trials.problems), best_ns=pl.Series(trials.best_ns))
        times = np.where(table.ok, table.time_ns, np.inf)
        vectors = table.rows.frame.with_columns(number=pl.Series(table.problem), measured_ns=pl.Series(times))
        return cls.of(table.family, problems.filter(pl.Series(trials.solvable)), vectors)


@dataclass(frozen=True)
class TierChoices:
    """What one tier would run on each problem."""

    tier: Tier
    rows: Ints
    """The row of the chosen config; `NOT_TRIED` or `NOTHING`."""
    efficiency: Floats
    """Best time over the time of the choice: 0 if it failed or there is none, NaN if it was not tried."""
    ok: Flags
    """Whether the status of the answer is ok."""
    itself: Flags
    """Whether the tier answered itself, rather than the next one."""


def tiers_in(selector: Selector) -> list[Tier]:
    """The tiers that the model has: if one config is enough, there is no tree."""
    return [tier for tier in CHOOSING if tier is not Tier.TREE or selector.tiers.tree is not None]


def tier_choices(selector: Selector, tried: Tried, tier: Tier) -> TierChoices:
    """The choices of a tier, whatever the status: outside the trained range the fallback is what runs."""
    answers = selector.select_many(tried.problems, tier)
    configs = [answer.config if answer.config is not None else answer.fallback for answer in answers]
    rows = np.array([NOTHING if config is None else tried.row(place, config) for place, config in enumerate(configs)], np.int64)
    efficiency = np.where(rows == NOT_TRIED, np.nan, 0.0)
    efficiency[rows >= 0] = tried.best_ns[rows >= 0] / tried.time_ns[rows[rows >= 0]]
    ok = np.array([answer.ok for answer in answers], dtype=bool)
    itself = np.array([answer.ok and answer.tier is tier for answer in answers], dtype=bool)
    return TierChoices(tier, rows, efficiency, ok, itself)


# How many problems are timed, made-up ones in the trained ranges included: enough for a 99th percentile.
TIMED = 300


def tier_lines(evaluation: Evaluation, selector: Selector) -> list[dict[str, Any]]:
    """The figures of each tier of a model, on those problems of an evaluation that it answers itself.

    Problems that it refuses or hands on are counted, but are not part of its mean. A tier may answer with any config. If
    that config was not tried on the problem, its time is not known: such problems are left out of the line and counted. If
    they are many, as where each problem has its own sample of configs, the rest would say nothing: there is no figure.
    """
    family = selector.model.family
    failures = evaluation.failures.with_columns(measured_ns=pl.lit(float("inf")))
    columns = ["number", "measured_ns", *(f"config.{name}" for name in family.config.parameters)]
    vectors = pl.concat([frame.select(columns) for frame in (evaluation.rows, failures) if frame.height])
    tried = Tried.of(family, evaluation.problems, vectors)
    chosen = {tier: tier_choices(selector, tried, tier) for tier in tiers_in(selector)}
    itself: dict[Tier, Flags] = {tier: found.itself for tier, found in chosen.items()}
    got: dict[Tier, Floats] = {tier: np.where(found.itself, found.efficiency, np.nan) for tier, found in chosen.items()}
    # Microseconds per call, without answers from the memo.
    asked = list(dict.fromkeys(tried.problems))[:TIMED]
    asked += drawn_problems(selector, TIMED - len(asked))
    timed = {tier: selector.latencies_us(asked, tier) for tier in chosen}
    sizes = tier_bytes(selector.artefact)
    return [_line(tier, got, itself[tier], timed[tier], sizes[tier]) for tier in chosen]


def _line(tier: Tier, got: dict[Tier, Floats], itself: Flags, microseconds: Floats, size: int) -> dict[str, Any]:
    own, full = got[tier], got[Tier.FULL]
    known, both = np.isfinite(own), np.isfinite(own) & np.isfinite(full)
    efficiency, loses = None, None
    if known.any() and known.sum() >= TRIED_ENOUGH * itself.sum():
        efficiency = figure(float(own[known].mean()), resampled(own[known], lambda values: np.asarray(values.mean(axis=-1))))
        loses = 1.0 - float(own[both].mean() / full[both].mean()) if both.any() and full[both].mean() > 0 else None
    return {
        "tier": str(tier), "efficiency": efficiency, "n_problems": int(known.sum()), "not_tried": int((itself & ~known).sum()),
        "loses_to_full": loses, "answers_itself": float(itself.mean()), "p50_us": float(np.median(microseconds)),
        "p99_us": float(np.quantile(microseconds, 0.99)), "bytes": size,
    }  # fmt: skip


def drawn_problems(selector: Selector, count: int) -> list[Problem]:
    """Made-up problems in the trained ranges, none of them measured."""
    model = selector.model
    if model.out_of_fold is None or count <= 0:
        return []
    names = list(model.family.problem.parameters)
    columns = [f"problem.{name}" for name in names]
    drawn = draw_problems(model.family, model.out_of_fold.select(columns), model.manifest.hull, count, np.random.default_rng(0))
    return [Problem.trusted(model.family, dict(zip(names, row, strict=True))) for row in drawn.select(columns).iter_rows()]
