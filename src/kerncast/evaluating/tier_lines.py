"""One line per tier: what its own answers get on unseen problems, how long they take, and how large it is."""

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

# So many problems are timed, made-up ones in the trained ranges included, that a 99th percentile says something.
TIMED = 300


def tier_lines(evaluation: Evaluation, selector: Selector) -> list[dict[str, Any]]:
    """What each tier of a model gets on those problems of an evaluation that it answers itself.

    A problem that it refuses or hands on is not its own: how many are is told, and they are no part of its mean. A tier is
    free to answer with any config. Where that was not tried on the problem nobody knows what it gets: such problems are
    left out of its line and counted.
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
    """Those that the model has: where one config is enough there is no tree."""
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
    """By problem: the time of every config that was tried there; infinite where it failed."""
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
    """Microseconds of calls that no memo answers."""
    asked = list(dict.fromkeys(problems))[:TIMED]
    asked += drawn_problems(selector, TIMED - len(asked))
    return {tier: selector.latencies_us(asked, tier) for tier in _tiers(selector)}


def drawn_problems(selector: Selector, count: int) -> list[Problem]:
    """Problems that nobody measured, in the trained ranges."""
    model = selector.model
    if model.out_of_fold is None or count <= 0:
        return []
    names = list(model.family.problem.parameters)
    columns = [f"problem.{name}" for name in names]
    drawn = draw_problems(model.family, model.out_of_fold.select(columns), model.manifest.hull, count, np.random.default_rng(0))
    return [Problem.trusted(model.family, dict(zip(names, row, strict=True))) for row in drawn.select(columns).iter_rows()]
