"""The driver of one collection: hands vectors to the devices of a cluster, takes their results, and alone writes the journal.

A device's actor that ends, with its machine or without, takes nothing with it: the vectors that it had are handed out again,
and none of them is blamed, for the supervisor beside the worker judges what a vector did. Only a vector that was running each
time is suspicious: the second time it runs alone, and after the third it is left to the next run, so that it cannot end a whole
fleet.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import RayError

from kerncast.core.io.terminal import assignments
from kerncast.data.manifest import Hardware
from kerncast.measuring.collection import Collection
from kerncast.measuring.fleet.node import FinalStatus, Idle, Lost, News, Said, news_of, packed, unpacked
from kerncast.measuring.known import RACED_PER_PROBLEM
from kerncast.measuring.messages import Chunk, Item, Ready
from kerncast.measuring.scheduling import Abandoned, AlikeFailures, DeviceLost, Devices
from kerncast.measuring.supervisor import POLL_SECONDS

if TYPE_CHECKING:
    from kerncast.measuring.fleet.discovery import DeviceGroup

# How long an actor waits before it answers that there is no news. A lost machine is noticed by the cluster, not by this.
FETCH_SECONDS = 5.0
# A device has the chunk that it measures, and one more, so that it never waits for the driver.
DEPTH = 2
# Chunks in the driver's hands, for each device. What is left at the end is divided among all of them.
LOOKAHEAD = 2
# A chunk is not divided further: near-ties are raced side by side, on one device.
SMALLEST = RACED_PER_PROBLEM
# An actor waits so long for more news, by the number of devices: the driver takes about a thousand answers a second.
LINGER_SECONDS, MOST_LINGER_SECONDS = 0.001, 0.5
# How often a vector may be in the chunk that runs when an actor ends, before it is left to the next run.
MOST_LOSSES = 3


@dataclass(frozen=True)
class Slot:
    """A place for an actor: one of the devices of one machine."""

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
class RemoteDevice:
    """A device that is up, as the driver sees it."""

    slot: Slot
    actor: Any
    ready: Ready
    waiting: dict[int, dict[str, Item]] = field(default_factory=dict)
    """The vectors of its chunks that have no status yet, by chunk and key."""
    given: int = 0
    """How many chunks it was given and did not give back."""
    idle_after: int | None = None
    """After how many chunks it said last that it had nothing to do."""
    measured: int = 0
    fetching: Any = None
    returning: Any = None
    """Answers that are on their way: the news, and chunks that it gives back."""

    def fetch(self, linger: float) -> None:
        """Ask for the news."""
        self.fetching = self.actor.fetch.remote(FETCH_SECONDS, linger)

    def give(self, chunk: Chunk) -> None:
        """Hand over a chunk."""
        self.given += 1
        self.waiting.setdefault(chunk.number, {}).update({item.key: item for item in chunk.items})
        self.actor.give.remote(packed(chunk))

    def ask_back(self, most: int) -> None:
        """Ask for chunks that it has not begun."""
        self.returning = self.actor.give_back.remote(most)

    def settled(self, key: str, chunk: int) -> Item | None:
        """A vector that has its status now; None: it was not waiting for one here."""
        waiting = self.waiting.get(chunk, {})
        item = waiting.pop(key, None)
        if not waiting:
            self.waiting.pop(chunk, None)
        return item


class Fleet(Devices):
    """Measures chunks on all devices of one kind of a cluster."""

    def __init__(self, group: DeviceGroup, collection: Collection) -> None:
        super().__init__(collection.record, AlikeFailures(collection.request.alike_failures), collection.progress)
        self.group, self.collection = group, collection
        self.devices: list[RemoteDevice] = []
        self.backlog: deque[Chunk] = deque()
        self.losses: dict[str, int] = defaultdict(int)
        """How often a vector was in the chunk that ran when an actor ended."""

    def connect(self) -> Ready:
        while not self.devices:
            self._admit_arrived()
            self._refuse_stranded()
        return self.devices[0].ready

    def hardware(self, device: str) -> Hardware:
        first = self.devices[0]
        try:
            return unpacked(ray.get(first.actor.hardware.remote(device)), type=Hardware)
        except RayError as error:
            raise DeviceLost(f"device {first.slot.name} ended when it was asked about its hardware") from error

    def close(self) -> None:
        self.release()
        self.group.dismiss(self.devices)
        self.devices = []

    # -- the loop ------------------------------------------------------------------------------------

    def run(self, chunks: Iterator[Chunk], stop: Callable[[], bool]) -> bool:
        exhausted = False
        while True:
            self._admit_arrived()
            stopping = stop()
            if stopping:
                for device in self.devices:
                    if len(device.waiting) > 1 and device.returning is None:
                        device.ask_back(DEPTH)
            else:
                exhausted = self._hand_out(chunks, exhausted)
            finished = exhausted and not self.backlog
            if (stopping or finished) and not any(device.waiting for device in self.devices):
                self.backlog.clear()
                self.release()
                return finished
            self._step()

    def _admit_arrived(self) -> None:
        for device in self.group.arrived():
            self.collection.admit(device.slot.name, device.ready)
            self.lost.pop(device.slot.name, None)
            self.devices.append(device)
            device.fetch(self._linger)

    @property
    def _linger(self) -> float:
        return min(LINGER_SECONDS * len(self.devices), MOST_LINGER_SECONDS)

    def _hand_out(self, chunks: Iterator[Chunk], exhausted: bool) -> bool:
        """Give every device its share of the backlog; returns whether there are no more chunks."""
        while not exhausted and len(self.backlog) < LOOKAHEAD * len(self.devices):
            chunk = next(chunks, None)
            exhausted = chunk is None
            if chunk is not None:
                self.backlog.append(chunk)
        for depth in range(DEPTH):  # devices without a chunk come first
            for device in self.devices:
                if self.backlog and len(device.waiting) == depth:
                    device.give(self._portion(exhausted))
        if exhausted and not self.backlog:
            # For each device that has nothing to do, the one with most is asked for a chunk that it has not begun.
            idle = sum(not device.waiting for device in self.devices)
            asked = sum(device.returning is not None for device in self.devices)
            rich = [device for device in self.devices if len(device.waiting) > 1]
            rich.sort(key=lambda device: -sum(map(len, device.waiting.values())))
            for device in rich[: max(0, idle - asked)]:
                if device.returning is None:
                    device.ask_back(1)
        return exhausted

    def _portion(self, last: bool) -> Chunk:
        """The next chunk; when no more follow, as much of it as leaves something for all devices."""
        chunk = self.backlog.popleft()
        if not last:
            return chunk
        left = len(chunk.items) + sum(len(each.items) for each in self.backlog)
        share = max(SMALLEST, math.ceil(left / (DEPTH * len(self.devices))))
        if len(chunk.items) < share + SMALLEST:
            return chunk
        self.backlog.appendleft(self.collection.chunk(chunk.items[share:]))
        return Chunk(chunk.number, chunk.items[:share])

    def _step(self) -> None:
        """Take what devices have to say, and flush the journal."""
        if self.collection.abandoned():
            raise Abandoned
        owners = {ref: each for each in self.devices for ref in (each.fetching, each.returning) if ref is not None}
        if owners:
            refs = list(owners)
            ready, _ = ray.wait(refs, num_returns=1, timeout=POLL_SECONDS)
            if ready:
                ready, _ = ray.wait(refs, num_returns=len(refs), timeout=0)
            for ref in ready:
                if owners[ref] in self.devices:
                    self._answered(owners[ref], ref)
        self._refuse_stranded()
        self.collection.flush()
        self.progress.tick()

    def _refuse_stranded(self) -> None:
        if self.devices:
            return
        if not self.group.hopeful():
            reasons = "; ".join(f"device {name} is lost: {why}" for name, why in self.lost.items())
            raise DeviceLost(reasons or "no device of the cluster is left")
        if self.collection.abandoned():
            raise Abandoned
        time.sleep(POLL_SECONDS)

    # -- what an actor says --------------------------------------------------------------------------

    def _answered(self, device: RemoteDevice, ref: Any) -> None:
        try:
            answer = ray.get(ref)
        except RayError as error:  # the process, the machine or the network: nothing more comes from there
            self._ended(device, f"its process or its machine ended ({type(error).__name__})", for_good=False)
            return
        if ref == device.returning:
            device.returning = None
            device.given -= len(answer)
            items = [item for number in answer for item in device.waiting.pop(number, {}).values()]
            if items:
                self.backlog.append(self.collection.chunk(items))
            return
        for news in news_of(answer):
            self._hear(device, news)
        if device not in self.devices:
            return
        device.fetch(self._linger)
        if device.waiting and device.idle_after == device.given:  # it did not measure them, and did not say why
            left, device.waiting = device.waiting, {}
            self._hand_out_again([item for items in left.values() for item in items.values()])

    def _hear(self, device: RemoteDevice, news: News) -> None:
        match news:
            case FinalStatus(result, chunk, overruled):
                item = device.settled(result.key, chunk)
                device.measured += 1
                if overruled is not None:
                    self.record(overruled, result, chunk, device.slot.name, overrules=True)
                elif item is not None:
                    self.losses.pop(item.key, None)
                    self.settle(item, result, chunk, device.slot.name)
            case Idle(given):
                device.idle_after = given
            case Lost(why):
                self._ended(device, why, for_good=True)
            case Said(text):
                self.progress.say(f"{device.slot.name}: {text}")

    # -- what can happen to an actor -------------------------------------------------------------------

    def _ended(self, device: RemoteDevice, why: str, *, for_good: bool) -> None:
        """A device is gone: what it was measuring is handed out again, and nobody is blamed."""
        self.devices.remove(device)
        self.lost[device.slot.name] = why
        self.group.left(device, why, for_good=for_good)
        begun, *others = list(device.waiting.values()) or [{}]
        device.waiting = {}
        count = len(begun) + sum(map(len, others))
        again = f"; the {count:,} vectors that it had are handed out again" if count else ""
        self.progress.say(f"device {device.slot.name} is lost: {why}{again} ({len(self.devices):,} devices go on)")
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
