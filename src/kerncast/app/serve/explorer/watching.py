"""A sweep that is being measured, followed through its journal: rate, time left, statuses, drift, the best so far.

Nothing is asked of the collector: a user who can read the dataset's folder can watch it.
"""

from __future__ import annotations

import datetime
import os
import statistics
import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from kerncast.app.serve.explorer.describing import Json
from kerncast.core.arrays import Flags
from kerncast.core.io.foreign import decode_json
from kerncast.core.op import Problem
from kerncast.data import journal as journals
from kerncast.data.dataset import Dataset
from kerncast.data.journal import checked
from kerncast.errors import KerncastError
from kerncast.measuring.worker import memory_bound

# The rate is that of the last minute, once it was watched for some seconds.
RECENT_SECONDS, FEWEST_SECONDS = 60.0, 10.0
# Points of the drift, and sentinels that make up one of them at least: a single one is too noisy.
MOST_POINTS, FEWEST_IN_A_POINT = 60, 8
MOST_PROBLEMS, MOST_ERRORS = 40, 8
# Different messages that are counted, and characters of each that are kept.
MOST_KINDS, LONGEST_ERROR = 1_000, 2_000
# Bytes of a journal that are read at a time: a page that opens late must not hold up the others.
MOST_BYTES = 64 << 20


@dataclass
class _BestConfig:
    """The fastest config of one problem so far."""

    problem: Mapping[str, Any]
    config: Mapping[str, Any] | None = None
    time_ns: float | None = None
    vectors: int = 0
    failed: int = 0


class VectorStatuses:
    """How each vector ended, in nine bytes a vector: a sweep may have millions."""

    def __init__(self) -> None:
        self._names: dict[str, int] = {}
        self._keys, self._codes = np.empty(0, np.int64), np.empty(0, np.uint8)

    def __len__(self) -> int:
        return len(self._keys)

    def add(self, ended: Sequence[tuple[str, str]]) -> Flags:
        """Keep (key, status) of some vectors, the last of a key; tells which of them have a key that was not there before."""
        if not ended:
            return np.zeros(0, dtype=bool)
        hashes = np.array([hash(key) for key, _ in ended], np.int64)
        codes = np.array([self._names.setdefault(status, len(self._names)) for _, status in ended], np.uint8)
        new = ~np.isin(hashes, self._keys)
        new &= np.isin(np.arange(len(hashes)), np.unique(hashes, return_index=True)[1])
        keys, every = np.concatenate([self._keys, hashes]), np.concatenate([self._codes, codes])
        order = np.argsort(keys, kind="stable")
        keys, every = keys[order], every[order]
        last = np.r_[keys[1:] != keys[:-1], True]
        self._keys, self._codes = keys[last], every[last]
        return np.asarray(new)

    def counts(self) -> list[tuple[str, int]]:
        """How many vectors ended in each way, most first."""
        found = np.bincount(self._codes, minlength=len(self._names))
        known = [(name, int(found[code])) for name, code in self._names.items() if found[code]]
        return sorted(known, key=lambda item: (-item[1], item[0]))


class Watch:
    """A dataset's folder, looked at again and again. Threads take turns."""

    def __init__(self, path: Path, now: Callable[[], datetime.datetime] | None = None) -> None:
        self.path = path
        self._now = now or (lambda: datetime.datetime.now(datetime.UTC))
        self._turn = threading.Lock()
        self._forget()

    def _forget(self) -> None:
        self._file: tuple[int, int] | None = None
        self._at = 0
        self._header: journals.Header | None = None
        self._seen = VectorStatuses()
        self._errors: Counter[tuple[str, str]] = Counter()
        self._looks: deque[tuple[float, int]] = deque()
        """When it was looked at, and how many vectors were done then."""
        self._first: float | None = None
        self._last: float | None = None
        self._bests: dict[tuple[Any, ...], _BestConfig] = {}
        self._sentinels: list[tuple[float, bool, float]] = []
        """Medians of a few sentinels that follow each other: seconds, whether it is the one of memory-bound vectors, time."""
        self._latest: dict[bool, list[float]] = {False: [], True: []}
        self._bound: Callable[[Mapping[str, Any]], bool] = lambda problem: False
        self._total: int | None = None
        self._closed = False

    def look(self) -> Json:
        """How far the sweep is."""
        with self._turn:
            there = self._read()
            if not there and self._header is not None and not self._closed:
                self._close(self._header)
            return self._facts(there)

    # -- reading ---------------------------------------------------------------------------------------

    def _read(self) -> bool:
        """Read what was added to the journal; False: there is none, or none yet."""
        path = self.path / journals.NAME
        try:
            with path.open("rb") as file:
                found = os.fstat(file.fileno())
                if self._file != (found.st_dev, found.st_ino) or found.st_size < self._at:
                    self._forget()
                    self._file = (found.st_dev, found.st_ino)
                file.seek(self._at)
                data = file.read(MOST_BYTES)
        except OSError:
            return False
        # What has no end yet is being written.
        records = []
        for line in data[: data.rfind(b"\n") + 1].splitlines(keepends=True):
            body = checked(line)
            if body is None:
                break
            if self._header is None:
                self._header = journals.header_of(path)
                self._bound = self._sentinel_kinds(self._header)
            else:
                records.append(decode_json(body))
            self._at += len(line)
        new = self._seen.add([(record["key"], record["status"]) for record in records])
        for record, first in zip(records, new, strict=True):
            self._take(record, bool(first))
        return self._header is not None

    def _sentinel_kinds(self, header: journals.Header) -> Callable[[Mapping[str, Any]], bool]:
        """Which of two sentinels ran beside a problem: they are not compared with each other."""
        try:
            dataset = Dataset.open(self.path, journal=False)
            family = dataset.family(header.family)
            bound = memory_bound(family, dataset.device(header.device))
        except KerncastError:
            return lambda problem: False
        return lambda problem: bound(Problem.trusted(family, {name: problem.get(name) for name in family.problem.parameters}))

    def _take(self, record: Json, first: bool) -> None:
        status, problem = record["status"], record["problem"]
        seconds = _seconds(record.get("started_at"))
        if seconds is not None:
            self._first = seconds if self._first is None else min(self._first, seconds)
            self._last = seconds if self._last is None else max(self._last, seconds)
        place = tuple(problem.values())
        best = self._bests.pop(place, None) or _BestConfig(problem)
        self._bests[place] = best  # the last ones are those that are being measured
        best.vectors += first
        if status != "ok":
            best.failed += 1
            said = (status, str(record.get("error") or "")[:LONGEST_ERROR])
            if said[1] and (said in self._errors or len(self._errors) < MOST_KINDS):
                self._errors[said] += 1
            return
        if best.time_ns is None or record["time_ns"] < best.time_ns:
            best.time_ns, best.config = record["time_ns"], record["config"]
        if record.get("sentinel_ns") and seconds is not None:
            kind = self._bound(problem)
            latest = self._latest[kind]
            latest.append(float(record["sentinel_ns"]))
            if len(latest) == FEWEST_IN_A_POINT:
                self._sentinels.append((seconds, kind, statistics.median(latest)))
                latest.clear()

    def _close(self, header: journals.Header) -> None:
        """The journal has become rows: they say how the vectors ended that were measured since the last look."""
        try:
            dataset = Dataset.open(self.path, journal=False)
            rows = dataset.scan(header.family).filter(pl.col("run_id") == header.run_id)
            self._seen.add(list(rows.select("key", "status").collect().iter_rows()))
            self._closed = True
        except KerncastError:  # it is being written, or was moved away
            return

    # -- what it says ----------------------------------------------------------------------------------

    def _facts(self, there: bool) -> Json:
        state, now = self._state(), self._now().timestamp()
        done = len(self._seen)
        self._looks.append((now, done))
        while now - self._looks[0][0] > RECENT_SECONDS:
            self._looks.popleft()
        running = state.ended == "running"
        rate = self._rate(now) if running else None
        self._total = state.vectors if state.vectors is not None else self._total
        left = None if self._total is None else max(0, self._total - done)
        header = self._header
        return {
            "state": "running" if running else ("ended" if there else "finished" if done else "none"),
            "ended": None if running or not there else journals.WORDS[state.ended],
            "family": None if header is None else header.family,
            "device": None if header is None else header.device,
            "backend": None if header is None else header.backend,
            "vectors": self._total, "measured": done, "left": left,
            "rate": rate,
            "seconds_left": None if not rate or left is None else left / rate,
            "seconds": self._seconds(now if running else None),
            "statuses": [{"value": name, "rows": rows} for name, rows in self._seen.counts()],
            "errors": [
                {"status": status, "error": text, "rows": rows}
                for (status, text), rows in self._errors.most_common(MOST_ERRORS)
            ],
            "drift": self._drift(),
            "problems": len(self._bests),
            "best": [_told(best) for best in list(self._bests.values())[: -MOST_PROBLEMS - 1 : -1]],
        }  # fmt: skip

    def _seconds(self, now: float | None) -> float | None:
        """How long it has been measured."""
        if self._first is None or self._last is None:
            return None
        return max(0.0, (self._last if now is None else now) - self._first)

    def _state(self) -> journals.Completeness:
        try:
            return journals.completeness(self.path, len(self._seen))
        except (KerncastError, OSError):
            return journals.Completeness(None, len(self._seen), None)

    def _rate(self, now: float) -> float | None:
        """Vectors a second: over the last minute, as long as it was looked at, else since the sweep began."""
        if self._first is None:
            return None
        then, before = self._looks[0]
        done = len(self._seen)
        if now - then < FEWEST_SECONDS:
            then, before = self._first, 0
        return (done - before) / max(1.0, now - then)

    def _drift(self) -> Json | None:
        """The sentinel, a fixed kernel, against its own best: a machine that slows down shows here."""
        if not self._sentinels or self._first is None:
            return None
        kinds = {kind for _, kind, _ in self._sentinels}
        floors = {kind: min(value for _, own, value in self._sentinels if own == kind) for kind in kinds}
        size = -(-len(self._sentinels) // MOST_POINTS)
        points = []
        for start in range(0, len(self._sentinels), size):
            part = self._sentinels[start : start + size]
            ratio = statistics.median(value / floors[kind] for _, kind, value in part)
            points.append({"seconds": part[-1][0] - self._first, "ratio": ratio})
        return {"points": points, "now": points[-1]["ratio"], "worst": max(point["ratio"] for point in points)}


def _told(best: _BestConfig) -> Json:
    problem, config = (None if part is None else {name: value for name, value in part.items() if value is not None}
                       for part in (best.problem, best.config))  # fmt: skip
    return {"problem": problem, "config": config, "time_ns": best.time_ns, "vectors": best.vectors, "failed": best.failed}


def _seconds(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        return datetime.datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None
