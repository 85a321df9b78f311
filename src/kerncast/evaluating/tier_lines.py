"""One line per tier: the efficiency of its own answers on unseen problems, their latency, and its size."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl

from kerncast.arrays import Flags, Floats
from kerncast.evaluating.evaluation import Evaluation
from kerncast.exporting.sizes import tier_bytes
from kerncast.models.answer import Tier
from kerncast.op import Config, Family, Problem
from kerncast.scoring.metrics import figure, resampled
from kerncast.selecting.selector import TIERS, Selector
from kerncast.selecting.tiers.problem_sampling import draw_problems

# How many problems are timed, made-up ones in the trained ranges included: enough for a 99th percentile.
TIMED = 300


def tier_lines(evaluation: Evaluation, selector: Selector) -> list[dict[str, Any]]:
    """The figures of each tier of a model, on those problems of an evaluation that it answers itself.

    Problems that it refuses or hands on are counted, but are not part of its mean. A tier may answer with any config. If
    that config was not tried on the problem, its time is not known: such problems are left out of the line and counted.
    """
    problems, tried = _problems(evaluation, selector), _tried(evaluation, selector.model.family)
    best = evaluation.problems["best_ns"].to_numpy()
    numbers = evaluation.problems["number"].to_list()
    got: dict[str, Floats] = {}
    itself: dict[str, Flags] = {}
    tiers = _tiers(selector)
    for tier in tiers:
        answers = selector.select_many(problems, tier)
        itself[tier] = np.array([answer.ok and answer.tier is tier for answer in answers])
        times = [tried[number].get(answer.config, np.nan) if own else np.nan
                 for number, answer, own in zip(numbers, answers, itself[tier], strict=True)]  # fmt: skip
        got[tier] = best / np.array(times)
    timed, sizes = _latencies(selector, problems), tier_bytes(selector.artefact)
    return [_line(tier, got, itself[tier], timed[tier], sizes[tier]) for tier in tiers]


def _tiers(selector: Selector) -> list[Tier]:
    """The tiers that the model has: if one config is enough, there is no tree."""
    return [tier for tier in TIERS if tier is not Tier.TREE or selector.tiers.tree is not None]


def _line(tier: str, got: dict[str, Floats], itself: Flags, microseconds: Floats, size: int) -> dict[str, Any]:
    own, full = got[tier], got[Tier.FULL]
    known, both = np.isfinite(own), np.isfinite(own) & np.isfinite(full)
    efficiency = None
    if known.any():
        efficiency = figure(float(own[known].mean()), resampled(own[known], lambda values: np.asarray(values.mean(axis=-1))))
    loses = 1.0 - float(own[both].mean() / full[both].mean()) if both.any() and full[both].mean() > 0 else None
    return {
        "tier": str(tier), "efficiency": efficiency, "n_problems": int(known.sum()), "not_tried": int((itself & ~known).sum()),
        "loses_to_full": loses, "answers_itself": float(itself.mean()), "p50_us": float(np.median(microseconds)),
        "p99_us": float(np.quantile(microseconds, 0.99)), "bytes": size,
    }  # fmt: skip


def _problems(evaluation: Evaluation, selector: Selector) -> list[Problem]:
    family = selector.model.family
    columns = [f"problem.{name}" for name in family.problem.parameters]
    names = list(family.problem.parameters)
    rows = evaluation.problems.select(columns).iter_rows()
    return [Problem.trusted(family, dict(zip(names, row, strict=True))) for row in rows]


def _tried(evaluation: Evaluation, family: Family) -> dict[int, dict[Config | None, float]]:
    """By problem: the time of every config that was tried on it; infinite where it failed."""
    columns = [f"config.{name}" for name in family.config.parameters]
    names = list(family.config.parameters)
    found: dict[int, dict[Config | None, float]] = {number: {} for number in evaluation.problems["number"].to_list()}
    failures = evaluation.failures.with_columns(measured_ns=pl.lit(float("inf"))) if evaluation.failures.height else None
    for frame in (evaluation.rows, failures):
        if frame is None:
            continue
        for number, time_ns, *values in frame.select("number", "measured_ns", *columns).iter_rows():
            if number in found:
                found[number][Config.trusted(family, dict(zip(names, values, strict=True)))] = time_ns
    return found


def _latencies(selector: Selector, problems: list[Problem]) -> dict[Tier, Floats]:
    """Microseconds per call, without answers from the memo."""
    asked = list(dict.fromkeys(problems))[:TIMED]
    asked += drawn_problems(selector, TIMED - len(asked))
    return {tier: selector.latencies_us(asked, tier) for tier in _tiers(selector)}


def drawn_problems(selector: Selector, count: int) -> list[Problem]:
    """Made-up problems in the trained ranges, none of them measured."""
    model = selector.model
    if model.out_of_fold is None or count <= 0:
        return []
    names = list(model.family.problem.parameters)
    columns = [f"problem.{name}" for name in names]
    drawn = draw_problems(model.family, model.out_of_fold.select(columns), model.manifest.hull, count, np.random.default_rng(0))
    return [Problem.trusted(model.family, dict(zip(names, row, strict=True))) for row in drawn.select(columns).iter_rows()]
