"""Rooflines of problems: what the arithmetic and the traffic of an op take at a device's peak rates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import polars as pl

from kerncast.core.device import PEAK, Device, hardware_namespace
from kerncast.core.expr import Program
from kerncast.core.op import Family
from kerncast.data import schema

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
