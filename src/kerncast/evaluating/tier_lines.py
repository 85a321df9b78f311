"""One line per tier: the efficiency of its own answers on unseen problems, their latency, and its size."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl

from kerncast.answering.exporters.golden import tier_bytes
from kerncast.answering.selector import Selector
from kerncast.core.arrays import Flags, Floats
from kerncast.core.op import Problem
from kerncast.evaluating.evaluation import Evaluation
from kerncast.evaluating.tier_choices import Tried, tier_choices, tiers_in
from kerncast.learning.scoring.metrics import figure, resampled
from kerncast.learning.tables.assess import TRIED_ENOUGH
from kerncast.models.answer import Tier
from kerncast.native.tiers.teaching import draw_problems

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
    timed, sizes = _latencies(selector, list(tried.problems)), tier_bytes(selector.artefact)
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


def _latencies(selector: Selector, problems: list[Problem]) -> dict[Tier, Floats]:
    """Microseconds per call, without answers from the memo."""
    asked = list(dict.fromkeys(problems))[:TIMED]
    asked += drawn_problems(selector, TIMED - len(asked))
    return {tier: selector.latencies_us(asked, tier) for tier in tiers_in(selector)}


def drawn_problems(selector: Selector, count: int) -> list[Problem]:
    """Made-up problems in the trained ranges, none of them measured."""
    model = selector.model
    if model.out_of_fold is None or count <= 0:
        return []
    names = list(model.family.problem.parameters)
    columns = [f"problem.{name}" for name in names]
    drawn = draw_problems(model.family, model.out_of_fold.select(columns), model.manifest.hull, count, np.random.default_rng(0))
    return [Problem.trusted(model.family, dict(zip(names, row, strict=True))) for row in drawn.select(columns).iter_rows()]
