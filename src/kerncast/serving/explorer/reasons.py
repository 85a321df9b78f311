"""Why this time: the factors that make it up, and what was measured near here."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from kerncast.models.model import Model
from kerncast.selecting.contributing import NotExplained, reasons
from kerncast.selecting.explain import neighbours
from kerncast.serving.explorer.describing import Json, device_of
from kerncast.serving.explorer.ranking import said

# Features that are listed; the others are given as one factor.
LISTED = 10
NEAR = 6


def why(model: Model, problem: Mapping[str, Any], config: Mapping[str, Any] | None = None, device: str | None = None) -> Json:
    """The predicted time as a product: the work's own time, the mean miss, a factor for each feature."""
    asked = model.answerer(device_of(model, device))
    whole, chosen = asked.problem(problem), asked.config(config or {})
    try:
        found = reasons(asked.model, asked.vectors([whole], [chosen]), asked.device)
    except NotExplained as error:
        return {"available": False, "reason": said(error, model)}
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
