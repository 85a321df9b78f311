"""Golden vectors of an artefact, and how many bytes each of its tiers needs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from kerncast.core.op import Problem
from kerncast.data import schema
from kerncast.errors import InvalidValue
from kerncast.library.problems import named_sets, problem_set
from kerncast.library.problems.axes import required
from kerncast.models.answer import Tier
from kerncast.models.model import Model
from kerncast.native import MISSING, encode
from kerncast.native.blob.sections import Golden
from kerncast.native.c_forest import ForestPlan
from kerncast.native.interpreter import Interpreter
from kerncast.native.lower import Artefact

COUNT = 24
# LightGBM takes a tenth of a second for thousands of configs, so large families get fewer problems.
MOST_ROWS = 50_000
# The set of problems for models of unknown training, and how many of them are tried for each vector that is wanted.
OWN_SET = "wide"
TRIES = 10


@dataclass(frozen=True)
class GoldenDecision:
    """One problem and what the tree alone chooses for it; -1: it is unsure."""

    problem: list[int]
    candidate: int


def golden_vectors(artefact: Artefact, count: int = COUNT, seed: int = 0) -> list[Golden]:
    """Some of the problems that the model was trained on, scored by Python over the widest exported tier.

    A model that does not say what it was trained on gets some of the op's own set; those that no config can run are left out.
    """
    model = artefact.model
    interpreter, rows = Interpreter(artefact), artefact.members(artefact.include[-1])
    count = max(4, min(count, MOST_ROWS // len(rows)))
    tried = count if model.out_of_fold is not None else TRIES * count
    found: list[Golden] = []
    for values in _tried(artefact, tried, seed):
        if len(found) == count:
            break
        scores, times = interpreter.scores(values, rows)
        if not np.isfinite(scores).any():
            continue
        place = int(np.lexsort((rows, scores))[0])
        if Tier.FULL not in artefact.include:  # a small forest may choose, and the model gives scores and times
            chosen = interpreter.portfolio_choice(values)
            if chosen is None:
                continue
            place, scores = int(np.flatnonzero(rows == chosen)[0]), np.full(len(rows), scores.min())
            times[place] = interpreter.time_of(values, chosen)
        best = int(rows[place])
        described = model.describe(interpreter.vectors(values, np.array([best])))
        config = {name: model.candidates[f"config.{name}"][best] for name in model.family.config.parameters}
        numbers = encode(model.family.config, config) or [MISSING]
        found.append(
            Golden(
                encode(model.family.problem, values),
                best,
                numbers,
                described.features[0],
                float(scores[place]),
                float(times[place]),
            )
        )
    if not found and model.out_of_fold is None:
        raise InvalidValue(
            f"none of the {artefact.candidates:,} configs can run any of the problems tried of {model.family.op.name}, so "
            "the export could not test itself: give other configs"
        )
    return found


def golden_decisions(artefact: Artefact, count: int = COUNT, seed: int = 0) -> list[GoldenDecision]:
    """The same for a tree that is alone, which has neither scores nor times."""
    interpreter, space = Interpreter(artefact), artefact.model.family.problem
    found = []
    for values in _tried(artefact, count, seed):
        chosen = interpreter.tree_choice(values)
        found.append(GoldenDecision(encode(space, values), -1 if chosen is None else chosen))
    return found


def _tried(artefact: Artefact, count: int, seed: int) -> Iterator[dict[str, Any]]:
    """Some of the problems to test with, without those that a pin decides."""
    model, decided = artefact.model, artefact.decided
    columns = [f"problem.{name}" for name in model.family.problem.parameters]
    problems = _problems(model).select(columns).unique(maintain_order=True)
    picked = np.sort(np.random.default_rng(seed).permutation(problems.height)[:count])
    for row in problems[picked].iter_rows(named=True):
        values = {name.removeprefix("problem."): value for name, value in row.items()}
        if decided is None or decided.pin_for(values) < 0:
            yield values


def _drawn(model: Model, count: int = 512) -> pl.DataFrame:
    """Random problems in the range that a model was trained on."""
    rng, hull, facts = np.random.default_rng(0), model.manifest.hull, model.manifest.facts
    rows = []
    for _ in range(count):
        values: dict[str, Any] = {}
        for name, seen in hull.items():
            if seen.labels:
                values[name] = seen.labels[int(rng.integers(len(seen.labels)))]
            elif seen.low is not None and seen.high is not None:
                size = int(np.exp(rng.uniform(np.log(seen.low + 1), np.log(seen.high + 1)))) - 1
                fact = facts.get(name)
                size -= 0 if fact is None else (size - fact.rest) % fact.step
                values[name] = min(max(size, seen.low), seen.high)
        with contextlib.suppress(InvalidValue):  # two sizes that do not go together
            rows.append(Problem(model.family, values).as_dict())
    kinds = schema.schema_of(model.family)
    return pl.DataFrame(
        {f"problem.{name}": pl.Series([row[name] for row in rows], dtype=kinds[f"problem.{name}"])
         for name in model.family.problem.parameters}
    )  # fmt: skip


def _problems(model: Model) -> pl.DataFrame:
    """Problems to test with, as stored in a dataset."""
    measured = model.own.out_of_fold if model.given is not None and model.own is not None else model.out_of_fold
    if measured is not None:
        return measured
    if model.slim:
        return _drawn(model)
    space, hull = model.family.problem, model.manifest.hull
    if OWN_SET not in named_sets(model.family.op):
        raise InvalidValue(f"{model.path} does not say what it was trained on: train it again with `kerncast train`")
    labels = {name: hull[name].labels if name in hull else (rule.value(0),) for name, rule in space.parameters.items()
              if name in required(space) and rule.codes}  # fmt: skip
    return problem_set(model.family, [OWN_SET], labels).rename(lambda name: f"problem.{name}")


NODE, TREE_NODE, TREE_LEAF, NUMBER = 6, 20, 4, 8


def tier_bytes(artefact: Artefact) -> dict[str, int]:
    """Bytes of tree, portfolio and full; tables that several share are counted in each."""
    parameters = len(artefact.model.family.config.parameters)
    plan = None if artefact.forests is None else ForestPlan(artefact, artefact.forests, "model")
    model = NUMBER * sum(artefact.model.manifest.size.values()) if plan is None else _forest_bytes(plan)
    tree = artefact.tiers.tree
    small = artefact.small_forest
    chosen = 2 * parameters * len(artefact.tiers.portfolio)
    portfolio = chosen + model + (_forest_bytes(ForestPlan(artefact, small, "small")) if small is not None else 0)
    deciding = 0
    if tree is not None:  # nodes, leaves and their lists; and, if some configs are compared, the trees that do it
        trees = artefact.tiers.comparing if (tree.compares > 1).any() else ()
        deciding = TREE_NODE * len(tree.tree.feature) + TREE_LEAF * len(tree.tree.value) + tree.lists.size
        deciding += sum((NODE + NUMBER) * len(each.feature) + NUMBER * len(each.value) for each in trees)
    return {
        Tier.TREE: chosen + deciding,
        Tier.PORTFOLIO: portfolio,
        Tier.FULL: model + 2 * parameters * artefact.candidates,
    }


def _forest_bytes(plan: ForestPlan) -> int:
    trees = [tree for bags in plan.forests.trees.values() for bag in bags for tree in bag]
    nodes, leaves = sum(len(tree.feature) for tree in trees), sum(len(tree.value) for tree in trees)
    return NODE * nodes + NUMBER * (leaves + int(np.sum([len(item) for item in plan.forests.thresholds.values()])))
