"""What the page asks about datasets: what they hold, where a model does worst on them, and a sweep that is being measured."""

from __future__ import annotations

import datetime
import json
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

from kerncast.app.serve.explorer.models import Json, software_words
from kerncast.core.arrays import Flags
from kerncast.core.io.foreign import decode_json
from kerncast.core.io.terminal import known
from kerncast.core.op import Family, Problem
from kerncast.data import journal as journals
from kerncast.data import schema
from kerncast.data.condensed import noise, spread_of
from kerncast.data.dataset import Dataset
from kerncast.data.journal import checked
from kerncast.errors import InvalidValue, KerncastError
from kerncast.evaluating.evaluation import digest_of, evaluate
from kerncast.evaluating.points import part_of
from kerncast.measuring.timing import memory_bound
from kerncast.models.model import Model

# Of each list; a page of problems has this many.
LISTED, PAGE = 12, 50
MOST_ROWS_OF_A_PROBLEM = 300
NOISE_BINS = 24
# Relative deviations from a hundredth of a percent to 100 %: what is outside is in the first or last bin.
LEAST_NOISE, MOST_NOISE = 1e-4, 1.0
NOISE = pl.col("time_ns_mad") / pl.col("time_ns")
SORTS = {"best_ns": False, "failed": True, "noise": True, "spread": True, "configs": True}
"""What problems may be sorted by, and whether the largest come first."""


def overview(dataset: Dataset, family: str | None = None) -> Json:
    """What a dataset holds, of one of its families."""
    dataset.refuse_if_empty()
    families = dataset.families
    own = dataset.family(family) if family is not None else families[0]
    rows = dataset.scan(own)
    ok = rows.filter(pl.col("status") == "ok")
    problems, configs = _columns(own)
    counts = rows.select(
        pl.len().alias("rows"),
        pl.struct("device", *problems).n_unique().alias("problems"),
        pl.struct(problems).n_unique().alias("distinct"),
        pl.col("device").n_unique().alias("devices"),
        (pl.struct(configs).n_unique() if configs else pl.lit(1)).alias("configs"),
    ).collect()
    counted = counts.row(0, named=True)
    pooled = {"problems": counted.pop("distinct"), "devices": counted.pop("devices")}
    same = rows.select(pl.col(name).n_unique() == 1 for name in problems).collect().row(0, named=True)
    constant = rows.select(name for name, alone in same.items() if alone).head(1).collect()
    failed = rows.filter((pl.col("status") != "ok") & pl.col("error").is_not_null())
    errors = failed.group_by("status", "error").agg(rows=pl.len()).sort("rows", "error", descending=[True, False])
    unfinished = dataset.completeness
    return {
        "families": [item.id for item in families],
        "family": own.id,
        "op": own.op.name,
        **counted,
        "pooled": pooled if pooled["devices"] > 1 else None,
        "problem": [name.removeprefix("problem.") for name in problems],
        "config": [name.removeprefix("config.") for name in configs],
        "constant": part_of(constant.row(0, named=True), "problem") if constant.width else {},
        "devices": _counts(rows, "device"),
        "software": [{**item, "value": item["value"] and software_words(item["value"])} for item in _counts(rows, "software")],
        "statuses": _counts(rows, "status"),
        "errors": errors.head(LISTED).collect().to_dicts(),
        "noise": _noise(ok),
        "repeats": noise(spread_of(ok.select("time_ns", repeat=pl.struct(schema.REPEAT_OF).hash(seed=0), at=pl.lit(0)))),
        "unfinished": None if unfinished is None else str(unfinished),
        "sources": [{"name": item.name, "format": item.format} for item in dataset.contents.sources[:LISTED]],
    }


def _columns(family: Family) -> tuple[list[str], list[str]]:
    return [f"problem.{name}" for name in family.problem.parameters], [f"config.{name}" for name in family.config.parameters]


def _counts(rows: pl.LazyFrame, column: str) -> list[Json]:
    found = rows.group_by(column).agg(rows=pl.len()).sort("rows", column, descending=[True, False]).head(LISTED).collect()
    return [{"value": value, "rows": count} for value, count in found.iter_rows()]


def _noise(ok: pl.LazyFrame) -> Json:
    """How far the samples of a row are from its time: a histogram of relative deviations."""
    edges = np.geomspace(LEAST_NOISE, MOST_NOISE, NOISE_BINS + 1)
    known = ok.select(noise=NOISE).filter(pl.col("noise").is_finite())
    place = (pl.col("noise").clip(LEAST_NOISE, MOST_NOISE).log10() - np.log10(LEAST_NOISE)) / np.log10(MOST_NOISE / LEAST_NOISE)
    number = (place * NOISE_BINS).floor().clip(0, NOISE_BINS - 1).cast(pl.Int64).alias("bin")
    counted = dict(known.group_by(number).agg(rows=pl.len()).collect().iter_rows())
    middle = known.select(pl.col("noise").median().alias("median"), pl.col("noise").quantile(0.9).alias("p90")).collect()
    return {
        "edges": edges.tolist(), "rows": [counted.get(number, 0) for number in range(NOISE_BINS)],
        "median": middle["median"][0], "p90": middle["p90"][0],
    }  # fmt: skip


def problems(dataset: Dataset, family: str | None = None, sort: str = "failed", page: int = 0, text: str = "") -> Json:
    """A page of the problems of a family: how many rows worked, the fastest config, the spread and the noise."""
    if sort not in SORTS:
        raise InvalidValue(f"`sort` is one of {', '.join(SORTS)}, got '{sort}'")
    own = dataset.family(family) if family is not None else dataset.families[0]
    names, configs = _columns(own)
    ok = pl.col("status") == "ok"
    grouped = (
        dataset.scan(own).group_by("device", *names)
        .agg(
            rows=pl.len(), ok=ok.sum(), configs=pl.col("key").n_unique(), best_ns=pl.col("time_ns").filter(ok).min(),
            slowest_ns=pl.col("time_ns").filter(ok).max(), noise=NOISE.filter(ok).median(),
            best=pl.struct(configs).sort_by(pl.when(ok).then("time_ns"), nulls_last=True).first() if configs else pl.lit(None),
        )
        .with_columns(failed=pl.col("rows") - pl.col("ok"), spread=pl.col("slowest_ns") / pl.col("best_ns"))
    )  # fmt: skip
    for word in text.split()[:8]:
        name, equals, value = word.partition("=")
        column = name if name == "device" else f"problem.{name}"
        if column not in ("device", *names) or not equals:
            raise InvalidValue(f"filter by parameters or device, as {own.op.split_group[0]}=128; got '{word[:80]}'")
        grouped = grouped.filter(pl.col(column).cast(pl.String) == value)
    sorted_ = grouped.sort(sort, "device", *names, descending=[SORTS[sort], False, *([False] * len(names))], nulls_last=True)
    total = grouped.select(pl.len()).collect().item()
    page = min(max(page, 0), total // PAGE)
    found = sorted_.slice(page * PAGE, PAGE).collect()
    return {
        "total": total, "page": page, "page_size": PAGE, "sort": sort,
        "problems": [
            {
                "device": row["device"], "problem": part_of(row, "problem"),
                "best": part_of(row["best"] or {}, "config"),
                **{name: row[name] for name in ("rows", "ok", "failed", "configs", "best_ns", "slowest_ns", "spread", "noise")},
            }
            for row in found.iter_rows(named=True)
        ],
    }  # fmt: skip


def measured_rows(dataset: Dataset, problem: Mapping[str, Any], device: str, family: str | None = None) -> Json:
    """The rows of one problem, fastest first, failures last."""
    own = dataset.family(family) if family is not None else dataset.families[0]
    names, _ = _columns(own)
    kinds = schema.schema_of(own)
    unknown = [name for name in problem if f"problem.{name}" not in names]
    if unknown:
        raise InvalidValue(f"{own.op.name} has no parameter '{unknown[0]}'")
    try:
        same = [pl.col(name).eq_missing(pl.lit(problem.get(name.removeprefix("problem.")), kinds[name])) for name in names]
        rows = dataset.scan(own).filter(pl.col("device") == device, *same).sort("time_ns", "key", nulls_last=True)
        found = rows.head(MOST_ROWS_OF_A_PROBLEM).collect()
    except (TypeError, OverflowError, pl.exceptions.PolarsError) as error:
        raise InvalidValue(f"the problem has a value of the wrong kind ({str(error).splitlines()[0]})") from error
    columns = ("status", "time_ns", "time_ns_mad", "samples", "error", "label")
    return {
        "total": rows.select(pl.len()).collect().item(),
        "rows": [
            {"config": part_of(row, "config")} | {name: row.get(name) for name in columns}
            for row in found.iter_rows(named=True)
        ],
    }


def worst_of(model: Model, dataset: Dataset, count: int = 20) -> Json:
    """Where a model does worst on a dataset: on problems that it has not seen, or out of fold on those it was trained on."""
    trained = digest_of(model, [dataset]) == model.manifest.data.digest
    remembered = trained and model.out_of_fold is not None and model.evaluated and not model.manifest.warm_start
    if remembered:
        found, how = evaluate(model, [dataset.path], split="problem", worst=count, threads=1), "out_of_fold"
    else:
        try:
            found, how = evaluate(model, [dataset.path], worst=count, threads=1), "unseen"
        except InvalidValue:
            if not model.recorded or model.slim:
                raise
            # Every problem was seen: better a figure that says so than none.
            found, how = evaluate(model, [dataset.path], include_seen=True, worst=count, threads=1), "seen"
    summary: Json = json.loads(json.dumps(found.as_json(), default=str))
    overall = summary["overall"]
    figures = ("efficiency_mean", "efficiency_p10", "efficiency_min", "top1", "noise_ceiling", "mape", "coverage_90")
    return {
        "how": how,
        "problems": overall["n_problems"],
        "pooled": summary["pooled"],
        "overall": {name: overall.get(name) for name in figures},
        "worst": summary["worst"][:count],
        "worst_predictions": summary["worst_predictions"][:count],
    }


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
        now, done, first, last = self._now().timestamp(), len(self._seen), self._first, self._last
        try:
            state = journals.completeness(self.path, done)
        except (KerncastError, OSError):
            state = journals.Completeness(None, done, None)
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
            "seconds": None if first is None or last is None else max(0.0, (now if running else last) - first),
            "statuses": [{"value": name, "rows": rows} for name, rows in self._seen.counts()],
            "errors": [
                {"status": status, "error": text, "rows": rows}
                for (status, text), rows in self._errors.most_common(MOST_ERRORS)
            ],
            "drift": self._drift(),
            "problems": len(self._bests),
            "best": [
                {
                    "problem": known(best.problem), "config": None if best.config is None else known(best.config),
                    "time_ns": best.time_ns, "vectors": best.vectors, "failed": best.failed,
                }
                for best in list(self._bests.values())[: -MOST_PROBLEMS - 1 : -1]
            ],
        }  # fmt: skip

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


def _seconds(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        return datetime.datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None
