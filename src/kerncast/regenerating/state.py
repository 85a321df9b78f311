"""`state.json` of a work directory: which stages are done, when, where and with what."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import msgspec

from kerncast.errors import InvalidValue
from kerncast.files.atomic import is_draft, write_bytes
from kerncast.files.versioned import Versioned
from kerncast.regenerating.routine import Routine
from kerncast.version import __version__

FILE = "state.json"
LOCK = "regenerate.lock"
FORMAT = "kerncast-regeneration"
VERSION = 1
STAGES = ("sweep", "collect", "train", "compare", "replace")


class Done(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A finished stage and what it found."""

    at: str
    facts: dict[str, Any] = {}


class State(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The contents of `state.json`."""

    routine: str
    measures: str
    """Of the routine: other measurements need another directory."""
    learns: str
    """Of the routine that trained the models; empty while models of another routine are being removed."""
    begun: str
    host: str
    kerncast: str
    families: tuple[str, ...]
    done: dict[str, dict[str, Done]] = {}
    """Family → stage → its result."""
    format: str = FORMAT
    version: int = VERSION

    def of(self, family: str) -> dict[str, Done]:
        """The finished stages of a family."""
        return self.done.get(family, {})

    @property
    def finished(self) -> bool:
        """Whether every stage of every family is done."""
        return all(stage in self.of(family) for family in self.families for stage in STAGES)

    def with_done(self, family: str, stage: str, facts: dict[str, Any]) -> State:
        """The state with one more stage done."""
        stages = {**self.of(family), stage: Done(now(), facts)}
        return msgspec.structs.replace(self, done={**self.done, family: stages})

    def without(self, family: str, stage: str) -> State:
        """Back to before a stage: it and those that build on it are to be done again."""
        kept = STAGES[: STAGES.index(stage)]
        stages = {name: done for name, done in self.of(family).items() if name in kept}
        return msgspec.structs.replace(self, done={**self.done, family: stages})


_FILE = Versioned(
    FORMAT, VERSION, State, "the state of a regeneration that this kerncast can continue",
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
        said = subprocess.run(
            ["git", "-C", str(checkout), "rev-parse", "HEAD"], capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return __version__
    return f"{__version__} {said.stdout.strip()}"


def new(routine: Routine) -> State:
    """A state with nothing done yet."""
    host = platform.node() or "unknown"
    return State(routine.name, routine.measures, routine.learns, now(), host, own_version(), tuple(routine.families))


def going_on(folder: Path, routine: Routine, again: bool = False) -> State | None:
    """The run to continue, or None to begin one; a run with other measurements is refused.

    With `again`, a finished run is not continued.
    """
    found = read(folder)
    if found is None or (again and found.finished):
        return None
    if found.measures != routine.measures:
        raise InvalidValue(
            f"{folder} was begun with another routine ({found.routine}, {found.begun}): continue it, or choose another `out`"
        )
    return found


def read(folder: Path) -> State | None:
    """The state of a work directory; None where there is none."""
    file = folder / FILE
    if not file.is_file():
        # A run that was killed before its first state leaves its lock, or a draft of that state.
        if folder.is_dir() and any(item.name != LOCK and not is_draft(item.name, FILE) for item in folder.iterdir()):
            raise InvalidValue(f"{folder} is not a work directory of `kerncast regenerate`: choose another `out`")
        return None
    return _FILE.read(file)


def write(folder: Path, state: State) -> None:
    """Write the state, whole or not at all."""
    write_bytes(folder / FILE, _FILE.text(state))


def set_aside(folder: Path) -> None:
    """Rename the directory of a finished run, if there is one; the new name says when the run began."""
    state = read(folder)
    if state is None or not state.finished:
        return
    stamp = state.begun.replace(":", "").replace("-", "")
    target = folder.with_name(f"{folder.name}.{stamp}")
    number = 1
    while target.exists():
        number += 1
        target = folder.with_name(f"{folder.name}.{stamp}-{number}")
    os.rename(folder, target)
