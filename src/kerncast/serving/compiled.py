"""What takes long is made in the background while Python answers: tiers, and compiled code for stores and for shipped models.

Python answers in tens of milliseconds until the compiled code is there, and where there is no compiler. Both say the same to
the last bit: before compiled code of a shipped model answers, it is compared with Python on problems that were asked, and on
some around them.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from kerncast.api.showing import Account
from kerncast.device import Device
from kerncast.errors import InvalidValue, KerncastError
from kerncast.models import trust
from kerncast.models.answer import Answer
from kerncast.models.model import Model
from kerncast.op import Problem
from kerncast.progress import QUIET, Progress
from kerncast.querying.predicting import Ask
from kerncast.querying.query import selector_of
from kerncast.selecting.selector import Selector

LOG = logging.getLogger("kerncast.serving")
# Problems that were asked of a model on a device, to compare the answers to.
MOST_COMPARED = 16
# The compiler gives way to those who ask.
NICENESS = 10
# How long the end of the server waits for the thread: a compiler is ended at once, a learner is not waited for.
END_SECONDS = 1.0
FULL = "full"
Key = tuple[str, str]
"""A model's digest, and the device that it answers for."""
Make = Callable[[Progress], bool]
"""Makes something, and says whether a model answers otherwise now."""


class _Stopped(BaseException):
    """The server ends: nobody waits for what is being made."""


class _Job(Account):
    """Something to make, and how far it is. Where it is cancelled, the next report ends the work."""

    def __init__(self, path: Path, name: str, make: Make) -> None:
        super().__init__("waiting")
        self.path, self.model, self.make = path, name, make
        self.cancelled, self.ended = threading.Event(), threading.Event()

    def stage(self, name: str, number: int = 1, of: int = 1) -> None:
        self.tick()
        super().stage(name, number, of)

    def guess(self, seconds: float) -> None:
        super().guess(seconds)
        LOG.info("building %s: %s, left %s", self.model, self.name, self.remaining())

    def tick(self) -> None:
        if self.cancelled.is_set():
            raise _Stopped
        super().tick()

    def as_json(self) -> dict[str, Any]:
        """For `GET /v1/models`."""
        with self.lock:
            seconds = self.left()[0]
            return {"what": self.name, "seconds_left": None if seconds is None else round(seconds, 1)}


class Builder:
    """One thread, which makes one thing after the other; nothing is made twice at a time."""

    def __init__(self) -> None:
        self.changed: Callable[[Path], None] = lambda path: None
        """Called with the path of a model that answers otherwise from now on."""
        self._waiting: SimpleQueue[_Job | None] = SimpleQueue()
        self._jobs: list[_Job] = []
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = False

    def put(self, path: Path, name: str, make: Make) -> None:
        """Have something of the model at a path made, as soon as what was asked for before is."""
        job = _Job(path, name, make)
        with self._starting:
            if self._closed:
                return
            self._jobs.append(job)
            self._waiting.put(job)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="kerncast-build", daemon=True)
                self._thread.start()

    def building(self, path: Path) -> dict[str, Any] | None:
        """What is being made of a model, and the seconds that are left, if they can be told; None: nothing is."""
        return next((job.as_json() for job in list(self._jobs) if job.path == path), None)

    def __len__(self) -> int:
        """How much is being made, or waits for it."""
        return len(self._jobs)

    def wait(self, path: Path) -> None:
        """Until nothing is being made of a model."""
        for job in list(self._jobs):
            if job.path == path:
                job.ended.wait()

    def close(self) -> None:
        """End what is being made."""
        with self._starting:
            self._closed = True
        for job in list(self._jobs):
            job.cancelled.set()
            job.ended.set()
        self._waiting.put(None)
        if self._thread is not None:
            self._thread.join(END_SECONDS)

    def _work(self) -> None:
        with contextlib.suppress(OSError, AttributeError):  # of this thread alone, and of the compilers that it starts
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
        while (job := self._waiting.get()) is not None:
            try:
                self._make(job)
            except _Stopped:
                return
            finally:
                self._jobs.remove(job)
                job.ended.set()

    def _make(self, job: _Job) -> None:
        LOG.info("%s is being built; Python answers meanwhile", job.model)
        began, changed = time.monotonic(), True
        try:
            job.tick()
            changed = job.make(job)
            if changed:
                LOG.info("%s is built, in %.1f s", job.model, time.monotonic() - began)
        except KerncastError as error:
            LOG.warning("%s is answered in Python: %s", job.model, error)
        except Exception:
            LOG.exception("%s is answered in Python: building it failed", job.model)
        if changed:
            self.changed(job.path)


@dataclass
class _Device:
    """One model on one device."""

    model: Model
    device: str
    asked: list[Problem]
    selectors: Sequence[Selector] = ()
    """One for each who asks, so that nobody waits for a turn; empty: Python answers."""

    @property
    def name(self) -> str:
        return f"{self.model.path.name} on {self.device}"


class Compiled:
    """Compiled code for models that ship, for the devices that are asked about."""

    def __init__(self, askers: int, builder: Builder, *, compile: bool = True) -> None:
        """`askers` ask at the same time."""
        self._askers, self._builder, self._compile = askers, builder, compile
        self._known: dict[Key, _Device] = {}
        self._starting = threading.Lock()

    def asker(self, number: int) -> Ask:
        """One of those who ask: as `Model.predict` with a device, and faster as soon as it can be."""

        def ask(model: Model, problems: Sequence[Problem], device: Device | str) -> list[Answer]:
            known = self._of(model, problems, device)
            if known is None or not known.selectors:
                return model.predict(problems, device=device)
            return _answers(known.selectors[number], model, problems, device)

        return ask

    def _of(self, model: Model, problems: Sequence[Problem], device: Device | str) -> _Device | None:
        """What is known of a model on a device; the first one who asks has it compiled. None: it will not be."""
        if not self._compile or not isinstance(device, str):
            return None
        key = (model.trust_digest, device)
        if key not in self._known:
            with self._starting:
                if key not in self._known:
                    self._known[key] = _Device(model, device, list(problems[:MOST_COMPARED]))
                    if _may_be(model, device):
                        self._begin(self._known[key])
        known = self._known[key]
        if not known.selectors and len(known.asked) < MOST_COMPARED:
            known.asked += problems[: MOST_COMPARED - len(known.asked)]
        return known

    def _begin(self, item: _Device) -> None:
        self._builder.put(item.model.path, item.name, lambda progress: self._make(item, progress))

    def _make(self, item: _Device, progress: Progress = QUIET) -> bool:
        first = selector_of(item.model.on(item.device), progress=progress)
        if not first.is_compiled:
            return False  # there is no compiler, which was said at the start
        others = [Selector(first.model, tiers=first.tiers, tier=first.tier) for _ in range(self._askers - 1)]
        unlike = _unlike(first, item)
        if unlike is not None:
            LOG.warning("%s is answered in Python, because compiled code says something else about %s", item.name, unlike)
            return False
        item.selectors = [first, *others]
        return True


def _may_be(model: Model, device: str) -> bool:
    """Whether compiled code can answer as Python does: on a device that was measured, for a model that is trusted."""
    own = device in {record.name for record in model.manifest.devices}
    return own and model.slim and model.recorded and trust.refusal(model) is None


def _answers(selector: Selector, model: Model, problems: Sequence[Problem], device: Device | str) -> list[Answer]:
    """The answers of compiled code; what it refuses, Python refuses in its own words."""
    found = selector.select_many(problems, FULL)
    refused = [place for place, answer in enumerate(found) if not answer.ok]
    if refused:
        for place, answer in zip(refused, model.predict([problems[at] for at in refused], device=device), strict=True):
            found[place] = answer
    return found


def _unlike(selector: Selector, item: _Device) -> Problem | None:
    """The first problem about which compiled code and Python do not say the same; None: there is none."""
    model = item.model
    problems = [near for problem in list(item.asked) for near in (problem, *_around(model, problem))]
    answers = zip(_answers(selector, model, problems, item.device), model.predict(problems, device=item.device), strict=True)
    for problem, (own, wanted) in zip(problems, answers, strict=True):
        for part in ("status", "config", "time_ns", "lower_ns", "upper_ns", "note", "tflops", "bandwidth_gb_s"):
            if getattr(own, part) != getattr(wanted, part):
                return problem
    return None


def _around(model: Model, problem: Problem) -> Iterator[Problem]:
    """Problems with one size twice as large, as far as there are such."""
    for name, value in problem.as_dict().items():
        if isinstance(value, int) and not isinstance(value, bool):
            with contextlib.suppress(InvalidValue):
                yield model.problem({**problem.as_dict(), name: 2 * value})
