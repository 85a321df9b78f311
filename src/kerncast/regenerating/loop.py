"""The loop: the steps of a routine, one after the other, each once. After a kill the same call continues.

A work directory holds, for each family, what its steps write (`vectors`, `dataset`, `model`, `judged`, `comparison.json`), and
one `state.json` that says what is done.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec

from kerncast.collecting.run import never
from kerncast.errors import CannotWrite
from kerncast.files.lock import one_writer
from kerncast.progress import QUIET, Progress
from kerncast.regenerating import figures, planning, steps
from kerncast.regenerating import state as states
from kerncast.regenerating.routine import Routine
from kerncast.regenerating.work import Facts, Listening, Work, folder_of
from kerncast.registry import FAMILIES
from kerncast.store.store import Store

Step = Callable[[], Facts | None]
STEPS: Mapping[str, Callable[[Work], Facts | None]] = {
    "sweep": steps.sweep, "collect": steps.measure, "repeat": steps.repeat, "train": steps.learn,
    "report": figures.report, "export": figures.export, "race": figures.race,
    "compare": steps.judge, "replace": steps.replace,
}  # fmt: skip
TRAINED = "TRAINED"
"""The verdict where a routine compares nothing."""


@dataclass(frozen=True)
class Outcome:
    """The result for one family; without a verdict it is unfinished, and the same call continues."""

    family: str
    verdict: str | None
    reasons: list[str]
    replaced: bool
    model: str
    """Where the new model is: in the store, or, if it did not get there, in the work directory."""

    @property
    def finished(self) -> bool:
        return self.verdict is not None


def walk(
    steps: Mapping[str, Step],
    begin: Callable[[str, bool], None],
    keep: Callable[[str, Facts], None],
    done: Collection[str] = (),
) -> str | None:
    """Run the steps that are not done, in order. Returns the name of one that did not finish; None: all are done."""
    for name, step in steps.items():
        begin(name, name in done)
        if name in done:
            continue
        facts = step()
        if facts is None:
            return name
        keep(name, facts)
    return None


def regenerate(
    routine: Routine,
    store: Store,
    folder: Path,
    *,
    again: bool = False,
    progress: Progress = QUIET,
    listening: Listening = lambda: nullcontext(never),
) -> list[Outcome]:
    """Run every step that is not done yet, for every family; results of finished ones are read from the state."""
    before = states.going_on(folder, routine, again)
    swept = [] if before is None else [name for name in routine.families if {"sweep", "collect"} & {*before.of(name)}]
    planning.check(routine, swept)
    if before is None:
        states.set_aside(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with one_writer(folder, states.LOCK, "choose another `out`"):
        # Another run may have got further before it released the lock.
        state = states.going_on(folder, routine) or states.new(routine)
        states.write(folder, msgspec.structs.replace(state, steps=routine.steps))
        if state.learns != routine.learns:
            _forget_models(folder, routine)
        outcomes: list[Outcome] = []
        for family in routine.families:
            outcomes.append(_outcome(Work(routine, store, folder, FAMILIES.get(family), progress, listening)))
            if not outcomes[-1].finished:
                break
        return outcomes


def _outcome(work: Work) -> Outcome:
    """Run the steps of one family; stop at one that does not finish."""
    steps.forget_old_comparison(work)
    work.folder.mkdir(parents=True, exist_ok=True)
    own: dict[str, Step] = {name: partial(STEPS[name], work) for name in work.routine.steps}
    stopped = walk(own, work.begin, work.keep, work.state().of(work.family.id))
    if stopped is not None:
        return Outcome(work.family.id, None, [f"stopped during {stopped}"], False, "")
    facts: Facts = {"verdict": TRAINED, "reasons": ["nothing was compared"], "replaced": False, "model": str(work.model)}
    for step in ("compare", "replace"):
        facts |= work.facts(step) if step in own else {}
    return Outcome(work.family.id, facts["verdict"], facts["reasons"], facts["replaced"], facts["model"])


def _forget_models(root: Path, routine: Routine) -> None:
    """Keep the measurements, and remove the models that were trained with other settings."""
    state = states.going_on(root, routine)
    assert state is not None
    for family in state.families:
        state = state.without(family, "train")
    # If killed in between, a model that is still there belongs to no routine.
    states.write(root, msgspec.structs.replace(state, learns=""))
    for family in state.families:
        model = folder_of(routine, root, family) / "model"
        try:
            if model.exists():
                shutil.rmtree(model)
        except OSError as error:
            raise CannotWrite(
                f"could not remove {model}: {error.strerror}; remove it and run the same command again"
            ) from error
    states.write(root, msgspec.structs.replace(state, learns=routine.learns))
