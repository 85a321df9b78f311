"""A device of the fleet as the driver sees it: the handle of its keeper, and the vectors that it has."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from kerncast.data.journal import software_text
from kerncast.measuring.fleet.letters import packed
from kerncast.measuring.messages import Chunk, Item, Ready

# How long a keeper waits before it answers that there is no news. A lost machine is noticed by the cluster, not by this.
FETCH_SECONDS = 5.0


Kind = tuple[str, str]
"""Device and software: what the rows of one dataset share."""


def kind_of(ready: Ready) -> Kind:
    """The kind of a device that came up."""
    return str(ready.device["name"]), software_text(ready.software)


@dataclass(frozen=True)
class Slot:
    """A place for a keeper: one of the devices of one machine."""

    node: str
    """The cluster's own id of the machine."""
    machine: str
    """Its name, for people."""
    index: str
    """What the backend calls the device there."""
    number: int = 0
    """Which of the machine's devices it is."""
    devices: int = 1
    """How many of them the machine has."""

    @property
    def name(self) -> str:
        """What rows and messages call it."""
        return f"{self.machine}-{self.node[:6]}/{self.number}"


@dataclass(eq=False)
class Lane:
    """A keeper that is ready. `waiting` are the vectors of its chunks that have no status yet, by chunk and key."""

    slot: Slot
    keeper: Any
    """The handle of an actor."""
    ready: Ready
    waiting: dict[int, dict[str, Item]] = field(default_factory=dict)
    given: int = 0
    """How many chunks it was given and did not give back."""
    measured: int = 0
    fetching: Any = None
    returning: Any = None
    """Answers that are on their way: the news, and chunks that it gives back."""

    @property
    def vectors(self) -> int:
        """How many vectors it has to measure."""
        return sum(map(len, self.waiting.values()))

    def fetch(self, linger: float) -> None:
        """Ask for the news."""
        self.fetching = self.keeper.fetch.remote(FETCH_SECONDS, linger)

    def give(self, chunk: Chunk) -> None:
        """Hand over a chunk."""
        self.given += 1
        self.waiting.setdefault(chunk.number, {}).update({item.key: item for item in chunk.items})
        self.keeper.give.remote(packed(chunk))

    def ask_back(self, most: int) -> None:
        """Ask for chunks that it has not begun."""
        self.returning = self.keeper.give_back.remote(most)

    def given_back(self, numbers: list[int]) -> list[Item]:
        """The vectors of chunks that it gave back."""
        self.given -= len(numbers)
        return [item for number in numbers for item in self.waiting.pop(number, {}).values()]

    def settled(self, key: str, chunk: int) -> Item | None:
        """A vector that has its status now; None: it was not waiting for one here."""
        waiting = self.waiting.get(chunk, {})
        item = waiting.pop(key, None)
        if not waiting:
            self.waiting.pop(chunk, None)
        return item
