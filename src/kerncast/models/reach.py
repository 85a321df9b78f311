"""Where each config was tried; elsewhere a model extrapolates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import polars as pl

from kerncast.arrays import Flags, Floats
from kerncast.models.measured import Measured, measured_by_model
from kerncast.parameters import Bool, Categorical

if TYPE_CHECKING:
    from kerncast.models.model import Model

# This many random problems span nine tenths of a range; with fewer, a gap may be chance rather than intention.
FEWEST = 20
# One bit of a word per label.
WORD = 64
# Tables step by less than this factor, so nothing was measured between two bands that are this close.
STEP = 2.0


@dataclass(frozen=True)
class Reach:
    """Where each candidate was tried: [candidate, problem parameter], in declared order.

    Libraries and compilers leave kernels out by size, so data often have a config for a band of sizes only. Beyond it a
    model guesses, and often picks a config that would never be tried there.
    """

    low: Floats
    high: Floats
    """Bounds of sizes; infinite where nothing is known."""
    labels: npt.NDArray[np.uint64]
    """Labels and flags, one bit per code; all bits are set where nothing is known."""

    def holds(self, numbers: Floats, sizes: bool = True) -> Flags:
        """Which candidates were tried on problems like this one (its parameters as numbers); for several: [problem, which].

        Without `sizes`, on problems with its labels.
        """
        asked = numbers[..., None, :]
        inside = (self.low <= asked) & (asked <= self.high) | (not sizes)
        bit = np.minimum(np.maximum(asked, 0.0), 63.0).astype(np.uint64)
        return np.asarray((inside & ((self.labels >> bit) & np.uint64(1)).astype(bool)).all(axis=-1))

    def met(self) -> Reach:
        """The same, with bands of neighbouring candidates that meet: sizes that none was measured at belong to both.

        vLLM multiplies fp8 blocks with FlashInfer below M = 32 and with DeepGEMM from there on. A table with M = 17 and 32
        does not say where between them it changes, and a third kernel, of other N and K, must not fill the gap.
        """
        low, high = self.low.copy(), self.high.copy()
        alike = ((self.labels[:, None] & self.labels[None]) != 0).all(axis=-1)
        overlap = (self.low[:, None] <= self.high[None]) & (self.low[None] <= self.high[:, None])
        for place in range(low.shape[1]):
            others = alike & np.delete(overlap, place, axis=2).all(axis=-1)
            ends, starts = self.high[:, place][:, None], self.low[:, place][None]
            follows = others & (ends < starts) & (starts <= STEP * ends)
            high[:, place] = np.where(follows.any(axis=1), np.where(follows, starts, np.inf).min(axis=1) - 1, high[:, place])
            low[:, place] = np.where(follows.any(axis=0), np.where(follows, ends, -np.inf).max(axis=0) + 1, low[:, place])
        return Reach(low, high, self.labels)


@dataclass(frozen=True)
class Tried:
    """For some configs: the smallest and the largest of each size they were tried on, and every label.

    Libraries and compilers leave configs out by size (tiles of 128 rows for a product of 16), so data often hold a
    config for a band of sizes only.
    """

    low: dict[str, Floats]
    high: dict[str, Floats]
    """By size parameter: one number per config."""
    labels: dict[str, dict[str | bool | None, Flags]]
    """By categorical parameter: for each label, which configs."""

    @classmethod
    def of(cls, measured: Measured, configs: Sequence[int]) -> Tried:
        tried = ~np.isnan(measured.shares[:, list(configs)])
        # A config that was tried seldom has no known limits: it may have been left out by chance.
        seldom = tried.sum(axis=0) < FEWEST
        low, high, labels = {}, {}, {}
        for name, parameter in measured.family.problem.parameters.items():
            values = measured.problems[f"problem.{name}"]
            if isinstance(parameter, Categorical | Bool):
                labels[name] = _labels(values, tried, seldom)
            else:
                sizes = values.cast(pl.Float64).fill_null(float("nan")).to_numpy()[:, None]
                known = tried & ~np.isnan(sizes)
                low[name] = np.where(seldom, -np.inf, np.where(known, sizes, np.inf).min(axis=0))
                high[name] = np.where(seldom, np.inf, np.where(known, sizes, -np.inf).max(axis=0))
        return cls(low, high, labels)

    def holds(self, problems: pl.DataFrame) -> Flags:
        """[problem, config]: whether the problem is within the range that the config was tried on."""
        inside: Flags = np.ones((problems.height, 1), dtype=bool)
        for name in self.low:
            sizes = problems[f"problem.{name}"].cast(pl.Float64).fill_null(float("nan")).to_numpy()[:, None]
            inside = inside & (np.isnan(sizes) | ((self.low[name] <= sizes) & (sizes <= self.high[name])))
        for name, known in self.labels.items():
            values = problems[f"problem.{name}"].to_list()
            inside = inside & np.array([known[label] for label in values])
        return inside


def reach_of(model: Model, device: str | None = None) -> Reach | None:
    """Where each of a model's candidates was tried, on one of its devices or on any; parameters that may be None are ignored.

    None: there is nothing to choose, or the model does not say.
    """
    found = _recorded(model, device) if model.serving is None else model.serving.reach(device)
    # Code paths of a library take turns. Among configs of tiles, a size that one was not tried at is chance or intention.
    kinds = list(model.family.config.parameters.values())
    return found.met() if found is not None and len(kinds) == 1 and isinstance(kinds[0], Categorical) else found


def _recorded(model: Model, device: str | None) -> Reach | None:
    """The same from the measurements that the model keeps, as they are."""
    if not model.family.config.parameters or model.out_of_fold is None:
        return None
    measured = measured_by_model(model, device)
    tried = Tried.of(measured, range(measured.configs.height))
    names = model.family.problem.parameters
    shape = (measured.configs.height, len(names))
    low, high = np.full(shape, -np.inf), np.full(shape, np.inf)
    labels = np.full(shape, ~np.uint64(0), dtype=np.uint64)
    for place, (name, parameter) in enumerate(names.items()):
        if parameter.nullable:
            continue
        if name in tried.low:
            low[:, place], high[:, place] = tried.low[name], tried.high[name]
            continue
        codes = {parameter.value(i): parameter.number(i) for i in range(parameter.size)}
        if max(codes.values()) < WORD:
            bits = [np.where(who, np.uint64(1) << np.uint64(codes[label]), np.uint64(0))
                    for label, who in tried.labels[name].items() if label is not None]  # fmt: skip
            labels[:, place] = np.bitwise_or.reduce(bits, axis=0)
    return Reach(low, high, labels)


def worked_on(model: Model, device: str) -> Flags:
    """Which candidates worked at least once on one of a model's devices."""
    if model.serving is not None:
        return np.asarray(model.serving.worked[model.serving.devices.index(device)])
    trials = measured_by_model(model, device).trials
    found = np.zeros(model.candidates.height, dtype=bool)
    found[trials.config[np.isfinite(trials.time_ns)]] = True
    return found


def _labels(values: pl.Series, tried: Flags, seldom: Flags) -> dict[str | bool | None, Flags]:
    own = np.array(values.to_list(), dtype=object)
    return {label: tried[own == label].any(axis=0) | seldom for label in values.unique(maintain_order=True)}
