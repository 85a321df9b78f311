"""Caches of Kernel Tuner and files in the T4 format, read and written: every config of one kernel that was tried.

Kernel Tuner's own caches:

    {"device_name": …, "kernel_name": …, "problem_size": [4096, 4096], "tune_params_keys": ["block_size_x", …], …,
     "cache": {
     "16,1,…": {"block_size_x": 16, …, "time": 3.875, "times": [3.976, 3.879, …], "compile_time": 918.6, …},

Times are in milliseconds; `time` is a number or the name of an error. While Kernel Tuner is tuning (and after a crash)
the file ends after some entry and is read up to there.

T4 is the results format of the auto-tuning community, which the benchmark hub publishes next to its caches:

    {"results": [{"configuration": {"block_size_x": 16, …}, "times": {"compilation": 918.6, "runtimes": [3.976, …]},
                  "invalidity": "correct", "correctness": 1, "measurements": [{"name": "time", "value": 3.875, "unit": "ms"}]}],
     "schema_version": "1.0.0", "metadata": {"timeunit": "milliseconds"}}

Files that are written hold one problem on one device; family and problem are in the header, and what a format has no place for
is in columns of its own, so that it is read back as it was.
https://github.com/KernelTuner/kernel_tuner, https://github.com/AutoTuningAssociation/benchmark_hub
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from kerncast.core.io.atomic import drafted, write_bytes
from kerncast.core.op import Family
from kerncast.data.dataset import Dataset
from kerncast.data.formats import Head, Imported, Importer, ImportOptions, rows_to_write
from kerncast.data.formats.kernel_tuner.attempts import (
    COLUMN_PREFIX,
    OWN,
    RESTORED,
    Tuned,
    attempts_of,
    device_of,
    entries_of,
    imported,
    positive,
    restored,
    sizes_of,
    stamp_of,
    storable,
    times_of,
    value_of,
    word,
    written_for,
)
from kerncast.data.json_entries import Entries
from kerncast.data.schema import MEASURED
from kerncast.data.skipping import Skips, bad_row
from kerncast.errors import BadFile
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
        "problem_size": part.sizes or [value for value in part.problem.values() if type(value) is int],
        "tune_params_keys": names,
        "tune_params": values,
        "objective": "time",
        **part.header,
        "cache": {key: _cache_entry(part, rows) for key, rows in attempts.items()},
    }


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


INVALIDITY = {"correct": "ok", "constraints": "invalid", "compile": "compile_error", "runtime": "launch_error",
              "correctness": "wrong_result", "timeout": "timeout"}  # fmt: skip
UNITS_NS = {"seconds": 1e9, "milliseconds": 1e6, "miliseconds": 1e6, "microseconds": 1e3, "nanoseconds": 1.0}


class T4(Importer):
    """A file of results, plain or gzipped."""

    name = "t4"
    doc = "results of an auto-tuner in the T4 format (JSON, or gzipped); the kernel becomes an op drafted from the file"

    def recognises(self, head: Head) -> bool:
        text = head.text.lstrip()
        return text.startswith("{") and all(f'"{name}"' in text for name in ("results", "configuration", "invalidity"))

    def read(self, path: Path, options: ImportOptions) -> Iterator[Imported]:
        yield imported(t4_of(entries_of(path, ("results",), options), options.skips), options)

    def write(self, dataset: Dataset, out: Path, family: str | None, where: Sequence[str]) -> list[Path]:
        return write_t4(dataset, out, family, where)


def t4_of(found: Entries, skips: Skips) -> Tuned:
    """The T4 format. Kernel, device and problem size are there only if kerncast wrote it; else the caller gives them."""
    said = found.header.get("metadata")
    metadata = said if isinstance(said, dict) else {}
    unit = metadata.get("timeunit", "milliseconds")
    if unit not in UNITS_NS:
        raise BadFile(f"line 1: the time unit {unit!r} is not known (known: {', '.join(UNITS_NS)})")
    own = written_for(metadata)
    configs = [entry.get("configuration") for _, entry in found.entries if isinstance(entry, dict)]
    # Most results name the same parameters; one that lacks some is skipped.
    named = Counter(tuple(config) for config in configs if isinstance(config, dict) and config)
    names = max(named, key=lambda item: named[item], default=())

    def read(line: int, entry: Any) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        config = entry.get("configuration") if isinstance(entry, dict) else None
        if not isinstance(config, dict) or not config:
            raise bad_row(line, "a result must have a `configuration`", entry)
        values = {name: value_of(config, name, line, nullable=own is not None) for name in names}
        return values, {**_judged(entry, UNITS_NS[unit], line), **restored(_measurements(entry), line)}

    attempts = attempts_of(found, skips, read, declared=own is not None)
    return Tuned(word(metadata, "kernel_name"), word(metadata, "device_name"), sizes_of(metadata), names, attempts, own)


def _judged(entry: Mapping[str, Any], unit: float, line: int) -> dict[str, Any]:
    """How an attempt of a T4 file ended."""
    word, times, stamp = entry.get("invalidity"), entry.get("times"), entry.get("timestamp")
    if not isinstance(word, str) or word not in INVALIDITY:
        raise bad_row(line, f"the invalidity {str(word)[:60]!r} is not known (known: {', '.join(INVALIDITY)})")
    times = times if isinstance(times, dict) else {}
    found = {"compile_ns": positive(times.get("compilation"), unit), "started_at": stamp_of(stamp)}
    if word != "correct":
        return {"status": INVALIDITY[word], "error": word, **found}
    return {"status": "ok", **times_of(times.get("runtimes"), _measurements(entry).get("time"), unit, line), **found}


def _measurements(entry: Mapping[str, Any]) -> dict[str, Any]:
    """What was measured, by name; the first of several with one name."""
    listed = entry.get("measurements")
    named = [item for item in listed if isinstance(item, dict)] if isinstance(listed, list) else []
    return {str(item.get("name")): item.get("value") for item in reversed(named)}


# The errors in place of a time, or in `__error__`.
ERRORS = {"InvalidConfig": "invalid", "CompilationFailedConfig": "compile_error", "RuntimeFailedConfig": "launch_error"}
# The time that versions before 0.4 wrote for a failure.
FAILED_MS = 1e20


class KernelTuner(Importer):
    """A cache of Kernel Tuner, plain or gzipped, closed or not."""

    name = "kernel-tuner"
    doc = "a cache (JSON, or gzipped) of Kernel Tuner; the kernel becomes an op drafted from the file"

    def recognises(self, head: Head) -> bool:
        return head.text.lstrip().startswith("{") and '"tune_params_keys"' in head.text

    def read(self, path: Path, options: ImportOptions) -> Iterator[Imported]:
        found = entries_of(path, ("cache", "results"), options)
        tuned = _plain(found, options.skips) if found.name == "cache" else t4_of(found, options.skips)
        yield imported(tuned, options)

    def write(self, dataset: Dataset, out: Path, family: str | None, where: Sequence[str]) -> list[Path]:
        return write_kernel_tuner(dataset, out, family, where)


def _plain(found: Entries, skips: Skips) -> Tuned:
    """Kernel Tuner's own format."""
    header = found.header
    names, own = header.get("tune_params_keys"), written_for(header)
    if not isinstance(names, list) or not names or not all(isinstance(name, str) and storable(name) for name in names):
        raise BadFile("line 1: the file has no list `tune_params_keys`, so it is not a cache of Kernel Tuner")
    parameters = tuple(names)

    def read(line: int, entry: Any) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        if not isinstance(entry, dict):
            raise bad_row(line, "an entry of `cache` must be an object", type(entry).__name__)
        config = {name: value_of(entry, name, line, nullable=own is not None) for name in parameters}
        return config, {**_measured(entry, line), **restored(entry, line)}

    attempts = attempts_of(found, skips, read, declared=own is not None)
    return Tuned(word(header, "kernel_name"), word(header, "device_name"), sizes_of(header), parameters, attempts, own)


def _measured(entry: Mapping[str, Any], line: int) -> dict[str, Any]:
    """How an attempt of a plain cache ended."""
    time, stamp = entry.get("time"), entry.get("timestamp")
    found = {"compile_ns": positive(entry.get("compile_time"), 1e6), "started_at": stamp_of(stamp)}
    word = entry.get("__error__", time if isinstance(time, str) else None)
    if word is not None:
        if not isinstance(word, str) or word not in ERRORS:
            raise bad_row(line, f"the error {str(word)[:60]!r} is not known (known: {', '.join(ERRORS)})")
        return {"status": ERRORS[word], "error": word, **found}
    if isinstance(time, int | float) and time >= FAILED_MS:
        return {"status": "launch_error", "error": "failed, without a reason", **found}
    return {"status": "ok", **times_of(entry.get("times"), time, 1e6, line), **found}
