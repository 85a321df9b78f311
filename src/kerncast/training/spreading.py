"""The fits of one training as tasks of a Ray cluster. Their results, and so the model, are the same bytes as on one machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError
from ray.util import register_serializer

from kerncast.core.op import Family
from kerncast.core.progress import QUIET
from kerncast.errors import InvalidValue, KerncastError
from kerncast.learning.tables.table import Table
from kerncast.library.declared.declaration import Declaration, declaration_of, declared_family
from kerncast.library.registry import FAMILIES
from kerncast.measuring.fleet.node import release
from kerncast.training.procedure import Procedure
from kerncast.training.side_by_side import Fit

POLL_SECONDS = 0.5
# A task whose node ends runs again on another one.
RETRIES = 3

_ray: Any = ray  # parts of Ray have no types


def over_cluster(fits: Sequence[Fit], procedure: Procedure, table: Table) -> list[Any]:
    """Run all fits that were not kept on the connected cluster, one core each, and return the results in order."""
    found: list[Any] = [fit.kept() for fit in fits]
    waiting: dict[Any, int] = {}
    own = replace(procedure, recipe=replace(procedure.recipe, threads=1), progress=QUIET, spread=None)
    _register(type(table.family))
    shared, recipe = _ray.put(_bare(table)), _ray.put(own)
    task = _ray.remote(_run).options(num_cpus=1, max_retries=RETRIES)
    for place, fit in enumerate(fits):
        if found[place] is None:
            waiting[task.remote(release(), shared, recipe, fit.run)] = place
    try:
        done = len(fits) - len(waiting)
        procedure.progress.stage("fits on the cluster", 1, 1)
        procedure.progress.step("fits", done, len(fits))
        while waiting:
            ready, _ = _ray.wait(list(waiting), num_returns=1, timeout=POLL_SECONDS)
            for ref in ready:
                place = waiting.pop(ref)
                found[place] = _result(ref, fits[place].name)
                fits[place].keep(found[place])
                done += 1
                procedure.progress.step(f"fits: {fits[place].name}", done, len(fits))
            procedure.progress.tick()
    finally:
        for ref in waiting:
            _ray.cancel(ref, force=True)
    return found


def _run(expected: str, table: Table, procedure: Procedure, run: Callable[[Table, Procedure], Any]) -> Any:
    """One fit, on some node."""
    if release() != expected:
        raise InvalidValue(
            f"a node has kerncast {release()}, and the driver has {expected}: install the same version on every node"
        )
    return run(table, procedure)


def _result(ref: Any, name: str) -> Any:
    try:
        return _ray.get(ref)
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
    register_serializer(kind, serializer=_named, deserializer=_found)


def _named(family: Family) -> tuple[str, Declaration | None]:
    return family.id, declaration_of(family)


def _found(named: tuple[str, Declaration | None]) -> Family:
    name, own = named
    return FAMILIES.alone(name) if own is None else declared_family(own)
