"""What a learner predicts, and the conversion back to nanoseconds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kerncast.core import libm
from kerncast.core.arrays import Floats
from kerncast.errors import InvalidValue
from kerncast.learning.tables.feature_rows import Rows

NAMES = ("relative", "latency", "tflops", "bandwidth")
# A rate is clipped to at least this before it becomes a time: a model may predict zero or less.
LEAST_RATE = 1e-6


@dataclass(frozen=True)
class Target:
    """`relative`: time over the softened roofline; `latency`: time; `tflops`, `bandwidth`: work over time.

    In log space by default: log of the times, log1p of the rates (CK Tile's classic recipe).
    """

    name: str
    log: bool = True

    def __post_init__(self) -> None:
        if self.name not in NAMES:
            raise InvalidValue(f"a target is one of {', '.join(NAMES)}, got '{self.name}'")

    @property
    def higher_is_faster(self) -> bool:
        return self.name in ("tflops", "bandwidth")

    def _base(self, rows: Rows) -> Floats:
        """The number that the time is divided by, or that is divided by the time."""
        base = {"relative": rows.expected_ns, "tflops": rows.flops, "bandwidth": rows.bytes}.get(self.name, np.ones(len(rows)))
        if base is None:
            need = "a roofline" if self.name == "relative" else f"the {'FLOPs' if self.name == 'tflops' else 'bytes'}"
            raise InvalidValue(f"the target {self.name} needs {need} of {rows.family.op.name}, unknown here: use latency")
        # FLOP per ns is GFLOP/s; bytes per ns is GB/s.
        return base / 1e3 if self.name == "tflops" else base

    def encode(self, time_ns: Floats, rows: Rows) -> Floats:
        """Labels for the learner."""
        base = self._base(rows)
        if self.higher_is_faster:
            rate = base / time_ns
            return np.log1p(rate) if self.log else rate
        ratio = time_ns / base
        return np.log(ratio) if self.log else ratio

    def decode(self, predicted: Floats, rows: Rows) -> Floats:
        """Nanoseconds, always positive."""
        base = self._base(rows)
        if self.higher_is_faster:
            rate = libm.expm1(predicted) if self.log else predicted
            return base / np.maximum(rate, LEAST_RATE)
        ratio = libm.exp(predicted) if self.log else predicted
        # A raw target may come out negative; no time is shorter than a picosecond.
        return np.maximum(ratio * base, 1e-3)

    def log_time(self, predicted: Floats, rows: Rows) -> Floats:
        """The log of the time, up to a constant per problem: the score to choose by.

        If the target is a logarithm already, no exp or log is needed, so exported C ranks exactly alike.
        """
        if self.log and not self.higher_is_faster:
            return predicted
        return np.log(self.decode(predicted, rows))


def default_target(rows: Rows) -> Target:
    """Relative to the roofline where there is one, else the time itself."""
    return Target("relative" if rows.expected_ns is not None else "latency")
