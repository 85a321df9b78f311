"""The fits of one training: in parallel if the kind of model allows it, one core each, or as tasks of a Ray cluster.

Threads inside a fit wait for each other by spinning, so next to another busy process two of them took twenty times the CPU
seconds of one. Fits share nothing, so they never wait, and their results, and so the model, are the same bytes in any order and
on any machine.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any

from kerncast.core.op import Family
from kerncast.core.progress import QUIET, Progress
from kerncast.errors import InvalidValue, KerncastError
from kerncast.learning.learners.contract import WORTH_THREADS
from kerncast.learning.learners.kinds import learner_class
from kerncast.learning.table import Table
from kerncast.library.declared.declaration import Declaration, declaration_of, declared_family
from kerncast.library.registry import FAMILIES
from kerncast.training.procedure import Procedure

# Every fit copies the features that it learns from; all copies together take at most this much memory.
MOST_BYTES = 2**31


@dataclass(frozen=True)
class Fit:
    """A name for progress, and what to do with the table and the procedure."""

    name: str
    run: Callable[[Table, Procedure], Any]
    """Nothing but its arguments and numbers: it may run on another machine."""
    kept: Callable[[], Any] = lambda: None
    """What an earlier run kept of it; None: nothing."""
    keep: Callable[[Any], None] = lambda found: None

    def result(self, table: Table, procedure: Procedure) -> Any:
        """What was kept, or what comes out now."""
        found = self.kept()
        if found is None:
            found = self.run(table, procedure)
            self.keep(found)
        return found


def cores() -> int:
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_fits(fits: Sequence[Fit], procedure: Procedure, table: Table) -> list[Any]:
    """Run all fits and return their results, in order."""
    if procedure.spread is not None:
        return procedure.spread(fits, procedure, table)
    threads = procedure.recipe.threads or cores()
    room = max(1, MOST_BYTES // max(1, table.rows.features.nbytes))
    at_once = min(threads, room, len(fits)) if learner_class(procedure.recipe.kind).side_by_side else 1
    if at_once == 1:
        found = []
        for number, fit in enumerate(fits, 1):
            procedure.progress.stage(fit.name, number, len(fits))
            found.append(fit.result(table, procedure))
        return found
    threads = max(1, threads // at_once) if len(table.ok) >= WORTH_THREADS else 1
    each = replace(procedure, recipe=replace(procedure.recipe, threads=threads))
    joint = _JointProgress(procedure.progress, len(fits))

    def run(place: int) -> Any:
        joint.begin(fits[place].name)
        found = fits[place].result(table, replace(each, progress=_FitProgress(joint, place)))
        joint.end(place)
        return found

    with ThreadPoolExecutor(at_once) as pool:
        try:
            return list(pool.map(run, range(len(fits))))
        except BaseException:
            joint.stopped = True
            pool.shutdown(wait=False, cancel_futures=True)
            raise


class _Stop(Exception):
    """Another fit failed, or the user interrupted the training."""


class _JointProgress:
    """Adds up the progress of the fits and reports it as a single stage."""

    def __init__(self, progress: Progress, fits: int) -> None:
        self.stopped = False
        self._progress, self._fits = progress, fits
        self._lock, self._shares, self._size, self._ended = Lock(), [0.0] * fits, 1, 0

    def begin(self, name: str) -> None:
        """A fit begins."""
        with self._lock:
            self._refuse_stopped()
            self._progress.stage(name, 1, 1)

    def end(self, place: int) -> None:
        """A fit is done."""
        with self._lock:
            self._shares[place] = 1.0
            self._ended += 1
            self._tell(f"fits: {self._ended} of {self._fits} done, trees")

    def step(self, place: int, what: str, done: int, of: int) -> None:
        """Report the progress of one fit."""
        with self._lock:
            self._refuse_stopped()
            self._shares[place], self._size = max(self._shares[place], min(1.0, done / max(1, of))), of
            self._tell(what)

    def _tell(self, what: str) -> None:
        self._progress.step(what, round(sum(self._shares) * self._size), self._fits * self._size)

    def _refuse_stopped(self) -> None:
        if self.stopped:
            raise _Stop


class _FitProgress(Progress):
    """The progress of one of the fits."""

    def __init__(self, joint: _JointProgress, place: int) -> None:
        self._joint, self._place = joint, place

    def step(self, what: str, done: int = 0, of: int | None = None) -> None:
        self._joint.step(self._place, what, done, of or 1)


POLL_SECONDS = 0.5
# A task whose node ends runs again on another one.
RETRIES = 3


def over_cluster(fits: Sequence[Fit], procedure: Procedure, table: Table) -> list[Any]:
    """Run all fits that were not kept on the connected cluster, one core each, and return the results in order."""
    import ray

    from kerncast.measuring.fleet.node import release

    cluster: Any = ray  # parts of Ray have no types
    found: list[Any] = [fit.kept() for fit in fits]
    waiting: dict[Any, int] = {}
    own = replace(procedure, recipe=replace(procedure.recipe, threads=1), progress=QUIET, spread=None)
    _register(type(table.family))
    shared, recipe = cluster.put(_bare(table)), cluster.put(own)
    task = cluster.remote(_run).options(num_cpus=1, max_retries=RETRIES)
    for place, fit in enumerate(fits):
        if found[place] is None:
            waiting[task.remote(release(), shared, recipe, fit.run)] = place
    try:
        done = len(fits) - len(waiting)
        procedure.progress.stage("fits on the cluster", 1, 1)
        procedure.progress.step("fits", done, len(fits))
        while waiting:
            ready, _ = cluster.wait(list(waiting), num_returns=1, timeout=POLL_SECONDS)
            for ref in ready:
                place = waiting.pop(ref)
                found[place] = _result(ref, fits[place].name)
                fits[place].keep(found[place])
                done += 1
                procedure.progress.step(f"fits: {fits[place].name}", done, len(fits))
            procedure.progress.tick()
    finally:
        for ref in waiting:
            cluster.cancel(ref, force=True)
    return found


def _run(expected: str, table: Table, procedure: Procedure, run: Callable[[Table, Procedure], Any]) -> Any:
    """One fit, on some node."""
    from kerncast.measuring.fleet.node import release

    if release() != expected:
        raise InvalidValue(
            f"a node has kerncast {release()}, and the driver has {expected}: install the same version on every node"
        )
    return run(table, procedure)


def _result(ref: Any, name: str) -> Any:
    import ray
    from ray.exceptions import RayError, RayTaskError

    try:
        return ray.get(ref)
    except RayTaskError as error:
        cause = error.cause
        if isinstance(cause, KerncastError):
            raise cause from None
        raise KerncastError(f"{name} failed on the cluster ({type(cause).__name__}: {cause})") from error
    except RayError as error:
        words = str(error).strip().split("\n")[0]
        raise KerncastError(f"{name} was lost again and again ({words}): see `ray status`, then run the same again") from error


def _bare(table: Table) -> Table:
    """What fits read of a table, without functions."""
    return replace(table, rows=replace(table.rows, described=table.rows.features), broken=(), labels=None)


def _register(kind: type[Family]) -> None:
    """Families travel by their name, or by what declares them."""
    from ray.util import register_serializer

    register_serializer(kind, serializer=_named, deserializer=_found)


def _named(family: Family) -> tuple[str, Declaration | None]:
    return family.id, declaration_of(family)


def _found(named: tuple[str, Declaration | None]) -> Family:
    name, own = named
    return FAMILIES.alone(name) if own is None else declared_family(own)
