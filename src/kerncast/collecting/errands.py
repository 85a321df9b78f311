"""What a supervisor gives a worker to do, and how it finds out which vector spoils the results of others."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from kerncast.collecting.messages import Chunk, Item, Result

# How a vector that is right alone fails in a process that another one spoiled.
SPOILED = ("wrong_result", "launch_error")
# Vectors of a process that are remembered as possible causes of a wrong result.
REMEMBERED = 256


class Inquiry:
    """Which of the vectors that ran before a witness spoils its result: wrong after them, right alone.

    The one before it is tried first, then all the others together, then halves of what is left.
    """

    def __init__(self, witness: Item, suspects: Sequence[Item], held: Sequence[Item] = ()) -> None:
        self.witness, self.held = witness, list(held)
        """`held` are vectors that wait for the answer."""
        self.broken = 0
        """How often the process of this trial ended."""
        self.trying, self.rest = list(suspects[-1:]), list(suspects[:-1])
        self.wrong = False
        """Whether the witness was wrong in the last trial."""

    @property
    def over(self) -> bool:
        """Whether nobody is left to try."""
        return not self.trying

    def hear(self, result: Result) -> None:
        """Take a result of the trial; only that of the witness counts."""
        if result.key == self.witness.key:
            self.wrong = result.status in SPOILED

    def conclude(self) -> Item | None:
        """The one that did it; None: there are others to try, or it is over."""
        wrong, self.wrong, self.broken = self.wrong, False, 0
        if not wrong:
            self.trying, self.rest = self.rest, []
        elif len(self.trying) == 1:
            return self.trying.pop()
        else:
            half = len(self.trying) // 2
            self.trying, self.rest = self.trying[half:], self.trying[:half]
        return None


@dataclass
class Errand:
    """Chunks for one worker, in this order."""

    chunks: deque[Chunk]
    fresh: bool = False
    """Only a process that has run nothing yet may do it."""
    suspects: list[Item] = field(default_factory=list)
    """What ran before the vector of this errand, when that gave a wrong result."""
    inquiry: Inquiry | None = None
    """If given, the results only answer its question: nothing is recorded."""

    @classmethod
    def plain(cls, chunk: Chunk) -> Errand:
        """Vectors to measure, in any process."""
        return cls(deque([chunk]))

    @classmethod
    def alone(cls, item: Item, number: int, suspects: Sequence[Item] = ()) -> Errand:
        """One vector again, in a process of its own."""
        return cls(deque([Chunk(number, [item])]), fresh=True, suspects=list(suspects))

    @classmethod
    def trial(cls, inquiry: Inquiry, number: int) -> Errand:
        """The suspects, then the witness. Two chunks, so that the suspects have been timed before the witness is checked."""
        chunks = deque([Chunk(number, inquiry.trying), Chunk(number, [inquiry.witness])])
        return cls(chunks, fresh=True, inquiry=inquiry)
