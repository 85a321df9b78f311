"""What was decided for each kernel choice of torch.compile, kept for `report`."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any

from msgspec import Meta

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
