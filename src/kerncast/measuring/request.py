"""What to collect, and the outcome."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import polars as pl

from kerncast.core.arrays import Floats
from kerncast.core.device import Device
from kerncast.core.io.help import Help
from kerncast.core.op import Family
from kerncast.errors import InvalidValue
from kerncast.measuring.alike import LIMIT
from kerncast.measuring.messages import Policy

Worth = Callable[[pl.DataFrame, pl.DataFrame, Device], Floats | None]
"""Measured rows (as stored) and unmeasured vectors (`problem.*`, `config.*`) → how much it is worth to measure each vector,
or None while too little is known. It is passed in because collecting does not import models."""


Stop = Callable[[], bool]
"""Called several times a second: True ends a collection at once; vectors that are being measured get no row. For example,
`is_set` of a `threading.Event`."""


def never() -> bool:
    """Never ask to stop."""
    return False


@dataclass(frozen=True)
class Active:
    """Measure in rounds, each time the vectors that are worth most."""

    worth: Worth
    seed: int = 0
    max_vectors: int | None = None
    """Rows in the end, including those that already existed."""


@dataclass(frozen=True)
class Extent:
    """How much of it one call measures, and when it ends."""

    budget: Annotated[
        str | float | None, Help("Stop after this long, from the start of the command: 90s, 10m, 1h.", metavar="TIME")
    ] = None
    max_vectors: Annotated[int | None, Help("Measure N vectors in total, spread over all problems.", metavar="N", least=1)] = (
        None
    )
    active: Annotated[
        bool, Help("Within `budget` or `max_vectors`, measure next the fast configs that a model is least sure about.")
    ] = False
    resume: Annotated[
        bool, Help("Measure what a dataset lacks, finished or not. (An unfinished one continues without it.)")
    ] = False
    retry_failed: Annotated[
        bool | str | Sequence[str] | None,
        Help(
            "Measure failed vectors of the dataset again: all of them, or those with these statuses: compile_error,crash.",
            metavar="[STATUS,…]",
            alone="all",
            several=False,
        ),
    ] = None
    stop: Stop = never
    """Asked several times a second; once it is true, the collection ends in about a second."""


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


# Different texts of errors that are counted: if each vector has its own, they take more memory than the vectors.
MOST_ERRORS = 10_000


@dataclass
class Summary:
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

    def count_error(self, status: str, error: str) -> None:
        """Count an error by its text, for the most frequent ones; of very many different texts, the late ones by status."""
        known = len(self.errors) < MOST_ERRORS or (status, error) in self.errors
        self.errors[status, error if known else "other errors"] += 1
