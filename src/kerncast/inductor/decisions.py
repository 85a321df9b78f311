"""What was decided for each kernel choice of torch.compile, kept for `report`."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

CHOSEN, TIMED, ABSTAINED = "chosen", "timed", "abstained"
# A process that compiles all day keeps the last of them.
MOST = 10_000


@dataclass(frozen=True)
class Decision:
    """One choice among kernels: `chosen` leaves one, `timed` leaves several to Inductor, `abstained` leaves all of them."""

    op: str
    family: str
    problem: Mapping[str, Any] | None
    candidates: int
    """Configs that were ranked; 0 where none were."""
    kept: int
    """Kernels that were left: those that Inductor compiles and, if there are several, times."""
    chosen: str
    """What was left, in words: `tile mr=6 nr=16 …`, `aten`."""
    config: Mapping[str, Any] | None
    predicted_ns: float | None
    status: str
    reason: str
    seconds: float
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
