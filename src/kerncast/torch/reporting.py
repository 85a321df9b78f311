"""`kerncast.torch.report()`: what was chosen in this process, and what that saved."""

from __future__ import annotations

import atexit
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from kerncast.core.io import html
from kerncast.core.io.artefact import json_text
from kerncast.core.io.atomic import write_bytes
from kerncast.core.io.foreign import guarded, read_json
from kerncast.core.io.terminal import TextTable, assignments, duration, printable
from kerncast.torch import decisions
from kerncast.torch.decisions import ABSTAINED, CHOSEN, TIMED, Decision
from kerncast.torch.saying import say

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
    return Report(tuple(decisions.made()))
