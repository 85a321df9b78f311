"""A circuit breaker: many failures in a row that are all alike have one cause, and it is hardly the kernels."""

from __future__ import annotations

import re

from kerncast.measuring.messages import Item, Result
from kerncast.measuring.stopping import FailedAlike

Entry = tuple[Item, Result, int, str]
"""A vector, how it ended, its chunk and its device."""

LIMIT = 100
# These two are what a problem that is too large, or a config that the device cannot run, should give.
EXPECTED = ("ok", "out_of_memory", "unsupported", "invalid")
CAUSES = {
    "compile_error": "the compiler, its flags or a missing header",
    "wrong_result": "the reference result, its tolerance or a broken device",
    "timeout": "a device that hangs, or a `timeout` that is too short",
    "not_run": "a program that is not built, or a wrong path",
}
OTHER_CAUSE = "the device, its driver or the backend"
_NUMBERS = re.compile(r"0x[0-9a-fA-F]+|\d+(\.\d+)?(e[+-]?\d+)?")


class AlikeFailures:
    """Holds failures back while they are all alike, so that none of them has a row if their cause is a common one."""

    def __init__(self, limit: int = LIMIT) -> None:
        """`limit` counts different configs; 0: never."""
        self.limit = limit
        self.held: list[Entry] = []
        self._kind: tuple[str, str] | None = None
        self._configs: set[tuple[object, ...]] = set()

    def take(self, entry: Entry) -> list[Entry]:
        """What may be recorded now that this has happened, in order."""
        if not self.limit:
            return [entry]
        item, result = entry[:2]
        kind = None if result.status in EXPECTED else (result.status, _NUMBERS.sub("#", result.error or ""))
        if kind is None or kind != self._kind:
            free = self.release()
            if kind is None:
                return [*free, entry]
            self._kind = kind
        else:
            free = []
        self.held.append(entry)
        self._configs.add(tuple(item.config.items()))
        if len(self._configs) >= self.limit:
            words = f"{result.status}: {result.error}" if result.error else result.status
            count, self.held = len(self._configs), []
            raise FailedAlike(
                f"{count:,} configs in a row failed alike ({words}), so the likely cause is "
                f"{CAUSES.get(result.status, OTHER_CAUSE)}; none of them got a row"
            )
        return free

    def release(self) -> list[Entry]:
        """Everything that is held back."""
        free, self.held, self._kind = self.held, [], None
        self._configs.clear()
        return free
