"""How far the work is: the interface through which every stage reports. Nothing here displays it.

A stage takes a `Progress` and calls it; `QUIET` is the default and says nothing. What draws a bar, a panel or a line in a
notebook is made by the public functions and the command line (`api/showing.py`, `cli/views`), so no stage prints.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypedDict, Unpack


class Facts(TypedDict, total=False):
    """What may be known about a vector that has its final status."""

    device: str
    problem: Mapping[str, Any]
    time_ns: float | None
    samples: int
    disturbed: int
    """How many of the samples were taken while the machine was busy."""


class Progress:
    """Receives reports on the work. Every method does nothing here; a display overrides those it draws."""

    def stage(self, name: str, number: int = 1, of: int = 1) -> None:
        """A part of the work begins: part `number` of `of` (a fold, the final fit, compiling)."""

    def step(self, what: str, done: int = 0, of: int | None = None) -> None:
        """How far that part is, in `what` (trees, rows, problems); `of` is None while it is unknown."""

    def expect(self, what: str, total: int | None) -> None:
        """`total` results of `what` follow (vectors, near-ties); counting starts at zero."""

    def guess(self, seconds: float) -> None:
        """The work that begins now takes about `seconds`, by an estimate; a display prefers what it measures."""

    def result(self, status: str, **facts: Unpack[Facts]) -> None:
        """One vector has its final status."""

    def tick(self) -> None:
        """Called several times a second while the work goes on, so that a display can redraw."""

    def say(self, text: str) -> None:
        """A sentence to show at once."""


QUIET = Progress()


Stop = Callable[[], bool]
"""Called several times a second: True ends a collection at once; vectors that are being measured get no row. For example,
`is_set` of a `threading.Event`."""


def never() -> bool:
    """Never ask to stop."""
    return False
