"""Results of tt-metal's sweep framework, joined with their vectors by `input_hash`, never by position.

    vectors_export/2x4/reshard-2x4-8x8.json         {"2x4-8x8-DataType.BFLOAT16": {"<hash>": {"shape": "[1, 1, 64, 32]", …}}}
    results_export_batch/2x4/reshard-2x4-8x8.json   [{"input_hash": "<hash>", "status": "TestStatus.PASS", "device_perf": …}]

A results file and the vectors file of the same name belong together. Newer runners write the vector into the result
(`original_vector_data`), and older ones call the hash `vector_id`. https://github.com/tenstorrent/tt-metal
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from kerncast.core.io.foreign import JSON, decode_json, guarded
from kerncast.core.op import Family
from kerncast.core.parameters import Value
from kerncast.data import schema
from kerncast.data.dataset import Dataset
from kerncast.data.formats import Head, Imported, Importer, ImportOptions
from kerncast.data.formats.tt_metal.tables import ReshardLines, TtnnCsv
from kerncast.data.formats.tt_metal.vectors import (
    KERNEL_NS,
    KERNEL_STD,
    RUNS,
    VECTORS,
    OtherOp,
    plain,
    problem_of,
)
from kerncast.data.formats.tt_metal.writing import write_reshards
from kerncast.data.json_entries import list_entries
from kerncast.data.skipping import BadRows, Skips, bad_row
from kerncast.data.tables import LINE, plain_text
from kerncast.errors import BadFile, InvalidValue

__all__ = ["ReshardLines", "TtSweep", "TtnnCsv"]

RESULTS = "results_export"
# The runners' names of a status, with and without `TestStatus.`, in upper or lower case.
STATUSES = {
    "PASS": "ok", "XPASS": "ok", "NOT_RUN": "not_run", "SKIPPED": "not_run", "FAIL_ASSERT_EXCEPTION": "launch_error",
    "FAIL_WATCHER": "launch_error", "ERROR": "launch_error", "FAIL_CRASH_HANG": "timeout",
    "FAIL_L1_OUT_OF_MEM": "out_of_memory", "FAIL_UNSUPPORTED_DEVICE_PERF": "unsupported", "XFAIL": "unsupported",
}  # fmt: skip
MEASURED = ("status", "time_ns", "time_ns_mean", "time_ns_std", "samples", "error", "started_at", "software")
# Rows that are yielded together: a sweep has thousands of files, a dataset should not.
BATCH = 250_000
UNTIMED = f"the test passed, but without {KERNEL_NS}"
NO_TIME = f"the test passed, but {KERNEL_NS} must be a positive number below 1e18"

Vectors = Mapping[str, Mapping[str, Any]]


class TtSweep(Importer):
    """Results of sweeps, with their vectors."""

    name = "tt-sweep"
    doc = f"a results file of tt-metal's sweeps, or the folder with {VECTORS}/ and {RESULTS}*/; `constants` vectors=PATH"

    def recognises(self, head: Head) -> bool:
        if head.names:
            return any(name.startswith(RESULTS) for name in head.names) or head.path.name.startswith(RESULTS)
        return '"input_hash"' in head.text and '"status"' in head.text

    def read(self, path: Path, options: ImportOptions) -> Iterator[Imported]:
        unknown = sorted(set(options.values) - {"vectors"})
        if unknown or options.mapping is not None:
            what = f"`constants` {unknown[0]}" if unknown else "`mapping`"
            raise InvalidValue(
                f"{what} does not apply to results of tt-metal's sweeps: leave it out (known: `constants` vectors)"
            )
        join = _Join(options.software, options.skips, path)
        for vectors, results in _pairs(path, options.values.get("vectors"), join.counts).items():
            join.add(vectors, results)
            if join.height >= BATCH:
                yield from join.taken()
        if not join.rows and not join.yielded:
            raise BadFile(f"no result in it belongs to a known vector{join.told()}")
        yield from join.taken(last=True)

    def write(self, dataset: Dataset, out: Path, family: str | None, where: Sequence[str]) -> list[Path]:
        return write_reshards(dataset, out, family, where)


def _pairs(path: Path, given: str | None, counts: Counter[str]) -> dict[Path | None, list[Path]]:
    """Vectors file → its results files; None: no vectors file, so the results must contain their vectors."""
    found: dict[Path | None, list[Path]] = {}
    results = _results(path)
    for folder, file in results:
        found.setdefault(_vectors_file(folder, file, given), []).append(file)
    if path.is_dir() and given is None:
        homes = {folder.parent / VECTORS for folder, _ in results if folder is not None}
        lonely = {file for home in homes for file in home.rglob("*.json")} - set(found)
        counts["vectors files that have no results file: left out"] += len(lonely)
    return found


def _results(path: Path) -> list[tuple[Path | None, Path]]:
    """Results files, each with the results folder that it is in."""
    if not path.is_dir():
        return [(next((parent for parent in path.absolute().parents if parent.name.startswith(RESULTS)), None), path)]
    folders = [path] if path.name.startswith(RESULTS) else sorted(item for item in path.glob(f"{RESULTS}*") if item.is_dir())
    found: list[tuple[Path | None, Path]] = [(folder, file) for folder in folders for file in sorted(folder.rglob("*.json"))]
    if not found:
        raise BadFile(f"there is no results file in it: expected {RESULTS}*/**/*.json")
    return found


def _vectors_file(folder: Path | None, file: Path, given: str | None) -> Path | None:
    """The vectors file with the same name as the results file; a file that the user names must exist."""
    inner = file.absolute().relative_to(folder.absolute()) if folder is not None else Path(file.name)
    if given is None:
        home = folder.parent / VECTORS / inner if folder is not None else None
        return home if home is not None and home.is_file() else None
    chosen = Path(given) / inner if Path(given).is_dir() else Path(given)
    if not chosen.is_file():
        raise InvalidValue(f"`constants` vectors={given}: there is no file {chosen}")
    return chosen


@dataclass
class _FamilyRows:
    """Rows of one family as columns."""

    problem: dict[str, list[Value]] = field(default_factory=dict)
    measured: dict[str, list[Any]] = field(default_factory=lambda: {name: [] for name in MEASURED})
    source: list[Path] = field(default_factory=list)
    line: list[int] = field(default_factory=list)

    def add(self, problem: Mapping[str, Value], measured: Mapping[str, Any], source: Path, line: int) -> None:
        for name, value in problem.items():
            self.problem.setdefault(name, []).append(value)
        for name in MEASURED:
            self.measured[name].append(measured.get(name))
        self.source.append(source)
        self.line.append(line)


class _Join:
    """Joins results with vectors as they are read, and counts what could not be joined."""

    def __init__(self, software: Mapping[str, str], skips: Skips, path: Path) -> None:
        self.software, self.skips, self.path = software, skips, path
        self.rows: dict[Family, _FamilyRows] = {}
        self.counts: Counter[str] = Counter()
        self.texts: dict[str | None, str | None] = {}
        self.height = 0
        self.yielded = False
        self.others: Counter[str] = Counter()

    def notes(self) -> list[str]:
        """What was left out that is no fault of a row."""
        found = [f"{count:,} {what}" for what, count in sorted(self.counts.items()) if count]
        if self.others:
            listed = ", ".join(f"{what} ({count:,})" for what, count in self.others.most_common())
            found.append(f"{self.others.total():,} vectors of ops that are not known here: left out ({listed})")
        return found

    def told(self) -> str:
        """What was left out, for an error message."""
        skipped = [self.skips.told()] if self.skips.rows else []
        return "".join(f", {text}" for text in (*self.notes(), *skipped))

    def taken(self, last: bool = False) -> Iterator[Imported]:
        """The rows so far; with the last ones, what was left out."""
        notes = tuple(self.notes()) if last else ()
        for family, rows in sorted(self.rows.items(), key=lambda item: item[0].id):
            files = tuple(dict.fromkeys(rows.source))
            places = {file: place for place, file in enumerate(files)}
            frame = pl.DataFrame(
                {
                    **{f"problem.{name}": values for name, values in rows.problem.items()},
                    **{name: pl.Series(values, dtype=schema.MEASURED[name]) for name, values in rows.measured.items()},
                    "source": [places[file] for file in rows.source],
                    LINE: rows.line,
                }
            )  # fmt: skip
            self.yielded = True
            yield Imported(family, frame, notes=notes, files=files)
            notes = ()
        self.rows, self.height = {}, 0

    def add(self, vectors_file: Path | None, results: Sequence[Path]) -> None:
        """The results of one vectors file; vectors without any become rows that were not run."""
        try:
            text = plain_text(JSON.read(vectors_file)) if vectors_file is not None else ""
            vectors = _vectors(text, vectors_file) if vectors_file is not None else {}
        except BadFile as error:
            self._skip_file(vectors_file or self.path, error)
            return
        done: set[str] = set()
        seen: set[tuple[Any, ...]] = set()
        for file in results:
            try:
                for line, result in list_entries(plain_text(JSON.read(file)), partial(self._damaged, file)):
                    self._result(result, vectors, done, seen, file, line)
            except BadFile as error:
                self._skip_file(file, error)
        if vectors_file is not None:
            self._not_run(text, {key: vector for key, vector in vectors.items() if key not in done}, vectors_file)

    def _skip_file(self, file: Path, error: BadFile) -> None:
        """One file of a folder that cannot be read is skipped like a row; a file that was named is refused."""
        said = str(error) if str(error).startswith(str(file)) else f"{file}, {error}"
        if not self.path.is_dir():
            raise BadFile(said) from error
        self.skips.one(BadRows(said, "a file of the sweep must be readable", lines=[1]), "", self._name(file))

    def _damaged(self, file: Path, line: int, text: str) -> None:
        self.skips.one(bad_row(line, "a result must be whole JSON"), text, self._name(file))

    def _name(self, file: Path) -> str | None:
        return file.relative_to(self.path).as_posix() if self.path.is_dir() and file.is_relative_to(self.path) else None

    def _result(self, result: Any, vectors: Vectors, done: set[str], seen: set[tuple[Any, ...]], file: Path, line: int) -> None:
        entry = result if isinstance(result, dict) else {}
        key = entry.get("input_hash", entry.get("vector_id"))
        status = STATUSES.get((plain(entry.get("status")) or "").removeprefix("TestStatus.").upper())
        if not isinstance(key, str) or status is None:
            kind = "a result must have an input_hash and a status that is known"
            self.skips.one(bad_row(line, kind, plain(entry.get("status"))), result, self._name(file))
            return
        vector = vectors.get(key, entry.get("original_vector_data"))
        if not isinstance(vector, dict):
            kind = "the input_hash of a result must be that of a vector"
            self.skips.one(bad_row(line, kind, plain(key)), result, self._name(file))
            return
        done.add(key)
        measured = self._measured(entry, status)
        # Runners append a suite again when it is retried; the same attempt is one row.
        attempt = (key, *measured.values())
        if attempt in seen:
            self.counts["results that are in the file twice: kept once"] += 1
            return
        seen.add(attempt)
        self._row(vector, _module(entry, vector), measured, file, line)

    def _measured(self, entry: Mapping[str, Any], status: str) -> dict[str, Any]:
        perf = entry.get("device_perf")
        given = perf.get(KERNEL_NS) if isinstance(perf, dict) else None
        time = _positive(given)
        error = plain(entry.get("exception")) or plain(entry.get("message"))
        if status == "ok" and time is None:
            status, error = "not_run", UNTIMED if given is None else f"{NO_TIME}, got {given!r:.100}"
            without = f"without {KERNEL_NS}" if given is None else f"with a {KERNEL_NS} that is no time"
            self.counts[f"results that passed {without}: kept as not_run"] += 1
        spread, runs = (perf.get(KERNEL_STD), perf.get(RUNS, entry.get(RUNS))) if isinstance(perf, dict) else (None, None)
        several = _count(runs) if status == "ok" else None
        return {
            "status": status,
            "time_ns": time if status == "ok" else None,
            "time_ns_mean": time if several is not None and several > 1 else None,
            "time_ns_std": _deviation(spread) if status == "ok" else None,
            "samples": several,
            "error": None if status == "ok" else error,
            "started_at": plain(entry.get("timestamp")) or None,
            "software": self._software(plain(entry.get("git_hash")) or None),
        }

    def _software(self, commit: str | None) -> str | None:
        if commit not in self.texts:
            known = {**({"commit": commit} if commit is not None else {}), **self.software}
            self.texts[commit] = msgspec.json.encode(dict(sorted(known.items()))).decode() if known else None
        return self.texts[commit]

    def _not_run(self, text: str, left: Vectors, file: Path) -> None:
        place, counted, line = 0, 0, 1
        for key, vector in left.items():
            place = max(text.find(f'"{key}"', place), place)
            line += text.count("\n", counted, place)
            counted = place
            invalid = (plain(vector.get("validity")) or "").endswith("INVALID")
            error = plain(vector.get("invalid_reason")) if invalid else "there is no result for this vector"
            status = "invalid" if invalid else "not_run"
            self._row(
                vector, _module({}, vector), {"status": status, "error": error, "software": self._software(None)}, file, line
            )

    def _row(self, vector: Mapping[str, Any], module: str, measured: Mapping[str, Any], file: Path, line: int) -> None:
        try:
            family, problem = problem_of(vector, module)
        except OtherOp as other:
            self.others[str(other)] += 1
            return
        except (InvalidValue, RecursionError) as error:
            said = " ".join(str(error).split()) or "nested too deeply"
            self.skips.one(BadRows(f"line {line}: {said}", said.partition(", got ")[0], lines=[line]), vector, self._name(file))
            return
        self.rows.setdefault(family, _FamilyRows()).add(problem, measured, file, line)
        self.height += 1


def _module(entry: Mapping[str, Any], vector: Mapping[str, Any]) -> str:
    return plain(entry.get("sweep_name")) or plain(vector.get("sweep_name")) or ""


def _count(value: Any) -> int | None:
    number = _positive(value)
    return int(number) if number is not None and number.is_integer() else None


def _deviation(value: Any) -> float | None:
    """A standard deviation, which may be 0."""
    return 0.0 if value in (0, "0", "0.0") and not isinstance(value, bool) else _positive(value)


def _positive(value: Any) -> float | None:
    """A duration: a number, or the text of one."""
    try:
        number = float(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else math.nan
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) and 0 < number < 1e18 else None


def _vectors(text: str, file: Path) -> dict[str, Mapping[str, Any]]:
    """Hash → vector, over all suites of a file."""
    with guarded(file, "name the one that the sweep wrote", "is not a vectors file, {suite: {hash: vector}}"):
        suites = decode_json(text, type=dict[str, dict[str, dict[str, Any]]])
    return {key: vector for suite in suites.values() for key, vector in suite.items()}
