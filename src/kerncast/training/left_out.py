"""Devices that are left out whole: what a model of the others says of them is how it does on a device it has not seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kerncast.core.arrays import Floats, Ints
from kerncast.learning.tables.table import Table
from kerncast.models.limits.devices import FEWEST_DEVICES, DeviceErrors, Elsewhere, calibrate_elsewhere, nearest, numbers_read

# How errors grow with the distance is seen in a sample of whole groups; each device that is left out costs one more fit.
MOST_FITTED, MOST_JUDGED = 20_000, 4_000


@dataclass(frozen=True)
class DevicePart:
    """One device: rows of the others to learn from, and rows of its own to judge by."""

    device: str
    number: int
    fitted: Ints
    judged: Ints


def device_parts(table: Table, seed: int) -> list[DevicePart]:
    """Each device of a table that has enough of them."""
    if len(table.devices) < FEWEST_DEVICES:
        return []
    found = []
    for number, device in enumerate(table.devices):
        if device.estimated:  # of a device that was not measured nothing could be estimated
            continue
        own = np.flatnonzero(table.device == number)
        others = np.flatnonzero(table.device != number)
        fitted, judged = _some(table, others, MOST_FITTED, seed), _some(table, own, MOST_JUDGED, seed)
        if table.ok[fitted].any() and table.ok[judged].any():
            found.append(DevicePart(device.name, number, fitted, judged))
    return found


def _some(table: Table, rows: Ints, most: int, seed: int) -> Ints:
    """About as many of the rows, in whole groups; all if there are no more."""
    if len(rows) <= most:
        return rows
    groups, dense = np.unique(table.group[rows], return_inverse=True)
    order = np.random.default_rng(seed).permutation(len(groups))
    upto = np.cumsum(np.bincount(dense, minlength=len(groups))[order])
    kept = np.zeros(len(groups), dtype=bool)
    kept[order[: max(1, int(np.searchsorted(upto, most, side="right")))]] = True
    return rows[kept[dense]]


def judge_left_out(table: Table, parts: Sequence[tuple[DevicePart, Floats]]) -> Elsewhere | None:
    """How wrong the model is on devices it has not seen; `parts` are the devices with their predicted times."""
    numbers, found = numbers_read(table.family, table.rows.names), []
    for part, predicted_ns in parts:
        measured = table.time_ns[part.judged]
        known = np.isfinite(measured) & np.isfinite(predicted_ns)
        if not known.any():
            continue
        others = [device for number, device in enumerate(table.devices) if number != part.number]
        limit = table.rows.limit_ns if table.rows.limit_ns is not None else table.rows.roofline_ns
        roofline = None if limit is None else np.log(measured[known] / limit[part.judged][known])
        name, far = nearest(table.devices[part.number], others, numbers)
        found.append(DeviceErrors(part.device, name, far, np.log(measured[known] / predicted_ns[known]), roofline))
    return calibrate_elsewhere(found, numbers)
