"""One collection, from vectors to a dataset: lock, resume, measure, race the near-ties, compact."""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import os
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec
import polars as pl

from kerncast.backends import get_backend
from kerncast.collect import journal as journals
from kerncast.collect.messages import Chunk, Item, Policy, Ready, Result, Start
from kerncast.collect.supervisor import Observer, Supervisor
from kerncast.data import schema
from kerncast.data.dataset import Dataset, DeviceRecord
from kerncast.errors import BadFile, InvalidValue, KerncastError
from kerncast.op import Family

LOCK = "collect.lock"
# After the sweep, what is this close to the best of its problem (or within three MADs) is raced again.
NEAR = 0.02
RACED_PER_PROBLEM = 12


@dataclass(frozen=True)
class Request:
    """What to collect, and how."""

    family: Family
    backend: str
    """A name, or module:Class."""
    devices: tuple[str, ...]
    out: Path
    policy: Policy = field(default_factory=Policy)
    chunk_size: int = 64
    budget_seconds: float | None = None
    extend: bool = False
    """Add what is missing to a dataset that is already finished."""
    reset_command: tuple[str, ...] = ()
    options: dict[str, str] = field(default_factory=dict)
    """What the backend is configured with."""
    build_jobs: int = 2


@dataclass
class Summary:
    """What came of it."""

    path: Path
    device: str = ""
    measured: int = 0
    already_there: int = 0
    without_a_row: bool = False
    interrupted: bool = False
    raced: int = 0
    revisited: int = 0
    disturbed_samples: int = 0
    samples: int = 0
    seconds: float = 0.0
    statuses: Counter[str] = field(default_factory=Counter)
    errors: Counter[tuple[str, str]] = field(default_factory=Counter)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """One writer per dataset."""
    fd = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = os.read(fd, 32).decode(errors="replace").strip()
        os.close(fd)
        raise InvalidValue(
            f"{path} is being written by process {holder}: wait for it, or collect into another dataset"
        ) from error
    try:
        os.ftruncate(fd, 0)
        os.write(fd, str(os.getpid()).encode())
        yield
        (path / LOCK).unlink(missing_ok=True)
    finally:
        os.close(fd)


class _Ties:
    """The fastest few of each problem, for the race."""

    def __init__(self) -> None:
        self.best: dict[tuple[Any, ...], list[tuple[float, float, Item]]] = {}

    def add(self, item: Item, time_ns: float, mad: float) -> None:
        problem = tuple(item.problem.items())
        near = [*self.best.get(problem, []), (time_ns, mad, item)]
        limit = 2 * min(near, key=lambda entry: entry[0])[0]
        self.best[problem] = sorted((entry for entry in near if entry[0] <= limit), key=lambda e: (e[0], e[2].key))[
            :RACED_PER_PROBLEM
        ]

    def best_ns(self, problem: tuple[Any, ...]) -> float:
        entries = self.best.get(problem)
        return entries[0][0] if entries else 0.0

    def chunks(self, first_number: int) -> Iterator[Chunk]:
        """One chunk per problem that has a contest."""
        for number, entries in enumerate(self.best.values(), first_number):
            best, mad, _ = entries[0]
            limit = best * (1 + max(NEAR, 3 * mad / best))
            items = [item for time_ns, _, item in entries if time_ns <= limit]
            if len(items) > 1:
                yield Chunk(number, items)


class _Collection:
    """The state of a running collection."""

    def __init__(self, request: Request, observer: Observer, dataset: Dataset) -> None:
        self.request, self.observer, self.dataset = request, observer, dataset
        self.summary = Summary(dataset.path)
        self.ties = _Ties()
        self.unsure: dict[str, Item] = {}
        self.times: dict[str, float] = {}
        """Labels so far: measuring again may only improve them, for noise only ever slows down."""
        self.done: set[str] = set()
        self.order = 0
        self.chunks_made = 0
        self.journal: journals.Journal | None = None
        self.stopping = False
        self.began = time.monotonic()

    def open_journal(self, ready: Ready) -> None:
        """Begin, or go on where a killed run stopped; either way know what needs no measuring."""
        request = self.request
        now = datetime.datetime.now(datetime.UTC)
        header = journals.Header(
            family=request.family.id,
            backend=get_backend(request.backend).name,
            device=str(ready.device["name"]),
            software=ready.software,
            run_id=f"{now:%Y%m%dT%H%M%S}-{os.getpid()}",
        )
        path = self.dataset.path / journals.NAME
        if path.exists():
            self.journal, records = journals.Journal.resume(path, header)
            for record in records:
                self._remember(record)
        else:
            self.journal = journals.Journal.begin(path, header)
        if request.family in self.dataset.families:
            self._skip_stored(header)
        self.summary.device = header.device

    def _skip_stored(self, header: journals.Header) -> None:
        """Rows of a finished dataset need no measuring; those of another device or compiler must not be mixed in."""
        rows = self.dataset.scan(self.request.family).filter(pl.col("backend") == header.backend)
        software = _software_text(header.software)
        begun = rows.select("device", "software").unique().collect().rows()
        if begun and (header.device, software) not in begun:
            raise InvalidValue(
                f"{self.dataset.path} was measured on {begun[0][0]} with {begun[0][1]}, but this is {header.device} with "
                f"{software}: resume it there, or collect into another dataset"
            )
        same = rows.filter(
            pl.col("device") == header.device,
            pl.col("software") == software,
            pl.col("cache") == self.request.policy.cache,
        )
        self.done |= set(same.select("key").collect().to_series())

    def _remember(self, record: dict[str, Any]) -> None:
        self.done.add(record["key"])
        self.order = max(self.order, record["order"] + 1)
        self.chunks_made = max(self.chunks_made, record["block"] + 1)
        if record["status"] == "ok":
            item = Item(record["key"], record["problem"], record["config"])
            self._label(item, record["time_ns"], record["time_ns_mad"], record.get("unsure", False))

    def _label(self, item: Item, time_ns: float, mad: float, unsure: bool) -> None:
        """A vector has a time: for the race, and for the second visit if it is not sure."""
        self.times[item.key] = time_ns
        self.ties.add(item, time_ns, mad)
        if unsure:
            self.unsure[item.key] = item
        else:
            self.unsure.pop(item.key, None)

    def chunks(self, blocks: Iterable[pl.DataFrame]) -> Iterator[Chunk]:
        """Vectors that have no row yet, those of one problem together, small problems several at a time."""
        assert self.journal is not None
        family, device = self.request.family, self.journal.header.device
        problem_names = list(family.problem.parameters)
        config_names = list(family.config.parameters)
        for block in blocks:
            frame = block.with_columns(device=pl.lit(device))
            keys = schema.row_keys(family, frame)
            pending: list[Item] = []
            current: tuple[Any, ...] | None = None
            columns = [*(f"problem.{name}" for name in problem_names), *(f"config.{name}" for name in config_names)]
            for key, row in zip(keys, frame.select(columns).iter_rows(), strict=True):
                if key in self.done:
                    self.summary.already_there += 1
                    continue
                self.done.add(key)
                problem = tuple(zip(problem_names, row, strict=False))
                enough = self.request.chunk_size if problem == current else self.request.chunk_size // 4
                if pending and len(pending) >= max(enough, 1):
                    yield self._chunk(pending)
                    pending = []
                current = problem
                values = dict(zip(config_names, row[len(problem_names) :], strict=True))
                pending.append(Item(key, dict(problem), values, self.ties.best_ns(problem)))
            if pending:
                yield self._chunk(pending)

    def _chunk(self, items: list[Item]) -> Chunk:
        self.chunks_made += 1
        return Chunk(self.chunks_made - 1, items)

    def record(self, item: Item, result: Result, block: int, device_index: str) -> None:
        """A final status: into the journal, the summary and the contest."""
        assert self.journal is not None
        fields = msgspec.to_builtins(result)
        fields.pop("type")
        self.summary.disturbed_samples += fields.pop("disturbed_samples", 0)
        self.summary.samples += result.samples or 0
        earlier = self.times.get(result.key)
        if earlier is not None and (result.time_ns is None or result.time_ns >= earlier):
            return
        fields |= {"problem": item.problem, "config": item.config, "order": self.order, "block": block, "worker": device_index}
        fields["cache"] = self.request.policy.cache
        self.journal.add(fields)
        self.order += 1
        self.summary.statuses[result.status] += 1
        if result.status == "ok":
            assert result.time_ns is not None
            self._label(item, result.time_ns, result.time_ns_mad or 0.0, result.unsure)
        else:
            self.summary.errors[result.status, result.error or ""] += 1

    def flush(self) -> None:
        if self.journal is not None:
            self.journal.flush()

    def stop(self) -> bool:
        """Ctrl-C, or the budget is spent."""
        budget = self.request.budget_seconds
        return self.stopping or (budget is not None and time.monotonic() - self.began > budget)

    def _again(self, supervisor: Supervisor, what: str, chunks: list[Chunk]) -> int:
        """Vectors that have a row once more; a faster record replaces the earlier one."""
        before = self.summary.statuses.copy()
        count = sum(len(chunk.items) for chunk in chunks)
        self.observer.phase(what, count)
        supervisor.run(iter(chunks), self.stop)
        self.summary.statuses = before  # the same vectors again, not more of them
        return count

    def revisit(self, supervisor: Supervisor) -> None:
        """What had too few quiet samples, at another time: a slow mode may last longer than a block."""
        items, self.unsure = list(self.unsure.values()), {}
        size = self.request.chunk_size
        chunks = [self._chunk(items[start : start + size]) for start in range(0, len(items), size)]
        self.summary.revisited = self._again(supervisor, "revisiting disturbed vectors", chunks)

    def race(self, supervisor: Supervisor) -> None:
        """The near-ties, side by side."""
        contests = list(self.ties.chunks(self.chunks_made))
        self.summary.raced = self._again(supervisor, "racing near-ties", contests)


def collect(request: Request, blocks: Iterable[pl.DataFrame], observer: Observer) -> Summary:
    """Measure every vector of `blocks` that has no row yet; the dataset is complete, or the journal is safe."""
    fresh = not request.out.exists()
    dataset = _open(request)
    try:
        return _collect(request, blocks, observer, dataset)
    except Exception:
        # A refusal before the first result leaves nothing behind.
        if fresh and not _has_results(dataset.path):
            shutil.rmtree(dataset.path)
        raise


def _has_results(path: Path) -> bool:
    journal = path / journals.NAME
    return journal.exists() and bool(journals.read(journal)[1])


def _collect(request: Request, blocks: Iterable[pl.DataFrame], observer: Observer, dataset: Dataset) -> Summary:
    with locked(dataset.path):
        collection = _Collection(request, observer, dataset)
        supervisor = Supervisor(
            start=lambda device: Start(
                request.backend, request.family.id, device, request.policy, request.options, request.build_jobs
            ),
            devices=list(request.devices),
            record=collection.record,
            flush=collection.flush,
            observer=observer,
            reset=_reset(request.reset_command),
        )
        with _stop_politely(collection):
            try:
                ready = supervisor.connect()
                collection.open_journal(ready)
                finished = supervisor.run(collection.chunks(blocks), collection.stop)
                if finished and not collection.stop():
                    collection.revisit(supervisor)
                    collection.race(supervisor)
            finally:
                supervisor.close()
                if collection.journal is not None:
                    collection.journal.close()
        summary = collection.summary
        summary.measured = summary.statuses.total()
        summary.interrupted = collection.stopping
        summary.without_a_row = not finished
        if finished:
            compact(dataset, request.family, ready)
        summary.seconds = time.monotonic() - collection.began
        return summary


def _open(request: Request) -> Dataset:
    """A new dataset, an unfinished one, or (with `extend`) a finished one."""
    if not request.out.exists():
        return Dataset.create(request.out)
    dataset = Dataset.open(request.out)
    if not (request.out / journals.NAME).exists() and dataset.rows and not request.extend:
        raise InvalidValue(
            f"{request.out} is a finished dataset: add --resume to measure what it lacks, or choose another name"
        )
    return dataset


def _reset(command: tuple[str, ...]) -> Callable[[str], None] | None:
    if not command:
        return None

    def reset(device: str) -> None:
        argv = [part.replace("{device}", device) for part in command]
        try:
            subprocess.run(argv, check=True, capture_output=True, timeout=300)
        except (OSError, subprocess.SubprocessError) as error:
            raise KerncastError(f"the reset command {argv} failed ({error}): mend it and run the same command again") from error

    return reset


@contextlib.contextmanager
def _stop_politely(collection: _Collection) -> Iterator[None]:
    """The first Ctrl-C (or SIGTERM) lets the chunk at hand finish; the second ends at once."""

    def ask(signum: int, frame: FrameType | None) -> None:
        if collection.stopping:
            raise KeyboardInterrupt
        collection.stopping = True

    previous = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def compact(dataset: Dataset, family: Family, ready: Ready) -> None:
    """The journal's final records as a part of the dataset; then, and only then, the journal goes."""
    path = dataset.path / journals.NAME
    header, records, _ = journals.read(path)
    rows = [_row(family, header, record) for record in journals.final_records(records)]
    if rows:
        frame = pl.DataFrame(rows, schema={**schema.schema_of(family)}, orient="row")
        present = _already_compacted(dataset, family, header.run_id)
        profile = DeviceRecord(**ready.device)
        dataset.append(family, frame.drop("key").filter(~frame["key"].is_in(list(present))), machines=[profile])
    path.unlink()


def _already_compacted(dataset: Dataset, family: Family, run_id: str) -> set[str]:
    """Keys of this very run that a crash between the two steps left in both places."""
    if family not in dataset.families:
        return set()
    return set(dataset.scan(family).filter(pl.col("run_id") == run_id).select("key").collect().to_series())


def _software_text(software: dict[str, str]) -> str:
    return msgspec.json.encode(dict(sorted(software.items()))).decode()


def _row(family: Family, header: journals.Header, record: dict[str, Any]) -> dict[str, Any]:
    try:
        row = {f"problem.{name}": record["problem"][name] for name in family.problem.parameters}
        row |= {f"config.{name}": record["config"][name] for name in family.config.parameters}
    except KeyError as error:
        raise BadFile(
            f"the journal's records do not fit {family.id}: {error} is missing; finish it with the kerncast that began it"
        ) from error
    row |= {"op": family.op.name, "family": family.id, "device": header.device, "backend": header.backend}
    row |= {"run_id": header.run_id, "software": _software_text(header.software)}
    return row | {name: record.get(name) for name in schema.MEASURED if name not in row} | {"key": record["key"]}
