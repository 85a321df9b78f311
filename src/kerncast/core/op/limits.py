"""What no kernel can beat on a device: the yardstick that measured times are held against.

`limit_ns` is the roofline of the cores in use. Data in a cache may pass its memory side, so `floor_ns` counts only the
traffic that no cache can hold: a shorter time means that the work is overcounted, or that the label is wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import polars as pl

from kerncast.core.arrays import Floats
from kerncast.core.device import Device, hardware_namespace
from kerncast.core.expr import Expr, Program, maximum, where
from kerncast.core.io.terminal import assignments, duration
from kerncast.core.op.declaration import Family

OUTPUTS = ("limit_ns", "floor_ns", "peak_share")
# Peak rates are rated or measured clocks, which a device passes by a little for a while.
MARGIN = 1.05


def limit_program(family: Family, device: Device, dtypes: Iterable[str] | None = None) -> Program:
    """`limit_ns`, `floor_ns` and `peak_share` (the part of the peak rate that the cores in use have), each if it is known."""
    p, hw = family.namespace, hardware_namespace()
    work = family.work(p)
    if work is None:
        return Program({})
    share = family.peak_share(p, hw)
    compute, memory = work.parts_ns(hw)
    compute = compute / share
    limit, floor = maximum(compute, memory), _floor(family, device, compute, memory)
    if work.communicates:
        limit, floor = maximum(limit, work.link_ns(hw)), maximum(floor, work.link_ns(hw))
    known = {"limit_ns": limit, "floor_ns": floor, "peak_share": share}
    outputs = Program(known).bind(device.bindings(family.op.dtype, dtypes)).outputs
    return Program({name: expr for name, expr in outputs.items() if not _unknown(expr)})


def _floor(family: Family, device: Device, compute: Expr, memory: Expr) -> Expr:
    p, hw = family.namespace, hardware_namespace()
    for flag in family.above_peak:
        compute = where(getattr(p, flag) == 1, 0.0, compute)
    cached = _cache_bytes(device)
    return compute if cached is None else maximum(compute, memory - cached / hw.memory_bandwidth_gb_s)


def _cache_bytes(device: Device) -> float | None:
    """All the bytes that the caches and local memories of a device hold; None: unknown."""
    numbers, cores = device.numbers, device.numbers.get("num_cus", 1.0)
    if "l1_bytes_per_core" in numbers:
        return numbers["l1_bytes_per_core"] * cores
    if "l2_cache_kb" not in numbers:
        return None
    copies = cores if device.kind == "cpu" else numbers.get("num_xcd", 1.0)
    return 1024.0 * (numbers["l2_cache_kb"] * copies + numbers.get("l3_cache_kb", 0.0))


def _unknown(expr: Expr) -> bool:
    return any(item.name.startswith("hw.") for item in Program({"it": expr}).symbols)


def faster_than_possible(vectors: pl.DataFrame, time_ns: Floats, floor_ns: Floats) -> dict[str, Any]:
    """How many of some vectors are faster than the device allows, and the worst of them; a missing time is not."""
    ratio = np.where(np.isfinite(time_ns), floor_ns / np.where(np.isfinite(time_ns), time_ns, 1.0), 0.0)
    found: dict[str, Any] = {
        "checked_rows": int(np.isfinite(time_ns).sum()),
        "rows": int((ratio > MARGIN).sum()),
        "worst": None,
    }
    if found["rows"]:
        worst = int(ratio.argmax())
        row = vectors.row(worst, named=True)
        found["worst"] = {
            **{
                part: {
                    name.removeprefix(f"{part}."): value
                    for name, value in row.items()
                    if name.startswith(f"{part}.") and value is not None
                }
                for part in ("problem", "config")
            },
            "time_ns": float(time_ns[worst]),
            "floor_ns": float(floor_ns[worst]),
        }
    return found


def together(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Findings of several devices as one."""
    worst = max(
        (part["worst"] for part in parts if part["worst"]), key=lambda row: row["floor_ns"] / row["time_ns"], default=None
    )
    return {**{name: sum(part[name] for part in parts) for name in ("checked_rows", "rows")}, "worst": worst}


def sentence(found: Mapping[str, Any]) -> str:
    """What is wrong with rows that are faster than the device allows, for people."""
    worst = found["worst"]
    return (
        f"{found['rows']:,} of {found['checked_rows']:,} rows are faster than the device allows (worst: "
        f"{assignments(worst['problem'])} in {duration(worst['time_ns'])}, its work needs {duration(worst['floor_ns'])}): "
        "the work is overcounted (a mask that skips some of it), the device's numbers are too low, or the label is wrong"
    )
