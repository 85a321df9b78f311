"""Measured rows as a cache of Kernel Tuner or in the T4 format: one file per problem and device, which their tools read."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from kerncast.core.io.atomic import drafted, write_bytes
from kerncast.core.op import Family
from kerncast.data.dataset import Dataset
from kerncast.data.formats import rows_to_write
from kerncast.data.formats.kernel_tuner.attempts import COLUMN_PREFIX, OWN, RESTORED, device_of
from kerncast.data.schema import MEASURED
from kerncast.library.declared.declaration import AXES, declaration_of

LONGEST_STEM = 120


@dataclass(frozen=True)
class MeasuredProblem:
    """The rows of one problem on one device."""

    family: Family
    device: str
    """What a reader looks up: the device's title where that leads back to it, else its name."""
    problem: Mapping[str, Any]
    rows: Sequence[Mapping[str, Any]]

    @property
    def kernel(self) -> str:
        """What the kernel is called: as the file said that the family was drafted from, else its op."""
        return str(self.problem.get("kernel", self.family.op.name)) if declaration_of(self.family) else self.family.op.name

    @property
    def sizes(self) -> list[int]:
        """The sizes of a drafted problem."""
        return [self.problem[f"size_{axis}"] for axis in AXES if f"size_{axis}" in self.problem]

    @property
    def parameters(self) -> list[str]:
        """The parameters that some config has."""
        names = list(self.family.config.parameters)
        return [name for name in names if any(row[f"config.{name}"] is not None for row in self.rows)]

    @property
    def header(self) -> dict[str, Any]:
        """What a file says about itself beyond its format, so that it is read back as it was."""
        drafted_from_file = declaration_of(self.family) is not None
        return {OWN: {"family": self.family.id, "problem": {} if drafted_from_file else dict(self.problem)}}

    def config(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """The config of a row."""
        return {name: row[f"config.{name}"] for name in self.parameters}


def columns_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of a measurement that no foreign format has, under names of their own."""
    return {f"{COLUMN_PREFIX}{name}": row[name] for name in MEASURED if name in RESTORED and row.get(name) is not None}


def split(dataset: Dataset, name: str | None, where: Sequence[str]) -> Iterator[MeasuredProblem]:
    """The rows, a problem and a device at a time, in the order of their first rows."""
    family, rows = rows_to_write(dataset, name, where)
    names = list(family.problem.parameters)
    groups = rows.partition_by("device", *(f"problem.{name}" for name in names), maintain_order=True)
    for group in groups:
        first = group.row(0, named=True)
        device = dataset.device(first["device"])
        told = device.title if (found := device_of(device.title)) is not None and found.name == device.name else device.name
        problem = {name: first[f"problem.{name}"] for name in names if first[f"problem.{name}"] is not None}
        yield MeasuredProblem(family, told, problem, group.to_dicts())


def write_each(parts: Sequence[MeasuredProblem], out: Path, content: Callable[[MeasuredProblem], Any]) -> list[Path]:
    """One JSON file, or a folder of them if there are several problems or devices."""
    if len(parts) == 1:
        write_bytes(out, _json(content(parts[0])))
        return [out]
    with drafted(out) as folder:
        for number, part in enumerate(parts, 1):
            write_bytes(folder / f"{number:05d}_{_stem(part, parts)}.json", _json(content(part)))
    return sorted(out.iterdir())


def _json(document: Any) -> bytes:
    """One entry a line, as Kernel Tuner has it; strict JSON."""
    return msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n"


def _stem(part: MeasuredProblem, parts: Sequence[MeasuredProblem]) -> str:
    """What tells a file from the others: the parameters that differ."""
    varying = [name for name in part.problem if len({repr(other.problem.get(name)) for other in parts}) > 1]
    words = [f"{name}{part.problem[name]}" for name in varying]
    if len({other.device for other in parts}) > 1:
        words.insert(0, part.device)
    return re.sub(r"[^\w.+-]+", "_", "_".join(words), flags=re.ASCII)[:LONGEST_STEM].strip("._") or "results"


NS_PER_MS = 1e6

# What Kernel Tuner calls failures; the exact status is beside it.
WRITTEN_ERRORS = {"invalid": "InvalidConfig", "unsupported": "InvalidConfig", "compile_error": "CompilationFailedConfig"}
OTHER_ERROR = "RuntimeFailedConfig"


def write_kernel_tuner(dataset: Dataset, out: Path, family: str | None, where: Sequence[str]) -> list[Path]:
    """A cache, or a folder with a cache for each problem and device."""
    return write_each(list(split(dataset, family, where)), out, _cache_of)


def _cache_of(part: MeasuredProblem) -> dict[str, Any]:
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
        "cache": {key: _cache_entry(part, rows) for key, rows in attempts.items()},
    }


def _numbers(problem: Mapping[str, Any]) -> Sequence[int]:
    """The sizes of a problem of an installed op, for tools that show them."""
    return [value for value in problem.values() if type(value) is int]


def _cache_entry(part: MeasuredProblem, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    good = [row for row in rows if row["status"] == "ok"]
    row = good[0] if good else rows[0]
    compiling = row["compile_ns"] or 0.0
    found = {**part.config(row), **_time(good, row)}
    found |= {"compile_time": compiling / NS_PER_MS, "verification_time": 0, "benchmark_time": _benchmarked(good)}
    found |= {"strategy_time": 0, "framework_time": 0, "timestamp": row["started_at"] or ""}
    return found | (columns_of(row) if len(rows) == 1 else {})


def _time(good: Sequence[Mapping[str, Any]], row: Mapping[str, Any]) -> dict[str, Any]:
    """`time` is the mean, as in Kernel Tuner; or the name of an error."""
    if not good:
        error = WRITTEN_ERRORS.get(row["status"], OTHER_ERROR)
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


SCHEMA_VERSION = "1.0.0"
OBJECTIVE = "time"
# Every status as one of T4's words; the exact one is among the measurements.
WRITTEN_INVALIDITY = {
    "ok": "correct", "invalid": "constraints", "unsupported": "constraints", "compile_error": "compile",
    "wrong_result": "correctness", "timeout": "timeout",
}  # fmt: skip


def write_t4(dataset: Dataset, out: Path, family: str | None, where: Sequence[str]) -> list[Path]:
    """A file, or a folder with a file for each problem and device."""
    return write_each(list(split(dataset, family, where)), out, _t4_of)


def _t4_of(part: MeasuredProblem) -> dict[str, Any]:
    metadata = {"timeunit": "milliseconds", "kernel_name": part.kernel, "device_name": part.device, **part.header}
    if part.sizes:
        metadata["problem_size"] = part.sizes
    return {
        "schema_version": SCHEMA_VERSION,
        "metadata": metadata,
        "results": [_t4_result(part, row) for row in part.rows],
    }


def _t4_result(part: MeasuredProblem, row: Mapping[str, Any]) -> dict[str, Any]:
    time, compiling = row["time_ns"], row["compile_ns"]
    measurements = [{"name": name, "value": value, "unit": _unit(name)} for name, value in columns_of(row).items()]
    if time is not None:
        measurements.insert(0, {"name": OBJECTIVE, "value": time / NS_PER_MS, "unit": "ms"})
    times: dict[str, Any] = {} if compiling is None else {"compilation": compiling / NS_PER_MS}
    # Only a single launch is known as it was; of several, the dataset has what they come to.
    times["runtimes"] = [time / NS_PER_MS] if time is not None and row["samples"] == 1 else []
    return {
        **({} if row["started_at"] is None else {"timestamp": row["started_at"]}),
        "configuration": part.config(row),
        "objectives": [OBJECTIVE],
        "times": times,
        "invalidity": WRITTEN_INVALIDITY.get(row["status"], "runtime"),
        "correctness": 0 if row["status"] == "wrong_result" else 1,
        "measurements": measurements,
    }


def _unit(name: str) -> str:
    return "ns" if "_ns" in name.removeprefix(COLUMN_PREFIX) else ""
