"""Models that come with kerncast, compiled in the background for the devices that are asked about.

Python answers in tens of milliseconds until the compiled code is there, and where there is no compiler. Both say the same to
the last bit: before compiled code answers, it is compared with Python on problems that were asked, and on some around them.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from queue import SimpleQueue

from kerncast.device import Device
from kerncast.errors import InvalidValue, KerncastError
from kerncast.models import trust
from kerncast.models.answer import Answer
from kerncast.models.model import Model
from kerncast.op import Problem
from kerncast.querying.predicting import Ask
from kerncast.querying.query import selector_of
from kerncast.selecting.selector import Selector

LOG = logging.getLogger("kerncast.serving")
# Problems that were asked of a model on a device, to compare the answers to.
MOST_COMPARED = 16
# The compiler gives way to those who ask.
NICENESS = 10
FULL = "full"
Key = tuple[str, str]
"""A model's digest, and the device that it answers for."""


@dataclass
class _Device:
    """One model on one device."""

    model: Model
    device: str
    asked: list[Problem]
    selectors: Sequence[Selector] = ()
    """One for each who asks, so that nobody waits for a turn; empty: Python answers."""


class Compiled:
    """Compiled code for models that ship; one thread makes it, one model after the other."""

    def __init__(self, askers: int, *, compile: bool = True, changed: Callable[[], None] = lambda: None) -> None:
        """`askers` ask at the same time. `changed` is called when a model answers faster than before."""
        self._askers, self._compile, self._changed = askers, compile, changed
        self._known: dict[Key, _Device] = {}
        self._waiting: SimpleQueue[_Device] = SimpleQueue()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None

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
        self._waiting.put(item)
        if self._thread is None:  # not waited for at the end: a compiler may take a minute
            self._thread = threading.Thread(target=self._work, name="kerncast-compile", daemon=True)
            self._thread.start()

    def _work(self) -> None:
        with contextlib.suppress(OSError, AttributeError):  # of this thread alone, and of the compilers that it starts
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
        while True:
            self._make(self._waiting.get())

    def _make(self, item: _Device) -> None:
        name = f"{item.model.path.name} on {item.device}"
        try:
            first = selector_of(item.model.on(item.device))
            if not first.is_compiled:
                return  # there is no compiler, which was said at the start
            others = [Selector(first.model, tiers=first.tiers, tier=first.tier) for _ in range(self._askers - 1)]
            unlike = _unlike(first, item)
        except KerncastError as error:
            LOG.warning("%s is answered in Python: %s", name, error)
            return
        except Exception:
            LOG.exception("%s is answered in Python: compiling it failed", name)
            return
        if unlike is not None:
            LOG.warning("%s is answered in Python, because compiled code says something else about %s", name, unlike)
            return
        item.selectors = [first, *others]
        LOG.info("%s is compiled", name)
        self._changed()


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
