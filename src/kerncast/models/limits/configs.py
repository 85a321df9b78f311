"""What is known of each config: where it was tried, on which devices it worked, which never did, and how good choices are.

A model computes it from its out-of-fold predictions. A slim model has no predictions, and keeps it in a file instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import polars as pl

from kerncast.core.arrays import Flags, Floats
from kerncast.core.expr.to_columns import read_column
from kerncast.core.op import Family
from kerncast.core.parameters import Bool, Categorical
from kerncast.errors import BadFile
from kerncast.learning.learners.contract import read_arrays, write_arrays
from kerncast.learning.table import Table
from kerncast.models.limits.envelope import OutOfRange
from kerncast.models.measured import Measured, measured_by_model

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

    @classmethod
    def of(cls, measured: Measured, configs: Sequence[int]) -> Reach:
        """Where some configs were tried; parameters that may be None do not limit them."""
        tried = ~np.isnan(measured.shares[:, list(configs)])
        # A config that was tried seldom has no known limits: it may have been left out by chance.
        seldom = tried.sum(axis=0) < FEWEST
        names = measured.family.problem.parameters
        shape = (len(configs), len(names))
        low, high = np.full(shape, -np.inf), np.full(shape, np.inf)
        labels = np.full(shape, ~np.uint64(0), dtype=np.uint64)
        for place, (name, parameter) in enumerate(names.items()):
            values = measured.problems[f"problem.{name}"]
            if parameter.nullable:
                continue
            if not isinstance(parameter, Categorical | Bool):
                sizes = values.cast(pl.Float64).to_numpy()[:, None]
                low[:, place] = np.where(seldom, -np.inf, np.where(tried, sizes, np.inf).min(axis=0))
                high[:, place] = np.where(seldom, np.inf, np.where(tried, sizes, -np.inf).max(axis=0))
                continue
            codes = {parameter.value(i): parameter.number(i) for i in range(parameter.size)}
            if max(codes.values()) < WORD:
                own = np.array([codes[label] for label in values.to_list()], np.uint64)
                bits = [np.where(tried[own == code].any(axis=0) | seldom, np.uint64(1) << code, np.uint64(0))
                        for code in np.unique(own)]  # fmt: skip
                labels[:, place] = np.bitwise_or.reduce(bits, axis=0)
        return cls(low, high, labels)

    @cached_property
    def _sized(self) -> list[int]:
        """The sizes that limit some candidate."""
        return np.flatnonzero(((self.low != -np.inf) | (self.high != np.inf)).any(axis=0)).tolist()

    @cached_property
    def _labelled(self) -> list[int]:
        """The labels and flags that limit some candidate."""
        return np.flatnonzero((self.labels != ~np.uint64(0)).any(axis=0)).tolist()

    def holds(self, numbers: Floats, sizes: bool = True) -> Flags:
        """Which candidates were tried on problems like this one (its parameters as numbers); for several: [problem, which].

        Without `sizes`, on problems with its labels.
        """
        inside = np.ones((*numbers.shape[:-1], len(self.low)), dtype=bool)
        for place in self._sized if sizes else ():
            asked = numbers[..., place, None]
            inside &= (self.low[:, place] <= asked) & (asked <= self.high[:, place])
        for place in self._labelled:
            bit = np.minimum(np.maximum(numbers[..., place, None], 0.0), 63.0).astype(np.uint64)
            inside &= ((self.labels[:, place] >> bit) & np.uint64(1)).astype(bool)
        return inside

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


def problem_numbers(family: Family, problems: pl.DataFrame) -> Floats:
    """Problems (`problem.*`) as rows of numbers, in the order of their parameters."""
    parameters = family.problem.parameters.items()
    return np.stack([read_column(item.symbol(name), problems[f"problem.{name}"]) for name, item in parameters], axis=1)


def reach_of(model: Model, device: str | None = None) -> Reach | None:
    """Where each of a model's candidates was tried, on one of its devices or on any; parameters that may be None are ignored.

    None: there is nothing to choose, or the model does not say.
    """
    if model.serving is not None:
        found = model.serving.reach(device)
    elif model.family.config.parameters and model.out_of_fold is not None:
        measured = measured_by_model(model, device)
        found = Reach.of(measured, range(measured.configs.height))
    else:
        return None
    # Code paths of a library take turns. Among configs of tiles, a size that one was not tried at is chance or intention.
    kinds = list(model.family.config.parameters.values())
    return found.met() if len(kinds) == 1 and isinstance(kinds[0], Categorical) else found


def worked_on(model: Model, device: str) -> Flags:
    """Which candidates worked at least once on one of a model's devices."""
    if model.serving is not None:
        return np.asarray(model.serving.worked[model.serving.devices.index(device)])
    trials = measured_by_model(model, device).trials
    found = np.zeros(model.candidates.height, dtype=bool)
    found[trials.config[np.isfinite(trials.time_ns)]] = True
    return found


def never_seen(model: Model, device: str, config: Mapping[str, Any]) -> OutOfRange | None:
    """The label of a config that a model has not seen on a device; None: it has seen all of them.

    Numbers (tile sizes) may lie between those that were seen. A device that is not one of the model's has all its configs.
    """
    if not config:
        return None
    own = model.on(device) if device in {record.name for record in model.manifest.devices} else model
    for name, value in config.items():
        if isinstance(model.family.config.parameters.get(name), Categorical):
            seen = sorted({str(label) for label in own.candidates[f"config.{name}"] if label is not None})
            if str(value) not in seen:
                return OutOfRange(name, value, ", ".join(seen))
    return None


def never_worked(seen: Table, judged: Table) -> Flags:
    """Which rows have a config that failed wherever it was `seen`; both are parts of one table.

    Such configs are never served. Those that were not tried stay eligible, since nothing is known about them.
    """
    count = int(max(seen.config.max(initial=0), judged.config.max(initial=0))) + 1
    tried = np.bincount(seen.config, minlength=count)
    worked = np.bincount(seen.config[seen.ok], minlength=count)
    return np.asarray(((tried > 0) & (worked == 0))[judged.config])


def chosen_last(score: Floats, failed: Flags) -> Floats:
    """Scores (low is chosen) with failed configs moved behind all others; within each part the order stays."""
    known = score[np.isfinite(score)]
    if not failed.any() or not len(known):
        return score
    return np.where(failed, score + 2.0 * (known.max() - known.min()) + 1.0, score)


SERVING = "serving.npz"
MOST_BANDS = 4
PROBLEMS_PER_BAND = 40


@dataclass(frozen=True)
class Expectation:
    """Bands of predicted time, and the mean efficiency of out-of-fold choices in each."""

    edges_ns: tuple[float, ...]
    """The edges between the bands; one fewer than there are bands."""
    efficiency: tuple[float, ...]

    def of(self, time_ns: float) -> float:
        """The expected efficiency of a choice with this predicted time."""
        return self.efficiency[int(np.searchsorted(np.array(self.edges_ns), time_ns, side="right"))]


def expectation_of(model: Model) -> Expectation | None:
    """The expectation by bands of predicted time; None if nothing was chosen out of fold."""
    if model.serving is not None:
        return model.serving.expectation
    if model.out_of_fold is None or not model.evaluated:
        return None
    measured = measured_by_model(model)
    trials = measured.trials
    assert measured.score is not None
    assert measured.predicted_ns is not None
    if not trials.choosing:
        return None
    chosen = trials.choose(measured.score)[trials.solvable]
    share, predicted = trials.share[chosen], measured.predicted_ns[chosen]
    known = np.isfinite(predicted)
    if not known.any():
        return None
    bands = int(np.clip(known.sum() // PROBLEMS_PER_BAND, 1, MOST_BANDS))
    edges = np.quantile(predicted[known], np.arange(1, bands) / bands)
    band = np.searchsorted(edges, predicted[known], side="right")
    # If all choices take equally long, some bands are empty: they get the overall mean.
    means = [
        float(share[known][band == number].mean() if (band == number).any() else share[known].mean()) for number in range(bands)
    ]
    return Expectation(tuple(float(edge) for edge in edges), tuple(means))


@dataclass(frozen=True)
class Serving:
    """By device, and then for all of them together."""

    devices: tuple[str, ...]
    worked: Flags
    """[device, candidate]: whether it worked there at least once."""
    reaches: tuple[Reach, ...]
    """One for each device, then one for all of them."""
    expectation: Expectation | None

    def reach(self, device: str | None = None) -> Reach:
        """Where each candidate was tried, on one device or on any."""
        return self.reaches[-1 if device is None else self.devices.index(device)]

    def narrowed(self, device: str) -> Serving:
        """For one device, with its own candidates alone."""
        own = self.worked[self.devices.index(device)]
        found = self.reach(device)
        reach = Reach(found.low[own], found.high[own], found.labels[own])
        return Serving((device,), np.ones((1, int(own.sum())), dtype=bool), (reach, reach), self.expectation)

    def write(self, file: Path) -> None:
        """Write it to an .npz file."""
        arrays: dict[str, npt.NDArray[Any]] = {
            "devices": np.array(self.devices, dtype=str),
            "worked": self.worked,
            **{name: np.stack([getattr(reach, name) for reach in self.reaches]) for name in ("low", "high", "labels")},
        }
        if self.expectation is not None:
            arrays["edges_ns"] = np.array(self.expectation.edges_ns, np.float64)
            arrays["efficiency"] = np.array(self.expectation.efficiency, np.float64)
        write_arrays(file, arrays, compress=True)


def serving_of(model: Model) -> Serving | None:
    """Computed from a model's predictions; None if there is nothing to choose, or it has no predictions."""
    if not model.family.config.parameters or model.out_of_fold is None:
        return None
    devices = [record.name for record in model.manifest.devices]
    reaches = [reach_of(model, name) for name in (*devices, None)]
    worked = np.stack([worked_on(model, name) for name in devices])
    return Serving(tuple(devices), worked, tuple(item for item in reaches if item is not None), expectation_of(model))


def read_serving(file: Path, devices: Sequence[str], candidates: int, parameters: int) -> Serving:
    """What `Serving.write` wrote for a model of these devices; anything else is refused by name."""
    arrays = read_arrays(file)
    count = len(devices)
    shapes: dict[str, tuple[int, ...]] = {"devices": (count,), "worked": (count, candidates)}
    shapes |= dict.fromkeys(("low", "high", "labels"), (count + 1, candidates, parameters))
    kinds = {"devices": "U", "worked": "b1", "low": "f8", "high": "f8", "labels": "u8"}
    for name, shape in shapes.items():
        if name not in arrays or arrays[name].shape != shape or not arrays[name].dtype.str[1:].startswith(kinds[name]):
            raise BadFile(f"{file} is damaged ('{name}' is not that of this model): restore it, or make the slim model again")
    if np.isnan(arrays["low"]).any() or np.isnan(arrays["high"]).any():
        raise BadFile(f"{file} is damaged (a bound is not a number): restore it, or make the slim model again")
    if tuple(map(str, arrays["devices"])) != tuple(devices):
        raise BadFile(f"{file} is of other devices than the model: restore it, or make the slim model again")
    low, high, labels = (np.asarray(arrays[name]) for name in ("low", "high", "labels"))
    reaches = tuple(Reach(low[place], high[place], labels[place]) for place in range(count + 1))
    return Serving(tuple(devices), np.asarray(arrays["worked"]), reaches, _expectation(file, arrays))


def _expectation(file: Path, arrays: dict[str, npt.NDArray[Any]]) -> Expectation | None:
    if "efficiency" not in arrays:
        return None
    edges, shares = arrays.get("edges_ns", np.empty(0)), arrays["efficiency"]
    if edges.dtype.kind != "f" or shares.dtype.kind != "f" or edges.ndim != 1 or shares.shape != (len(edges) + 1,):
        raise BadFile(f"{file} is damaged ('efficiency' is not that of its bands): restore it, or make the slim model again")
    if not (np.diff(edges) >= 0).all() or not ((shares >= 0) & (shares <= 1)).all():
        raise BadFile(
            f"{file} is damaged (bands that descend, or shares beyond 0 to 1): restore it, or make the slim model again"
        )
    return Expectation(tuple(edges.tolist()), tuple(shares.tolist()))
