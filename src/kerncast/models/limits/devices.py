"""Devices that a model has not seen: how far their profile is from those it has, and how wrong it is at that distance.

A model of several devices is fitted again without each of them, and the errors on the device that was left out say how wrong it
is on a new one. They grow with the distance, so the interval of an answer does too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from kerncast.core.arrays import Floats
from kerncast.core.device import NOT_MEASURED, PEAK, Device, hardware_namespace
from kerncast.core.expr import Program
from kerncast.core.op import Family
from kerncast.errors import InvalidValue
from kerncast.models.limits.widening import LEVEL, tails

if TYPE_CHECKING:
    from kerncast.models.model import Model

# With fewer devices, leaving one out says nothing of how errors grow with the distance.
FEWEST_DEVICES = 3
# An error grows by at most this many times itself with each octave of distance. Between like boards it is a tenth, between
# generations whose kernels differ it may be two octaves.
MOST_GROWTH = 40.0
# Growth is believed up to this many times as far as it was calibrated, and at least this many octaves.
FURTHER, NEAR = 2.0, 0.5
# Two profiles of one name that differ by less than this, in octaves, are the same device.
SAME = 0.05
# Half of an interval on an unseen device is at least this, in log time.
NARROWEST = 0.02


class DeviceLeftOut(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One device of the training data, predicted by a model that had not seen it."""

    device: str
    nearest: str
    distance: float
    """To the nearest of the other devices, in octaves."""
    mape: float
    roofline_mape: float | None
    coverage: float | None
    """The share of its times inside an interval that was calibrated without it; None: too few other devices."""
    rows: int


class Elsewhere(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The interval on a device that was not measured, by its distance from the measured ones."""

    level: float
    numbers: tuple[str, ...]
    """The hardware numbers that the model reads, in which distances are measured."""
    lower: float
    upper: float
    """Halves of the interval at distance 0, in log time."""
    growth: float
    """By what share of itself either half grows with each octave."""
    furthest: float
    """The distance up to which this is believed."""
    devices: tuple[DeviceLeftOut, ...] = ()

    def factors(self, distance: float) -> tuple[float, float]:
        """From a prediction to its bounds."""
        wider = 1.0 + self.growth * min(distance, self.furthest)
        return float(np.exp(-self.lower * wider)), float(np.exp(self.upper * wider))


@dataclass(frozen=True)
class Away:
    """A device that a model has not seen."""

    device: str
    nearest: str
    distance: float
    """To the nearest device that it has seen, in octaves."""
    factors: tuple[float, float] | None
    """From a prediction to its bounds; None: too few devices were measured to say."""
    believed: bool
    """Whether the interval was calibrated as far away as this."""

    @property
    def words(self) -> str:
        """What to know about an answer for it."""
        far = f"{self.device} {NOT_MEASURED}; the nearest device that was is {self.nearest}, {self.distance:.2f} octaves away"
        if self.factors is None:
            return f"{far}: the time is extrapolated, without an interval"
        if not self.believed:
            return f"{far}, further than any device that was left out to calibrate the interval: do not rely on it"
        return f"{far}: the interval is as wide as for devices that were left out of the training"


def away_from(model: Model, device: Device) -> Away | None:
    """Where a device is among those that a model has seen; None: it is one of them.

    A device whose profile lacks a number that the model reads is refused.
    """
    manifest = model.manifest
    known = manifest.elsewhere
    seen = {record.name: record.device for record in manifest.devices}
    # A profile may be a copy with other numbers. Measured numbers vary a little from day to day.
    if device.name in seen and (known is None or distance(device, seen[device.name], known.numbers) < SAME):
        return None
    _refuse_unknown_numbers(model, device)
    numbers = numbers_read(model.family, manifest.features.names) if known is None else known.numbers
    name, far = nearest(device, list(seen.values()), numbers)
    if known is None:
        return Away(device.name, name, far, None, believed=False)
    return Away(device.name, name, far, known.factors(far), far <= known.furthest)


def _refuse_unknown_numbers(model: Model, device: Device) -> None:
    """Refuse a device whose profile lacks a number that the model reads."""
    featurizer = model.featurizer(device)
    lacking = {
        number.removeprefix("hw.") for name in model.manifest.features.names for number in featurizer.left_out.get(name, ())
    }
    if not lacking and model.target.name == "relative" and "expected_ns" not in featurizer.work().outputs:
        lacking = {"peak_flops"} if "memory_bandwidth_gb_s" in device.numbers else {"memory_bandwidth_gb_s"}
    if lacking:
        own = ", ".join(record.name for record in model.manifest.devices)
        named = ", ".join(sorted(lacking)).replace("peak_flops", f"the peak rates of {', '.join(model.manifest.dtypes)}")
        raise InvalidValue(
            f"{model.path} was trained on {own} and cannot predict for {device.name}, whose profile lacks {named}: add the "
            "numbers to a profile of your own (`kerncast list device` shows one), or measure on that device"
        )


@dataclass(frozen=True)
class DeviceErrors:
    """The errors on one device that the predictor had not seen."""

    device: str
    nearest: str
    distance: float
    logs: Floats
    """How much slower than predicted, in log time."""
    roofline_logs: Floats | None = None


def numbers_read(family: Family, features: Iterable[str]) -> tuple[str, ...]:
    """The hardware numbers that some features and the roofline of a family read."""
    outputs = dict(family.outputs_of(features))
    work = family.work(family.op.namespace())
    if work is not None:
        outputs["__roofline"] = work.roofline_ns(hardware_namespace())
    found = {item.name.removeprefix("hw.") for item in Program(outputs).symbols if item.name.startswith("hw.")}
    return tuple(sorted(found))


def without_peak(model: Model, device: Device) -> frozenset[str]:
    """The dtypes of a model whose peak rate it reads and a device's profile does not have."""
    if PEAK not in numbers_read(model.family, model.manifest.features.names):
        return frozenset()
    return frozenset(name for name in model.manifest.dtypes if device.peak_of(name) is None)


def no_peak(device: Device, dtype: str) -> str:
    """Why a model does not answer for a dtype of `without_peak`."""
    return (
        f"the model reads the peak rate of {dtype}, which the profile of {device.name} lacks: add it to a profile of your own"
    )


def distance(one: Device, other: Device, numbers: Sequence[str]) -> float:
    """How far two profiles are apart, in octaves: the root mean square over the numbers that both have."""
    apart = []
    for name in numbers:
        if name == PEAK:
            shared = sorted(set(one.peak_tflops) & set(other.peak_tflops))
            if shared:
                ratios = [np.log2(one.peak_tflops[dtype] / other.peak_tflops[dtype]) for dtype in shared]
                apart.append(float(np.mean(np.square(ratios))))
        elif name in one.numbers and name in other.numbers:
            apart.append(float(np.log2(one.numbers[name] / other.numbers[name]) ** 2))
    return float(np.sqrt(np.mean(apart))) if apart else 0.0


def nearest(device: Device, others: Sequence[Device], numbers: Sequence[str]) -> tuple[str, float]:
    """The nearest of some devices, and how far it is; of equally near ones the first."""
    found = [(distance(device, other, numbers), place) for place, other in enumerate(others)]
    far, place = min(found)
    return others[place].name, far


def calibrate_elsewhere(parts: Sequence[DeviceErrors], numbers: Sequence[str]) -> Elsewhere | None:
    """The interval that would have covered LEVEL of the rows of devices that were left out, each device counting the same."""
    if len(parts) < FEWEST_DEVICES:
        return None
    found = _fitted(parts, numbers)
    lines = []
    for place, part in enumerate(parts):
        others = [*parts[:place], *parts[place + 1 :]]
        covered = None
        if len(others) >= FEWEST_DEVICES:
            low, high = (np.log(factor) for factor in _fitted(others, numbers).factors(part.distance))
            covered = float(((part.logs >= low) & (part.logs <= high)).mean())
        roofline = None if part.roofline_logs is None else _mape(part.roofline_logs)
        lines.append(
            DeviceLeftOut(part.device, part.nearest, part.distance, _mape(part.logs), roofline, covered, len(part.logs))
        )
    return msgspec.structs.replace(found, devices=tuple(lines))


def _fitted(parts: Sequence[DeviceErrors], numbers: Sequence[str]) -> Elsewhere:
    from scipy.optimize import nnls

    far = np.array([part.distance for part in parts])
    half = np.array([float(np.quantile(np.abs(part.logs), LEVEL)) for part in parts])
    (start, _), _ = nnls(np.stack([np.ones(len(far)), far], axis=1), half)
    # Not even a device like a measured one is predicted better than the best of those that were left out. What errors are
    # beyond that grows with the distance, however steeply, or near devices would have the intervals of far ones.
    start = max(float(start), float(half.min()), NARROWEST)
    slope = max(0.0, float(far @ (half - start)) / max(float(far @ far), 1e-12))
    growth = min(slope / start, MOST_GROWTH)
    ratio = np.concatenate([part.logs / (1.0 + growth * part.distance) for part in parts])
    weight = np.concatenate([np.full(len(part.logs), 1.0 / len(part.logs)) for part in parts])
    of = np.repeat(np.arange(len(parts)), [len(part.logs) for part in parts])
    low, high = tails(ratio, of, weight)
    furthest = max(FURTHER * float(far.max()), NEAR)
    return Elsewhere(LEVEL, tuple(numbers), max(-low, NARROWEST), max(high, NARROWEST), growth, furthest)


def _mape(logs: Floats) -> float:
    """The mean absolute error of predictions, as a share of the measured time."""
    return float(np.mean(np.abs(np.exp(-logs) - 1.0)))
