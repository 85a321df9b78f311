"""A device of the fleet as the driver sees it: the handle of its keeper, and the vectors that it has."""

from __future__ import annotations

import math
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import ray
from ray.exceptions import RayError

from kerncast.core.io.terminal import assignments
from kerncast.data.hardware import Hardware
from kerncast.data.journal import software_text
from kerncast.measuring.collection import Collection
from kerncast.measuring.fleet.node import Idle, Lost, Measured, News, Said, hardware_of, news_of, packed
from kerncast.measuring.known import RACED_PER_PROBLEM
from kerncast.measuring.messages import Chunk, Item, Ready, Result
from kerncast.measuring.scheduling import Abandoned, AlikeFailures, DeviceLost, show_result

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


POLL_SECONDS = 0.05
# A device has the chunk that it measures, and one more, so that it never waits for the driver.
DEPTH = 2
# Chunks in the driver's hands, for each device. What is left at the end is divided among all of them.
LOOKAHEAD = 2
# A chunk is not divided further: near-ties are raced side by side, on one device.
SMALLEST = RACED_PER_PROBLEM
# A keeper waits so long for more news, by the number of devices: the driver takes about a thousand answers a second.
LINGER_SECONDS, MOST_LINGER_SECONDS = 0.001, 0.5
# How often a vector may be in the chunk that runs when a keeper ends, before it is left to the next run.
MOST_LOSSES = 3


class Arrivals(Protocol):
    """Where the devices of one kind come from."""

    def arrived(self) -> list[Lane]:
        """Devices that are ready and belong to nobody yet."""

    def left(self, lane: Lane, why: str, *, for_good: bool) -> None:
        """A device is not used any more: its keeper ended, or the device itself is given up (`for_good`)."""

    def dismiss(self, lanes: Iterable[Lane]) -> None:
        """The collection is over: these devices, and others of their kind, are not needed any more."""

    def hopeful(self) -> bool:
        """Whether a device may still arrive."""


class Fleet:
    """Measures chunks on all devices of one kind."""

    def __init__(self, arrivals: Arrivals, collection: Collection) -> None:
        self.arrivals, self.collection, self.progress = arrivals, collection, collection.progress
        self.alike = AlikeFailures(collection.request.alike_failures)
        self.lanes: list[Lane] = []
        self.backlog: deque[Chunk] = deque()
        self.losses: dict[str, int] = defaultdict(int)
        """How often a vector was in the chunk that ran when a keeper ended."""
        self.lost: dict[str, str] = {}
        self.unblamed = 0
        self.idle: dict[Lane, int] = {}
        """Devices that have nothing to do, and after how many chunks."""

    def connect(self) -> Ready:
        """Take the devices that are ready; the first one identifies the collection."""
        while not self.lanes:
            self._welcome()
            self._refuse_stranded()
        return self.lanes[0].ready

    def hardware(self, device: str) -> Hardware:
        """What the tools of the first device's machine say about it."""
        lane = self.lanes[0]
        try:
            return hardware_of(ray.get(lane.keeper.hardware.remote(device)))
        except RayError as error:
            raise DeviceLost(f"device {lane.slot.name} ended when it was asked about its hardware") from error

    def close(self) -> None:
        """End every keeper, and record what was held back."""
        for entry in self.alike.release():
            self._record(*entry)
        self.arrivals.dismiss(self.lanes)
        self.lanes = []

    # -- the loop ------------------------------------------------------------------------------------

    def run(self, chunks: Iterator[Chunk], stop: Callable[[], bool]) -> bool:
        """Measure all chunks; False when `stop` ended it before they were all handed out."""
        exhausted = False
        while True:
            self._welcome()
            stopping = stop()
            if stopping:
                for lane in self.lanes:
                    if len(lane.waiting) > 1 and lane.returning is None:
                        lane.ask_back(DEPTH)
            else:
                exhausted = self._hand_out(chunks, exhausted)
            finished = exhausted and not self.backlog
            if (stopping or finished) and not any(lane.waiting for lane in self.lanes):
                self.backlog.clear()
                for entry in self.alike.release():
                    self._record(*entry)
                return finished
            self._step()

    def _welcome(self) -> None:
        for lane in self.arrivals.arrived():
            self.collection.admit(lane.slot.name, lane.ready)
            self.lost.pop(lane.slot.name, None)
            self.lanes.append(lane)
            lane.fetch(self._linger)

    @property
    def _linger(self) -> float:
        return min(LINGER_SECONDS * len(self.lanes), MOST_LINGER_SECONDS)

    def _hand_out(self, chunks: Iterator[Chunk], exhausted: bool) -> bool:
        """Give every device its share of the backlog; returns whether there are no more chunks."""
        while not exhausted and len(self.backlog) < LOOKAHEAD * len(self.lanes):
            found = next(chunks, None)
            exhausted = found is None
            if found is not None:
                self.backlog.append(found)
        for depth in range(DEPTH):  # devices without a chunk come first
            for lane in self.lanes:
                if self.backlog and len(lane.waiting) == depth:
                    lane.give(self._portion(exhausted))
        if exhausted and not self.backlog:
            self._steal()
        return exhausted

    def _portion(self, last: bool) -> Chunk:
        """The next chunk; when no more follow, as much of it as leaves something for all devices."""
        chunk = self.backlog.popleft()
        if not last:
            return chunk
        left = len(chunk.items) + sum(len(each.items) for each in self.backlog)
        share = max(SMALLEST, math.ceil(left / (DEPTH * len(self.lanes))))
        if len(chunk.items) < share + SMALLEST:
            return chunk
        self.backlog.appendleft(self.collection.chunk(chunk.items[share:]))
        return Chunk(chunk.number, chunk.items[:share])

    def _steal(self) -> None:
        """For each device that has nothing to do, ask the one with most for a chunk that it has not begun."""
        idle = sum(not lane.waiting for lane in self.lanes)
        asked = sum(lane.returning is not None for lane in self.lanes)
        rich = sorted((lane for lane in self.lanes if len(lane.waiting) > 1), key=lambda lane: -lane.vectors)
        for lane in rich[: max(0, idle - asked)]:
            if lane.returning is None:
                lane.ask_back(1)

    def _step(self) -> None:
        """Take what devices have to say, and flush the journal."""
        if self.collection.abandoned():
            raise Abandoned
        owners: dict[Any, Lane] = {}
        for lane in self.lanes:
            owners |= {ref: lane for ref in (lane.fetching, lane.returning) if ref is not None}
        if owners:
            refs = list(owners)
            ready, _ = ray.wait(refs, num_returns=1, timeout=POLL_SECONDS)
            if ready:
                ready, _ = ray.wait(refs, num_returns=len(refs), timeout=0)
            for ref in ready:
                if owners[ref] in self.lanes:
                    self._answered(owners[ref], ref)
        self._refuse_stranded()
        self.collection.flush()
        self.progress.tick()

    def _refuse_stranded(self) -> None:
        if self.lanes:
            return
        if not self.arrivals.hopeful():
            reasons = "; ".join(f"device {name} is lost: {why}" for name, why in self.lost.items())
            raise DeviceLost(reasons or "no device of the cluster is left")
        if self.collection.abandoned():
            raise Abandoned
        time.sleep(POLL_SECONDS)

    # -- what a keeper says --------------------------------------------------------------------------

    def _answered(self, lane: Lane, ref: Any) -> None:
        try:
            found = ray.get(ref)
        except RayError as error:  # the process, the machine or the network: nothing more comes from there
            self._ended(lane, f"its process or its machine ended ({type(error).__name__})", for_good=False)
            return
        if ref == lane.returning:
            lane.returning = None
            items = lane.given_back(found)
            if items:
                self.backlog.append(self.collection.chunk(items))
            return
        for news in news_of(found):
            self._hear(lane, news)
        if lane not in self.lanes:
            return
        lane.fetch(self._linger)
        if lane.waiting and self.idle.get(lane) == lane.given:  # it did not measure them, and did not say why
            left, lane.waiting = lane.waiting, {}
            self._hand_out_again([item for items in left.values() for item in items.values()])

    def _hear(self, lane: Lane, news: News) -> None:
        match news:
            case Measured():
                self._measured(lane, news)
            case Idle():
                self.idle[lane] = news.given
            case Lost():
                self._ended(lane, news.why, for_good=True)
            case Said():
                self.progress.say(f"{lane.slot.name}: {news.text}")

    def _measured(self, lane: Lane, news: Measured) -> None:
        item = lane.settled(news.result.key, news.chunk)
        lane.measured += 1
        if news.overruled is not None:
            self.collection.record(news.overruled, news.result, news.chunk, lane.slot.name, overrules=True)
        elif item is not None:
            self.losses.pop(item.key, None)
            for entry in self.alike.take((item, news.result, news.chunk, lane.slot.name)):
                self._record(*entry)

    def _record(self, item: Item, result: Result, chunk: int, device: str) -> None:
        self.collection.record(item, result, chunk, device)
        show_result(self.progress, item, result, device)

    # -- what can happen to a keeper -------------------------------------------------------------------

    def _ended(self, lane: Lane, why: str, *, for_good: bool) -> None:
        """A device is gone: what it was measuring is handed out again, and nobody is blamed."""
        self.lanes.remove(lane)
        self.idle.pop(lane, None)
        self.lost[lane.slot.name] = why
        self.arrivals.left(lane, why, for_good=for_good)
        begun, *others = list(lane.waiting.values()) or [{}]
        lane.waiting = {}
        count = len(begun) + sum(map(len, others))
        again = f"; the {count:,} vectors that it had are handed out again" if count else ""
        self.progress.say(f"device {lane.slot.name} is lost: {why}{again} ({len(self.lanes):,} devices go on)")
        for items in others:
            self.backlog.appendleft(self.collection.chunk(list(items.values())))
        self._hand_out_again(list(begun.values()))

    def _hand_out_again(self, items: list[Item]) -> None:
        """Together at first; the second time one by one; after the third, they are left to the next run."""
        together = []
        for item in items:
            self.losses[item.key] += 1
            if self.losses[item.key] >= MOST_LOSSES:
                self.unblamed += 1
                self.progress.say(
                    f"a vector ran each of {MOST_LOSSES} times when a device was lost, and is left without a row "
                    f"({assignments(item.problem)}; {assignments(item.config)})"
                )
            elif self.losses[item.key] > 1:
                self.backlog.append(self.collection.chunk([item]))
            else:
                together.append(item)
        if together:
            self.backlog.appendleft(self.collection.chunk(together))
