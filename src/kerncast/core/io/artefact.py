"""Kinds of artefacts: how each is known by what lies at a path, and what `kerncast inspect --verify` checks of it.

Each kind is declared beside the code that reads it. A check uses that code, runs nothing of the artefact, and goes on after a
fault, so that all of them are named.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from kerncast.core.io.foreign import read_toml
from kerncast.core.progress import QUIET, Progress
from kerncast.errors import KerncastError

# Bytes of a file that say what it is.
HEAD_BYTES = 4096


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


class PathContents:
    """What lies at a path, as far as it tells the kind of an artefact."""

    def __init__(self, path: Path) -> None:
        self.path, self.is_folder, self.is_file = path, path.is_dir(), path.is_file()

    def holds(self, *names: str) -> bool:
        """Whether it is a folder with one of these files in it."""
        return self.is_folder and any((self.path / name).exists() for name in names)

    def holds_like(self, pattern: str) -> bool:
        """Whether it is a folder with such a file in it, or further down."""
        return self.is_folder and next(self.path.glob(pattern), None) is not None

    @cached_property
    def head(self) -> bytes:
        """The beginning of a file; nothing of one that cannot be read, or of a pipe, which may never end."""
        if not self.is_file:
            return b""
        try:
            with self.path.open("rb") as file:
                return file.read(HEAD_BYTES)
        except OSError:
            return b""

    @cached_property
    def toml(self) -> Mapping[str, Any]:
        """The tables of a TOML file; of anything else none."""
        try:
            return read_toml(self.path) if self.is_file and self.path.suffix == ".toml" else {}
        except (OSError, KerncastError, tomllib.TOMLDecodeError):
            return {}


@dataclass(frozen=True)
class ArtefactKind:
    """One kind of artefact."""

    name: str
    is_at: Callable[[PathContents], bool]
    """A folder is known by the names in it, so that one with a damaged or missing manifest is still known."""
    check: Callable[[Findings], None]
    manifests: tuple[str, ...] = ()
    """Its files whose name stands for the folder."""
    holds_others: bool = False
    """Whether the artefacts inside of the folder are checked by themselves."""


def kind_that_is_read(
    name: str, is_at: Callable[[PathContents], bool], read: Callable[[Path], object], what: str
) -> ArtefactKind:
    """A kind of which `verify` checks what its reader does: `what`."""

    def check(findings: Findings) -> None:
        with findings.looking(findings.path, what):
            read(findings.path)

    return ArtefactKind(name, is_at, check)


def kind_of_toml(name: str, keys: frozenset[str], read: Callable[[Path], object], what: str = "keys") -> ArtefactKind:
    """A TOML file that people write, known by its keys."""
    return kind_that_is_read(name, lambda contents: keys <= contents.toml.keys(), read, what)
