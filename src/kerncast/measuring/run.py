"""One collection, from vectors to a dataset: lock, resume, measure all or the worthiest, race the near-ties, compact."""

from __future__ import annotations

import contextlib
import math
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import polars as pl

from kerncast.core.arrays import Ints
from kerncast.core.device import Device
from kerncast.core.io.atomic import no_space, sweep, write_bytes
from kerncast.core.io.lock import one_writer
from kerncast.core.progress import QUIET, Progress, Stop, never
from kerncast.data import journal as journals
from kerncast.data import schema
from kerncast.data.dataset import Dataset
from kerncast.data.manifest import as_json
from kerncast.errors import CannotWrite, InvalidValue
from kerncast.library.declared.declaration import declaration_of
from kerncast.measuring.backends.environment import worker_share
from kerncast.measuring.collection import Active, Collection, CollectionSummary, Request
from kerncast.measuring.journal import Vanished, WriteRefused, compact, refused
from kerncast.measuring.known import KnownVectors
from kerncast.measuring.messages import Ready, Start
from kerncast.measuring.scheduling import Abandoned, AlikeFailures, CannotGoOn, Devices
from kerncast.measuring.supervisor import Supervisor

# The first round: the larger of this share and this many vectors per problem, but at most half of the limit.
FIRST_SHARE = 0.05
FIRST_PER_PROBLEM = 2
# A later round is a twentieth of the vectors or a tenth of the limit, because each round trains a model.
ROUND_SHARE, ROUND_OF_LIMIT = 0.05, 0.1
# Candidates are held in memory with their keys: at most this many, drawn at random if there are more.
MOST_CANDIDATES = 200_000


def locked(path: Path) -> contextlib.AbstractContextManager[None]:
    """One writer per dataset."""
    return one_writer(path, journals.LOCK, "collect into another dataset")


def start_of(request: Request) -> Start:
    """The first message to a worker; each device puts its own index in."""
    return Start(
        request.backend, request.family.id, "0", request.policy, request.options, request.build_jobs,
        declaration_of(request.family),
    )  # fmt: skip


def supervisor_of(request: Request, collection: Collection) -> Supervisor:
    """The supervisor that measures a collection on the devices of this machine."""
    return Supervisor(
        start_of(request),
        request.devices,
        record=collection.record,
        flush=collection.flush,
        admit=collection.admit,
        reset=request.reset_command,
        memory_bytes=worker_share(len(request.devices)) if request.memory_bytes is None else request.memory_bytes,
        alike=AlikeFailures(request.alike_failures),
        abandoned=collection.abandoned,
        progress=collection.progress,
    )


def collect(
    request: Request,
    blocks: Iterable[pl.DataFrame],
    *,
    total: int | None = None,
    progress: Progress = QUIET,
    stop: Stop = never,
    by: Callable[[Request, Collection], Devices] = supervisor_of,
) -> CollectionSummary:
    """Measure every vector of `blocks` that has no row yet; the dataset is complete, or the journal is safe.

    `total` is the number of vectors, if known. Once `stop` returns True, what is being measured is dropped and the summary
    says `interrupted`. A KeyboardInterrupt without `stop` does the same; one that comes while the collection is stopping
    is raised. Works in any thread. `by` makes what measures: this machine's devices, unless told otherwise.
    """
    out, fresh = request.out, not request.out.exists()
    try:
        dataset = _open(request)
        opened = _identity(out)
        try:
            with locked(out):
                collection = Collection(request, dataset, total=total, progress=progress, stop=stop)
                return _collect(collection, blocks, by(request, collection))
        except Vanished:
            raise
        except Exception:
            # A refusal before the first result leaves nothing behind. A folder that replaced ours meanwhile stays.
            if fresh and opened == _identity(out) and not _has_results(out / journals.NAME):
                shutil.rmtree(out)
            raise
    except WriteRefused:
        raise
    except (OSError, CannotWrite) as error:
        # A full disk that does not say yet how to continue: at the lock, a folder, `dataset.json`.
        cause = error.__cause__ if isinstance(error, CannotWrite) else error
        if not isinstance(cause, OSError) or not no_space(cause):
            raise
        safe = f"everything measured before is safe in {out}" if out.exists() else "nothing was measured yet"
        raise refused(Path(cause.filename or out), cause.strerror, safe) from error


def _open(request: Request) -> Dataset:
    """A new dataset, an unfinished one, or (with `extend`) a finished one."""
    sweep(request.out.absolute().parent)
    if not request.out.exists():
        return Dataset.create(request.out, journal=False)
    dataset = Dataset.open(request.out, journal=False)
    if not (request.out / journals.NAME).exists() and dataset.rows and not request.extend:
        raise InvalidValue(
            f"{request.out} is a finished dataset: add `resume` to measure what it lacks, or choose another name"
        )
    return dataset


def _has_results(journal: Path) -> bool:
    return journals.is_begun(journal) and next(journals.records_of(journal), None) is not None


def _identity(path: Path) -> tuple[int, int] | None:
    """Tells whether a folder is still the same one; None: there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _collect(collection: Collection, blocks: Iterable[pl.DataFrame], devices: Devices) -> CollectionSummary:
    request, summary = collection.request, collection.summary
    collection.known.expect(collection.total or 0)
    collection.progress.expect("vectors", collection.total)
    ready: Ready | None = None
    finished = False
    with _safe_rows_said(collection):
        try:
            ready = devices.connect()
            _note(collection)
            finished = _measure(collection, devices, blocks, Device(**ready.device)) and not devices.unblamed
            if finished and not collection.stop():
                collection.revisit(devices)
                collection.race(devices)
        except Abandoned:  # workers are killed, and the journal has only whole lines
            collection.flush()
        except KeyboardInterrupt:  # as in a notebook; another one while it is stopping ends everything
            if collection.stopping or collection.asked():
                raise
            collection.stopping = True
            collection.progress.say(f"stopped: everything measured is safe in {summary.path}: call it again to go on")
        finally:
            devices.close()
            if collection.journal is not None:
                collection.journal.close()
    summary.lost = devices.lost
    summary.unsure = collection.known.doubtful
    summary.measured = summary.statuses.total()
    summary.interrupted = collection.stopping
    # An active choice is meant to stop early: when its budget ends, it is finished.
    chosen = request.active is not None and not summary.interrupted and summary.measured + summary.already_there > 0
    summary.without_a_row = not (finished or chosen)
    if not summary.without_a_row:
        assert ready is not None
        collection.known = KnownVectors()  # compacting needs the memory
        compact(collection.dataset, request.family, ready)
    elif ready is not None:
        _note(collection, "stopped" if collection.stopping else "budget" if collection.stop() else "device_lost")
    summary.seconds = time.monotonic() - request.began
    return summary


def _measure(collection: Collection, devices: Devices, blocks: Iterable[pl.DataFrame], device: Device) -> bool:
    """Measure every vector, or those that are worth most; False when it was stopped before the end."""
    request = collection.request
    if request.capture_hw:
        hardware = devices.hardware(device.name)
        collection.dataset.keep_hardware(hardware)
        collection.summary.hardware = as_json(hardware, device)
        for contradiction in collection.summary.hardware["contradictions"]:
            collection.progress.say(f"! {contradiction}")
    if request.active is not None:
        return _measure_rounds(request.active, collection, devices, blocks, device)
    return devices.run(collection.chunks(blocks), collection.stop)


def _note(collection: Collection, ended: journals.Ended | None = None) -> None:
    """Record how far the collection is, for readers of an unfinished one."""
    measured = None if ended is None else collection.summary.statuses.total() + collection.summary.already_there
    state = journals.State(collection.total, measured, ended)
    write_bytes(collection.dataset.path / journals.STATE, journals.STATE_FILE.text(state))


@contextlib.contextmanager
def _safe_rows_said(collection: Collection) -> Iterator[None]:
    """Make a collection that ends early say how many rows are safe, and where."""
    path = collection.dataset.path
    try:
        yield
    except CannotGoOn as error:
        rows = collection.rows_kept()
        safe = f"{rows:,} rows are safe in {path}" if rows else "nothing was measured yet"
        if rows:
            _note(collection, error.ended)
        complete = type(error)(f"{error}; {safe}: {error.fix}")
        complete.rows = rows
        raise complete from error
    except KeyboardInterrupt:
        words = f"stopped: everything measured is safe in {path} ({collection.rows_kept():,} rows)"
        collection.progress.say(f"{words}: run the same command to go on")
        raise


# -- rounds of an active choice ----------------------------------------------------------------------------


def _measure_rounds(
    active: Active, collection: Collection, devices: Devices, blocks: Iterable[pl.DataFrame], device: Device
) -> bool:
    """Measure in rounds the vectors that are worth most, judged by the results of earlier rounds, until the limit is reached.

    False when the budget (or Ctrl-C) ended it earlier. The first round is drawn at random, spread over the problems. Later ones
    depend only on the rows, so the same command continues a killed collection, and a finished one can be extended.
    """
    vectors = _distinct(collection, blocks)
    summary = collection.summary
    rest = np.flatnonzero(~collection.known.done(vectors["key"]))
    summary.already_there = vectors.height - len(rest)
    limit = min(active.max_vectors or vectors.height, vectors.height)
    first = _first_round(vectors, limit, active.seed)
    least = collection.request.chunk_size * len(collection.request.devices)
    size = max(least, min(math.ceil(ROUND_SHARE * vectors.height), math.ceil(ROUND_OF_LIMIT * limit)))
    finished, number = not collection.stop(), 0
    while finished and (left := limit - (vectors.height - len(rest))) > 0:
        number += 1
        chosen = first[np.isin(first, rest)]
        if not len(chosen):
            chosen = _wanted(active, collection, vectors, rest, device)[:size]
        # In the order of the sweep, which keeps the vectors of one problem together.
        chosen = np.sort(chosen[:left])
        rest = np.setdiff1d(rest, chosen, assume_unique=True)
        collection.progress.expect(f"vectors of round {number}", len(chosen))
        finished = devices.run(collection.chunks([vectors[chosen].drop("key")]), collection.stop)
    summary.left_out = vectors.height - summary.already_there - summary.statuses.total()
    return finished


def _distinct(collection: Collection, blocks: Iterable[pl.DataFrame]) -> pl.DataFrame:
    """The vectors with their keys, each once; a share of them, drawn by their hash, if there are too many to hold."""
    family = collection.request.family
    columns = list(schema.parameter_columns(family))
    share = MOST_CANDIDATES / max(MOST_CANDIDATES, collection.total or 0)
    found = []
    for block in blocks:
        if collection.stop():
            break
        vectors = schema.with_optional(family, block).select(columns)
        if share < 1:
            vectors = vectors.filter(vectors.hash_rows(seed=0) < int(share * 2**64))
        found.append(vectors.with_columns(schema.row_keys(family, vectors.with_columns(device=pl.lit(collection.device)))))
    if not found:
        types = schema.schema_of(family)
        return pl.DataFrame(schema={name: types[name] for name in (*columns, "key")})
    return pl.concat(found).unique("key", keep="first", maintain_order=True)


def _first_round(vectors: pl.DataFrame, limit: int, seed: int) -> Ints:
    """One vector of each problem, then another of each, and so on, drawn by the seed."""
    columns = [name for name in vectors.columns if name.startswith("problem.")]
    problem = np.unique(vectors.select(columns).hash_rows(seed=0).to_numpy(), return_inverse=True)[1]
    chance = np.random.default_rng(seed).random(vectors.height)
    order = np.lexsort((chance, problem))
    starts = np.flatnonzero(np.diff(problem[order], prepend=-1))
    place = np.empty(vectors.height, dtype=np.int64)
    place[order] = np.arange(vectors.height) - np.repeat(starts, np.diff(starts, append=vectors.height))
    size = max(math.ceil(FIRST_SHARE * vectors.height), int((place < FIRST_PER_PROBLEM).sum()))
    return np.lexsort((chance, place))[: min(size, math.ceil(limit / 2))]


def _wanted(active: Active, collection: Collection, vectors: pl.DataFrame, rest: Ints, device: Device) -> Ints:
    """The vectors that are left, alternating the worthiest and a random one; all random while too little is known."""
    shuffled = np.random.default_rng([active.seed, len(rest)]).permutation(rest)
    candidates = np.sort(shuffled[:MOST_CANDIDATES])
    worth = active.worth(collection.rows(), vectors[candidates].drop("key"), device)
    if worth is None:
        return shuffled
    return by_turns(candidates[np.argsort(-worth, kind="stable")], shuffled)


def by_turns(worthiest: Ints, shuffled: Ints) -> Ints:
    """Alternate between the two, each position once.

    A model that saw only the fastest rows knows little about slow ones. On other problems it then chooses worse than a
    model that saw random rows (`kerncast evaluate --budget-curve` shows both).
    """
    mixed = np.column_stack([worthiest, shuffled[: len(worthiest)]]).ravel()
    return np.asarray(mixed[np.sort(np.unique(mixed, return_index=True)[1])])
