"""A cache as Kernel Tuner writes it: one file per problem and device, which its simulation mode and its tools read.

A cache has one entry per config, so repeats of a config become the launches of one entry.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kerncast.data.dataset import Dataset
from kerncast.data.exporters.selected import Measured, columns_of, split, write_each

NS_PER_MS = 1e6
OK = "ok"
# What Kernel Tuner calls failures; the exact status is beside it.
ERRORS = {"invalid": "InvalidConfig", "unsupported": "InvalidConfig", "compile_error": "CompilationFailedConfig"}
OTHER_ERROR = "RuntimeFailedConfig"


def write_kernel_tuner(dataset: Dataset, out: Path, family: str | None, where: Sequence[str]) -> list[Path]:
    """A cache, or a folder with a cache for each problem and device."""
    return write_each(list(split(dataset, family, where)), out, _document)


def _document(part: Measured) -> dict[str, Any]:
    names = part.parameters
    values = {name: list(dict.fromkeys(row[f"config.{name}"] for row in part.rows)) for name in names}
    attempts: dict[str, list[Mapping[str, Any]]] = {}
    for row in part.rows:
        # The key that Kernel Tuner looks a config up by.
        attempts.setdefault(",".join(str(row[f"config.{name}"]) for name in names), []).append(row)
    return {
        "device_name": part.device,
        "kernel_name": part.kernel,
        "problem_size": part.sizes or list(_numbers(part.problem)),
        "tune_params_keys": names,
        "tune_params": values,
        "objective": "time",
        **part.header,
        "cache": {key: _entry(part, rows) for key, rows in attempts.items()},
    }


def _numbers(problem: Mapping[str, Any]) -> Sequence[int]:
    """The sizes of a problem of an installed op, for tools that show them."""
    return [value for value in problem.values() if type(value) is int]


def _entry(part: Measured, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    good = [row for row in rows if row["status"] == OK]
    row = good[0] if good else rows[0]
    compiling = row["compile_ns"] or 0.0
    found = {**part.config(row), **_time(good, row)}
    found |= {"compile_time": compiling / NS_PER_MS, "verification_time": 0, "benchmark_time": _benchmarked(good)}
    found |= {"strategy_time": 0, "framework_time": 0, "timestamp": row["started_at"] or ""}
    return found | (columns_of(row) if len(rows) == 1 else {})


def _time(good: Sequence[Mapping[str, Any]], row: Mapping[str, Any]) -> dict[str, Any]:
    """`time` is the mean, as in Kernel Tuner; or the name of an error."""
    if not good:
        error = ERRORS.get(row["status"], OTHER_ERROR)
        return {"time": error, "__error__": error}
    times = [float(one["time_ns"]) / NS_PER_MS for one in good]
    if len(good) > 1:
        return {"time": math.fsum(times) / len(times), "times": times}
    mean = row["time_ns_mean"]
    return {"time": times[0] if mean is None else mean / NS_PER_MS, "times": times}


def _benchmarked(good: Sequence[Mapping[str, Any]]) -> float:
    """How long the launches of an entry took."""
    spent = ((row["time_ns_mean"] or row["time_ns"]) * (row["samples"] or 1) * (row["inner_loops"] or 1) for row in good)
    return math.fsum(spent) / NS_PER_MS
