"""Rooflines of problems: what the arithmetic and the traffic of an op take at a device's peak rates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import polars as pl

from kerncast.core.arrays import Floats
from kerncast.core.device import PEAK, Device, hardware_namespace
from kerncast.core.expr import Program
from kerncast.core.io.artefact import Versioned
from kerncast.core.io.atomic import write_bytes
from kerncast.core.op import Family
from kerncast.data import schema
from kerncast.errors import InvalidValue
from kerncast.models.limits.widening import LEVEL

ROOFLINE = "roofline_ns"
# Problems that are computed one by one.
FEW = 12


def rooflines(family: Family, device: Device, problems: Sequence[Mapping[str, Any]]) -> list[float | None]:
    """The roofline of each problem; None where the op's work or a number of the device is not known.

    A problem may be given in part: only the parameters that its work depends on are needed, and defaults are filled in.
    """
    found: list[float | None] = [None] * len(problems)
    for dtype in dict.fromkeys(problem.get("dtype") for problem in problems):
        bound = _bound(family, device, None if dtype is None else str(dtype))
        if bound is None:
            continue
        read = [item.name.removeprefix("p.") for item in bound.symbols]
        places = [place for place, problem in enumerate(problems) if problem.get("dtype") == dtype]
        rows = {place: _needed(family, problems[place], read) for place in places}
        known = {place: row for place, row in rows.items() if row is not None}
        for place, value in zip(known, _values(bound, family, read, list(known.values())), strict=True):
            found[place] = float(value) if value > 0 else None
    return found


@lru_cache(256)
def _bound(family: Family, device: Device, dtype: str | None) -> Program | None:
    """The formula of the roofline with the numbers of a device; None: some are not known, or the work is not."""
    work = family.work(family.op.namespace())
    if work is None:
        return None
    formula = Program({ROOFLINE: work.roofline_ns(hardware_namespace())})
    bound = formula.bind(device.bindings(family.op.dtype, None if dtype is None else [dtype]))
    return None if any(item.name.startswith("hw.") for item in bound.symbols) else bound


def _values(bound: Program, family: Family, read: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> Sequence[float]:
    """The formula for some problems: one by one if they are few, for a frame is worth it from a dozen on."""
    if not read or len(rows) <= FEW:
        return [float(bound.scalar({f"p.{name}": row[name] for name in read})[ROOFLINE]) for row in rows]
    kinds = schema.schema_of(family)
    columns = {f"p.{name}": pl.Series([row[name] for row in rows], dtype=kinds[f"problem.{name}"]) for name in read}
    return bound.frame(pl.DataFrame(columns), trusted=True).to_series().to_list()


def rates_read(family: Family, device: Device, dtype: str) -> str:
    """The numbers of a device that a roofline is computed from, in words."""
    read = [name.removeprefix("hw.") for name in _symbols(family) if name.startswith("hw.")]
    found = []
    for name in sorted(read, reverse=True):
        peak = device.peak_of(dtype) if name == PEAK else None
        if peak is not None:
            found.append(f"{peak:g} TFLOPS of {dtype}")
        elif name in device.numbers:
            value = f"{device.numbers[name]:g}"
            found.append(f"{value} GB/s" if name == "memory_bandwidth_gb_s" else f"{name} {value}")
    return ", ".join(found)


def missing(family: Family, problem: Mapping[str, Any]) -> list[str]:
    """The parameters that the work of a problem depends on and that are neither given nor have a default."""
    read = [name.removeprefix("p.") for name in _symbols(family) if name.startswith("p.")]
    if family.op.dtype is not None and f"hw.{PEAK}" in _symbols(family) and "dtype" not in read:
        read.append("dtype")
    return [name for name in family.problem.parameters if name in read and _needed(family, problem, [name]) is None]


def lacking(family: Family, device: Device, problem: Mapping[str, Any]) -> str:
    """Why a problem has no roofline on a device, in words."""
    if not _symbols(family):
        return f"the work of {family.op.name} is not known"
    absent = missing(family, problem)
    if absent:
        return f"the work of {family.op.name} depends on {', '.join(absent)}"
    names = [name.removeprefix("hw.") for name in _symbols(family) if name.startswith("hw.")]
    dtype = problem.get("dtype")
    numbers = [f"peak rate of {dtype}"] if PEAK in names and device.peak_of(str(dtype)) is None else []
    numbers += [name for name in sorted(names) if name != PEAK and name not in device.numbers]
    return f"the profile of {device.name} has no {', '.join(numbers)}"


def _symbols(family: Family) -> list[str]:
    """What the roofline of a family is computed from: `p.*` and `hw.*`."""
    work = family.work(family.op.namespace())
    return [] if work is None else [item.name for item in Program({ROOFLINE: work.roofline_ns(hardware_namespace())}).symbols]


def _needed(family: Family, problem: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any] | None:
    """The values of some parameters, defaults filled in; None if one is missing."""
    found = {}
    for name in names:
        parameter = family.problem.parameters[name]
        value = problem.get(name)
        if value is None:
            value = parameter.default
        if value is None and not parameter.nullable:
            return None
        found[name] = value
    return found


FORMAT, VERSION = "kerncast-roofline-misses", 1
FILE = "roofline.json"
COLUMNS = {"op": pl.String, "device": pl.String, "roofline_ns": pl.Float64, "time_ns": pl.Float64}
# Bands of the roofline, as many as have this many rows.
MOST_BANDS, ROWS_PER_BAND = 12, 200
# Below this share of the rooflines that were seen, a time is that of the smallest: a launch takes what it takes.
SMALLEST = 0.01


class Miss(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of one op: at some rooflines, ascending, how many times the roofline a time is."""

    least_ns: float
    """Shorter rooflines count as this one."""
    roofline_ns: tuple[float, ...]
    lower: tuple[float, ...]
    median: tuple[float, ...]
    upper: tuple[float, ...]
    devices: tuple[str, ...]
    rows: int

    def times(self, roofline_ns: Floats) -> tuple[Floats, Floats, Floats]:
        """The time to expect at each roofline, and the bounds that hold LEVEL of the times."""
        at = np.log(np.maximum(roofline_ns, self.least_ns))
        knots = np.log(np.array(self.roofline_ns))
        parts = (self.median, self.lower, self.upper)
        median, lower, upper = (np.exp(at + np.interp(at, knots, np.log(np.array(part)))) for part in parts)
        return median, lower, upper


class Misses(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """By op; `anything` is for ops that were not measured."""

    level: float
    ops: dict[str, Miss]
    anything: Miss
    format: str = FORMAT
    version: int = VERSION

    def of(self, op: str) -> tuple[Miss, bool]:
        """What is known of an op, and whether it was measured itself."""
        return (self.ops[op], True) if op in self.ops else (self.anything, False)

    def write(self, file: Path) -> None:
        """Write it, completely or not at all."""
        write_bytes(file, _FILE.text(self))


_FILE = Versioned(
    FORMAT, VERSION, Misses, "a table of how kernels miss their rooflines", "make it again, or install kerncast again"
)


def read_misses(file: Path) -> Misses:
    """What `Misses.write` wrote; anything else is refused by name."""
    found = _FILE.read(file)
    for name, miss in {**found.ops, "anything": found.anything}.items():
        parts = (miss.roofline_ns, miss.lower, miss.median, miss.upper)
        numbers = np.array([*np.concatenate([np.array(part, np.float64) for part in parts]), miss.least_ns])
        ascending = bool((np.diff(miss.roofline_ns) > 0).all())
        if len({len(part) for part in parts}) > 1 or not miss.roofline_ns or not ascending or not (numbers > 0).all():
            raise InvalidValue(f"{file} contradicts itself (the bands of {name} do not fit together): make it again")
    return found


def learn_misses(table: pl.DataFrame) -> Misses:
    """From measurements: columns `op`, `device`, `roofline_ns` and `time_ns`; rows without a positive number are left out.

    Times below their roofline count as they are: a small problem whose operands are in a cache beats the memory's bandwidth.
    """
    lacking = [name for name in COLUMNS if name not in table.columns]
    if lacking:
        raise InvalidValue(f"the table has no column '{lacking[0]}': it needs {', '.join(COLUMNS)}")
    rows = table.select(pl.col(name).cast(kind) for name, kind in COLUMNS.items()).drop_nulls()
    numbers = [pl.col(name).is_finite() & (pl.col(name) > 0) for name in ("roofline_ns", "time_ns")]
    rows = rows.filter(*numbers)
    if not rows.height:
        raise InvalidValue("the table has no row with a roofline and a time: there is nothing to learn from")
    ops = {name: _miss(rows.filter(pl.col("op") == name), ["device"]) for name in sorted(rows["op"].unique())}
    return Misses(LEVEL, ops, _miss(rows, ["op", "device"]))


def _miss(rows: pl.DataFrame, equally: Sequence[str]) -> Miss:
    """The quantiles of some rows; each of the groups `equally` has the same weight."""
    weight = rows.select(1.0 / pl.len().over(equally)).to_series().to_numpy()
    roofline = rows["roofline_ns"].to_numpy()
    miss = np.log(rows["time_ns"].to_numpy() / roofline)
    bands = int(np.clip(rows.height // ROWS_PER_BAND, 1, MOST_BANDS))
    edges = np.unique(_quantiles(roofline, weight, np.arange(1, bands) / bands))
    band = np.searchsorted(edges, roofline, side="right")
    tail = (1.0 - LEVEL) / 2.0
    knots, found = [], []
    for number in np.unique(band):
        own = band == number
        knots.append(float(_quantiles(roofline[own], weight[own], np.array([0.5]))[0]))
        found.append(np.exp(_quantiles(miss[own], weight[own], np.array([tail, 0.5, 1.0 - tail]))).tolist())
    lower, median, upper = (tuple(float(item[place]) for item in found) for place in range(3))
    least = float(_quantiles(roofline, weight, np.array([SMALLEST]))[0])
    return Miss(least, tuple(knots), lower, median, upper, tuple(sorted(rows["device"].unique())), rows.height)


def _quantiles(values: Floats, weight: Floats, at: Floats) -> Floats:
    """Quantiles of weighted values: the first value that has the share of the weight below or at it."""
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weight[order])
    place = np.searchsorted(reached, at * reached[-1], side="left")
    return np.asarray(values[order[np.minimum(place, len(values) - 1)]])
