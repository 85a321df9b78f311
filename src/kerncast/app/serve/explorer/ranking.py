"""One problem: the ranked configs and the roofline, why the best takes so long, what was measured near here, other devices."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from kerncast.answering.explain import NotExplained, neighbours, reasons
from kerncast.app.serve.explorer.describing import Json, device_of
from kerncast.core.op import Problem
from kerncast.core.op.limits import limit_program
from kerncast.errors import InvalidValue, NotFound
from kerncast.models.answer import Answer
from kerncast.models.answerer import PythonAnswerer
from kerncast.models.model import Model

MOST_RANKED = 100
# Features that are listed; the others are given as one factor.
LISTED = 10
NEAR = 6


def answer_facts(answer: Answer) -> Json:
    """An answer as the page shows it: what `as_json` says, without the problem, with every time."""
    found = {name: value for name, value in answer.as_json().items() if name not in ("problem", "family", "op")}
    times = {"time_ns": answer.time_ns, "lower_ns": answer.lower_ns, "upper_ns": answer.upper_ns}
    config = None if answer.config is None else {name: value for name, value in answer.config.items() if value is not None}
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
        "problem": {name: value for name, value in whole.items() if value is not None},
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
    exact = next((item for item in found if _same(item["problem"], whole)), None)
    return {"available": True, "problems": found, "measured_here": exact is not None}


def _same(values: Mapping[str, Any], problem: Mapping[str, Any]) -> bool:
    return dict(values) == {name: value for name, value in problem.items() if value is not None}


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
