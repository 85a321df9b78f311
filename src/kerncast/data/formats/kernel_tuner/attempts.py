"""What an auto-tuner tried: every config of one kernel, as caches of Kernel Tuner and T4 files have it.

Such a file does not say what was computed, so the kernel becomes a new op, drafted from the file.
"""

from __future__ import annotations

import math
import re
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from kerncast.core.device import Device
from kerncast.core.io.foreign import GZIP, JSON, guarded, gunzip_beginning, key_rule
from kerncast.core.op import Family
from kerncast.data.formats import Imported, ImportOptions
from kerncast.data.json_entries import Entries, read_unclosed
from kerncast.data.schema import MEASURED
from kerncast.data.skipping import BadRows, Skips, bad_row
from kerncast.data.tables import LINE
from kerncast.errors import BadFile, InvalidValue
from kerncast.library import devices
from kerncast.library.declared import diagram
from kerncast.library.declared.declaration import AXES, LARGEST_SIZE, Declaration, Values, declared_family
from kerncast.library.registry import FAMILIES, LONGEST_LABEL, LONGEST_NAME

FAMILY = "kernel_tuner"
RESERVED = {"op", "family", "values", "trusted"}
# What kerncast adds to the files that it writes: the family and its problem in the header, columns in the entries.
OWN = "kerncast"
COLUMN_PREFIX = "kerncast_"
RESTORED = frozenset(MEASURED) - {"source", LINE}


@dataclass(frozen=True)
class Attempt:
    """One config, as either format has it."""

    line: int
    config: Mapping[str, Any]
    measured: Mapping[str, Any]


@dataclass(frozen=True)
class Tuned:
    """Everything that a file tells."""

    kernel: str
    device: str
    sizes: tuple[int, ...]
    parameters: tuple[str, ...]
    attempts: Sequence[Attempt]
    written_for: WrittenFor | None = None
    """The family and the problem, in files that kerncast wrote."""


class WrittenFor(msgspec.Struct, frozen=True):
    """What kerncast says in a file that it writes, beyond the format."""

    family: str
    problem: dict[str, int | bool | str | None] = {}
    """Empty for a family that was drafted from a file."""

    @property
    def installed(self) -> Family | None:
        """The family, if it is code; None if it was drafted from a file, or belongs to a package that is not here."""
        return FAMILIES.found.get(self.family) if self.problem else None


def written_for(header: Mapping[str, Any]) -> WrittenFor | None:
    """What a file that kerncast wrote is for; None if another program wrote it."""
    try:
        return msgspec.convert(header.get(OWN), WrittenFor | None)
    except msgspec.ValidationError as error:
        raise BadFile(f"line 1: `{OWN}` must name a family and its problem ({key_rule(error)})") from error


def restored(said: Mapping[str, Any], line: int) -> dict[str, Any]:
    """The columns of a measurement that kerncast wrote as they were, empty ones too; nothing if another program wrote it."""
    found: dict[str, Any] = {}
    for name, value in said.items():
        column = str(name).removeprefix(COLUMN_PREFIX)
        if not str(name).startswith(COLUMN_PREFIX) or column not in RESTORED:
            continue
        stored = MEASURED[column]
        kind: type = float if stored is pl.Float64 else int if stored is pl.Int64 else str
        if kind is float and type(value) is int:
            value = float(value)
        if type(value) is not kind or (isinstance(value, str) and not storable(value)):
            raise bad_row(line, f"{name} must be {'text' if kind is str else 'a number'}", value)
        found[column] = value
    return {**dict.fromkeys(RESTORED), **found} if found else {}


def entries_of(path: Path, names: tuple[str, ...], options: ImportOptions) -> Entries:
    """The entries of a file, each with its line; damaged ones are skipped."""
    unknown = sorted(set(options.values) - {"op"})
    if unknown or options.mapping is not None:
        what = f"`constants` {unknown[0]}" if unknown else "`mapping`"
        raise InvalidValue(
            f"{what} does not apply to results of an auto-tuner, which name their parameters: leave it out "
            "(known: `constants` op)"
        )
    found = read_unclosed(text_of(path), names)
    for line, text in found.damaged:
        options.skips.one(bad_row(line, "an entry must be whole JSON"), text)
    return found


def imported(tuned: Tuned, options: ImportOptions) -> Imported:
    """The rows of a file: of the installed family that it was written for, else of an op that is drafted from it."""
    tuned = without_long_labels(tuned, options.skips)
    own = tuned.written_for
    if own is not None and own.installed is not None and "op" not in options.values:
        family = own.installed
        fixed = {f"problem.{name}": value for name, value in own.problem.items() if value is not None}
        config = {f"config.{name}": [attempt.config[name] for attempt in tuned.attempts] for name in tuned.parameters}
        return Imported(family, _rows(tuned, config, fixed), device_of(tuned.device))
    op = options.values.get("op") or (own.family.partition("/")[0] if own else "") or slug_of(tuned.kernel)[:LONGEST_NAME]
    if not re.fullmatch(r"[A-Za-z_]\w*", op):
        raise InvalidValue(
            "the file does not name its kernel, and an op needs a name: add `constants` op=NAME (letters, digits, _)"
        )
    declared, rows = draft(tuned, op)
    return Imported(declared_family(declared), rows, device_of(tuned.device))


def text_of(path: Path) -> str:
    """The text of a file, unpacked if it is gzipped."""
    data = JSON.read(path)
    with guarded("the file", "is it damaged?", "is not text in UTF-8, plain or gzipped"):
        if data[:2] == GZIP:
            data = gunzip_beginning(data, str(path))
        return data.decode("utf-8")


def attempts_of(
    found: Entries,
    skips: Skips,
    read: Callable[[int, Any], tuple[Mapping[str, Any], Mapping[str, Any]]],
    declared: bool = False,
) -> list[Attempt]:
    """The entries that can be read; the others are skipped. `declared`: a family says what values there are."""
    attempts = []
    for place, (line, entry) in enumerate(found.entries):
        try:
            config, measured = read(line, entry)
        except BadRows as error:
            skips.one(error, entry)
        else:
            attempts.append(Attempt(line, config, {"order": place, **measured}))
    attempts = attempts if declared else _of_one_kind(attempts, skips)
    if not attempts and skips.rows:
        raise BadFile(f"no entry of it can be used: {skips.told()}")
    return attempts


def _of_one_kind(attempts: list[Attempt], skips: Skips) -> list[Attempt]:
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


def without_long_labels(cache: Tuned, skips: Skips) -> Tuned:
    """The cache without entries whose labels nobody can have meant."""
    kept, rule = [], f"a label has at most {LONGEST_LABEL:,} characters"
    for attempt in cache.attempts:
        long = [value for value in attempt.config.values() if isinstance(value, str) and len(value) > LONGEST_LABEL]
        if long:
            skips.one(bad_row(attempt.line, rule, long[0]), long[0])
        else:
            kept.append(attempt)
    return cache if len(kept) == len(cache.attempts) else replace(cache, attempts=kept)


def word(header: Mapping[str, Any], name: str) -> str:
    """A text of the header; empty if there is none."""
    text = header.get(name)
    if isinstance(text, str) and not storable(text):
        raise BadFile(f"line 1: `{name}` must be plain text, got {text[:60]!r}")
    return text if isinstance(text, str) else ""


def storable(text: str) -> bool:
    """JSON can contain half of a surrogate pair, which text cannot store."""
    return text.isascii() or text.encode("utf-8", "replace").decode() == text


def sizes_of(header: Mapping[str, Any]) -> tuple[int, ...]:
    """The problem size where it is plain numbers; a formula or a function leaves it unknown."""
    given = header.get("problem_size")
    sizes: list[Any] = given if isinstance(given, list) else [given]
    plain = all(isinstance(size, int) and not isinstance(size, bool) and 1 <= size <= LARGEST_SIZE for size in sizes)
    return tuple(sizes) if plain and len(sizes) <= len(AXES) else ()


def value_of(entry: Mapping[str, Any], name: str, line: int, nullable: bool = False) -> Any:
    """A parameter's value; what is not a whole number or a flag is a label. `nullable`: it may be without one."""
    value = entry.get(name)
    if value is None and nullable:
        return None
    if value is None or isinstance(value, list | dict):
        raise bad_row(line, f"the parameter '{name}' must have a plain value", repr(value))
    if isinstance(value, str) and not storable(value):
        raise bad_row(line, f"the parameter '{name}' must be plain text", ascii(value))
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, int) and not -(2**53) <= value <= 2**53:
        raise bad_row(line, f"the parameter '{name}' is too large", value)
    return value if isinstance(value, int | str) else repr(value)


def times_of(times: Any, mean: Any, unit: float, line: int) -> dict[str, Any]:
    """Statistics of the launches, or the mean alone if the launches were not kept."""
    values = times if isinstance(times, list) and times else [mean]
    if not all(positive(value, unit) for value in values):
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


def stamp_of(value: Any) -> str | None:
    """When an attempt was made, if the file says so as text."""
    return value if isinstance(value, str) and storable(value) else None


def positive(value: Any, unit: float) -> float | None:
    """A positive number in nanoseconds; None: it is none."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return value * unit if number and math.isfinite(value) and 0 < value < 1e18 else None


def draft(cache: Tuned, op: str) -> tuple[Declaration, pl.DataFrame]:
    """The op that a cache declares, and its rows."""
    if not cache.attempts:
        raise BadFile("the cache is empty: there is nothing to import")
    slugs = [slug_of(name) for name in cache.parameters]
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
    fixed = {"problem.kernel": kernel} | {f"problem.size_{axis}": size for axis, size in zip(AXES, cache.sizes, strict=False)}
    return declared, _rows(cache, {f"config.{name}": column for name, column in stored.items()}, fixed)


def _rows(tuned: Tuned, config: Mapping[str, Sequence[Any]], fixed: Mapping[str, Any]) -> pl.DataFrame:
    measured = {
        name: pl.Series([attempt.measured.get(name) for attempt in tuned.attempts], dtype=kind, strict=False)
        for name, kind in MEASURED.items()
        if name not in ("source", LINE)
    }
    frame = pl.DataFrame({**{name: pl.Series(values, strict=False) for name, values in config.items()}, **measured})
    if not frame["software"].count():  # then it is what the caller says
        frame = frame.drop("software")
    lines = pl.Series([attempt.line for attempt in tuned.attempts], dtype=pl.Int64)
    return frame.with_columns(lines.alias(LINE), **{name: pl.lit(value) for name, value in fixed.items()})


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


def slug_of(name: str) -> str:
    """A name of letters, digits and `_`."""
    return re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_")


def device_of(name: str) -> Device | None:
    """The profile of this name; a device without one is kept by name, without numbers."""
    slug = re.sub(r"[^\w.+-]+", "_", name, flags=re.ASCII).strip("_.+-").lower()
    return devices.named(name) or (Device(slug, name, "gpu") if slug else None)
