"""One family of a routine in its work directory: where its files are, and what is done."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kerncast.collecting.run import Stop
from kerncast.errors import BadFile
from kerncast.op import Family
from kerncast.progress import Progress
from kerncast.regenerating import state as states
from kerncast.regenerating.routine import Routine
from kerncast.store.store import Store

Facts = dict[str, Any]
"""What a step found out, as `state.json` keeps it."""
Listening = Callable[[], AbstractContextManager[Stop]]
"""Makes a context manager that is entered while measuring and yields a `Stop`; the command line catches signals there."""


@dataclass(frozen=True)
class Work:
    """What every step of a routine takes."""

    routine: Routine
    store: Store
    root: Path
    family: Family
    progress: Progress
    listening: Listening

    @property
    def folder(self) -> Path:
        """Where the files of this family are."""
        return folder_of(self.routine, self.root, self.family.id)

    @property
    def vectors(self) -> Path:
        return self.folder / "vectors"

    @property
    def dataset(self) -> Path:
        return self.folder / (self.family.id.replace("/", "_") if self.routine.flat else "dataset")

    @property
    def second_dataset(self) -> Path:
        """Where the step `repeat` puts what it measures."""
        return self.dataset.with_name(f"{self.dataset.name}-2")

    @property
    def datasets(self) -> list[Path]:
        """All measurements to learn from."""
        return [self.dataset, self.second_dataset] if "repeat" in self.routine.steps else [self.dataset]

    @property
    def model(self) -> Path:
        return self.folder / "model"

    def state(self) -> states.State:
        """What `state.json` says now."""
        state = states.read(self.root)
        if state is None:
            raise BadFile(f"{self.root / states.FILE} disappeared while it was in use: run the same command again")
        return state

    def facts(self, step: str) -> Facts:
        """What a finished step found out."""
        return self.state().of(self.family.id)[step].facts

    def keep(self, step: str, facts: Facts) -> None:
        """Record a finished step."""
        states.write(self.root, self.state().with_done(self.family.id, step, facts))

    def begin(self, step: str, already: bool = False) -> None:
        """Say that a step begins, or that an earlier run has done it."""
        steps: list[str] = [*self.routine.steps]
        title = f"{self.family.id}: {step}{' (done before)' if already else ''}"
        self.progress.stage(title, 1 + steps.index(step), len(steps))


def folder_of(routine: Routine, root: Path, family: str) -> Path:
    """Where the files of a family are in a work directory."""
    return root if routine.flat else root / family.replace("/", "-")
