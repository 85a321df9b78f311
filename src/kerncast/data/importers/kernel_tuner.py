"""Caches of Kernel Tuner: every config of one kernel that was tried, with the time of each launch.

    {"device_name": …, "kernel_name": …, "problem_size": [4096, 4096], "tune_params_keys": ["block_size_x", …], …,
     "cache": {
     "16,1,…": {"block_size_x": 16, …, "time": 3.875, "times": [3.976, 3.879, …], "compile_time": 918.6, …},

Times are in milliseconds; `time` is a number or the name of an error. While Kernel Tuner is tuning (and after a crash)
the file ends after some entry and is read up to there. The T4 format that the benchmark hub publishes next to its
caches (`{"results": [{"configuration": …, "times": {"runtimes": …}, "invalidity": …}]}`) is read as well.

Such a file does not say what was computed, so the kernel becomes a new op, drafted from the file.
https://github.com/KernelTuner/kernel_tuner, https://github.com/AutoTuningAssociation/benchmark_hub
"""

from __future__ import annotations

import math
import re
import statistics
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl

from kerncast import devices
from kerncast.budgets import JSON_BYTES
from kerncast.data.importers import Head, Imported, Importer, Options
from kerncast.data.importers.unclosed_json import Entries, read_unclosed
from kerncast.data.schema import MEASURED
from kerncast.data.skipping import BadRows, Skips, bad_row
from kerncast.data.text_table import LINE
from kerncast.declared import diagram
from kerncast.declared.declaration import (
    AXES,
    LARGEST_SIZE,
    Declaration,
    Values,
    declared_family,
)
from kerncast.device import Device
from kerncast.errors import BadFile, InvalidValue
from kerncast.files.expanding import GZIP, gunzip_beginning
from kerncast.registry import LONGEST_LABEL, LONGEST_NAME

FAMILY = "kernel_tuner"
# The errors in place of a time, or in `__error__`.
ERRORS = {"InvalidConfig": "invalid", "CompilationFailedConfig": "compile_error", "RuntimeFailedConfig": "launch_error"}
# The same for the T4 format.
INVALIDITY = {"correct": "ok", "constraints": "invalid", "compile": "compile_error", "runtime": "launch_error",
              "correctness": "wrong_result", "timeout": "timeout"}  # fmt: skip
# The time that versions before 0.4 wrote for a failure.
FAILED_MS = 1e20
UNITS_NS = {"seconds": 1e9, "milliseconds": 1e6, "miliseconds": 1e6, "microseconds": 1e3, "nanoseconds": 1.0}
RESERVED = {"op", "family", "values", "trusted"}


class KernelTuner(Importer):
    """A cache of Kernel Tuner, plain or gzipped, closed or not."""

    name = "kernel-tuner"
    doc = "a cache (JSON, or gzipped) of Kernel Tuner, or its T4 form; the kernel becomes an op drafted from the file"

    def recognises(self, head: Head) -> bool:
        text = head.text.lstrip()
        t4 = '"results"' in text and '"configuration"' in text
        return text.startswith("{") and ('"tune_params_keys"' in text or t4)

    def read(self, path: Path, options: Options) -> Iterator[Imported]:
        unknown = sorted(set(options.values) - {"op"})
        if unknown or options.mapping is not None:
            what = f"`set` {unknown[0]}" if unknown else "`mapping`"
            raise InvalidValue(
                f"{what} does not apply to a cache of Kernel Tuner, which names its parameters: leave it out (known: `set` op)"
            )
        found = read_unclosed(_text(path), ("cache", "results"))
        for line, text in found.damaged:
            options.skips.one(bad_row(line, "an entry must be whole JSON"), text)
        cache = _plain(found, options.skips) if found.name == "cache" else _t4(found, options.skips)
        cache = _without_long_labels(cache, options.skips)
        op = options.values.get("op") or _slug(cache.kernel)[:LONGEST_NAME]
        if not re.fullmatch(r"[A-Za-z_]\w*", op):
            raise InvalidValue(
                "the file does not name its kernel, and an op needs a name: add `set` op=NAME (letters, digits, _)"
            )
        declared, rows = _draft(cache, op)
        yield Imported(declared_family(declared), rows, _device(cache.device))


def _without_long_labels(cache: _Cache, skips: Skips) -> _Cache:
    """The cache without entries whose labels nobody can have meant."""
    kept, rule = [], f"a label has at most {LONGEST_LABEL:,} characters"
    for attempt in cache.attempts:
        long = [value for value in attempt.config.values() if isinstance(value, str) and len(value) > LONGEST_LABEL]
        if long:
            skips.one(bad_row(attempt.line, rule, long[0]), long[0])
        else:
            kept.append(attempt)
    return cache if len(kept) == len(cache.attempts) else replace(cache, attempts=kept)


@dataclass(frozen=True)
class _Attempt:
    """One config, as either format has it."""

    line: int
    config: Mapping[str, Any]
    measured: Mapping[str, Any]


@dataclass(frozen=True)
class _Cache:
    kernel: str
    device: str
    sizes: tuple[int, ...]
    parameters: tuple[str, ...]
    attempts: Sequence[_Attempt]


def _text(path: Path) -> str:
    data = JSON_BYTES.read(path)
    try:
        if data[:2] == GZIP:
            data = gunzip_beginning(data, str(path))
        text = data.decode("utf-8")
    except zlib.error as error:
        raise BadFile(f"the file is not valid gzip ({error}): is it damaged?") from error
    except UnicodeDecodeError as error:
        raise BadFile(f"the file is not text in UTF-8 ({error.reason} at byte {error.start})") from error
    return text


def _attempts(
    found: Entries, skips: Skips, read: Callable[[int, Any], tuple[Mapping[str, Any], Mapping[str, Any]]]
) -> list[_Attempt]:
    """The entries that can be read; the others are skipped."""
    attempts = []
    for place, (line, entry) in enumerate(found.entries):
        try:
            config, measured = read(line, entry)
        except BadRows as error:
            skips.one(error, entry)
        else:
            attempts.append(_Attempt(line, config, {"order": place, **measured}))
    attempts = _of_one_kind(attempts, skips)
    if not attempts and skips.rows:
        raise BadFile(f"no entry of it can be used: {skips.told()}")
    return attempts


def _of_one_kind(attempts: list[_Attempt], skips: Skips) -> list[_Attempt]:
    """Without attempts in which a parameter has a value that occurs once and is of another kind than nearly all others.

    One such value would turn a parameter that is a number into a label for all attempts.
    """
    for name in attempts[0].config if len(attempts) > 2 else ():
        values = Counter((type(attempt.config[name]), attempt.config[name]) for attempt in attempts)
        kinds = Counter(type(attempt.config[name]) for attempt in attempts)
        (main, count), *_ = kinds.most_common(1)
        if count < len(attempts) - 1:
            continue
        kept = []
        for attempt in attempts:
            value = attempt.config[name]
            if type(value) is main or values[(type(value), value)] > 1:
                kept.append(attempt)
            else:
                kind = f"the parameter '{name}' must be of the same kind as in all other entries"
                skips.one(bad_row(attempt.line, kind, value), dict(attempt.config))
        attempts = kept
    return attempts


def _plain(found: Entries, skips: Skips) -> _Cache:
    """Kernel Tuner's own format."""
    names = found.header.get("tune_params_keys")
    if not isinstance(names, list) or not names or not all(isinstance(name, str) and _storable(name) for name in names):
        raise BadFile("line 1: the file has no list `tune_params_keys`, so it is not a cache of Kernel Tuner")
    parameters = tuple(names)

    def read(line: int, entry: Any) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        if not isinstance(entry, dict):
            raise bad_row(line, "an entry of `cache` must be an object", type(entry).__name__)
        return {name: _value(entry, name, line) for name in parameters}, _measured(entry, line)

    attempts, header = _attempts(found, skips, read), found.header
    return _Cache(_word(header, "kernel_name"), _word(header, "device_name"), _sizes(header), parameters, attempts)


def _word(header: Mapping[str, Any], name: str) -> str:
    text = header.get(name)
    if isinstance(text, str) and not _storable(text):
        raise BadFile(f"line 1: `{name}` must be plain text, got {text[:60]!r}")
    return text if isinstance(text, str) else ""


def _storable(text: str) -> bool:
    """JSON can contain half of a surrogate pair, which text cannot store."""
    return text.isascii() or text.encode("utf-8", "replace").decode() == text


def _sizes(header: Mapping[str, Any]) -> tuple[int, ...]:
    """The problem size where it is plain numbers; a formula or a function leaves it unknown."""
    given = header.get("problem_size")
    sizes: list[Any] = given if isinstance(given, list) else [given]
    plain = all(isinstance(size, int) and not isinstance(size, bool) and 1 <= size <= LARGEST_SIZE for size in sizes)
    return tuple(sizes) if plain and len(sizes) <= len(AXES) else ()


def _value(entry: Mapping[str, Any], name: str, line: int) -> int | bool | str:
    """A parameter's value; what is not a whole number or a flag is a label."""
    value = entry.get(name)
    if value is None or isinstance(value, list | dict):
        raise bad_row(line, f"the parameter '{name}' must have a plain value", repr(value))
    if isinstance(value, str) and not _storable(value):
        raise bad_row(line, f"the parameter '{name}' must be plain text", ascii(value))
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, int) and not -(2**53) <= value <= 2**53:
        raise bad_row(line, f"the parameter '{name}' is too large", value)
    return value if isinstance(value, int | str) else repr(value)


def _measured(entry: Mapping[str, Any], line: int) -> dict[str, Any]:
    """How an attempt of a plain cache ended."""
    time, stamp = entry.get("time"), entry.get("timestamp")
    found = {"compile_ns": _positive(entry.get("compile_time"), 1e6), "started_at": _stamp(stamp)}
    word = entry.get("__error__", time if isinstance(time, str) else None)
    if word is not None:
        if not isinstance(word, str) or word not in ERRORS:
            raise bad_row(line, f"the error {str(word)[:60]!r} is not known (known: {', '.join(ERRORS)})")
        return {"status": ERRORS[word], "error": word, **found}
    if isinstance(time, int | float) and time >= FAILED_MS:
        return {"status": "launch_error", "error": "failed, without a reason", **found}
    return {"status": "ok", **_times(entry.get("times"), time, 1e6, line), **found}


def _times(times: Any, mean: Any, unit: float, line: int) -> dict[str, Any]:
    """Statistics of the launches, or the mean alone if the launches were not kept."""
    values = times if isinstance(times, list) and times else [mean]
    if not all(_positive(value, unit) for value in values):
        raise bad_row(line, "a time must be a positive number", times if times else mean)
    spent = [value * unit for value in values]
    middle = statistics.median(spent)
    if len(spent) == 1:
        return {"time_ns": middle, "samples": 1 if times else None}
    mean_ns = math.fsum(spent) / len(spent)
    # Not `statistics.stdev`: it computes with fractions, which would take most of the time of an import.
    deviation = math.sqrt(math.fsum((value - mean_ns) ** 2 for value in spent) / (len(spent) - 1))
    return {
        "time_ns": middle, "time_ns_min": min(spent), "time_ns_mean": mean_ns,
        "time_ns_std": deviation, "time_ns_mad": statistics.median(abs(value - middle) for value in spent),
        "samples": len(spent),
    }  # fmt: skip


def _stamp(value: Any) -> str | None:
    return value if isinstance(value, str) and _storable(value) else None


def _positive(value: Any, unit: float) -> float | None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return value * unit if number and math.isfinite(value) and 0 < value < 1e18 else None


def _t4(found: Entries, skips: Skips) -> _Cache:
    """The T4 format. It has no kernel, device or problem size, so the caller must give them."""
    metadata = found.header.get("metadata")
    word = metadata.get("timeunit", "milliseconds") if isinstance(metadata, dict) else "milliseconds"
    if word not in UNITS_NS:
        raise BadFile(f"line 1: the time unit {word!r} is not known (known: {', '.join(UNITS_NS)})")
    configs = [entry.get("configuration") for _, entry in found.entries if isinstance(entry, dict)]
    # Most results name the same parameters; one that lacks some is skipped.
    named = Counter(tuple(config) for config in configs if isinstance(config, dict) and config)
    names = max(named, key=lambda item: named[item], default=())

    def read(line: int, entry: Any) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        config = entry.get("configuration") if isinstance(entry, dict) else None
        if not isinstance(config, dict) or not config:
            raise bad_row(line, "a result must have a `configuration`", entry)
        return {name: _value(config, name, line) for name in names}, _judged(entry, UNITS_NS[word], line)

    return _Cache("", "", (), names, _attempts(found, skips, read))


def _judged(entry: Mapping[str, Any], unit: float, line: int) -> dict[str, Any]:
    """How an attempt of a T4 file ended."""
    word, times, stamp = entry.get("invalidity"), entry.get("times"), entry.get("timestamp")
    if not isinstance(word, str) or word not in INVALIDITY:
        raise bad_row(line, f"the invalidity {str(word)[:60]!r} is not known (known: {', '.join(INVALIDITY)})")
    times = times if isinstance(times, dict) else {}
    found = {"compile_ns": _positive(times.get("compilation"), unit), "started_at": _stamp(stamp)}
    if word != "correct":
        return {"status": INVALIDITY[word], "error": word, **found}
    return {"status": "ok", **_times(times.get("runtimes"), _objective(entry), unit, line), **found}


def _objective(entry: Mapping[str, Any]) -> Any:
    """The time among the measurements, for files that do not keep the launches."""
    listed = entry.get("measurements")
    named = (
        [item for item in listed if isinstance(item, dict) and item.get("name") == "time"] if isinstance(listed, list) else []
    )
    return named[0].get("value") if named else None


# -- the draft of an op ----------------------------------------------------------------------------------


def _draft(cache: _Cache, op: str) -> tuple[Declaration, pl.DataFrame]:
    """The op that a cache declares, and its rows."""
    if not cache.attempts:
        raise BadFile("the cache is empty: there is nothing to import")
    slugs = [_slug(name) for name in cache.parameters]
    names = {name: f"{slug}_" if slug in RESERVED else slug for name, slug in zip(cache.parameters, slugs, strict=True)}
    if len(set(names.values())) < len(names) or not all(re.fullmatch(r"[A-Za-z]\w*", slug) for slug in names.values()):
        raise BadFile(f"line 1: the parameters {', '.join(cache.parameters)} cannot be told apart by letters, digits and '_'")
    columns = {name: [attempt.config[old] for attempt in cache.attempts] for old, name in names.items()}
    config = {name: _values(column) for name, column in columns.items()}
    stored = {name: column if config[name].kind != "labels" else [str(value) for value in column]
              for name, column in columns.items()}  # fmt: skip
    kernel = cache.kernel or op
    problem = {"kernel": Values("labels", labels=(kernel,), default=kernel)}
    problem |= {f"size_{axis}": Values("size") for axis, _ in zip(AXES, cache.sizes, strict=False)}
    places = [_places(values, stored[name]) for name, values in config.items()]
    layers = diagram.diagram_of(list(zip(*places, strict=True)), [values.parameter.size for values in config.values()])
    doc = f"{kernel}, drafted from a cache of Kernel Tuner"
    declared = Declaration(op, f"{op}/{FAMILY}", doc, problem, config, diagram.written(layers))
    rows = {f"config.{name}": pl.Series(column) for name, column in stored.items()}
    fixed = {"problem.kernel": kernel} | {f"problem.size_{axis}": size for axis, size in zip(AXES, cache.sizes, strict=False)}
    measured = {name: [attempt.measured.get(name) for attempt in cache.attempts] for name in MEASURED}
    frame = pl.DataFrame({**rows, **{name: pl.Series(values, dtype=MEASURED[name]) for name, values in measured.items()}})
    lines = pl.Series([attempt.line for attempt in cache.attempts], dtype=pl.Int64)
    dropped = ("source", "software", LINE)
    return declared, frame.drop(dropped).with_columns(lines.alias(LINE), **{k: pl.lit(v) for k, v in fixed.items()})


def _values(column: Sequence[int | bool | str]) -> Values:
    """The values that occur: numbers in ascending order, flags, else labels in the order in which they come."""
    if all(isinstance(value, bool) for value in column):
        return Values("flag")
    if all(isinstance(value, int) and not isinstance(value, bool) for value in column):
        return Values("numbers", numbers=tuple(sorted({int(value) for value in column})))
    return Values("labels", labels=tuple(dict.fromkeys(str(value) for value in column)))


def _places(values: Values, column: Sequence[int | bool | str]) -> list[int]:
    parameter = values.parameter
    known = {parameter.value(place): place for place in range(parameter.size)}
    return [known[value] for value in column]


def _slug(name: str) -> str:
    return re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_")


def _device(name: str) -> Device | None:
    """The profile of this name; a device without one is kept by name, without numbers."""
    slug = re.sub(r"[^\w.+-]+", "_", name, flags=re.ASCII).strip("_.+-").lower()
    return devices.named(name) or (Device(slug, name, "gpu") if slug else None)
