"""What the page asks about models: facts to begin with, the ranked configs of a problem, how the choice changes along axes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import polars as pl

from kerncast.answering.explain import NotExplained, drawn_problems, neighbours, reasons
from kerncast.app.serve.sources import check_device
from kerncast.core.arrays import Ints
from kerncast.core.device import Device
from kerncast.core.io.foreign import decode_json
from kerncast.core.io.terminal import known
from kerncast.core.op import Config, Problem
from kerncast.core.op.limits import limit_program
from kerncast.core.parameters import Bool, Categorical, Parameter
from kerncast.core.software import FRAMEWORK, VERSION, short_name
from kerncast.errors import InvalidValue, NotFound
from kerncast.models.answer import Answer
from kerncast.models.answerer import PythonAnswerer
from kerncast.models.card import card_line
from kerncast.models.limits.envelope import Limit
from kerncast.models.manifest import Fact, Range
from kerncast.models.model import Model

Json = dict[str, Any]
# Problems among which a first one is looked for, if the middle of all ranges is none.
TRIED = 64


def model_facts(model: Model) -> Json:
    """Everything about a model that does not depend on a problem."""
    manifest = model.manifest
    return {
        "op": manifest.op,
        "family": model.family.id,
        "kind": manifest.kind,
        "target": manifest.target,
        "card": card_line(model),
        "software": [software_words(text) for text in manifest.software],
        "rows": manifest.data.rows,
        "problems": manifest.data.problems,
        "candidates": model.candidates.height,
        "chooses": bool(model.family.config.parameters),
        "config": list(model.family.config.parameters),
        "devices": [{"name": record.name, "title": record.title} for record in manifest.devices],
        "parameters": [
            parameter_facts(name, parameter, manifest.hull.get(name), manifest.facts.get(name))
            for name, parameter in model.family.problem.parameters.items()
        ],
        "problem": first_problem(model),
        "keeps_measurements": model.out_of_fold is not None,
        "notes": model.notes if model.recorded and not model.slim else [],
    }


def parameter_facts(name: str, parameter: Parameter, seen: Range | None, fact: Fact | None) -> Json:
    """One parameter of a problem: what it may be, and what the model was trained with."""
    found: Json = {
        "name": name, "doc": parameter.doc, "default": parameter.default, "optional": parameter.nullable,
        "absent": parameter.usual_word, "trained": Limit(parameter, seen).words if seen is not None else "",
        "fixed": not is_axis(parameter, seen),
        "kind": "flag" if isinstance(parameter, Bool) else "label" if isinstance(parameter, Categorical) else "size",
    }  # fmt: skip
    if found["kind"] == "size":
        low, high = parameter.number(0), parameter.number(parameter.size - 1)
        found |= {"low": low, "high": high, "step": fact.step if fact is not None and fact.rest == 0 else 1}
        if seen is not None and seen.low is not None and seen.high is not None:
            found |= {"trained_low": seen.low, "trained_high": seen.high}
        return found
    labels = list(seen.labels) if seen is not None and seen.labels else [parameter.value(i) for i in range(parameter.size)]
    return found | {"labels": labels}


def software_words(text: str) -> str:
    """What rows were measured with, for people: a list of names and versions is stored as JSON."""
    try:
        found = decode_json(text.encode(), dict[str, str])
    except msgspec.DecodeError:
        return short_name(text)
    if set(found) == {FRAMEWORK, VERSION}:
        return short_name(text)
    return ", ".join(f"{name} {value}" for name, value in found.items())


def is_axis(parameter: Parameter, seen: Range | None) -> bool:
    """Whether there is more than one trained value to go along."""
    if seen is None or Limit(parameter, seen).only_usual:
        return False
    return len(seen.labels) > 1 or (seen.low is not None and seen.high is not None and seen.low < seen.high)


def first_problem(model: Model) -> Json:
    """A problem from the middle of what the model was trained with: a measured one if it keeps them."""
    columns = [f"problem.{name}" for name in model.family.problem.parameters]
    if model.out_of_fold is not None:
        measured = model.out_of_fold.select(columns).unique(maintain_order=True)
        return _plain(measured.row(_middle(measured), named=True))
    middle = {
        name: _middle_value(parameter, model.manifest.hull.get(name), model.manifest.facts.get(name))
        for name, parameter in model.family.problem.parameters.items()
    }
    drawn = drawn_problems(model, TRIED, np.random.default_rng(0)).iter_rows(named=True)
    for values in (known(middle), *map(_plain, drawn)):
        try:
            return known(model.problem(values))
        except InvalidValue:
            continue
    return known(middle)


def _plain(row: Mapping[str, Any]) -> Json:
    return {name.removeprefix("problem."): value for name, value in row.items() if value is not None}


def _middle(problems: pl.DataFrame) -> int:
    """The place of the problem whose sizes, multiplied, are the median."""
    sizes = [name for name, kind in problems.schema.items() if kind.is_integer()]
    if not sizes:
        return 0
    product = problems.select(pl.sum_horizontal(pl.col(name).clip(1).log().fill_null(0.0) for name in sizes)).to_series()
    return int(product.arg_sort()[problems.height // 2])


def _middle_value(parameter: Parameter, seen: Range | None, fact: Fact | None) -> Any:
    if seen is not None and seen.labels:
        return parameter.default if parameter.default in seen.labels else seen.labels[0]
    if seen is None or seen.low is None or seen.high is None:
        return parameter.default
    # A power of two near the geometric mean: the commonest kind of size.
    middle = 2 ** round(float(np.log2(max(seen.low, 1)) + np.log2(max(seen.high, 1))) / 2)
    if fact is not None:
        middle = max(fact.step, middle // fact.step * fact.step) + fact.rest
    return parameter.value(parameter.nearest(min(max(middle, seen.low), seen.high)))


def device_of(model: Model, name: str | None) -> Device | str | None:
    """The device that is meant: by name, never by a file; a model of several is asked about its first unless one is named."""
    if name is None:
        return model.device.name if len(model.manifest.devices) > 1 else None
    check_device(name)
    return name


MOST_RANKED = 100
# Features that are listed; the others are given as one factor.
LISTED = 10
NEAR = 6


def answer_facts(answer: Answer) -> Json:
    """An answer as the page shows it: what `as_json` says, without the problem, with every time."""
    found = {name: value for name, value in answer.as_json().items() if name not in ("problem", "family", "op")}
    times = {"time_ns": answer.time_ns, "lower_ns": answer.lower_ns, "upper_ns": answer.upper_ns}
    config = None if answer.config is None else known(answer.config)
    return {**found, **times, "config": config, "label": answer.label}


def ranked(model: Model, problem: Mapping[str, Any], device: str | None = None, k: int = 10) -> Json:
    """The k best configs for a problem, with the roofline that they are judged by."""
    if not 1 <= k <= MOST_RANKED:
        raise InvalidValue(f"`k` must be from 1 to {MOST_RANKED}, got {k}")
    asked = model.answerer(device_of(model, device))
    answers = asked.ranked(problem, k)
    whole = answers[0].problem
    return {
        "device": asked.device.name,
        "problem": known(whole),
        "answers": [answer_facts(answer) for answer in answers],
        "roofline": roofline(asked, whole),
    }


def roofline(asked: PythonAnswerer, problem: Problem) -> Json | None:
    """The work of a problem and what the device allows; None: the work of the op, or what the device can do, is not known."""
    family, device = asked.family, asked.device
    values, dtype = family.problem.qualified(problem.as_dict()), problem.get("dtype")
    known = family.work_program.scalar(values)
    if not known.get("bytes"):
        return None
    limits = limit_program(family, device, None if dtype is None else [str(dtype)]).scalar(values)
    if not limits.get("limit_ns"):
        return None
    flops, moved, cores = float(known.get("flops", 0.0)), float(known["bytes"]), float(limits.get("peak_share", 1.0))
    peak = None if dtype is None else device.peak_of(str(dtype))
    return {
        "floor_ns": float(limits["limit_ns"]), "flops": flops, "bytes": moved, "intensity": flops / moved, "dtype": dtype,
        "peak_gflops": None if peak is None else 1e3 * peak * cores, "cores_share": cores,
        "bandwidth_gb_s": device.numbers.get("memory_bandwidth_gb_s"),
    }  # fmt: skip


def why(model: Model, problem: Mapping[str, Any], config: Mapping[str, Any] | None = None, device: str | None = None) -> Json:
    """The predicted time as a product: the work's own time, the mean miss, a factor for each feature."""
    asked = model.answerer(device_of(model, device))
    whole, chosen = asked.problem(problem), asked.config(config or {})
    try:
        found = reasons(asked.model, asked.vectors([whole], [chosen]), asked.device)
    except NotExplained as error:
        return {"available": False, "reason": str(error)}
    # A label is a number to the model, and says nothing to a reader.
    labels = {name: value for name, value in {**whole.as_dict(), **chosen.as_dict()}.items() if isinstance(value, str)}
    listed, others = found.contributions[:LISTED], found.contributions[LISTED:]
    return {
        "available": True,
        "time_ns": found.time_ns,
        "expected_ns": found.expected_ns,
        "mean": found.mean,
        "contributions": [{**vars(item), "label": labels.get(item.feature)} for item in listed],
        "others": {"features": len(others), "factor": math.exp(sum(math.log(item.factor) for item in others))},
    }


def near(model: Model, problem: Mapping[str, Any], config: Mapping[str, Any] | None = None, device: str | None = None) -> Json:
    """The measured problems that are most like this one, each with its fastest config and what this config took there."""
    asked = model.answerer(device_of(model, device))
    if asked.model.out_of_fold is None:
        kept = "a slim model keeps none" if model.slim else "it records none"
        return {"available": False, "reason": f"the model's directory has no measurements ({kept}): open the dataset instead"}
    whole, chosen = asked.problem(problem), asked.config(config or {})
    found = [vars(item) for item in neighbours(asked.model, whole, chosen, NEAR)]
    given = known(whole)
    return {"available": True, "problems": found, "measured_here": any(dict(item["problem"]) == given for item in found)}


def compared_devices(models: Iterable[tuple[str, Model]], problem: Mapping[str, Any]) -> Json:
    """The best config and its time on every device of some models of one family."""
    asked = [
        (name, model, record.name if len(model.manifest.devices) > 1 else None)
        for name, model in models
        for record in model.manifest.devices
    ]
    found = []
    for name, model, device in asked:
        shown = device or model.device.name
        try:
            answerer = model.answerer(device)
            answer = answerer.one(problem, None)
            limit = roofline(answerer, answer.problem)
            facts = {"device": shown, "title": answerer.device.title, "model": name, **answer_facts(answer)}
            found.append(facts | {"floor_ns": None if limit is None else limit["floor_ns"]})
        except (InvalidValue, NotFound) as error:
            found.append({"device": shown, "title": shown, "model": name, "status": "bad_input", "reason": str(error)})
    return {"devices": found}


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
    if not 2 <= count <= MOST_VALUES:
        raise InvalidValue(f"`count` must be from 2 to {MOST_VALUES}, got {count}")
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
        "configs": [known(config) for config in winners],
        "times": lines,
        "floor_ns": [None if limit is None else limit["floor_ns"] for limit in limits],
    }


def winners_map(model: Model, problem: Mapping[str, Any], x: str, y: str, device: str | None = None, count: int = 16) -> Json:
    """The best config for each pair of values of two parameters."""
    if not 2 <= count <= MOST_CELLS_A_SIDE:
        raise InvalidValue(f"`count` must be from 2 to {MOST_CELLS_A_SIDE}, got {count}")
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
        "configs": [known(config) for config in winners],
        "candidates": total,
        "asked": total if among is None else len(among),
    }


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
