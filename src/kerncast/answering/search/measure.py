"""Timing the finalists of a search. They are collected like any vectors: interleaved, checked, and safe if one crashes."""

from __future__ import annotations

from dataclasses import dataclass, replace

import polars as pl

from kerncast.answering.search.run import Search, measured_first
from kerncast.core.io.atomic import scratch_folder
from kerncast.core.op import hash_key, key_text
from kerncast.core.progress import QUIET, Progress
from kerncast.data import Dataset, schema
from kerncast.errors import KerncastError
from kerncast.measuring.backends import backend_that_runs
from kerncast.measuring.messages import Policy
from kerncast.measuring.run import Request, Stop, collect, never


@dataclass(frozen=True)
class Measured:
    """A search whose finalists were timed, the fastest first, and the device they ran on."""

    search: Search
    backend: str
    device: str


def measure(
    found: Search,
    backend: str | None = None,
    policy: Policy | None = None,
    *,
    progress: Progress = QUIET,
    stop: Stop = never,
) -> Measured:
    """Time the finalists on this machine, with the given backend or the one that runs their family."""
    family = found.finalists[0].config.family
    kind = backend_that_runs(family.id, backend)
    problem = {f"problem.{name}": value for name, value in found.problem.items()}
    rows = [{**problem, **{f"config.{name}": value for name, value in item.config.items()}} for item in found.finalists]
    types = {name: dtype for name, dtype in schema.schema_of(family).items() if name.startswith(("problem.", "config."))}
    with scratch_folder() as folder:
        out = folder / "measured"
        request = Request(family, backend or kind.name, ("0",), out, policy or Policy())
        summary = collect(request, [pl.DataFrame(rows, schema=types)], total=len(rows), progress=progress, stop=stop)
        if summary.without_a_row:
            raise KerncastError("the measurement was interrupted: run the same command again")
        ends = _ends(Dataset.open(out).read(family))
    device = summary.device
    finalists = []
    for item in found.finalists:
        status, time_ns = ends[hash_key(key_text(family.id, device, found.problem.items(), item.config.items()))]
        finalists.append(replace(item, status=status, measured_ns=time_ns))
    return Measured(measured_first(found, tuple(finalists)), kind.name, device)


def _ends(rows: pl.DataFrame) -> dict[str, tuple[str, float | None]]:
    """The result of each vector; the median if it was repeated (near-ties are)."""
    ok = pl.col("status") == "ok"
    folded = rows.group_by("key", maintain_order=True).agg(
        status=pl.when(ok.any()).then(pl.lit("ok")).otherwise(pl.col("status").first()),
        time_ns=pl.col("time_ns").filter(ok).median(),
    )
    return {key: (status, time_ns) for key, status, time_ns in folded.select("key", "status", "time_ns").rows()}
