"""Golden vectors: problems with the features, the score and the choice that Python computes for them."""

from __future__ import annotations

import numpy as np

from kerncast.compiling.encoding import MISSING, encode
from kerncast.compiling.golden import Golden
from kerncast.compiling.interpreter import Interpreter
from kerncast.compiling.lower import Artefact
from kerncast.errors import InvalidValue
from kerncast.op import Problem

COUNT = 24
# LightGBM takes a tenth of a second for thousands of configs, so large families get fewer problems.
MOST_ROWS = 50_000


def golden_vectors(artefact: Artefact, count: int = COUNT, seed: int = 0) -> list[Golden]:
    """Some of the problems that the model was trained on, scored by Python over the widest exported tier."""
    model, frame = artefact.model, artefact.model.out_of_fold
    if frame is None:
        raise InvalidValue(f"{model.path} does not say what it was trained on: train it again with `kerncast train`")
    columns = [f"problem.{name}" for name in model.family.problem.parameters]
    problems = frame.select(columns).unique(maintain_order=True)
    interpreter, rows = Interpreter(artefact), artefact.members("full" if "full" in artefact.include else "portfolio")
    count = max(4, min(count, MOST_ROWS // len(rows)))
    picked = np.sort(np.random.default_rng(seed).permutation(problems.height)[:count])
    found, decided = [], artefact.decided
    for row in problems[picked].iter_rows(named=True):
        values = {name.removeprefix("problem."): value for name, value in row.items()}
        problem = Problem.trusted(model.family, values)
        if decided is not None and decided.pin_for(values) >= 0:
            continue  # a pin decides there, not the model
        scores, times = interpreter.scores(problem.as_dict(), rows)
        if not np.isfinite(scores).any():
            continue
        place = int(np.lexsort((rows, scores))[0])
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
