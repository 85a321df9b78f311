"""What was checked of an artefact, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kerncast.errors import KerncastError
from kerncast.progress import QUIET, Progress


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong: the file, and a sentence with the next step."""

    file: Path
    sentence: str


@dataclass(frozen=True)
class Checked:
    """One artefact."""

    path: Path
    kind: str
    checks: tuple[str, ...]
    """What was found to be as it should be."""
    faults: tuple[Fault, ...]
    notes: tuple[str, ...]
    """What is no damage but should be known: an unfinished collection, files that nobody lists."""

    @property
    def whole(self) -> bool:
        """Whether nothing is wrong with it."""
        return not self.faults


class Findings:
    """Gathers what is found about one artefact."""

    def __init__(self, path: Path, kind: str, progress: Progress = QUIET) -> None:
        self.path, self.kind, self.progress = path, kind, progress
        self.checks: list[str] = []
        self.faults: list[Fault] = []
        self.notes: list[str] = []

    @contextmanager
    def looking(self, file: Path, what: str = "") -> Iterator[None]:
        """What an error inside says is wrong with the file; without one, `what` was checked."""
        try:
            yield
        except KerncastError as error:
            self.wrong(file, str(error))
        except OSError as error:
            self.wrong(file, f"{file} cannot be read ({error.strerror or error}): restore it")
        else:
            if what:
                self.checks.append(what)

    def wrong(self, file: Path, sentence: str) -> None:
        """Record a fault; one that several checks come across counts once."""
        fault = Fault(file, sentence)
        if fault not in self.faults:
            self.faults.append(fault)

    def checked(self) -> Checked:
        """What was found."""
        return Checked(self.path, self.kind, tuple(self.checks), tuple(self.faults), tuple(self.notes))
