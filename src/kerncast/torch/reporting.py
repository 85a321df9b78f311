"""What was decided for each kernel choice of torch.compile: kept, said in the log, and reported with what it saved."""

from __future__ import annotations

import atexit
import logging
import os
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from kerncast.core.io import html
from kerncast.core.io.artefact import json_text
from kerncast.core.io.atomic import write_bytes
from kerncast.core.io.foreign import guarded, read_json
from kerncast.core.io.terminal import TextTable, assignments, duration, line, printable

CHOSEN, TIMED, ABSTAINED = "chosen", "timed", "abstained"
# What a report that was read from a file may hold.
Count = Annotated[int, Meta(ge=0, le=2**31)]
Positive = Annotated[float, Meta(ge=0, le=1e18)]
# A process that compiles all day keeps the last of them.
MOST = 10_000


@dataclass(frozen=True)
class Decision:
    """One choice among kernels: `chosen` leaves one, `timed` leaves several to Inductor, `abstained` leaves all of them."""

    op: str
    family: str
    problem: Mapping[str, Any] | None
    candidates: Count
    """Configs that were ranked; 0 where none were."""
    kept: Count
    """Kernels that were left: those that Inductor compiles and, if there are several, times."""
    chosen: str
    """What was left, in words: `tile mr=6 nr=16 …`, `aten`."""
    config: Mapping[str, Any] | None
    predicted_ns: Positive | None
    status: Annotated[str, Meta(pattern=f"^({CHOSEN}|{TIMED}|{ABSTAINED})$")]
    reason: str
    seconds: Positive
    """How long deciding took."""

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return asdict(self)


_made: deque[Decision] = deque(maxlen=MOST)


def note(decision: Decision) -> None:
    """Keep a decision for the report."""
    _made.append(decision)


def made() -> list[Decision]:
    """The decisions of this process, oldest first."""
    return list(_made)


def forget() -> None:
    """Begin a new list."""
    _made.clear()


log = logging.getLogger("kerncast.torch")
# Settings without which Inductor offers one kernel for most products, and the variables that turn them on.
NEEDED = {"max_autotune": "TORCHINDUCTOR_MAX_AUTOTUNE=1", "freezing": "TORCHINDUCTOR_FREEZING=1"}


def say(why: str, error: object) -> None:
    """One line in the log; texts of files and of other programs are made printable."""
    told = f"{type(error).__name__}: {error}" if isinstance(error, Exception) else str(error)
    log.warning("%s: %s", line(why), line(told))


def say_what_is_off(variable: str) -> None:
    """Which settings are off that a variable's purpose needs. The program may turn them on itself, later."""
    config = import_module("torch._inductor.config")
    for name, how in NEEDED.items():
        if not getattr(config, name, True):
            log.warning(
                "%s is set, but %s is off, and unless the program turns it on, Inductor has one kernel for most products: "
                "set %s", variable, name, how,
            )  # fmt: skip


# A line that would be the same each time.
_warn_once = cache(log.warning)


def say_if_not_frozen() -> None:
    """For models that are compiled without gradients: with them, nothing can be frozen."""
    if not import_module("torch._inductor.config").freezing and not import_module("torch").is_grad_enabled():
        _warn_once(
            "freezing is off, so products with weights have one kernel on CPUs: set torch._inductor.config.freezing = True "
            "or TORCHINDUCTOR_FREEZING=1 before the model is compiled"
        )


# Compiling and timing one C++ kernel of a product alone, in CPU seconds: benchmarks/inductor.py measures it. Nobody has
# measured that of Triton's templates here.
SECONDS_PER_KERNEL = {"gemm/inductor_cpp": 4.0}
VARIABLE = "KERNCAST_REPORT"
HEADERS = ("op", "problem", "ranked", "left", "decision", "predicted", "chosen", "why")


@dataclass(frozen=True, repr=False)
class Report:
    """The decisions of this process, oldest first."""

    decisions: tuple[Decision, ...]

    @property
    def seconds_saved(self) -> float:
        """About how much longer compiling and timing all ranked kernels would have taken than what was left to do."""
        decided = [item for item in self.decisions if item.status != ABSTAINED]
        return sum(SECONDS_PER_KERNEL.get(item.family, 0.0) * (item.candidates - item.kept) for item in decided)

    @property
    def seconds_spent(self) -> float:
        """What deciding took."""
        return sum(item.seconds for item in self.decisions)

    def count(self, status: str) -> int:
        """How many were `chosen`, `timed` or `abstained`."""
        return sum(item.status == status for item in self.decisions)

    def as_json(self) -> dict[str, Any]:
        """For other programs."""
        return {
            **{status: self.count(status) for status in (CHOSEN, TIMED, ABSTAINED)},
            "seconds_saved": self.seconds_saved,
            "seconds_spent": self.seconds_spent,
            "decisions": [item.as_json() for item in self.decisions],
        }

    def _rows(self) -> list[tuple[str, ...]]:
        return [
            (
                item.op,
                "" if item.problem is None else assignments(item.problem),
                f"{item.candidates:,}",
                f"{item.kept:,}" if item.status != ABSTAINED else "all",
                item.status,
                "" if item.predicted_ns is None else duration(item.predicted_ns),
                item.chosen,
                item.reason,
            )
            for item in self.decisions
        ]

    @classmethod
    def read(cls, path: Path) -> Report:
        """What a process with KERNCAST_REPORT wrote."""
        with guarded(path, "name the file that KERNCAST_REPORT named", "is no report"):
            found = read_json(path, type=_Written)
        return cls(found.decisions)

    def _headline(self) -> str:
        if not self.decisions:
            return (
                "nothing was decided: no product with several kernels was lowered while a model was enabled. Compile with "
                "max-autotune and, on CPUs, with freezing; what Inductor finds in its graph cache is not decided again"
            )
        return (
            f"{self.count(CHOSEN):,} chosen, {self.count(TIMED):,} left to timing, {self.count(ABSTAINED):,} abstained; "
            f"deciding took {self.seconds_spent * 1e3:,.1f} ms, compiling and timing all ranked kernels would take about "
            f"{self.seconds_saved:,.0f} CPU seconds more"
        )

    def __repr__(self) -> str:
        if not self.decisions:
            return self._headline()
        return f"{TextTable(HEADERS, self._rows(), right=('ranked', 'left', 'predicted'))}\n{printable(self._headline())}"

    def _repr_html_(self) -> str:
        return html.panel("torch.compile", html.note(self._headline()), html.table(HEADERS, self._rows()))


class _Written(msgspec.Struct, frozen=True):
    decisions: tuple[Decision, ...]


@cache
def write_at_exit() -> None:
    """Write the report to the file that KERNCAST_REPORT names when the process ends; `{pid}` in it is the process."""
    path = os.environ.get(VARIABLE)
    if path:
        atexit.register(_write, Path(path.replace("{pid}", str(os.getpid()))))


def _write(path: Path) -> None:
    try:
        write_bytes(path, json_text(report().as_json()))
    except Exception as error:  # the program has ended well; a report must not change that
        say(f"{VARIABLE} is set, but no report was written", error)


def report() -> Report:
    """What was decided for every product that torch.compile lowered in this process."""
    return Report(tuple(made()))
