"""A golden vector: what an exported model must answer."""

from __future__ import annotations

from dataclasses import dataclass

from kerncast.core.arrays import Floats


@dataclass(frozen=True)
class Golden:
    """One problem and the model's best candidate for it: its features, score and time, as Python computes them."""

    problem: list[int]
    candidate: int
    config: list[int]
    features: Floats
    score: float
    time_ns: float
