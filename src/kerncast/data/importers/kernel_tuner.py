"""Caches of Kernel Tuner: every config of one kernel that was tried, with the time of each launch.

    {"device_name": …, "kernel_name": …, "problem_size": [4096, 4096], "tune_params_keys": ["block_size_x", …], …,
     "cache": {
     "16,1,…": {"block_size_x": 16, …, "time": 3.875, "times": [3.976, 3.879, …], "compile_time": 918.6, …},

Times are in milliseconds; `time` is a number or the name of an error. While Kernel Tuner is tuning (and after a crash)
the file ends after some entry and is read up to there. The T4 format that the benchmark hub publishes next to its
caches is read as well (`importers.t4`).
https://github.com/KernelTuner/kernel_tuner, https://github.com/AutoTuningAssociation/benchmark_hub
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kerncast.data.importers import Head, Imported, Importer, Options
from kerncast.data.importers.t4 import t4_of
from kerncast.data.importers.tuned import (
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
from kerncast.data.importers.unclosed_json import Entries
from kerncast.data.skipping import Skips, bad_row
from kerncast.errors import BadFile

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
