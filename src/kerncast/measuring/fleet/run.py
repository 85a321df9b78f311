"""A collection on a Ray cluster: for every kind of device that it has, a dataset, measured on all devices of that kind."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Unpack

from msgspec import structs
from ray.exceptions import RayError

from kerncast.core.device import Device
from kerncast.core.progress import QUIET, Facts, Progress, Stop, never
from kerncast.data import journal as journals
from kerncast.measuring.collection import CollectionSummary, Request
from kerncast.measuring.fleet import Kind, place_for
from kerncast.measuring.fleet.discovery import DeviceGroup, Discovery, refuse_without
from kerncast.measuring.fleet.node import Assignment
from kerncast.measuring.fleet.scheduling import Fleet, Slot
from kerncast.measuring.plan import Planned
from kerncast.measuring.run import collect, start_of
from kerncast.measuring.scheduling import CannotGoOn, DeviceLost
from kerncast.measuring.supervisor import POLL_SECONDS, TOGETHER_SECONDS

Plan = Callable[[Device], Planned]
"""The vectors to measure on a device."""


class FleetRun:
    """Measures the vectors of `plan` on every device that the connected cluster has, each kind into a dataset of its own.

    The first kind goes to `request.out`, others beside it. `resource` counts the devices of a node.
    """

    def __init__(self, request: Request, plan: Plan, resource: str, *, progress: Progress = QUIET, stop: Stop = never) -> None:
        self.request, self.plan, self.resource, self.asked = request, plan, resource, stop
        self.interrupted = False
        self.display, self.lock = progress, threading.Lock()
        self.totals: list[int] = []
        """The vectors of each kind."""
        self.progress: Progress = _KindProgress(self)
        self.discovery = Discovery(resource, self._assignment, self.progress)
        self.kinds: dict[Kind, _KindRun] = {}

    def _assignment(self, slot: Slot) -> Assignment:
        start = structs.replace(start_of(self.request), index=slot.index)
        return Assignment(start, self.request.reset_command, self.request.memory_bytes, slot.devices)

    def stop(self) -> bool:
        return self.interrupted or self.asked()

    def run(self) -> list[tuple[CollectionSummary, int]]:
        """Measure; for each kind, how it ended and how many vectors there were."""
        refuse_without(self.resource)
        try:
            self._gather()
            self._go_on()
        except KeyboardInterrupt:
            if self.interrupted:
                raise
            self.interrupted = True
            self._go_on()
        except RayError as error:
            why = str(error).strip().split("\n")[0]
            raise DeviceLost(f"the cluster does not answer ({why}); what was measured is safe: {DeviceLost.fix}") from error
        finally:
            self.interrupted = True  # in case of an error here, the others end
            for kind in self.kinds.values():
                kind.thread.join()
            self.discovery.close()
        for kind in self.kinds.values():
            if kind.error is not None:
                raise kind.error
        if not self.kinds:
            raise CannotGoOn("stopped before a device came up, nothing was measured: run the same command to go on")
        return [kind.collected for kind in self.kinds.values() if kind.collected is not None]

    def _gather(self) -> None:
        """Wait for the devices that the cluster has now, so that kinds and their datasets do not depend on who comes first."""
        discovery, first = self.discovery, None
        while not self.stop():
            discovery.look()
            if discovery.groups and first is None:
                first = time.monotonic()
            can_start = any(not state.out for state in discovery.slots.values())
            if not discovery.starting and (first is not None or not can_start):
                break
            if first is not None and time.monotonic() - first > TOGETHER_SECONDS:
                break
            self.progress.tick()
            time.sleep(POLL_SECONDS)
        if not discovery.groups and not self.stop():
            reasons = "; ".join(f"device {name}: {why}" for name, why in discovery.refusals.items())
            raise DeviceLost(f"no device of the cluster came up ({reasons}); {DeviceLost.fix}")

    def _go_on(self) -> None:
        """Start a collection for each kind of device, also for those that come later, until all are over."""
        while True:
            self.discovery.look()
            new = [kind for kind in self.discovery.groups if kind not in self.kinds]
            if new and not self.stop():
                self._begin(new)
            if not any(kind.thread.is_alive() for kind in self.kinds.values()):
                return
            time.sleep(POLL_SECONDS)

    def _begin(self, kinds: list[Kind]) -> None:
        taken = {run.request.out for run in self.kinds.values()}
        # Kinds that are measured already are no obstacle while another one is not: the same command goes on.
        extend = self.request.extend or bool(taken)
        outs: dict[Kind, Path] = {}
        # The kind with most devices first, for it gets the name that was asked for.
        for kind in sorted(kinds, key=lambda kind: (-len(self.discovery.groups[kind].waiting), kind)):
            outs[kind] = place_for(kind, self.request.out, self.request.family, taken | set(outs.values()))
        extend = extend or any(not path.exists() or journals.is_begun(path / journals.NAME) for path in outs.values())
        for kind, out in outs.items():
            group = self.discovery.groups[kind]
            devices = tuple(device.slot.name for device in group.waiting)
            if out != self.request.out:
                self.progress.say(f"{len(devices):,} devices are {kind[0]} with {kind[1]}: their rows go to {out}")
            self.kinds[kind] = _KindRun(replace(self.request, out=out, devices=devices, extend=extend), group, self)
            self.kinds[kind].thread.start()


class _KindRun:
    """The collection of one kind of device, in a thread of its own."""

    def __init__(self, request: Request, group: DeviceGroup, owner: FleetRun) -> None:
        self.request, self.group, self.owner = request, group, owner
        self.collected: tuple[CollectionSummary, int] | None = None
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, name=str(request.out), daemon=True)

    def _run(self) -> None:
        owner, group = self.owner, self.group
        try:
            planned = owner.plan(Device(**group.ready.device))
            summary = collect(
                self.request,
                planned.source.iter_blocks(),
                total=planned.total,
                progress=_KindProgress(owner),
                stop=owner.stop,
                by=lambda request, collection: Fleet(group, collection),
            )
            summary.lost = {**owner.discovery.refusals, **summary.lost}
            self.collected = summary, planned.total
        except BaseException as error:  # raised by the thread that waits for this one
            self.error = error
        finally:
            group.dismiss([])  # also if it was refused before it had taken any of them


class _KindProgress(Progress):
    """One display for all kinds: their vectors are counted together, and what each does after that is not."""

    def __init__(self, owner: FleetRun) -> None:
        self._owner, self._first = owner, True

    def expect(self, what: str, total: int | None) -> None:
        with self._owner.lock:
            if self._first:
                self._first = False
                self._owner.totals.append(total or 0)
                self._owner.display.expect(what, sum(self._owner.totals) or None)
            elif len(self._owner.totals) == 1:
                self._owner.display.expect(what, total)

    def guess(self, seconds: float) -> None:
        if len(self._owner.totals) == 1:
            self._owner.display.guess(seconds)

    def result(self, status: str, **facts: Unpack[Facts]) -> None:
        with self._owner.lock:
            self._owner.display.result(status, **facts)

    def tick(self) -> None:
        with self._owner.lock:
            self._owner.display.tick()

    def say(self, text: str) -> None:
        with self._owner.lock:
            self._owner.display.say(text)
