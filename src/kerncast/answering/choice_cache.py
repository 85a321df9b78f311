"""Measured choices, kept for the process and, if there is a file, for later processes.

    {"kind": "measured choices", "schema": 1, "family": "gemm/cpu", "choices": [{"problem": …, "config": …, …}]}

A choice holds for the device and the software (compiler, kernels) that it was measured with; others in the file are
left alone, so one file may serve several machines. Writing is atomic and keeps what other processes wrote meanwhile.
If two processes write at the same moment, one of them may have to measure again.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections.abc import Mapping
from pathlib import Path

import msgspec

from kerncast.answering.distance import distance
from kerncast.core.io.artefact import ArtefactKind, Findings
from kerncast.core.io.atomic import replace_file
from kerncast.core.io.versioned import Versioned
from kerncast.core.op import Config, Family, Problem
from kerncast.core.space import Value
from kerncast.errors import BadFile, CannotWrite, KerncastError
from kerncast.library.registry import FAMILIES
from kerncast.measuring.backends.contract import Backend

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
