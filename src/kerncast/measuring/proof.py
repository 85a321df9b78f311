"""Proof that a process is still sound: times count only if a kernel that was right before is right after them, too.

A kernel may compute the right result and yet spoil what the others use. The vectors after it show that by wrong results; after
the last one of a chunk nobody would.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from kerncast.core.op import Config, Problem
from kerncast.measuring.backends.contract import Backend, Prepared
from kerncast.measuring.messages import Position, Result
from kerncast.measuring.outcomes import failure_of, refuse_environment

# A block of slow kernels is not proven only at its end: a killed collection loses what was not.
PROOF_SECONDS = 1.0


class Disproved(Exception):
    """A kernel that was right is wrong now, or fails: one of the vectors since then spoiled this process."""

    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key


@dataclass(frozen=True)
class Witness:
    """A vector that was right; `index` is its place in the chunk."""

    index: int
    key: str
    vector: tuple[Problem, Config]


class Proof:
    """Holds results back until a witness was right again: the first right vector of the chunk, or one from elsewhere."""

    def __init__(
        self,
        backend: Backend,
        guard: Callable[[int, float], None],
        close: Callable[[int, Prepared], None],
        send: Callable[[Result], None],
    ) -> None:
        self.backend, self.guard, self.close, self.send = backend, guard, close, send
        self.first: Witness | None = None
        self.earlier: Witness | None = None
        self.several = False
        """Whether the chunk has another right vector: nobody is a witness of what it did itself."""
        self.held: list[Result] = []
        self.settled = time.monotonic()

    def begin(self, given: Witness | None) -> None:
        """A chunk begins. `given` was right in another process; one that was right in this one is better."""
        own = self.first or self.earlier
        self.earlier = given if own is None else Witness(Position.PROOF, own.key, own.vector)
        self.first, self.several, self.held = None, False, []
        self.settled = time.monotonic()

    def right(self, witness: Witness) -> None:
        """A vector of the chunk computed the right result."""
        self.several = self.first is not None
        self.first = self.first or witness

    def hold(self, result: Result) -> None:
        """Send a result when it is proven."""
        self.held.append(result)
        if time.monotonic() - self.settled > PROOF_SECONDS:
            self.settle()

    def settle(self) -> None:
        """Send what is held back, or raise `Disproved`."""
        if not self.held:
            return
        witness = self._witness()
        if witness is not None and not self._is_right(witness):
            raise Disproved(witness.key)
        for result in self.held:
            self.send(result)
        self.held, self.settled = [], time.monotonic()

    def _witness(self) -> Witness | None:
        return self.first if self.several else self.earlier

    def _is_right(self, witness: Witness) -> bool:
        self.guard(witness.index, 0.0)
        try:
            kernel = self.backend.prepare(*witness.vector)
            try:
                return float(kernel.check()) <= self.backend.tolerance(witness.vector[0])
            finally:
                self.close(witness.index, kernel)
        except Exception as error:
            refuse_environment(error)
            # Next to other kernels there may be too little memory for it, which proves nothing.
            return failure_of(witness.key, error, "").status == "out_of_memory"
