"""Rates that a device's profile lacks, as the fastest rows of a table reached them.

A time is learned relative to what the declared work takes at a device's rates. How high these are matters little, for a
constant factor is learned too. Without them a model would have to learn from the sizes alone how times grow with the work,
and it errs far more between and beyond the sizes that were measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from kerncast.core import dtypes, rates
from kerncast.core.arrays import Flags, Floats, Ints
from kerncast.core.device import LARGEST, PEAK, SMALLEST, Device
from kerncast.learning.tables.feature_rows import Featurizer, Rows

# This share of the problems stays below the rate with its fastest config: one wrong label is not a peak.
FASTEST = 0.95


@dataclass(frozen=True)
class Timed:
    """Rows with their times (NaN: failed), and the problem and device of each."""

    rows: Rows
    time_ns: Floats
    problem: Ints
    device: Ints


def with_rates(timed: Timed, devices: Sequence[Device]) -> tuple[Device, ...]:
    """The devices with the rates that they lack, or that an op without a dtype exceeds; those that have estimates keep them."""
    family, used = timed.rows.family, _used(timed)
    lacking = [() if device.estimated else rates.unknown(family, device, used[place]) for place, device in enumerate(devices)]
    # Links are measured by no single device; without work there is nothing to compare a time with.
    if any(name not in (rates.BANDWIDTH, *dtypes.CODES) for names in lacking for name in names):
        return tuple(devices)
    if family.op.dtype is None and PEAK in rates.read(family):
        lacking = [
            names if names or device.estimated or not _beaten(timed, place, device) else (dtypes.IMPLIED,)
            for place, (device, names) in enumerate(zip(devices, lacking, strict=True))
        ]
    return _estimated(timed, devices, lacking)


def again(timed: Timed, devices: Sequence[Device]) -> tuple[Device, ...]:
    """The devices with the same rates estimated from other rows."""
    return _estimated(timed, devices, [tuple(device.estimated) for device in devices])


def at_rates(rows: Rows, devices: Sequence[Device]) -> Rows:
    """The rows with their work at the rates of the devices, estimated ones too; the features stay."""
    number = np.zeros(len(rows), np.int64) if rows.device is None else rows.device
    parts: list[tuple[Ints, Rows]] = []
    for place, device in enumerate(devices):
        own = np.flatnonzero(number == place)
        if len(own):
            frame = rows.frame[own]
            parts.append((own, Featurizer(rows.family, device, _labels(frame)).describe(frame)))

    def column(values: Sequence[Floats | None]) -> Floats | None:
        whole = np.full(len(rows), np.nan)
        for (own, _), part in zip(parts, values, strict=True):
            if part is None:
                return None
            whole[own] = part
        return whole

    roofline, expected = ([part.roofline_ns for _, part in parts], [part.expected_ns for _, part in parts])
    return replace(rows, roofline_ns=column(roofline), expected_ns=column(expected))


def _estimated(timed: Timed, devices: Sequence[Device], lacking: Sequence[Sequence[str]]) -> tuple[Device, ...]:
    """The devices with these rates; what the rows do not say of one device is what is usual for the others."""
    if not any(lacking):
        return tuple(devices)
    reached = [
        {name: value for name in names if (value := _reached(timed, timed.device == place, name)) is not None}
        for place, names in enumerate(lacking)
    ]
    usual = [{**device.numbers, **device.peak_tflops, **found} for device, found in zip(devices, reached, strict=True)]
    made = []
    for device, names, found in zip(devices, lacking, reached, strict=True):
        whole = {name: found.get(name) or _usual(usual, name) for name in names}
        known = {name: value for name, value in whole.items() if value is not None}
        made.append(replace(device, estimated=known if len(known) == len(whole) else {}) if names else device)
    return tuple(made)


def _beaten(timed: Timed, place: int, device: Device) -> bool:
    """Whether rows of an op without a dtype are faster than the peak rate of the implied one."""
    found = _reached(timed, timed.device == place, dtypes.IMPLIED)
    return found is not None and found > device.peak_tflops[dtypes.IMPLIED]


def _reached(timed: Timed, own: Flags, name: str) -> float | None:
    """The rate that the fastest rows of a device reached; None: no row says."""
    work = timed.rows.bytes if name == rates.BANDWIDTH else timed.rows.flops
    if name != rates.BANDWIDTH and timed.rows.family.op.dtype is not None:
        own = own & (timed.rows.frame["problem.dtype"] == name).to_numpy()
    if work is None:
        return None
    known = own & np.isfinite(timed.time_ns) & (work > 0)
    if not known.any():
        return None
    frame = pl.DataFrame({"problem": timed.problem[known], "rate": work[known] / timed.time_ns[known]})
    best = frame.group_by("problem").max()["rate"].sort().to_numpy()
    # Bytes per ns are GB/s, FLOP per ns GFLOP/s.
    rate = float(np.quantile(best, FASTEST, method="lower")) / (1.0 if name == rates.BANDWIDTH else 1e3)
    return min(max(rate, SMALLEST), LARGEST)


def _usual(known: Sequence[Mapping[str, float]], name: str) -> float | None:
    """The median of a rate over devices; of a dtype that none has, that of the other dtypes."""
    found = [item[name] for item in known if name in item]
    if not found and name in dtypes.CODES:
        found = [value for item in known for other, value in item.items() if other in dtypes.CODES]
    return float(np.median(found)) if found else None


def _used(timed: Timed) -> list[tuple[str, ...] | None]:
    """The dtypes of the rows of each device."""
    places = range(int(timed.device.max()) + 1 if len(timed.device) else 0)
    return [_labels(timed.rows.frame.filter(pl.Series(timed.device == place))) for place in places]


def _labels(frame: pl.DataFrame) -> tuple[str, ...] | None:
    return tuple(frame["problem.dtype"].unique().sort()) if "problem.dtype" in frame.columns else None
