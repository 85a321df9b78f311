"""One collection, from vectors to a dataset: lock, resume, measure, race the near-ties, compact."""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import FrameType

import polars as pl

from kerncast.collect import journal as journals
from kerncast.collect.active import measure_rounds
from kerncast.collect.collection import Collection
from kerncast.collect.compact import compact
from kerncast.collect.memory import worker_share
from kerncast.collect.messages import Ready, Start
from kerncast.collect.request import Active, Request, Summary
from kerncast.collect.supervisor import Observer, Supervisor
from kerncast.data.dataset import Dataset
from kerncast.data.lock import one_writer
from kerncast.device import Device
from kerncast.errors import InvalidValue, KerncastError

__all__ = ["Active", "Request", "Summary", "collect", "locked"]

LOCK = "collect.lock"


def locked(path: Path) -> contextlib.AbstractContextManager[None]:
    """One writer per dataset."""
    return one_writer(path, LOCK, "collect into another dataset")


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
        memory_bytes = worker_share(len(request.devices)) if request.memory_bytes is None else request.memory_bytes
        collection = Collection(request, observer, dataset)
        supervisor = Supervisor(
            start=lambda device: Start(
                request.backend, request.family.id, device, request.policy, request.options, request.build_jobs
            ),
            devices=list(request.devices),
            record=collection.record,
            flush=collection.flush,
            observer=observer,
            reset=_reset(request.reset_command),
            memory_bytes=memory_bytes,
        )
        with _stop_politely(collection):
            try:
                ready = supervisor.connect()
                collection.open_journal(ready)
                finished = _measure(request, collection, supervisor, blocks, ready)
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
        # To stop early is what an active choice is for: when its budget ends, it is finished.
        chosen = request.active is not None and not summary.interrupted and summary.measured + summary.already_there > 0
        summary.without_a_row = not (finished or chosen)
        if not summary.without_a_row:
            compact(dataset, request.family, ready)
        summary.seconds = time.monotonic() - collection.began
        return summary


def _measure(
    request: Request, collection: Collection, supervisor: Supervisor, blocks: Iterable[pl.DataFrame], ready: Ready
) -> bool:
    """Every vector, or those that are worth most; False when it was stopped before."""
    if request.active is None:
        return supervisor.run(collection.chunks(blocks), collection.stop)
    return measure_rounds(request.active, collection, supervisor, blocks, Device(**ready.device))


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
def _stop_politely(collection: Collection) -> Iterator[None]:
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
