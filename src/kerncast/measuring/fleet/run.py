"""A collection on a Ray cluster: for every kind of device that it has, a dataset, measured on all devices of that kind."""

from __future__ import annotations

import itertools
import re
import threading
import time
from collections.abc import Callable, Container, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Unpack

from ray.exceptions import RayError

from kerncast.core.device import Device
from kerncast.core.op import Family
from kerncast.core.progress import QUIET, Facts, Progress, Stop, never
from kerncast.data import journal as journals
from kerncast.data.dataset import Dataset
from kerncast.data.journal import software_text
from kerncast.measuring.collection import Request, Summary
from kerncast.measuring.fleet.discovery import Company, Roster, refuse_without
from kerncast.measuring.fleet.node import Post
from kerncast.measuring.fleet.scheduling import POLL_SECONDS, Fleet, Kind, Slot
from kerncast.measuring.plan import Planned
from kerncast.measuring.run import collect
from kerncast.measuring.scheduling import CannotGoOn, DeviceLost
from kerncast.measuring.supervisor import TOGETHER_SECONDS, start_of

LONGEST_NAME = 60


def place_for(kind: Kind, out: Path, family: Family, taken: Container[Path]) -> Path:
    """The dataset of a kind: `out`, unless that is of another kind; else one beside it, named after the device."""
    if out not in taken and _may_hold(out, kind, family):
        return out
    name = re.sub(r"[^A-Za-z0-9._]+", "-", kind[0]).strip("-.")[:LONGEST_NAME] or "device"
    names = (path for path in _names(out, name) if path not in taken)
    return next(path for path in names if not path.exists() or kind in _kinds_at(path, family))


def is_unfinished(path: Path) -> bool:
    """Whether a collection into this dataset was begun and not finished."""
    return journals.is_begun(path / journals.NAME)


def _may_hold(path: Path, kind: Kind, family: Family) -> bool:
    known = _kinds_at(path, family)
    return not known or kind in known


def _names(out: Path, device: str) -> Iterator[Path]:
    yield out.with_name(f"{out.name}-{device}")
    for number in itertools.count(2):
        yield out.with_name(f"{out.name}-{device}-{number}")


def _kinds_at(path: Path, family: Family) -> set[Kind]:
    """The kinds of device that a dataset has rows of, or was begun for."""
    if is_unfinished(path):
        header = journals.header_of(path / journals.NAME)
        return {(header.device, software_text(header.software))}
    if not (path / "dataset.json").exists():
        return set()
    dataset = Dataset.open(path, journal=False)
    if family not in dataset.families:
        return set()
    return {(device, software or "") for device, software in dataset.devices_and_software(family)}


Plan = Callable[[Device], Planned]
"""The vectors to measure on a device."""


def collect_on_fleet(
    request: Request, plan: Plan, resource: str, *, progress: Progress = QUIET, stop: Stop = never
) -> list[tuple[Summary, int]]:
    """Measure the vectors of `plan` on every device that the connected cluster has, each kind into a dataset of its own.

    The first kind goes to `request.out`, others beside it; for each, how it ended and how many vectors there were. `resource`
    counts the devices of a node.
    """
    refuse_without(resource)
    return _Run(request, plan, resource, progress, stop).run()


class _Run:
    def __init__(self, request: Request, plan: Plan, resource: str, progress: Progress, stop: Stop) -> None:
        self.request, self.plan, self.asked = request, plan, stop
        self.interrupted = False
        self.shared = _Shared(progress)
        self.progress: Progress = _Share(self.shared)
        self.roster = Roster(resource, self._post, self.progress)
        self.parts: dict[Kind, _Part] = {}

    def _post(self, slot: Slot) -> Post:
        return Post(start_of(self.request, slot.index), self.request.reset_command, self.request.memory_bytes, slot.devices)

    def stop(self) -> bool:
        return self.interrupted or self.asked()

    def run(self) -> list[tuple[Summary, int]]:
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
            for part in self.parts.values():
                part.thread.join()
            self.roster.close()
        for part in self.parts.values():
            if part.error is not None:
                raise part.error
        if not self.parts:
            raise CannotGoOn("stopped before a device came up, nothing was measured: run the same command to go on")
        return [part.collected for part in self.parts.values() if part.collected is not None]

    def _gather(self) -> None:
        """Wait for the devices that the cluster has now, so that kinds and their datasets do not depend on who comes first."""
        first: float | None = None
        while not self.stop():
            self.roster.look()
            if self.roster.companies and first is None:
                first = time.monotonic()
            if not self.roster.starting and (first is not None or not self._can_start()):
                break
            if first is not None and time.monotonic() - first > TOGETHER_SECONDS:
                break
            self.progress.tick()
            time.sleep(POLL_SECONDS)
        if not self.roster.companies and not self.stop():
            reasons = "; ".join(f"device {name}: {why}" for name, why in self.roster.refusals.items())
            raise DeviceLost(f"no device of the cluster came up ({reasons}); {DeviceLost.fix}")

    def _can_start(self) -> bool:
        return any(not place.out for place in self.roster.places.values())

    def _go_on(self) -> None:
        """Start a collection for each kind of device, also for those that come later, until all are over."""
        while True:
            self.roster.look()
            new = [kind for kind in self.roster.companies if kind not in self.parts]
            if new and not self.stop():
                self._begin(new)
            if not any(part.thread.is_alive() for part in self.parts.values()):
                return
            time.sleep(POLL_SECONDS)

    def _begin(self, kinds: list[Kind]) -> None:
        taken = {part.request.out for part in self.parts.values()}
        # Kinds that are measured already are no obstacle while another one is not: the same command goes on.
        extend = self.request.extend or bool(taken)
        outs: dict[Kind, Path] = {}
        # The kind with most devices first, for it gets the name that was asked for.
        for kind in sorted(kinds, key=lambda kind: (-len(self.roster.companies[kind].waiting), kind)):
            outs[kind] = place_for(kind, self.request.out, self.request.family, taken | set(outs.values()))
        extend = extend or any(not path.exists() or is_unfinished(path) for path in outs.values())
        for kind, out in outs.items():
            company = self.roster.companies[kind]
            devices = tuple(lane.slot.name for lane in company.waiting)
            if out != self.request.out:
                self.progress.say(f"{len(devices):,} devices are {kind[0]} with {kind[1]}: their rows go to {out}")
            self.parts[kind] = _Part(replace(self.request, out=out, devices=devices, extend=extend), company, self)
            self.parts[kind].thread.start()


class _Part:
    """The collection of one kind of device, in a thread of its own."""

    def __init__(self, request: Request, company: Company, run: _Run) -> None:
        self.request, self.company, self.owner = request, company, run
        self.collected: tuple[Summary, int] | None = None
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, name=str(request.out), daemon=True)

    def _run(self) -> None:
        try:
            planned = self.owner.plan(Device(**self.company.ready.device))
            summary = collect(
                self.request,
                planned.blocks(),
                total=planned.total,
                progress=self.owner.shared.part(),
                stop=self.owner.stop,
                by=lambda request, collection: Fleet(self.company, collection),
            )
            summary.lost = {**self.owner.roster.refusals, **summary.lost}
            self.collected = summary, planned.total
        except BaseException as error:  # raised by the thread that waits for this one
            self.error = error
        finally:
            self.company.dismiss([])  # also if it was refused before it had taken any of them


class _Shared:
    """One display for all kinds: their vectors are counted together, and what each does after that is not."""

    def __init__(self, progress: Progress) -> None:
        self.progress, self.parts, self.total = progress, 0, 0
        self.lock = threading.Lock()

    def part(self) -> Progress:
        with self.lock:
            self.parts += 1
        return _Share(self)

    def expect(self, what: str, total: int | None, first: bool) -> None:
        with self.lock:
            if first:
                self.total += total or 0
                self.progress.expect(what, self.total or None)
            elif self.parts == 1:
                self.progress.expect(what, total)


class _Share(Progress):
    def __init__(self, shared: _Shared) -> None:
        self._shared, self._first = shared, True

    def expect(self, what: str, total: int | None) -> None:
        self._shared.expect(what, total, self._first)
        self._first = False

    def guess(self, seconds: float) -> None:
        if self._shared.parts == 1:
            self._shared.progress.guess(seconds)

    def result(self, status: str, **facts: Unpack[Facts]) -> None:
        with self._shared.lock:
            self._shared.progress.result(status, **facts)

    def tick(self) -> None:
        with self._shared.lock:
            self._shared.progress.tick()

    def say(self, text: str) -> None:
        with self._shared.lock:
            self._shared.progress.say(text)
