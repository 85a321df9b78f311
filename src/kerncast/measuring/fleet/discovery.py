"""Which devices a Ray cluster has: an actor is started for each of them, and again when nodes come, end or come back."""

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
from kerncast.measuring.fleet import Kind, kind_of
from kerncast.measuring.fleet.node import Assignment, DeviceActor, Lost, packed, release, unpacked
from kerncast.measuring.fleet.scheduling import RemoteDevice, Slot
from kerncast.measuring.messages import Ready
from kerncast.measuring.supervisor import FAILED_STARTS, START_SECONDS

GPU, CPU = "GPU", "CPU"
SCAN_SECONDS = 1.0
# How long a collection without any device waits for another one: a node that restarts takes about so long.
HOPE_SECONDS = 60.0
# When it is said that a device is held by something else.
HELD_SECONDS = 20.0
# An actor measures, takes chunks, gives them back and tells the news at the same time.
CALLS_AT_ONCE = 4
# Ray gives its processes niceness 15: whatever else the machine does would come first, and be part of the times.
NOT_NICE = {"env_vars": {"RAY_worker_niceness": "0"}}

_ray: Any = ray  # parts of Ray have no types


def nodes() -> list[dict[str, Any]]:
    """Every node that the cluster has or had."""
    return list(_ray.nodes())


@dataclass
class _SlotState:
    """What is known of a slot."""

    actor: Any = None
    answer: Any = None
    """What the actor was asked last: its release, then how the device came up."""
    checked: bool = False
    """Whether its release is the driver's."""
    since: float = 0.0
    failures: int = 0
    """Actors in a row that ended before they measured anything."""
    out: str = ""
    """Why the device does not take part any more."""
    spare: bool = False
    """Whether the collection of its kind is over, so that it is not needed any more."""
    said_held: bool = False
    """Whether it was said that something else holds the device."""


@dataclass
class DeviceGroup:
    """The devices of one kind, for the collection that measures on them; its thread is not that of the discovery."""

    departed: queue.SimpleQueue[tuple[RemoteDevice, str, bool]]
    ready: Ready
    waiting: deque[RemoteDevice] = field(default_factory=deque)
    last: float = field(default_factory=time.monotonic)
    """When a device was here for the last time."""
    over: bool = False
    """Whether the collection is over."""

    def arrived(self) -> list[RemoteDevice]:
        """Devices that are ready and belong to nobody yet."""
        devices = []
        while self.waiting:
            devices.append(self.waiting.popleft())
        self.last = time.monotonic() if devices else self.last
        return devices

    def left(self, device: RemoteDevice, why: str, *, for_good: bool) -> None:
        """A device is not used any more: its actor ended, or the device itself is given up (`for_good`)."""
        self.last = time.monotonic()
        self.departed.put((device, why, for_good))

    def dismiss(self, devices: Iterable[RemoteDevice]) -> None:
        """The collection is over: these devices, and others of their kind, are not needed any more."""
        self.over = True
        for device in devices:
            self.departed.put((device, "", False))

    def hopeful(self) -> bool:
        """Whether a device may still arrive."""
        return bool(self.waiting) or time.monotonic() - self.last < HOPE_SECONDS


class Discovery:
    """Keeps an actor on every device of the cluster. `look` does all work, in the thread of its caller."""

    def __init__(self, resource: str, assignment: Callable[[Slot], Assignment], progress: Progress = QUIET) -> None:
        """`resource` counts the devices of a node; with `CPU`, a node that has any is one device."""
        self.resource, self.assignment, self.progress = resource, assignment, progress
        self.slots: dict[Slot, _SlotState] = {}
        self.groups: dict[Kind, DeviceGroup] = {}
        self.departed: queue.SimpleQueue[tuple[RemoteDevice, str, bool]] = queue.SimpleQueue()
        """Devices that a collection has done with, why, and whether for good; filled by other threads."""
        self.scanned = -SCAN_SECONDS

    @property
    def starting(self) -> bool:
        """Whether a device may come up soon."""
        return any(state.answer is not None for state in self.slots.values())

    @property
    def refusals(self) -> dict[str, str]:
        """Devices that do not take part, and why."""
        return {slot.name: state.out for slot, state in self.slots.items() if state.out}

    def look(self) -> None:
        """See which nodes there are, start what is missing, and take what came up."""
        while not self.departed.empty():
            self._departed(*self.departed.get())
        if time.monotonic() - self.scanned >= SCAN_SECONDS:
            self._scan()
            self.scanned = time.monotonic()
        asked = {state.answer: slot for slot, state in self.slots.items() if state.answer is not None}
        if asked:
            ready, _ = ray.wait(list(asked), num_returns=len(asked), timeout=0)
            for ref in ready:
                self._answered(asked[ref], ref)

    def close(self) -> None:
        """End every actor."""
        for state in self.slots.values():
            self._end(state)

    # -- nodes -----------------------------------------------------------------------------------------

    def _scan(self) -> None:
        slots = found_slots(nodes(), self.resource)
        for slot in [slot for slot in self.slots if slot not in slots]:
            self._end(self.slots.pop(slot))
        for slot in slots:
            state = self.slots.setdefault(slot, _SlotState())
            if state.actor is None and not state.out and not state.spare:
                self._start(slot, state)
            elif state.answer is not None and not state.said_held and time.monotonic() - state.since > HELD_SECONDS:
                state.said_held = True
                self.progress.say(f"device {slot.name} does not start yet: something else may hold its {self.resource}")
            if state.answer is not None and time.monotonic() - state.since > START_SECONDS:
                self._failed(slot, f"it did not start within {START_SECONDS:g} s")

    def _start(self, slot: Slot, state: _SlotState) -> None:
        options: dict[str, Any] = {"num_cpus": 0}
        if self.resource == GPU:
            options["num_gpus"] = 1
        elif self.resource == CPU:
            options["num_cpus"] = 1
        else:
            options["resources"] = {self.resource: 1}
        state.actor = (
            ray.remote(DeviceActor)
            .options(
                max_concurrency=CALLS_AT_ONCE,
                max_restarts=0,
                runtime_env=NOT_NICE,
                scheduling_strategy=NodeAffinitySchedulingStrategy(slot.node, soft=False),
                **options,
            )
            .remote()
        )
        state.since, state.checked = time.monotonic(), False
        state.answer = state.actor.release.remote()

    def _end(self, state: _SlotState) -> None:
        actor, state.actor, state.answer = state.actor, None, None
        if actor is not None:
            _kill(actor)

    # -- answers ---------------------------------------------------------------------------------------

    def _answered(self, slot: Slot, ref: Any) -> None:
        state = self.slots[slot]
        try:
            found = ray.get(ref)
        except RayActorError as error:  # with its machine, or because kerncast cannot be imported there
            self._failed(slot, _cause(error))
            return
        except (RayTaskError, RayError) as error:
            self._failed(slot, _cause(error), for_good=True)
            return
        if not state.checked:
            if found != release():
                why = f"it has kerncast {found}, and this is {release()}: install the same version on every node"
                self._failed(slot, why, for_good=True)
                return
            state.checked = True
            state.answer = state.actor.begin.remote(packed(self.assignment(slot)))
            return
        state.answer = None
        answer = unpacked(found, type=Ready | Lost)
        if isinstance(answer, Lost):
            self._failed(slot, answer.why, for_good=True)
            return
        group = self.groups.setdefault(kind_of(answer), DeviceGroup(self.departed, answer))
        if group.over:
            self._end(state)
            state.spare = True
            return
        group.waiting.append(RemoteDevice(slot, state.actor, answer))

    def _failed(self, slot: Slot, why: str, *, for_good: bool = False) -> None:
        """An actor did not come up: once more, unless it cannot or did so too often."""
        state = self.slots[slot]
        self._end(state)
        state.failures += 1
        if for_good or state.failures >= FAILED_STARTS:
            state.out = why
            self.progress.say(f"device {slot.name} does not take part: {why}")

    def _departed(self, device: RemoteDevice, why: str, for_good: bool) -> None:
        state = self.slots.get(device.slot)
        if state is None or state.actor is not device.actor:
            _kill(device.actor)
            return
        self._end(state)
        state.spare = self.groups[kind_of(device.ready)].over
        state.failures = 0 if device.measured or state.spare else state.failures + 1
        if for_good or state.failures >= FAILED_STARTS:
            state.out = why


def _kill(actor: Any) -> None:
    """End an actor, unless it has ended with its cluster."""
    with contextlib.suppress(RayError):
        ray.kill(actor)


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
