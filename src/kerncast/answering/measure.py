"""Choosing by measuring: time the few configs that a model cannot tell apart, or as many as a budget allows.

Every config is checked before its time counts. The first visit is short and drops configs that are far behind. The
others run in several passes in shuffled order, so that a slow moment of the machine affects all of them alike.
Everything runs in this process: a kernel that crashes ends it. For untried kernels use collecting, which guards
against crashes.

What was measured is kept for the process and, if there is a file, for later processes:

    {"kind": "measured choices", "schema": 1, "family": "gemm/cpu", "choices": [{"problem": …, "config": …, …}]}

A choice holds for the device and the software (compiler, kernels) that it was measured with; others in the file are
left alone, so one file may serve several machines. Writing is atomic and keeps what other processes wrote meanwhile.
If two processes write at the same moment, one of them may have to measure again.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import random
import statistics
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import msgspec

from kerncast.core.io.artefact import ArtefactKind, Findings, Versioned
from kerncast.core.io.atomic import replace_file
from kerncast.core.op import Config, Family, Problem
from kerncast.core.space import Value
from kerncast.errors import BadFile, CannotWrite, InvalidValue, KerncastError
from kerncast.library.registry import FAMILIES
from kerncast.measuring import timing
from kerncast.measuring.backends.contract import Backend, WrongResult
from kerncast.measuring.messages import Policy

# What a different label counts: more than any difference in size.
OTHER_LABEL = 100.0
# What it counts if only one of them has a parameter: as much as a doubling.
ABSENT = 1.0


def distance(one: Mapping[str, Value], other: Mapping[str, Value]) -> float:
    """The sum of the doublings between the sizes; labels count only as equal or different."""
    total = 0.0
    for name, value in one.items():
        against = other[name]
        if isinstance(value, int) and isinstance(against, int):
            total += abs(math.log2(max(value, 1)) - math.log2(max(against, 1)))
        elif value is None or against is None:
            total += ABSENT * (value is not against)
        elif value != against:
            total += OTHER_LABEL
    return total


# Few and short regions: the answer is needed soon, and only the order matters.
POLICY = Policy(samples=16, fewest_samples=5, sample_ns=60_000, warmup_ns=120_000, give_up=1.5)
# The first visit may take this share of the budget. The rest is for the finalists: as many as it can time in two passes.
SCREENING, PASSES = 0.6, 2
FINALISTS = 16
# Configs that are compiled together: they share the compiler's start-up, and the budget is checked between batches.
TOGETHER = 8
MOST_CONTENDERS = 32
# A launch longer than this that also takes this many times as long as the quickest one is not repeated.
LONG_NS, FAR_BEHIND = 5_000_000, 2.0
MOST_RETAKEN = 3


@dataclass(frozen=True)
class TimedConfig:
    """A config that gave the right result, and its time."""

    config: Config
    time_ns: float
    samples: int
    """The time is the median of this many regions; 1: the config was far behind at the first visit."""


def contenders(lower_ns: Sequence[float], upper_ns: Sequence[float], most: int = MOST_CONTENDERS) -> list[int]:
    """The places of a ranking that may be the best: their lower bound is not above the first one's upper bound."""
    if not len(lower_ns):
        return []
    return [place for place, lower in enumerate(lower_ns) if place == 0 or lower <= upper_ns[0]][:most]


def measure_top(
    backend: Backend, problem: Problem, configs: Iterable[Config], seconds: float, *, seed: int = 0
) -> list[TimedConfig]:
    """The configs that run the problem correctly, by measured time, fastest first.

    They are visited in the order given until most of `seconds` is spent (but at least one that works), so put the
    promising ones first; making the problem's data does not count. Configs that fail or compute a wrong result are left
    out, and so are long ones that were far behind at their first launch. Raises InvalidValue if none is left.
    """
    if not 0 < seconds < math.inf:
        raise InvalidValue(f"the seconds for measuring must be positive, got {seconds}: 1 is enough for most problems")
    timer = _Timer(POLICY, seconds, backend.runs_on_cpu)
    screening = _Screening(backend, problem, timer)
    try:
        screening.visit(configs)
        # By rank, not by time: a first visit may have met a slow moment.
        finalists = screening.open[: max(2, timer.room(screening.open[0][0]))]
        if len(finalists) > 1:
            timer.time([vector for vector, _ in finalists], lambda vector: None, random.Random(seed))
    finally:
        screening.close()
    raced = [_timed(vector, config) for vector, config in finalists]
    names = {timed.config for timed in raced}
    behind = [timed for timed in screening.visited if timed.config not in names]
    return sorted(raced, key=lambda timed: timed.time_ns) + sorted(behind, key=lambda timed: timed.time_ns)


def _timed(vector: timing.TimedVector, config: Config) -> TimedConfig:
    if not vector.taken():
        return TimedConfig(config, vector.expected_ns, 1)
    return TimedConfig(config, statistics.median(vector.accepted(POLICY.close)), vector.taken())


class _Timer(timing.BlockTimer):
    """The collector's timer, with a time limit."""

    def __init__(self, policy: Policy, seconds: float, cpu_clock: bool) -> None:
        super().__init__(policy, lambda index, nanoseconds: None, cpu_clock)
        self.seconds = seconds
        self.begin: float | None = None

    def start(self) -> None:
        """Start the budget, at the first call only."""
        if self.begin is None:
            self.begin = time.monotonic()

    def spent(self, share: float = 1.0) -> bool:
        """Whether this share of the budget is spent."""
        return self.begin is not None and time.monotonic() > self.begin + share * self.seconds

    def room(self, vector: timing.TimedVector) -> int:
        """How many vectors like this one fit into the rest of the budget, each timed a few times."""
        begin = time.monotonic() if self.begin is None else self.begin
        left_ns = (begin + self.seconds - time.monotonic()) * 1e9
        return int(left_ns / (PASSES * vector.expected_ns * vector.loops))

    def enough(self, vector: timing.TimedVector) -> bool:
        return self.spent() or super().enough(vector)


class _Screening:
    """The first visit: check and time each config once, and keep the best few open."""

    def __init__(self, backend: Backend, problem: Problem, timer: _Timer) -> None:
        self.backend, self.problem, self.timer = backend, problem, timer
        self.open: list[tuple[timing.TimedVector, Config]] = []
        self.visited: list[TimedConfig] = []
        self.seen: set[Config] = set()
        self.failures: list[Exception] = []
        self.quickest_check = math.inf

    def visit(self, configs: Iterable[Config]) -> None:
        """Visit one config after the other until the time is up."""
        for config in self._compiled(iter(configs)):
            try:
                self._one(config)
            except Exception as error:  # by the contract of backends any exception means that this config does not run
                self.failures.append(error)
            if self.open and self.timer.spent(SCREENING):
                return
        if not self.open:
            reason = f"the first error: {self.failures[0]}" if self.failures else "there was none to try"
            raise InvalidValue(f"none of {len(self.seen)} configs runs {self.problem!r} on this machine ({reason})")

    def _compiled(self, configs: Iterator[Config]) -> Iterator[Config]:
        while part := list(islice((config for config in configs if config not in self.seen), TOGETHER)):
            part = list(dict.fromkeys(part))
            self.seen.update(part)
            self.backend.compile([(self.problem, config) for config in part])
            yield from part

    def _one(self, config: Config) -> None:
        kernel = self.backend.prepare(self.problem, config)
        self.timer.start()
        try:
            # The check is also the first launch, with cold caches.
            begin = time.monotonic_ns()
            error = kernel.check()
            spent = time.monotonic_ns() - begin
            if not error <= self.backend.tolerance(self.problem):
                raise WrongResult(error)
            self.quickest_check = min(self.quickest_check, spent)
            if spent > max(LONG_NS, FAR_BEHIND * self.quickest_check):
                kernel.close()
                return
            vector = timing.TimedVector(len(self.visited), kernel, timing.Sentinel(None), self.problem)
            vector.expected_ns = spent
            if spent <= LONG_NS:
                self.timer.warm_up(vector)
            self._first_time(vector)
        except BaseException:
            kernel.close()
            raise
        self.visited.append(TimedConfig(config, vector.expected_ns, 1))
        self.open.append((vector, config))
        self.open.sort(key=lambda item: item[0].expected_ns)
        most = min(FINALISTS, self.backend.max_prepared)
        for behind, _ in self.open[most:]:
            behind.kernel.close()
        del self.open[most:]

    def _first_time(self, vector: timing.TimedVector) -> None:
        """One sample, or a few if the process was off the CPU meanwhile: it decides which configs become finalists."""
        while not vector.quiet and len(vector.disturbed) < MOST_RETAKEN:
            self.timer.sample(vector)
        vector.expected_ns = min(vector.quiet or vector.disturbed)
        vector.forget()

    def close(self) -> None:
        """Close the kernels that are still open."""
        for vector, _ in self.open:
            vector.kernel.close()


KIND = "measured choices"
SCHEMA = 1


class MeasuredChoice(msgspec.Struct, frozen=True):
    """The config that was measured to be the fastest on one problem."""

    problem: dict[str, int | bool | str]
    config: dict[str, int | bool | str]
    time_ns: float
    device: str
    software: str


class MeasuredChoices(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The contents of a file."""

    kind: str
    schema: int
    family: str
    choices: list[MeasuredChoice]


CHOICES = Versioned(
    KIND, SCHEMA, MeasuredChoices, "a file of measured choices", "remove it, or name another file",
    format_field="kind", version_field="schema",
)  # fmt: skip


class ChoiceCache:
    """The measured choices of one family on one backend."""

    def __init__(self, family: Family, backend: Backend, path: str | Path | None = None) -> None:
        self.family = family
        self.path = None if path is None else Path(path)
        self.device = backend.device().name
        software = "\n".join(f"{name}={text}" for name, text in sorted(backend.software(family.id).items()))
        self.software = hashlib.blake2b(software.encode(), digest_size=8).hexdigest()
        self._lock = threading.Lock()
        self._known: dict[Problem, tuple[Config, float]] = {}
        for choice in self._read():
            self._take(choice)

    def get(self, problem: Problem) -> tuple[Config, float] | None:
        """The config and its time, if this problem was measured."""
        return self._known.get(problem)

    def put(self, problem: Problem, config: Config, time_ns: float) -> None:
        """Remember a choice, on disk too if there is a file."""
        with self._lock:
            self._known[problem] = config, time_ns
            if self.path is not None:
                self._write(self.path)

    def nearby(self, problem: Problem, count: int) -> list[Config]:
        """The fastest configs of the most similar problems, without repeats: they are worth trying first."""
        with self._lock:
            by_distance = sorted(self._known.items(), key=lambda item: distance(problem.as_dict(), item[0].as_dict()))
        return list(dict.fromkeys(config for _, (config, _) in by_distance))[:count]

    def _take(self, choice: MeasuredChoice) -> None:
        if (choice.device, choice.software) != (self.device, self.software):
            return
        with contextlib.suppress(KerncastError):  # the family's declaration has changed since: measure again
            problem, config = Problem(self.family, choice.problem), Config(self.family, choice.config)
            self._known[problem] = config, choice.time_ns

    def _read(self) -> list[MeasuredChoice]:
        if self.path is None or not self.path.exists():
            return []
        try:
            found = CHOICES.read(self.path)
        except OSError as error:
            raise BadFile(f"{self.path} cannot be read ({error.strerror}): {CHOICES.remedy}") from error
        if found.family != self.family.id:
            raise BadFile(f"{self.path} holds choices of {found.family}, not of {self.family.id}: name another file")
        return found.choices

    def _write(self, path: Path) -> None:
        mine = [
            MeasuredChoice(_set(problem.as_dict()), _set(config.as_dict()), time_ns, self.device, self.software)
            for problem, (config, time_ns) in self._known.items()
        ]
        measured = {_identity(choice) for choice in mine}
        choices = [choice for choice in self._read() if _identity(choice) not in measured] + mine
        text = CHOICES.text(MeasuredChoices(KIND, SCHEMA, self.family.id, choices), indent=1)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(path, lambda draft: draft.write_bytes(text))
        except OSError as error:
            raise CannotWrite(
                f"measured choices cannot be kept in {path} ({error}): free space, or name another file"
            ) from error


def _set(values: Mapping[str, Value]) -> dict[str, int | bool | str]:
    return {name: value for name, value in values.items() if value is not None}


def _identity(choice: MeasuredChoice) -> tuple[object, ...]:
    return choice.device, choice.software, tuple(sorted(choice.problem.items()))


def check_measured_choices(findings: Findings) -> None:
    """Choices that `select --measure` keeps: each is a problem and a config of the family."""
    with findings.looking(findings.path):
        contents = CHOICES.read(findings.path)
        family = FAMILIES.get(contents.family)
        for number, choice in enumerate(contents.choices, 1):
            try:
                Problem(family, choice.problem), Config(family, choice.config)
            except KerncastError as error:
                raise BadFile(f"{findings.path}, choice {number}: {error}; {CHOICES.remedy}") from error
            if not 0 < choice.time_ns < float("inf"):
                raise BadFile(f"{findings.path}, choice {number}: its time is {choice.time_ns:g} ns; {CHOICES.remedy}")
        findings.checks += ["checksum", f"{len(contents.choices):,} choices"]


MEASURED = ArtefactKind("measured choices", lambda contents: f'"{KIND}"'.encode() in contents.head, check_measured_choices)
