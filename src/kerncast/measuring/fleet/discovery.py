"""Which devices a Ray cluster has: a keeper is started for each of them, and again when nodes come, end or come back."""

from __future__ import annotations

import contextlib
import queue
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from kerncast.core.progress import QUIET, Progress
from kerncast.errors import InvalidValue
from kerncast.measuring.fleet.node import Keeper, Post, Refused, answer_of, packed, release
from kerncast.measuring.fleet.scheduling import Kind, Lane, Slot, kind_of
from kerncast.measuring.messages import Ready
from kerncast.measuring.supervisor import FAILED_STARTS, START_SECONDS

GPU, CPU = "GPU", "CPU"
SCAN_SECONDS = 1.0
# How long a collection without any device waits for another one: a node that restarts takes about so long.
HOPE_SECONDS = 60.0
# When it is said that a device is held by something else.
HELD_SECONDS = 20.0
# A keeper measures, takes chunks, gives them back and tells the news at the same time.
CALLS_AT_ONCE = 4
# Ray gives its processes niceness 15: whatever else the machine does would come first, and be part of the times.
NOT_NICE = {"env_vars": {"RAY_worker_niceness": "0"}}

_ray: Any = ray  # parts of Ray have no types


def nodes() -> list[dict[str, Any]]:
    """Every node that the cluster has or had."""
    return list(_ray.nodes())


@dataclass
class _Place:
    """What is known of a slot."""

    keeper: Any = None
    answer: Any = None
    """What the keeper was asked last: its release, then how the device came up."""
    checked: bool = False
    """Whether its release is the driver's."""
    since: float = 0.0
    failures: int = 0
    """Keepers in a row that ended before they measured anything."""
    out: str = ""
    """Why the device does not take part any more."""
    spare: bool = False
    """Whether the collection of its kind is over, so that it is not needed any more."""
    told: bool = False
    """Whether it was said that something else holds the device."""


@dataclass
class Company:
    """The devices of one kind, for the collection that measures on them."""

    roster: Roster
    ready: Ready
    waiting: deque[Lane] = field(default_factory=deque)
    last: float = field(default_factory=time.monotonic)
    """When a device was here for the last time."""
    over: bool = False
    """Whether the collection is over."""

    def arrived(self) -> list[Lane]:
        found = []
        while self.waiting:
            found.append(self.waiting.popleft())
        self.last = time.monotonic() if found else self.last
        return found

    def left(self, lane: Lane, why: str, *, for_good: bool) -> None:
        self.last = time.monotonic()
        self.roster.departed.put((lane, why, for_good))

    def dismiss(self, lanes: Iterable[Lane]) -> None:
        self.over = True
        for lane in lanes:
            self.roster.departed.put((lane, "", False))

    def hopeful(self) -> bool:
        return bool(self.waiting) or time.monotonic() - self.last < HOPE_SECONDS


class Roster:
    """Keeps a keeper on every device of the cluster. `look` does all work, in the thread of its caller."""

    def __init__(self, resource: str, post: Callable[[Slot], Post], progress: Progress = QUIET) -> None:
        """`resource` counts the devices of a node; with `CPU`, a node that has any is one device."""
        self.resource, self.post, self.progress = resource, post, progress
        self.places: dict[Slot, _Place] = {}
        self.companies: dict[Kind, Company] = {}
        self.departed: queue.SimpleQueue[tuple[Lane, str, bool]] = queue.SimpleQueue()
        """Devices that a collection has done with; filled by other threads."""
        self.scanned = -SCAN_SECONDS

    # -- what the caller needs to know -----------------------------------------------------------------

    @property
    def starting(self) -> bool:
        """Whether a device may come up soon."""
        return any(place.answer is not None for place in self.places.values())

    @property
    def refusals(self) -> dict[str, str]:
        """Devices that do not take part, and why."""
        return {slot.name: place.out for slot, place in self.places.items() if place.out}

    def look(self) -> None:
        """See which nodes there are, start what is missing, and take what came up."""
        while not self.departed.empty():
            self._departed(*self.departed.get())
        if time.monotonic() - self.scanned >= SCAN_SECONDS:
            self._scan()
            self.scanned = time.monotonic()
        asked = {place.answer: slot for slot, place in self.places.items() if place.answer is not None}
        if asked:
            ready, _ = ray.wait(list(asked), num_returns=len(asked), timeout=0)
            for ref in ready:
                self._answered(asked[ref], ref)

    def close(self) -> None:
        """End every keeper."""
        for place in self.places.values():
            self._end(place)

    # -- nodes -----------------------------------------------------------------------------------------

    def _scan(self) -> None:
        slots = found_slots(nodes(), self.resource)
        for slot in [slot for slot in self.places if slot not in slots]:
            self._end(self.places.pop(slot))
        for slot in slots:
            place = self.places.setdefault(slot, _Place())
            if place.keeper is None and not place.out and not place.spare:
                self._start(slot, place)
            elif place.answer is not None and not place.told and time.monotonic() - place.since > HELD_SECONDS:
                place.told = True
                self.progress.say(f"device {slot.name} does not start yet: something else may hold its {self.resource}")
            if place.answer is not None and time.monotonic() - place.since > START_SECONDS:
                self._failed(slot, f"it did not start within {START_SECONDS:g} s")

    def _start(self, slot: Slot, place: _Place) -> None:
        options: dict[str, Any] = {"num_cpus": 0}
        if self.resource == GPU:
            options["num_gpus"] = 1
        elif self.resource == CPU:
            options["num_cpus"] = 1
        else:
            options["resources"] = {self.resource: 1}
        place.keeper = (
            ray.remote(Keeper)
            .options(
                max_concurrency=CALLS_AT_ONCE,
                max_restarts=0,
                runtime_env=NOT_NICE,
                scheduling_strategy=NodeAffinitySchedulingStrategy(slot.node, soft=False),
                **options,
            )
            .remote()
        )
        place.since, place.checked = time.monotonic(), False
        place.answer = place.keeper.release.remote()

    def _end(self, place: _Place) -> None:
        keeper, place.keeper, place.answer = place.keeper, None, None
        if keeper is not None:
            _kill(keeper)

    # -- answers ---------------------------------------------------------------------------------------

    def _answered(self, slot: Slot, ref: Any) -> None:
        place = self.places[slot]
        try:
            found = ray.get(ref)
        except RayActorError as error:  # with its machine, or because kerncast cannot be imported there
            self._failed(slot, _cause(error))
            return
        except (RayTaskError, RayError) as error:
            self._failed(slot, _cause(error), for_good=True)
            return
        if not place.checked:
            if found != release():
                why = f"it has kerncast {found}, and this is {release()}: install the same version on every node"
                self._failed(slot, why, for_good=True)
                return
            place.checked = True
            place.answer = place.keeper.begin.remote(packed(self.post(slot)))
            return
        place.answer = None
        answer = answer_of(found)
        if isinstance(answer, Refused):
            self._failed(slot, answer.why, for_good=True)
            return
        company = self.companies.setdefault(kind_of(answer), Company(self, answer))
        if company.over:
            self._end(place)
            place.spare = True
            return
        company.waiting.append(Lane(slot, place.keeper, answer))

    def _failed(self, slot: Slot, why: str, *, for_good: bool = False) -> None:
        """A keeper did not come up: once more, unless it cannot or did so too often."""
        place = self.places[slot]
        self._end(place)
        place.failures += 1
        if for_good or place.failures >= FAILED_STARTS:
            place.out = why
            self.progress.say(f"device {slot.name} does not take part: {why}")

    def _departed(self, lane: Lane, why: str, for_good: bool) -> None:
        place = self.places.get(lane.slot)
        if place is None or place.keeper is not lane.keeper:
            _kill(lane.keeper)
            return
        self._end(place)
        place.spare = self.companies[kind_of(lane.ready)].over
        place.failures = 0 if lane.measured or place.spare else place.failures + 1
        if for_good or place.failures >= FAILED_STARTS:
            place.out = why


def _kill(keeper: Any) -> None:
    """End a keeper, unless it has ended with its cluster."""
    with contextlib.suppress(RayError):
        ray.kill(keeper)


def found_slots(known: list[dict[str, Any]], resource: str) -> list[Slot]:
    """The devices of all nodes that are alive, in a fixed order."""
    found = []
    for node in sorted(known, key=lambda node: (str(node["NodeManagerHostname"]), str(node["NodeID"]))):
        count = int(node["Resources"].get(resource, 0)) if node["Alive"] else 0
        # Ray shows a GPU actor its own GPU alone, as the first; a CPU is one device however many cores it has.
        devices = min(count, 1) if resource == CPU else count
        for index in range(devices):
            seen = "0" if resource in (GPU, CPU) else str(index)
            found.append(Slot(str(node["NodeID"]), str(node["NodeManagerHostname"]), seen, index, devices))
    return found


def refuse_without(resource: str) -> None:
    """Refuse a cluster that has no such resource."""
    found = nodes()
    if _counted(resource) and found_slots(found, resource):
        return
    known = sorted({name for node in found if node["Alive"] for name in node["Resources"] if _counted(name)})
    raise InvalidValue(
        f"no node of the cluster has the resource {resource} (they have {', '.join(known) or 'none'}): start nodes with "
        "`ray start --num-gpus N`, or with `ray start --resources '{\"card\": N}'` and name that with `resource`"
    )


def _counted(name: str) -> bool:
    return ":" not in name and "_" not in name and name not in ("memory", "object")


def _cause(error: BaseException) -> str:
    """The first line of an error of Ray that says something, with the next step if kerncast is missing there."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if "kerncast" in line and "Error" in line]
    words = (telling or lines or [type(error).__name__])[-1 if telling else 0][:300]
    missing = "ModuleNotFoundError" in words or "AttributeError" in words or "ImportError" in words
    return f"{words}: install kerncast {release()} on that node" if missing else words
