"""How the choice changes: along one parameter of a problem, and over two of them as a map of winners."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from kerncast.app.serve.explorer.describing import Json, device_of, is_axis
from kerncast.app.serve.explorer.ranking import roofline
from kerncast.core.arrays import Ints
from kerncast.core.op import Config
from kerncast.errors import InvalidValue, NotFound
from kerncast.models.answer import Answer
from kerncast.models.answerer import PythonAnswerer
from kerncast.models.model import Model

# Values along one axis, and configs that are drawn along it.
MOST_VALUES, LINES = 64, 6
MOST_CELLS_A_SIDE = 32
# Vectors that one map asks the model about: seconds of work. A model of more configs is asked about its best ones.
MOST_VECTORS = 60_000


def axis_values(model: Model, name: str, count: int) -> list[Any]:
    """Up to `count` values of a parameter over its trained range, evenly by their logarithm; of labels all of them."""
    parameters = model.family.problem.parameters
    if name not in parameters:
        raise NotFound.named(f"parameter of {model.family.op.name}", name, parameters)
    parameter, seen = parameters[name], model.manifest.hull.get(name)
    if seen is None or not is_axis(parameter, seen):
        raise InvalidValue(f"the model was trained with one value of {name} only, so there is nothing to go along")
    if seen.labels:
        return list(seen.labels)
    assert seen.low is not None
    assert seen.high is not None
    fact = model.manifest.facts.get(name)
    found: dict[int, None] = {}
    for size in np.exp(np.linspace(math.log(max(seen.low, 1)), math.log(max(seen.high, 1)), count)):
        # Eighths of a power of two: sizes that people use, and no finer than the steps between them.
        unit = 2 ** max(0, math.floor(math.log2(float(size))) - 3)
        whole = round(float(size) / unit) * unit
        if fact is not None:  # sizes unlike all measured ones have no time to be sure of
            whole = (whole - fact.rest) // fact.step * fact.step + fact.rest
            whole = whole if whole >= seen.low else whole + fact.step
        value = int(parameter.number(parameter.nearest(min(max(whole, seen.low), seen.high))))
        found[value] = None
    return list(found)


def along(model: Model, problem: Mapping[str, Any], axis: str, device: str | None = None, count: int = 25) -> Json:
    """The best config and its time for values of one parameter, and how the configs that win somewhere do elsewhere."""
    _check_count("count", count, MOST_VALUES)
    asked = model.answerer(device_of(model, device))
    values = axis_values(asked.model, axis, count)
    problems = [{**problem, axis: value} for value in values]
    bests, reasons = _answers(asked, problems, _candidates(asked, len(problems)))
    winners = _by_wins(bests)
    lines = []
    for config in winners[:LINES] if asked.family.config.parameters else []:
        answers, _ = _answers(asked, problems, None, config)
        lines.append([None if answer is None else answer.time_ns for answer in answers])
    limits = [None if answer is None else roofline(asked, answer.problem) for answer in bests]
    return {
        "axis": axis,
        "values": values,
        "best": [_cell(answer, why, winners) for answer, why in zip(bests, reasons, strict=True)],
        "configs": [_config(config) for config in winners],
        "times": lines,
        "floor_ns": [None if limit is None else limit["floor_ns"] for limit in limits],
    }


def winners_map(model: Model, problem: Mapping[str, Any], x: str, y: str, device: str | None = None, count: int = 16) -> Json:
    """The best config for each pair of values of two parameters."""
    _check_count("count", count, MOST_CELLS_A_SIDE)
    if x == y:
        raise InvalidValue(f"a map has two different axes, got {x} twice")
    asked = model.answerer(device_of(model, device))
    across, up = axis_values(asked.model, x, count), axis_values(asked.model, y, count)
    problems = [{**problem, x: one, y: other} for other in up for one in across]
    among = _candidates(asked, len(problems))
    bests, reasons = _answers(asked, problems, among)
    winners = _by_wins(bests)
    limits = [None if answer is None else roofline(asked, answer.problem) for answer in bests]
    total = asked.model.candidates.height
    return {
        "x": {"name": x, "values": across},
        "y": {"name": y, "values": up},
        "cells": [
            {**_cell(answer, why, winners), "floor_ns": None if limit is None else limit["floor_ns"]}
            for answer, why, limit in zip(bests, reasons, limits, strict=True)
        ],
        "configs": [_config(config) for config in winners],
        "candidates": total,
        "asked": total if among is None else len(among),
    }


def _check_count(name: str, count: int, most: int) -> None:
    if not 2 <= count <= most:
        raise InvalidValue(f"`{name}` must be from 2 to {most}, got {count}")


def _candidates(asked: PythonAnswerer, problems: int) -> Ints | None:
    """The candidates to ask about so many problems: all (None), or the best of the portfolio."""
    there, most = asked.model.candidates, max(1, MOST_VECTORS // max(problems, 1))
    if there.height <= most or not asked.family.config.parameters:
        return None
    place = there["portfolio_place"].fill_null(np.iinfo(np.int64).max).to_numpy()
    return np.sort(np.lexsort((np.arange(there.height), -there["share"].fill_null(0.0).to_numpy(), place))[:most])


def _answers(
    asked: PythonAnswerer, problems: Sequence[Mapping[str, Any]], among: Ints | None, config: Config | None = None
) -> tuple[list[Answer | None], list[str]]:
    """The answers to problems that the op allows, None and the reason for others."""
    valid, reasons = [], []
    for problem in problems:
        try:
            valid.append(asked.problem(problem))
            reasons.append("")
        except InvalidValue as error:
            reasons.append(str(error))
    if among is not None:
        found = asked.bests(valid, among)
    else:
        found = asked.many(valid, None if config is None else [config] * len(valid))
    answers = iter(found)
    return [None if why else next(answers) for why in reasons], reasons


def _by_wins(answers: Sequence[Answer | None]) -> list[Config]:
    """The configs that are the best somewhere, those that win most often first."""
    wins: dict[Config, int] = {}
    for answer in answers:
        if answer is not None and answer.config is not None:
            wins[answer.config] = wins.get(answer.config, 0) + 1
    return sorted(wins, key=lambda config: -wins[config])


def _cell(answer: Answer | None, why: str, winners: Sequence[Config]) -> Json:
    if answer is None:
        return {"status": "bad_input", "reason": why, "time_ns": None, "winner": None}
    place = {config: number for number, config in enumerate(winners)}
    found: Json = {
        "status": str(answer.status), "time_ns": answer.time_ns, "lower_ns": answer.lower_ns, "upper_ns": answer.upper_ns,
        "winner": None if answer.config is None else place[answer.config],
    }  # fmt: skip
    return found | ({"reason": answer.reason} if answer.reason else {})


def _config(config: Config) -> Json:
    return {name: value for name, value in config.items() if value is not None}
