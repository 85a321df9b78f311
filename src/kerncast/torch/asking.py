"""The problem that a model is asked about, if it is one that the model knows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kerncast.core.op import Problem
from kerncast.models.model import Model

# What a model that never saw an epilogue is asked without: an epilogue costs all generated kernels the same, and the
# library's one more pass over the result.
EPILOGUE = ("bias", "activation")


class Abstain(Exception):
    """There is no answer; the message says why."""


def in_range(model: Model, values: Mapping[str, Any]) -> Problem:
    """The problem as the model's family has it; without its epilogue if the model has never seen one."""
    asked = Problem(model.family, {name: value for name, value in values.items() if name in model.family.problem.parameters})
    outside = model.envelope.coverage.outside(asked)
    if outside and all(item.parameter in EPILOGUE for item in outside):
        asked = Problem(model.family, {**asked.as_dict(), **dict.fromkeys(item.parameter for item in outside)})
    beyond = model.envelope.judge(asked).outside
    if beyond is not None:
        raise Abstain(f"{beyond.parameter}={beyond.value} is out of range: in training it was {beyond.rule}")
    return asked
