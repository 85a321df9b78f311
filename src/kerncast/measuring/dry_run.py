"""What a collection would take: vectors, kernels to build, time, disk. For any space, in seconds.

The time is that of a trial: some vectors of some problems, small problems first, are built and measured as a collection
would, for a few seconds, and nothing of it is kept. Problems that the trial did not reach are judged by their work.
"""

from __future__ import annotations

import contextlib
import datetime
import math
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import polars as pl

from kerncast.core.arrays import Floats
from kerncast.core.expr import Program
from kerncast.core.io.atomic import scratch_folder
from kerncast.core.op import Config, Family, Problem
from kerncast.core.progress import Facts, Progress
from kerncast.data import schema
from kerncast.data.dataset import Dataset
from kerncast.measuring.backends.contract import Backend, Failed, TimesItself
from kerncast.measuring.collection import Request
from kerncast.measuring.plan import Planned
from kerncast.measuring.run import collect

# The size of a row on disk.
ROW_BYTES = 150
# Vectors that stand for all of them: how many have a row, how many kernels they need, how much work they are.
DRAWN = 20_000
# The trial: problems, configs of each, and seconds for building and for measuring.
TRIAL_PROBLEMS, TRIAL_CONFIGS, TRIAL_SECONDS = 8, 3, 4.0
# For the start of the device as well.
LONGEST_TRIAL_SECONDS = 60.0
# Vectors that nearly tie with the best of their problem are measured again.
RACED_SHARE = 0.05


@dataclass(frozen=True)
class DryRun:
    """What a collection would take."""

    vectors: int
    already_there: int
    compilations: int
    seconds: float | None
    """None for an external benchmark, whose speed is not known, and if the trial was too short for a single vector."""
    bytes: int
    compiling_seconds: float = 0.0
    answers: int = 0
    """Maximum number of answers of an external benchmark."""
    exact: bool = True
    """Whether vectors were counted; else they are estimated."""

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {name: getattr(self, name) for name in ("vectors", "exact", "already_there", "compilations", "seconds", "bytes")}

    def __str__(self) -> str:
        def words(seconds: float) -> str:
            if seconds < 120:
                return f"{seconds:,.0f} s"
            return f"{seconds / 60:,.0f} min" if seconds < 7200 else f"{seconds / 3600:,.1f} h"

        about = "" if self.exact else "about "
        there = f" ({about}{self.already_there:,} more have a row already)" if self.already_there else ""
        size = f"about {self.bytes / 1e6:.1f} MB"
        vectors = f"{about}{self.vectors:,} vectors{there}, {about}{self.compilations:,} kernels to"
        if self.seconds is None and not self.answers:
            return f"{vectors} compile, {size}; the time is unknown: no vector could be measured in {LONGEST_TRIAL_SECONDS:g} s"
        if self.seconds is None:
            return (
                f"{vectors} build, at most {self.answers:,} answers of "
                f"the program (and a second visit to those that disagree), {size}"
            )
        return (
            f"{vectors} compile, about {words(self.compiling_seconds)} of compiling and "
            f"{words(self.seconds - self.compiling_seconds)} of measuring at the pace of a short trial on this machine, {size}"
        )


def estimate(request: Request, kernels: Backend, wanted: Planned) -> DryRun:
    """What a collection would take; nothing is written."""
    family = request.family
    drawn = wanted.drawn(DRAWN)
    whole = wanted.exact and drawn.height == wanted.total
    left = _without_rows(request.out, family, drawn, kernels)
    share = left.height / max(1, drawn.height)
    total = left.height if whole else round(share * wanted.total)
    done = wanted.total - total
    if request.active is not None and request.active.max_vectors is not None:
        # The limit of an active choice includes the rows that already exist.
        total = max(0, min(wanted.total, request.active.max_vectors) - done)
    missing = _compilations(kernels, family, left, total)
    own = isinstance(kernels, TimesItself)
    if own or not total:
        return DryRun(
            total, done, missing, None if own else 0.0, total * ROW_BYTES, answers=request.policy.samples * total, exact=whole
        )
    kernel_seconds, vector_seconds = _trial(request, kernels, left)
    compiling = missing * kernel_seconds
    measuring = total * vector_seconds / len(request.devices)
    seconds = None if math.isnan(measuring) else round(compiling + measuring, 1)
    budget = request.budget_seconds
    if seconds is not None and budget is not None and seconds > budget:
        share = budget / seconds
        total, seconds, compiling = round(share * total), budget, share * compiling
        return DryRun(total, done, missing, seconds, total * ROW_BYTES, compiling, exact=False)
    return DryRun(total, done, missing, seconds, total * ROW_BYTES, compiling, exact=whole)


def _without_rows(out: Path, family: Family, vectors: pl.DataFrame, kernels: Backend) -> pl.DataFrame:
    """The vectors that have no row yet."""
    if not out.exists():
        return vectors
    dataset = Dataset.open(out)
    if family not in dataset.families:
        return vectors
    keys = schema.row_keys(family, vectors.with_columns(device=pl.lit(kernels.device().name)))
    done = dataset.scan(family).select("key").collect().to_series()
    return vectors.filter(~keys.is_in(done.implode()))


def _pairs(family: Family, vectors: pl.DataFrame) -> list[tuple[Problem, Config]]:
    problems, configs = list(family.problem.parameters), list(family.config.parameters)
    columns = [*(f"problem.{name}" for name in problems), *(f"config.{name}" for name in configs)]
    return [
        (
            Problem.trusted(family, dict(zip(problems, row, strict=False))),
            Config.trusted(family, dict(zip(configs, row[len(problems) :], strict=True))),
        )
        for row in vectors.select(columns).iter_rows()
    ]


def _compilations(kernels: Backend, family: Family, vectors: pl.DataFrame, total: int) -> int:
    """How many kernels are to be built; if there are more vectors than these, by how the number grows with them."""
    found = kernels.compilations(_pairs(family, vectors))
    if total <= vectors.height or not found:
        return min(found, total)
    half = kernels.compilations(_pairs(family, vectors.sample(fraction=0.5, seed=0)))
    growth = min(1.0, math.log2(max(1.0, found / max(1, half))))
    return min(total, round(found * math.pow(total / vectors.height, growth)))


class _TrialProgress(Progress):
    """Notes when each vector had its row."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.began = time.monotonic()

    def enough(self) -> bool:
        """Whether the trial has had its time, which begins with the first row: a device may take long to start."""
        spent = time.time() - self.times[0] if self.times else 0.0
        return spent > TRIAL_SECONDS or time.monotonic() - self.began > LONGEST_TRIAL_SECONDS

    def result(self, status: str, **facts: Unpack[Facts]) -> None:
        self.times.append(time.time())


_Chunk = tuple[int, pl.DataFrame]
"""The place of a problem in the order of their work, and some vectors of it."""


def _trial(request: Request, kernels: Backend, vectors: pl.DataFrame) -> tuple[float, float]:
    """Seconds to build a kernel and to measure a vector, on average: some are built and measured."""
    family = request.family
    columns = [f"problem.{name}" for name in family.problem.parameters]
    problems = vectors.select(columns).unique(maintain_order=True)
    work = _work(family, problems)
    order = np.argsort(work, kind="stable")
    # Problems at even distances in the order of their work stand for equal shares of the vectors.
    places = np.unique(((np.arange(TRIAL_PROBLEMS) + 0.5) * len(order) / TRIAL_PROBLEMS).astype(np.int64))
    chosen = order[places]
    shuffled = vectors.sample(fraction=1.0, shuffle=True, seed=0)
    # A single problem gives several chunks.
    chunks = TRIAL_PROBLEMS if len(chosen) == 1 else 1
    few: list[_Chunk] = []
    for place, problem in enumerate(chosen):
        own = shuffled.join(problems[int(problem)], on=columns, how="semi", nulls_equal=True)
        few += [(place, part) for part in own.head(TRIAL_CONFIGS * chunks).iter_slices(TRIAL_CONFIGS)]
    few, kernel_seconds = _built(request, kernels, few)
    by_place: dict[int, list[float]] = {}
    for (place, _), seconds in zip(few, _measured_seconds(request, [part for _, part in few]), strict=False):
        by_place.setdefault(place, []).append(seconds)
    if not by_place:
        return kernel_seconds, math.nan
    # Problems that were not reached take what the last one took, in proportion to their work.
    reached, amounts = [float(np.mean(times)) for times in by_place.values()], work[chosen]
    each = np.full(len(amounts), reached[-1])
    each[: len(reached)] = reached
    each[len(reached) :] *= np.maximum(1.0, amounts[len(reached) :] / max(1.0, float(amounts[len(reached) - 1])))
    return kernel_seconds, float(each.mean()) * (1 + RACED_SHARE)


def _built(request: Request, kernels: Backend, few: list[_Chunk]) -> tuple[list[_Chunk], float]:
    """The chunks whose kernels could be built in time, and the seconds per kernel; what is built stays in the cache."""
    begin, built = time.monotonic(), 0
    for number, (_, part) in enumerate(few):
        if number > 1 and time.monotonic() - begin > TRIAL_SECONDS:
            few = few[:number]
            break
        pairs = _pairs(request.family, part)
        built += kernels.compilations(pairs)
        with contextlib.suppress(Failed):  # a kernel that does not build becomes a failed row
            kernels.compile(pairs, request.build_jobs)
    return few, (time.monotonic() - begin) / built if built else 0.0


def _measured_seconds(request: Request, few: list[pl.DataFrame]) -> list[float]:
    """Seconds per vector of each chunk, in order, as far as the time allows."""
    watch = _TrialProgress()
    with scratch_folder() as folder:
        trial = replace(
            request, out=folder / "trial", active=None, extend=False, chunk_size=TRIAL_CONFIGS, devices=request.devices[:1],
            budget_seconds=None, second_visit_seconds=0.0,
        )  # fmt: skip
        if collect(trial, few, progress=watch, stop=watch.enough).interrupted and not watch.enough():
            raise KeyboardInterrupt
        rows = Dataset.open(trial.out)
        starts = rows.read()["started_at"].drop_nulls() if rows.rows else pl.Series([], dtype=pl.String)
    sizes = [part.height for part in few]
    times = [watch.times[end] for end in np.cumsum(sizes) - 1 if end < len(watch.times)]
    if not len(starts) or not times:
        return []
    begin = datetime.datetime.fromisoformat(str(starts.min())).timestamp()
    return [max(0.0, now - before) / size for before, now, size in zip([begin, *times], times, sizes, strict=False)]


def _work(family: Family, problems: pl.DataFrame) -> Floats:
    """How much work each problem is: the larger of its arithmetic and a tenth of its traffic; 1 where it is unknown."""
    work = family.work(family.op.namespace())
    if work is None:
        return np.ones(problems.height)
    program = Program({"flops": work.flops, "bytes": work.bytes})
    named = problems.rename({f"problem.{name}": f"p.{name}" for name in family.problem.parameters})
    found = program.frame(named, trusted=True)
    amounts: Floats = np.maximum(found["flops"].to_numpy(), found["bytes"].to_numpy() * 10.0)
    return amounts
