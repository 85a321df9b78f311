"""`state.json` of a work directory: which steps are done, when, where and with what."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import msgspec

from kerncast.core.io.artefact import ArtefactKind, Findings, Versioned
from kerncast.core.io.atomic import is_draft, write_bytes
from kerncast.errors import InvalidValue
from kerncast.regenerating.routine import STEPS, Routine
from kerncast.version import __version__

FILE = "state.json"
LOCK = "regenerate.lock"
FORMAT = "kerncast-regeneration"
VERSION = 1


class FinishedStep(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A finished step and what it found."""

    at: str
    facts: dict[str, Any] = {}


class RoutineState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The contents of `state.json`."""

    routine: str
    measures: str
    """Of the routine: other measurements need another directory."""
    learns: str
    """Of the routine: other models are trained on the same measurements."""
    begun: str
    host: str
    kerncast: str
    families: tuple[str, ...]
    steps: tuple[str, ...]
    """Of the routine, which may have others the next time."""
    done: dict[str, dict[str, FinishedStep]] = {}
    """Family → step → its result."""
    format: str = FORMAT
    version: int = VERSION

    def of(self, family: str) -> dict[str, FinishedStep]:
        """The finished steps of a family."""
        return self.done.get(family, {})

    @property
    def finished(self) -> bool:
        """Whether every step of every family is done."""
        return all(step in self.of(family) for family in self.families for step in self.steps)

    def with_done(self, family: str, step: str, facts: dict[str, Any]) -> RoutineState:
        """The state with one more step done."""
        steps = {**self.of(family), step: FinishedStep(now(), facts)}
        return msgspec.structs.replace(self, done={**self.done, family: steps})

    def without(self, family: str, step: str) -> RoutineState:
        """Back to before a step: it and those after it are to be done again."""
        kept = STEPS[: STEPS.index(step)]
        steps = {name: done for name, done in self.of(family).items() if name in kept}
        return msgspec.structs.replace(self, done={**self.done, family: steps})


_FILE = Versioned(
    FORMAT, VERSION, RoutineState, "the state of a regeneration that this kerncast can continue",
    "remove the directory, or choose another `out`",
)  # fmt: skip


def now() -> str:
    """UTC, to the second."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def own_version() -> str:
    """kerncast's version, with the commit where it runs from a checkout."""
    checkout = Path(__file__).parents[3]
    if not (checkout / ".git").exists():
        return __version__
    try:
        answer = subprocess.run(
            ["git", "-C", str(checkout), "rev-parse", "HEAD"], capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return __version__
    return f"{__version__} {answer.stdout.strip()}"


def new(routine: Routine) -> RoutineState:
    """A state with nothing done yet."""
    host = platform.node() or "unknown"
    return RoutineState(
        routine.name, routine.measures, routine.learns, now(), host, own_version(), tuple(routine.families), routine.steps
    )


def going_on(folder: Path, routine: Routine, again: bool = False) -> RoutineState | None:
    """The run to continue, or None to begin one; a run with other measurements is refused.

    With `again`, a finished run is not continued.
    """
    state = read(folder)
    if state is None or (again and state.finished):
        return None
    if state.measures != routine.measures:
        raise InvalidValue(
            f"{folder} was begun with another routine ({state.routine}, {state.begun}): continue it, or choose another `out`"
        )
    return state


def read(folder: Path) -> RoutineState | None:
    """The state of a work directory; None where there is none."""
    file = folder / FILE
    if not file.is_file():
        # A run that was killed before its first state leaves its lock, or a draft of that state.
        if folder.is_dir() and any(item.name != LOCK and not is_draft(item.name, FILE) for item in folder.iterdir()):
            raise InvalidValue(f"{folder} is not a work directory of `kerncast regenerate`: choose another `out`")
        return None
    return _FILE.read(file)


def write(folder: Path, state: RoutineState) -> None:
    """Write the state, whole or not at all."""
    write_bytes(folder / FILE, _FILE.text(state))


def set_aside(folder: Path) -> None:
    """Rename the directory of a finished run, if there is one; the new name says when the run began."""
    state = read(folder)
    if state is None or not state.finished:
        return
    stamp = state.begun.replace(":", "").replace("-", "")
    os.rename(folder, folder.with_name(f"{folder.name}.{stamp}"))


def check_regeneration(findings: Findings) -> None:
    """The state of a work directory; the artefacts in it are checked by themselves."""
    with findings.looking(findings.path / FILE, "state"):
        done = read(findings.path)
        if done is not None and not done.finished:
            findings.notes.append("it is unfinished: the same `kerncast regenerate` continues it")


WORK = ArtefactKind("regeneration", lambda contents: contents.holds(FILE), check_regeneration, (FILE,), holds_others=True)
