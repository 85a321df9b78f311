"""What to collect, and the state of a running collection: what is done, what nearly ties, what goes into the journal."""

from __future__ import annotations

import datetime
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

import msgspec
import polars as pl

from kerncast.core.arrays import Floats
from kerncast.core.device import Device
from kerncast.core.op import Family
from kerncast.core.progress import QUIET, Progress, Stop, never
from kerncast.data import journal as journals
from kerncast.data import schema
from kerncast.data.dataset import Dataset, DeviceRecord
from kerncast.data.journal import journal_rows, software_text
from kerncast.errors import InvalidValue
from kerncast.library.declared.declaration import declaration_of
from kerncast.measuring.backends import get_backend
from kerncast.measuring.journal import Journal, in_batches
from kerncast.measuring.known import DONE, DOUBTFUL, Groups, KnownVectors
from kerncast.measuring.messages import Chunk, Item, Policy, Ready, Result
from kerncast.measuring.scheduling import LIMIT, Devices

# From this share of disturbed samples on, after this many samples, it is said what that means.
EXPLAINED_SHARE, EXPLAINED_SAMPLES = 0.3, 200
# Vectors whose keys are computed together.
GATHERED_ROWS = 4096
# Different texts of errors that are counted: if each vector has its own, they take more memory than the vectors.
MOST_ERRORS = 10_000

Worth = Callable[[pl.DataFrame, pl.DataFrame, Device], Floats | None]
"""Measured rows (as stored) and unmeasured vectors (`problem.*`, `config.*`) → how much it is worth to measure each vector,
or None while too little is known. It is passed in because collecting does not import models."""


@dataclass(frozen=True)
class Active:
    """Measure in rounds, each time the vectors that are worth most."""

    worth: Worth
    seed: int = 0
    max_vectors: int | None = None
    """Rows in the end, including those that already existed."""


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
    second_visit_seconds: float | None = None
    """Maximum time for vectors that had too few quiet samples; None: until all were visited again."""
    extend: bool = False
    """Add what is missing to a dataset that is already finished."""
    reset_command: tuple[str, ...] = ()
    options: dict[str, str] = field(default_factory=dict)
    """What the backend is configured with."""
    build_jobs: int = 2
    memory_bytes: int | None = None
    """Memory that a worker may take beyond what its backend starts with. None: its share of free memory; 0: no limit."""
    alike_failures: int = LIMIT
    """Stop when this many configs in a row failed in the same way (0: never)."""
    capture_hw: bool = False
    """Ask the machine's tools what it is, and keep what they say in the dataset."""
    retry: frozenset[str] = frozenset()
    """Statuses of failed rows that are measured again."""
    active: Active | None = None
    """Choose what to measure instead of measuring everything."""
    began: float = field(default_factory=time.monotonic)
    """When it was asked for. The budget counts from here, so it includes the time to list the vectors."""

    def __post_init__(self) -> None:
        for name, value in (("chunk_size", self.chunk_size), ("build_jobs", self.build_jobs), ("samples", self.policy.samples)):
            if value < 1:
                raise InvalidValue(f"`{name}` must be at least 1, got {value}")
        if self.alike_failures < 0:
            raise InvalidValue(f"`alike_failures` must be at least 0 (0: never stop for them), got {self.alike_failures}")
        if self.active is not None and self.active.max_vectors is None and self.budget_seconds is None:
            raise InvalidValue(
                "an active choice needs a limit, `budget` TIME or `max_vectors` N: without one every vector is measured anyway"
            )


@dataclass
class CollectionSummary:
    """The outcome of a collection."""

    path: Path
    device: str = ""
    measured: int = 0
    already_there: int = 0
    without_a_row: bool = False
    left_out: int = 0
    """Vectors that an active choice did not measure."""
    interrupted: bool = False
    raced: int = 0
    revisited: int = 0
    disturbed_samples: int = 0
    samples: int = 0
    unsure: int = 0
    """Labels that rest on too few quiet samples."""
    seconds: float = 0.0
    statuses: Counter[str] = field(default_factory=Counter)
    errors: Counter[tuple[str, str]] = field(default_factory=Counter)
    hardware: dict[str, Any] | None = None
    """What the machine's tools said, if they were asked, and where that contradicts the profile of the device."""
    lost: dict[str, str] = field(default_factory=dict)
    """Devices (by index) that were given up while others went on, and why."""


class Collection:
    """The state of a running collection."""

    def __init__(
        self, request: Request, dataset: Dataset, *, total: int | None = None, progress: Progress = QUIET, stop: Stop = never
    ) -> None:
        self.request, self.dataset, self.progress, self.asked = request, dataset, progress, stop
        self.total = total
        """How many vectors were asked for."""
        self.summary = CollectionSummary(dataset.path)
        self.known = KnownVectors()
        """What is known of each vector. Measuring again can only improve its time: noise only makes kernels slower."""
        self.order = self.chunks_made = 0
        self.journal: Journal | None = None
        self.stopping = False
        """Whether the collection has noticed a request to stop."""
        self.said_disturbed = False

    # -- what is there already -------------------------------------------------------------------------

    def admit(self, index: str, ready: Ready) -> None:
        """The first device decides device and software of the dataset; every other or restarted one must match."""
        if self.journal is None:
            self._open_journal(ready)
            return
        header = self.journal.header
        name, software = str(ready.device["name"]), ready.software
        if (name, software) != (header.device, header.software):
            raise InvalidValue(
                f"device {index} is {name} with {software_text(software)}, but {self.dataset.path} is of {header.device} with "
                f"{software_text(header.software)}: leave {index} out of `devices` and measure it into another `out`"
            )

    def _open_journal(self, ready: Ready) -> None:
        """Begin a journal, or continue that of a killed run, and load what is already measured."""
        family = self.request.family
        own, held = declaration_of(family), self.dataset.contents.declared.get(family.id)
        if held is not None and own != held:
            raise InvalidValue(
                f"{self.dataset.path} is of another version of {family.id}, with other parameters, rules or features: "
                "measure into another `out`, and join them afterwards (`kerncast merge`)"
            )
        now = datetime.datetime.now(datetime.UTC)
        header = journals.Header(
            family=family.id,
            backend=get_backend(self.request.backend).name,
            device=str(ready.device["name"]),
            software=ready.software,
            run_id=f"{now:%Y%m%dT%H%M%S.%f}-{os.getpid()}",
        )
        path = self.dataset.path / journals.NAME
        if journals.is_begun(path):
            self.journal, records = Journal.resume(path, header)
            self.order, self.chunks_made = self.known.load(records, self.request.retry)
        else:
            path.unlink(missing_ok=True)
            self.journal = Journal.begin(path, header)
        if family in self.dataset.families:
            self._skip_stored(header)
        # Before the first row: a reader of an unfinished collection needs the device for its features.
        nothing = pl.DataFrame(schema=schema.schema_of(family))
        self.dataset.append(family, nothing, machines=[DeviceRecord(**ready.device)])
        self.summary.device = header.device

    def _skip_stored(self, header: journals.Header) -> None:
        """Rows of a finished dataset need no measuring; those of another device or compiler must not be mixed in."""
        rows = self.dataset.scan(self.request.family).filter(pl.col("backend") == header.backend)
        software = software_text(header.software)
        begun = rows.select("device", "software").unique().collect().rows()
        if begun and (header.device, software) not in begun:
            raise InvalidValue(
                f"{self.dataset.path} was measured on {begun[0][0]} with {begun[0][1]}, but this is {header.device} with "
                f"{software}: resume it there, or collect into another dataset"
            )
        rows = self._stored(header).filter(~pl.col("status").is_in(list(self.request.retry)))
        self.known.mark_done(rows.select("key").collect().to_series())

    def _stored(self, header: journals.Header) -> pl.LazyFrame:
        """The rows of the dataset that this collection would repeat."""
        return self.dataset.scan(self.request.family).filter(
            pl.col("backend") == header.backend,
            pl.col("device") == header.device,
            pl.col("software") == software_text(header.software),
            pl.col("cache") == self.request.policy.cache,
        )

    def rows(self) -> pl.DataFrame:
        """Everything that is known so far: the dataset's rows and the journal's."""
        self.flush()
        header, rows = journal_rows(self.dataset.path / journals.NAME, self.request.family)
        if self.request.family in self.dataset.families:
            rows = pl.concat([self._stored(header).collect(), rows])
        return rows

    def rows_kept(self) -> int:
        """Rows in the dataset and in its journal."""
        path = self.dataset.path / journals.NAME
        return self.dataset.rows + (journals.distinct_keys(path) if journals.is_begun(path) else 0)

    @property
    def device(self) -> str:
        """The name of the device that is measured."""
        assert self.journal is not None
        return self.journal.header.device

    # -- what is measured next -------------------------------------------------------------------------

    def chunks(self, blocks: Iterable[pl.DataFrame]) -> Iterator[Chunk]:
        """Vectors that have no row yet, those of one problem together, small problems several at a time."""
        family = self.request.family
        problems, configs = list(family.problem.parameters), list(family.config.parameters)
        columns = list(schema.parameter_columns(family))
        for frame, keys in self._undone(blocks):
            pending: list[Item] = []
            current: dict[str, Any] | None = None
            for key, row in zip(keys, frame.select(columns).iter_rows(), strict=True):
                if self.known.has(key, DONE):
                    self.summary.already_there += 1
                    continue
                self.known.mark(key, DONE)
                problem = dict(zip(problems, row, strict=False))
                enough = self.request.chunk_size if problem == current else self.request.chunk_size // 4
                if pending and len(pending) >= max(enough, 1):
                    yield self.chunk(pending)
                    pending = []
                current = problem
                config = dict(zip(configs, row[len(problems) :], strict=True))
                pending.append(Item(key, problem, config, self.known.best_ns(problem)))
            if pending:
                yield self.chunk(pending)

    def _undone(self, blocks: Iterable[pl.DataFrame]) -> Iterator[tuple[pl.DataFrame, pl.Series]]:
        """The vectors of each block that are not done, with their keys; those of many small blocks are found at a time."""
        family = self.request.family
        for several in in_batches(blocks, GATHERED_ROWS):
            together = pl.concat(several, how="diagonal_relaxed").with_columns(device=pl.lit(self.device))
            keys = schema.row_keys(family, together)
            known, start = self.known.done(keys), 0
            for frame in several:
                own, done = keys.slice(start, frame.height), known[start : start + frame.height]
                start += frame.height
                self.summary.already_there += (count := int(done.sum()))
                if count == frame.height:  # most blocks of a resumed collection: nothing else is asked of them
                    continue
                new = pl.Series(~done)
                left, own = (frame.filter(new), own.filter(new)) if count else (frame, own)
                yield schema.with_optional(family, left), own

    def chunk(self, items: list[Item]) -> Chunk:
        """Vectors to measure together, with a number of their own."""
        self.chunks_made += 1
        return Chunk(self.chunks_made - 1, items)

    def revisit(self, devices: Devices) -> None:
        """Measure vectors with too few quiet samples again later: a slow mode may last longer than a block."""
        groups = self.known.unsure(self.request.chunk_size)
        limit = self.request.second_visit_seconds
        if limit is not None:  # some of every kind rather than the first ones
            groups = replace(groups, seed=self.request.policy.seed)
        self.summary.revisited = self._again(devices, "unsteady vectors measured again", groups, limit)

    def race(self, devices: Devices) -> None:
        """Measure the near-ties again, side by side."""
        self.summary.raced = self._again(devices, "near-ties raced again", self.known.near_ties())

    def _again(self, devices: Devices, what: str, groups: Groups, seconds: float | None = None) -> int:
        """Measure vectors that have a row again and return their number; a faster record replaces the earlier one."""
        before, until = self.summary.statuses.copy(), time.monotonic() + (math.inf if seconds is None else seconds)
        self.progress.expect(what, groups.vectors if seconds is None else None)
        if seconds is not None:  # the time ends it, not the count
            self.progress.guess(seconds if groups.vectors else 0.0)
        self.flush()  # the vectors are read from the journal
        path, taken = self.dataset.path / journals.NAME, 0

        def chunks(file: IO[bytes]) -> Iterator[Chunk]:
            nonlocal taken
            for places in groups:
                taken += len(places)
                records = [journals.record_at(path, file, at) for at in places.tolist()]
                yield self.chunk([Item(r["key"], r["problem"], r["config"], self.known.best_ns(r["problem"])) for r in records])

        try:
            with path.open("rb") as file:
                devices.run(chunks(file), lambda: self.stop() or time.monotonic() > until)
        finally:
            self.summary.statuses = before  # the same vectors again, not more of them
        return taken

    # -- what was measured -----------------------------------------------------------------------------

    def record(self, item: Item, result: Result, block: int, device_index: str, overrules: bool = False) -> None:
        """Record a final status in the journal, the summary and the near-ties."""
        summary = self.summary
        if overrules and self.known.forget(item.key, item.problem):
            summary.statuses["ok"] -= 1
        assert self.journal is not None
        fields = msgspec.to_builtins(result)
        for unstored in ("type", "broken_by", "disturbed_samples"):
            fields.pop(unstored, None)
        summary.disturbed_samples += result.disturbed_samples
        summary.samples += result.samples or 0
        self._explain_disturbed()
        self.known.mark(result.key, DOUBTFUL, result.unsure)
        earlier = self.known.time_ns(result.key)
        if earlier is not None and (result.time_ns is None or result.time_ns >= earlier):
            return
        fields |= {"problem": item.problem, "config": item.config, "order": self.order, "block": block, "worker": device_index}
        fields["cache"] = self.request.policy.cache
        at = self.journal.add(fields)
        self.order += 1
        summary.statuses[result.status] += 1
        if result.status == "ok":
            assert result.time_ns is not None
            self.known.add(item.key, item.problem, result.time_ns, result.time_ns_mad or 0.0, at, result.unsure)
            return
        error = (result.status, result.error or "")
        if len(summary.errors) >= MOST_ERRORS and error not in summary.errors:  # of very many texts, the late ones by status
            error = (result.status, "other errors")
        summary.errors[error] += 1

    def _explain_disturbed(self) -> None:
        """Say once what a high share of disturbed samples means for the labels."""
        share = self.summary.disturbed_samples / max(1, self.summary.samples)
        if self.said_disturbed or self.summary.samples < EXPLAINED_SAMPLES or share < EXPLAINED_SHARE:
            return
        self.said_disturbed = True
        self.progress.say(
            f"other processes slowed this machine down during {share:.0%} of the samples so far (shown as disturbed). Such a "
            "sample counts only where a vector has no quiet one, and then its label may be too slow; vectors with too few "
            "quiet samples are measured again at the end. End other work on this machine for better labels"
        )

    def flush(self) -> None:
        """Write lines to the journal and answer a request to stop; called several times a second."""
        if self.journal is not None:
            self.journal.flush()
        self.abandoned()

    def abandoned(self) -> bool:
        """Whether a stop was requested, which is said once."""
        if not self.stopping and self.asked():
            self.stopping = True
            self.progress.say("stopping: what is being measured now is dropped, everything else is kept")
        return self.stopping

    def stop(self) -> bool:
        """Whether to stop: a stop was requested, or the budget is spent."""
        budget = self.request.budget_seconds
        return self.abandoned() or (budget is not None and time.monotonic() - self.request.began > budget)
