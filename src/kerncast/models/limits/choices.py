"""What choosing needs to know of the training data: where each candidate was tried, and how good choices are.

A model computes it from its out-of-fold predictions. A slim model has no predictions, and keeps this instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from kerncast.core.arrays import Flags
from kerncast.errors import BadFile
from kerncast.learning.learners.contract import read_arrays, write_arrays
from kerncast.models.limits.configs import Reach, reach_of, worked_on
from kerncast.models.measured import measured_by_model

if TYPE_CHECKING:
    from kerncast.models.model import Model

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
