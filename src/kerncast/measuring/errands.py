"""What a supervisor gives a worker to do, and how it finds out which vector spoils the results of others."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from kerncast.measuring.messages import Chunk, Item, Result

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


class Errands:
    """What waits besides the chunks: vectors to measure again, and trials."""

    def __init__(self) -> None:
        self.waiting: deque[Errand] = deque()
        self.convicted: set[str] = set()
        """Vectors that spoil the results of others; they are not run again."""

    def next(self, chunks: Iterator[Chunk]) -> Errand | None:
        """What to do now; None: nothing waits, and there are no more chunks."""
        while True:
            if self.waiting:
                errand = self.waiting.popleft()
            elif (chunk := next(chunks, None)) is not None:
                errand = Errand.plain(chunk)
            else:
                return None
            if errand.inquiry or not self.convicted:
                return errand
            left = [Chunk(chunk.number, [i for i in chunk.items if i.key not in self.convicted]) for chunk in errand.chunks]
            errand.chunks = deque(chunk for chunk in left if chunk.items)
            if errand.chunks:
                return errand

    def first(self, errand: Errand) -> None:
        """Do it before everything else."""
        self.waiting.appendleft(errand)

    def last(self, items: list[Item], number: int) -> None:
        """Measure vectors in any process, after what waits already."""
        if items:
            self.waiting.append(Errand.plain(Chunk(number, items)))

    def one_by_one(self, items: list[Item], number: int) -> None:
        """Measure vectors in a process of its own each: together they are not sound, and nobody knows why."""
        self.waiting.extend(Errand.alone(item, number) for item in items)

    def inquire(self, inquiry: Inquiry, number: int) -> None:
        """Look for the vector that spoiled a process, unless all were tried."""
        if inquiry.over:
            self.one_by_one(inquiry.held, number)
        else:
            self.first(Errand.trial(inquiry, number))

    def broken(self, inquiry: Inquiry, number: int) -> None:
        """The process of a trial ended without an answer, perhaps by a signal from outside: once more, then it is given up."""
        inquiry.broken += 1
        if inquiry.broken > 1:
            self.one_by_one(inquiry.held, number)
        else:
            self.inquire(inquiry, number)
