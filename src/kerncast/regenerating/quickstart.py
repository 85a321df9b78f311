"""Measure kernels on this machine from scratch, train a model that chooses among them, and report what that is worth.

It is the routine `quickstart`, which leaves the store alone, and a summary of what its steps found out.
"""

from __future__ import annotations

import math
import os
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kerncast.core.progress import QUIET, Progress, never
from kerncast.errors import KerncastError
from kerncast.models.store.store import Store
from kerncast.regenerating import loop as states
from kerncast.regenerating.loop import Listening, regenerate
from kerncast.regenerating.planning import plan
from kerncast.regenerating.routine import load

ROUTINE = "quickstart"
# Changes of the routine.
QUICK: tuple[str, ...] = ()
FULL: tuple[str, ...] = (
    'sweep.vary=["dtype=fp32,bf16", "layout=rrr,rcr", "threads=1"]', "sweep.max_problems=300", "collect.repeat=300",
    "collect.second_visit_seconds=inf",
)  # fmt: skip
# What measuring and learning took on two cores of a shared AMD EPYC virtual machine, seconds per vector, and all the rest.
SECONDS_PER_VECTOR, OTHER_SECONDS = 0.019, 30.0


@dataclass(frozen=True)
class Quickstart:
    """What was found: figures over all shapes, and one entry per shape."""

    totals: dict[str, Any]
    shapes: list[dict[str, Any]]
    out: Path

    @property
    def dataset(self) -> Path:
        """The measurements."""
        return self.out / "gemm_cpu"

    @property
    def model(self) -> Path:
        """The model that was trained on them."""
        return self.out / "model"

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {**self.totals, "shapes": self.shapes}

    def __repr__(self) -> str:
        totals = self.totals
        return (
            f"{totals['problems']} shapes, {totals['rows']:,} measurements. On shapes that it had not seen, the model's choice "
            f"runs at {totals['model_share_mean']:.1%} of the best measured speed (P10 {totals['model_share_p10']:.1%}, worst "
            f"{totals['model_share_min']:.1%}). Report: {totals['report']}"
        )


class Stopped(KerncastError):
    """Stopped before the end; the same call continues."""


def quickstart(
    out: Path, *, full: bool = False, progress: Progress = QUIET, listening: Listening = lambda: nullcontext(never)
) -> Quickstart:
    """Measure, train, evaluate, report, export, race against numpy's BLAS; what an earlier call finished is not repeated.

    `listening` makes a context manager for each measurement, which yields the function that says whether to stop.
    """
    routine, store = load(ROUTINE, FULL if full else QUICK), Store.open(out / "store")
    if states.going_on(out, routine) is None:
        (planned,) = plan(routine, store)
        assert planned.vectors is not None
        assert planned.problems is not None
        vectors = planned.vectors * (1 + routine.collect.repeat / planned.problems)
        # Other processes take their share of the cores.
        busy = max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
        seconds = busy * (SECONDS_PER_VECTOR * vectors + OTHER_SECONDS)
        length = f"{math.ceil(seconds / 10) * 10} s" if seconds < 90 else f"{round(seconds / 60)} min"
        progress.say(f"this takes about {length}, estimated from two cores of a shared server and how busy this machine is")
    (outcome,) = regenerate(routine, store, out, progress=progress, listening=listening)
    if not outcome.finished:
        raise Stopped(f"{outcome.reasons[0]}; everything measured is safe in {out}: run the same command to continue")
    state = states.read(out)
    assert state is not None
    report, exported = (state.of(outcome.family)[step].facts for step in ("report", "export"))
    paths = {"path": str(out), "report": str(out / "report.html"), "model": outcome.model}
    totals = {**report["totals"], **paths, "export": {"path": str(out / "picker"), **exported}}
    return Quickstart(totals, report["shapes"], out)
