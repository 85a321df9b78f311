"""Why a collection stops before its end, other than by a signal."""

from __future__ import annotations

from kerncast.data import journal as journals
from kerncast.errors import KerncastError


class Abandoned(Exception):
    """The collection was stopped: what is being measured is dropped."""


class CannotGoOn(KerncastError):
    """Something other than a kernel stops the collection: fix it, then resume."""

    rows = 0
    """Rows that are safe in the dataset."""
    ended: journals.Ended = "environment"
    fix = "fix that and run the same command to go on"

    @property
    def partial(self) -> bool:
        return self.rows > 0


class DeviceLost(CannotGoOn):
    """No worker can be started any more."""

    ended = "device_lost"
    fix = "fix the device and run the same command to go on"


class FailedAlike(CannotGoOn):
    """So many vectors in a row failed in the same way that one cause must be behind them."""

    ended = "alike_failures"
    fix = "fix the cause and run the same command to go on, or keep such rows as failures with `alike_failures=0`"
