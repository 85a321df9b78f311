"""Figures as typed values: what `evaluation.json` holds as objects, read-only and by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Figure:
    """A value and its 95 % interval; with a single problem there is none."""

    value: float
    interval: tuple[float, float] | None = None

    @classmethod
    def of(cls, found: Mapping[str, float | None] | None) -> Figure | None:
        """From `{"value": …, "lower": …, "upper": …}`."""
        if found is None or found["value"] is None:
            return None
        lower, upper = found.get("lower"), found.get("upper")
        return cls(found["value"], None if lower is None or upper is None else (lower, upper))

    def __float__(self) -> float:
        return self.value


@dataclass(frozen=True)
class Efficiency:
    """How fast the choices are, as shares of the best measured speed; docs/metrics.md defines each."""

    mean: Figure
    p10: Figure
    p1: Figure
    min: Figure
    best_chosen: Figure
    """The share of problems on which the choice was the very best."""
    geometric_mean: Figure | None = None
    """None, here and below: not known, or the model is older than this figure."""
    p50: Figure | None = None
    """The median."""
    regret: Figure | None = None
    """How much longer than the best a choice takes; None also if one failed."""
    mean_with_ties: Figure | None = None
    """A choice within the noise of the best counts as the best."""
    best_chosen_with_ties: Figure | None = None
    noise_ceiling: Figure | None = None
    """What a perfect chooser would score on measurements this noisy; None: too little was measured twice to know."""


@dataclass(frozen=True)
class Runtime:
    """How far predicted times are from measured ones; docs/metrics.md defines each."""

    mape: Figure
    median: Figure | None = None
    p95: Figure | None = None
    rmsre: Figure | None = None
    rrmse: Figure | None = None
    mse_log: Figure | None = None
    """Of the natural logarithm of the time, as the next two."""
    rmse_log: Figure | None = None
    exp_rmse_log: Figure | None = None
    """A factor: 1.1 is a typical error of 10 %."""
    r2: Figure | None = None
    r2_log: Figure | None = None
    coverage: Figure | None = None
    """The share of rows inside their 90 % interval."""


# A field here → its name in `evaluation.json`.
_EFFICIENCY = {
    "mean": "efficiency_mean", "p10": "efficiency_p10", "p1": "efficiency_p1", "min": "efficiency_min", "best_chosen": "top1",
    "geometric_mean": "efficiency_gmean", "p50": "efficiency_p50", "regret": "regret_mean",
    "mean_with_ties": "efficiency_mean_ties",
    "best_chosen_with_ties": "top1_ties", "noise_ceiling": "noise_ceiling",
}  # fmt: skip
_RUNTIME = {
    "mape": "mape", "median": "median_ape", "p95": "ape_p95", "rmsre": "rmsre", "rrmse": "rrmse",
    "mse_log": "mse_log", "rmse_log": "rmse_log", "exp_rmse_log": "exp_rmse_log", "r2": "r2", "r2_log": "r2_log",
    "coverage": "coverage_90",
}  # fmt: skip


@dataclass(frozen=True)
class Figures:
    """All figures of a model or a baseline on `n` problems."""

    n: int
    efficiency: Efficiency | None
    """None: it does not choose, or there is nothing to choose."""
    runtime: Runtime | None
    """None: it does not predict times."""

    @classmethod
    def of(cls, card: Mapping[str, Any]) -> Figures:
        """From the block that `evaluation.json` holds under `overall`."""
        chosen = {field: Figure.of(card.get(name)) for field, name in _EFFICIENCY.items()}
        timed = {field: Figure.of(card.get(name)) for field, name in _RUNTIME.items()}
        return cls(
            int(card["n_problems"]),
            None if chosen["mean"] is None else Efficiency(**chosen),  # type: ignore[arg-type]
            None if timed["mape"] is None else Runtime(**timed),  # type: ignore[arg-type]
        )
