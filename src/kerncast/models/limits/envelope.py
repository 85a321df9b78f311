"""How far the answers of a model are to be trusted: one judgement of the problem, the config and the device.

    verdict = Envelope(model, device).judge(problem)
    verdict.worth, verdict.words, verdict.widened(time_ns, lower_ns, upper_ns)

The model's own interval widens with the rarity and the size of a problem (`widening`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from kerncast.core.arrays import Flags, Floats
from kerncast.core.device import Device
from kerncast.core.expr import Program
from kerncast.core.parameters import Value
from kerncast.data.schema import symbol_columns
from kerncast.models.limits.devices import Away, away_from, no_peak, without_peak
from kerncast.models.limits.trained import Coverage, OutOfRange

if TYPE_CHECKING:
    from kerncast.models.model import Model

UNTRIED = "the model was not trained on this config, so its time has no interval"
NO_ERRORS = "the model does not record how wrong it was in training, so its times have no interval"
# The column of given candidates that says whether they worked in training.
KNOWN = "__known"


Times = float | Floats


class Worth(StrEnum):
    """Where a question is, the best first."""

    IN = "in"
    UNTRIED = "untried"
    """The config did not work in training, or was not tried."""
    ELSEWHERE = "elsewhere"
    """The device was not measured."""
    UNLIKE = "unlike"
    """The problem is in range, but unlike all measured ones."""
    OUTSIDE = "outside"
    """The problem is outside the trained range: nothing is chosen for it."""


@dataclass(frozen=True)
class Verdict:
    """What an answer is worth."""

    worth: Worth = Worth.IN
    words: str = ""
    """Why; of an answer that stands, what else to know."""
    outside: OutOfRange | None = None
    """The parameter that is outside, or unlike what was measured."""
    away: Away | None = None
    """Where the device is among the measured ones; None: it is one of them."""
    known: bool | None = None
    """Whether a given config worked in training; None: it is one of the model's own."""

    @property
    def stands(self) -> bool:
        """Whether the answer is one to rely on; otherwise it is out of range."""
        return self.outside is None and self.worth is not Worth.OUTSIDE

    @property
    def calibrated(self) -> bool:
        """Whether the model's interval holds as it is."""
        return self.away is None and self.known is not False

    def widened(self, time_ns: Times, lower_ns: Times | None, upper_ns: Times | None) -> tuple[Any, Any]:
        """The bounds of some times: on another device never narrower than on the measured ones. None: there is no interval."""
        factors = None if self.away is None else self.away.factors
        if factors is None:
            return (lower_ns, upper_ns) if self.calibrated else (None, None)
        lower = np.fmin(time_ns if lower_ns is None else lower_ns, factors[0] * time_ns)
        return lower, np.fmax(time_ns if upper_ns is None else upper_ns, factors[1] * time_ns)


@dataclass(frozen=True)
class Verdicts:
    """Of many problems: which are outside the trained range, which of them by a label, and which others are unlike all."""

    outside: Flags
    by_label: Flags
    unlike: Flags


class Envelope:
    """What a model's answers are worth on one device; without one, on those that were measured."""

    def __init__(self, model: Model, device: Device | None = None) -> None:
        self.model, self.device = model, device
        self.coverage = Coverage.of(model.manifest, model.family.problem.parameters)
        self.away = None if device is None else away_from(model, device)
        self._without_peak = frozenset() if device is None or self.away is None else without_peak(model, device)

    def bounds(self, problems: pl.DataFrame, time_ns: Floats) -> tuple[Floats, Floats]:
        """The model's interval of each predicted time, given the problems (`problem.*`) that the times are of."""
        interval = self.model.manifest.interval
        assert interval is not None
        if interval.widening is None:
            return interval.bounds(time_ns)
        rarity, beyond = interval.widening.traits.rarity(self.model.family, problems), interval.beyond
        return interval.bounds(time_ns, rarity, None if beyond is None else beyond.bands(self.sizes_of(problems)))

    def sizes_of(self, problems: pl.DataFrame) -> Floats:
        """How large problems (`problem.*`) are, by the measure that the interval knows their range in."""
        return self._size.columns(symbol_columns(self.model.family, problems, "problem."))[:, 0]

    @cached_property
    def _size(self) -> Program:
        interval = self.model.manifest.interval
        assert interval is not None
        assert interval.beyond is not None
        measure = interval.beyond.sizes.measure
        return Program({measure: self.model.featurizer().work().outputs[measure]})

    def judge(self, problem: Mapping[str, Value]) -> Verdict:
        """What an answer to a problem is worth."""
        outside = self.coverage.outside(problem)
        if outside:
            return Verdict(Worth.OUTSIDE, outside[0].words, outside[0], self.away)
        if self.device is not None and problem.get("dtype") in self._without_peak:
            return Verdict(Worth.OUTSIDE, no_peak(self.device, str(problem["dtype"])), None, self.away)
        if self.away is not None and not self.away.believed:
            return self._elsewhere
        unlike = self.coverage.unlike(problem)
        return self._elsewhere if unlike is None else unlike_measured(unlike, self.away)

    @cached_property
    def _elsewhere(self) -> Verdict:
        """Of problems like those that were measured."""
        if self.away is None:
            return Verdict()
        own = ", ".join(record.name for record in self.model.manifest.devices)
        outside = None if self.away.believed else OutOfRange("device", self.away.device, own)
        return Verdict(Worth.ELSEWHERE, self.away.words, outside, self.away)

    def judge_config(self, row: int) -> Verdict:
        """What an answer with one of the candidates is worth."""
        if not self.model.recorded:
            return Verdict(words=NO_ERRORS)
        if self.model.given is None:
            return Verdict()
        known = bool(self.model.candidates[KNOWN][row])
        return Verdict(known=True) if known else Verdict(Worth.UNTRIED, UNTRIED, known=False)

    def judge_frame(self, problems: pl.DataFrame) -> Verdicts:
        """`judge` for many problems (`problem.*`), as far as it depends on them."""
        outside, by_label, unlike = (np.zeros(problems.height, dtype=bool) for _ in range(3))
        for name, limit in self.coverage.limits.items():
            column = problems[f"problem.{name}"]
            beyond = (~limit.inside_column(column)).to_numpy()
            if limit.parameter.codes or (limit.seen is not None and limit.seen.labels):
                by_label |= beyond & ~outside  # the first parameter outside decides
            outside |= beyond
            if limit.fact is not None:
                unlike |= limit.unlike_column(column).to_numpy()
        if self._without_peak:
            outside |= problems["problem.dtype"].is_in(list(self._without_peak)).to_numpy()
        return Verdicts(outside, by_label, unlike)


def unlike_measured(outside: OutOfRange, away: Away | None = None) -> Verdict:
    """What a value that is unlike all measured ones makes of an answer."""
    return Verdict(Worth.UNLIKE, f"{outside.words}: nothing like it was measured", outside, away)
