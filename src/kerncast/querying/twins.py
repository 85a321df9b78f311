"""Element types that stand for each other: tables of fp16 answer for bf16, and the other way round.

Both have two bytes, and devices that have both multiply them at one rate. Libraries are often measured with one of them only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kerncast import dtypes
from kerncast.device import Device
from kerncast.querying.prediction import Prediction

PARAMETERS = ("dtype", "kv_dtype")


def twins_of(problem: Mapping[str, Any], device: Device | None) -> dict[str, str]:
    """By parameter: the type that may stand for the problem's; none if the device has another rate for it."""
    asked = {name: str(problem[name]) for name in PARAMETERS if problem.get(name) in dtypes.TWINS}
    twins = {name: dtypes.TWINS[value] for name, value in asked.items()}
    peaks = {} if device is None else device.peak_tflops
    apart = [name for name in asked if peaks.get(asked[name], 0.0) != peaks.get(twins[name], peaks.get(asked[name], 0.0))]
    return {} if apart else twins


def with_rates_of_twins(device: Device) -> Device:
    """The device, with the rate of one type for its twin where it has one of them only: V100 has no bf16."""
    peaks = device.peak_tflops
    added = {twin: peaks[name] for name, twin in dtypes.TWINS.items() if name in peaks and twin not in peaks}
    return replace(device, peak_tflops={**peaks, **added}) if added else device


def as_asked(answer: Prediction, taken: Mapping[str, str]) -> Prediction:
    """An answer about the twins, as one about the types that were asked for; it says so."""
    if not taken:
        return answer
    back = {name: dtypes.TWINS[twin] for name, twin in taken.items()}
    why = "; ".join(
        f"{name}={back[name]} is answered as {twin}, which has the same size and rate: no model saw {back[name]} here"
        for name, twin in taken.items()
    )
    reason = "; ".join(filter(None, [why, answer.reason]))
    return replace(answer, problem={**answer.problem, **back}, taken=dict(taken), reason=reason)
