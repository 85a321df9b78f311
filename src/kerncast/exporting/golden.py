"""Golden vectors: problems with the features, the score and the choice that Python computes for them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from kerncast.arrays import Floats
from kerncast.compiling.encoding import MISSING, encode
from kerncast.compiling.interpreter import Interpreter
from kerncast.compiling.lower import Artefact
from kerncast.errors import InvalidValue
from kerncast.models.tier import Tier

COUNT = 24
# LightGBM takes a tenth of a second for thousands of configs, so large families get fewer problems.
MOST_ROWS = 50_000


@dataclass(frozen=True)
class Decision:
    """One problem and what the tree alone chooses for it; -1: it is unsure."""

    problem: list[int]
    candidate: int


@dataclass(frozen=True)
class Golden:
    """One problem and the candidate that the widest tier chooses: its features and time, and the best score of the tier."""

    problem: list[int]
    candidate: int
    config: list[int]
    features: Floats
    score: float
    time_ns: float


def golden_vectors(artefact: Artefact, count: int = COUNT, seed: int = 0) -> list[Golden]:
    """Some of the problems that the model was trained on, scored by Python over the widest exported tier."""
    model = artefact.model
    interpreter, rows = Interpreter(artefact), artefact.members("full" if Tier.FULL in artefact.include else "portfolio")
    count = max(4, min(count, MOST_ROWS // len(rows)))
    found = []
    for values in _trained(artefact, count, seed):
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
    return found


def golden_decisions(artefact: Artefact, count: int = COUNT, seed: int = 0) -> list[Decision]:
    """The same for a tree that is alone, which has neither scores nor times."""
    interpreter, space = Interpreter(artefact), artefact.model.family.problem
    found = []
    for values in _trained(artefact, count, seed):
        chosen = interpreter.tree_choice(values)
        found.append(Decision(encode(space, values), -1 if chosen is None else chosen))
    return found


def _trained(artefact: Artefact, count: int, seed: int) -> Iterator[dict[str, Any]]:
    """Some of the problems that the model was trained on, without those that a pin decides."""
    model, frame, decided = artefact.model, artefact.model.out_of_fold, artefact.decided
    if frame is None:
        raise InvalidValue(f"{model.path} does not say what it was trained on: train it again with `kerncast train`")
    columns = [f"problem.{name}" for name in model.family.problem.parameters]
    problems = frame.select(columns).unique(maintain_order=True)
    picked = np.sort(np.random.default_rng(seed).permutation(problems.height)[:count])
    for row in problems[picked].iter_rows(named=True):
        values = {name.removeprefix("problem."): value for name, value in row.items()}
        if decided is None or decided.pin_for(values) < 0:
            yield values
