"""Caches of Kernel Tuner and files in the T4 format: every config of one kernel that was tried."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from kerncast.data.dataset import Dataset
from kerncast.data.formats import Head, Imported, Importer, Options
from kerncast.data.formats.kernel_tuner.attempts import (
    Tuned,
    attempts_of,
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
from kerncast.data.formats.kernel_tuner.writing import write_kernel_tuner, write_t4
from kerncast.data.json_entries import Entries
from kerncast.data.skipping import Skips, bad_row
from kerncast.errors import BadFile

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

    def read(self, path: Path, options: Options) -> Iterator[Imported]:
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
    return {"status": "ok", **times_of(times.get("runtimes"), _objective(entry), unit, line), **found}


def _objective(entry: Mapping[str, Any]) -> Any:
    """The time among the measurements, for files that do not keep the launches."""
    return _measurements(entry).get("time")


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

    def read(self, path: Path, options: Options) -> Iterator[Imported]:
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
