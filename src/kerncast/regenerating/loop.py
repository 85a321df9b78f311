"""The loop: the steps of a routine, one after the other, each once. After a kill the same call continues.

A step returns facts for `state.json`, which says what is done, or None if it was stopped before its end. Each can be repeated.
The folder of a family holds what its steps write: `vectors`, `dataset`, `model`, `judged`, `comparison.json`.
"""

from __future__ import annotations

import dataclasses
import datetime
import os
import platform
import shutil
import subprocess
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from kerncast.core.io.artefact import ArtefactKind, Findings, Versioned, json_text
from kerncast.core.io.atomic import is_draft, write_bytes
from kerncast.core.io.lock import one_writer
from kerncast.core.op import Family
from kerncast.core.progress import QUIET, Progress, Stop, never
from kerncast.data.dataset import Dataset
from kerncast.data.formats import ImportOptions
from kerncast.data.importing import import_files
from kerncast.errors import BadFile, InvalidValue
from kerncast.evaluating.compare import SAME
from kerncast.library.registry import FAMILIES
from kerncast.measuring.plan import Extent
from kerncast.measuring.run import collect
from kerncast.measuring.sweeping import Vectors, write_vectors
from kerncast.models.model import Model
from kerncast.models.store.store import Changed, Store
from kerncast.regenerating import figures, planning
from kerncast.regenerating.routine import STEPS as STEP_NAMES
from kerncast.regenerating.routine import Facts, Routine, Step, walk
from kerncast.regenerating.updating import NOT_COMPARABLE, compare_fairly
from kerncast.training.train import train
from kerncast.version import __version__

FILE = "state.json"
LOCK = "regenerate.lock"
FORMAT = "kerncast-regeneration"
VERSION = 1


def now() -> str:
    """UTC, to the second."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


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
        kept = STEP_NAMES[: STEP_NAMES.index(step)]
        steps = {name: done for name, done in self.of(family).items() if name in kept}
        return msgspec.structs.replace(self, done={**self.done, family: steps})


_FILE = Versioned(
    FORMAT, VERSION, RoutineState, "the state of a regeneration that this kerncast can continue",
    "remove the directory, or choose another `out`",
)  # fmt: skip


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


def check_regeneration(findings: Findings) -> None:
    """The state of a work directory; the artefacts in it are checked by themselves."""
    with findings.looking(findings.path / FILE, "state"):
        done = read(findings.path)
        if done is not None and not done.finished:
            findings.notes.append("it is unfinished: the same `kerncast regenerate` continues it")


WORK = ArtefactKind("regeneration", lambda contents: contents.holds(FILE), check_regeneration, (FILE,), holds_others=True)


# Verdicts besides those of `compare`: there was no old model, or it could not be read.
NEW, UNREADABLE = "NEW", "OLD UNREADABLE"
# That of a routine that compares nothing.
TRAINED = "TRAINED"

Listening = Callable[[], AbstractContextManager[Stop]]
"""Makes a context manager that is entered while measuring and yields a `Stop`; the command line catches signals there."""


@dataclass(frozen=True)
class FamilyRun:
    """What every step of a routine takes."""

    routine: Routine
    store: Store
    root: Path
    family: Family
    replaces: bool
    """Whether the new model may take the place of one in the store."""
    progress: Progress
    listening: Listening

    @property
    def folder(self) -> Path:
        """Where the files of this family are."""
        return self.root if self.routine.flat else self.root / self.family.id.replace("/", "-")

    @property
    def datasets(self) -> list[Path]:
        """The measurements to learn from: those of `collect`, and those of `repeat`, if there is such a step."""
        first = self.folder / (self.family.id.replace("/", "_") if self.routine.flat else "dataset")
        return [first, first.with_name(f"{first.name}-2")] if "repeat" in self.routine.steps else [first]

    @property
    def model(self) -> Path:
        return self.folder / "model"

    def state(self) -> RoutineState:
        """What `state.json` says now."""
        if (state := read(self.root)) is None:
            raise BadFile(f"{self.root / FILE} disappeared while it was in use: run the same command again")
        return state

    def facts(self, step: str) -> Facts:
        """What a finished step found out."""
        return self.state().of(self.family.id)[step].facts

    def keep(self, step: str, facts: Facts) -> None:
        """Record a finished step."""
        write(self.root, self.state().with_done(self.family.id, step, facts))


def _sweeps(run: FamilyRun) -> list[planning.AnySweep]:
    device = planning.device_of(planning.runner_of(run.routine, run.family))
    return planning.sweeps_of(run.routine, run.family, device)


def sweep(run: FamilyRun) -> Facts | None:
    """Write the vectors."""
    if run.routine.imported is not None:
        return {"files": [str(path) for path in run.routine.imported.paths]}
    # Half a sweep is not worth continuing: a sweep takes seconds, and this machine's numbers may have changed.
    shutil.rmtree(run.folder / "vectors", ignore_errors=True)
    (whole,) = _sweeps(run)
    written = write_vectors(whole, run.folder / "vectors", progress=run.progress)
    return {"problems": written.problems, "configs": written.configs, "vectors": written.vectors}


def measure(run: FamilyRun) -> Facts | None:
    """Measure the vectors that have no row yet, or read what others measured."""
    if (wanted := run.routine.imported) is not None:
        (dataset,) = run.datasets
        if not dataset.exists():
            options = ImportOptions(wanted.device, wanted.software, values=wanted.settings)
            import_files(wanted.format, wanted.paths, dataset, options, run.progress.say)
        rows = Dataset.open(dataset).read(run.family, columns=["device", "status"])
        statuses = dict(sorted(rows["status"].value_counts().iter_rows()))
        return {"device": sorted(rows["device"].unique()), "measured": rows.height, "statuses": statuses}
    sources = [Vectors.open(run.folder / "vectors")] if "sweep" in run.routine.steps else _sweeps(run)
    blocks = (block for source in sources for block in source.iter_blocks())
    return _collected(run, run.datasets[0], blocks, sum(source.count() for source in sources), 1.0)


def repeat(run: FamilyRun) -> Facts | None:
    """Measure some problems again, at another time: a shared machine is slow for a while, and two times tell the noise."""
    sweeps = _sweeps(run)
    problems, share = planning.repeated(sweeps, run.routine.collect.repeat)
    parts = [
        block.join(problems, on=problems.columns, how="semi", nulls_equal=True, maintain_order="left")
        for one in sweeps
        for block in one.iter_blocks()
    ]
    return _collected(run, run.datasets[1], parts, sum(part.height for part in parts), share)


def _collected(run: FamilyRun, out: Path, blocks: Iterable[pl.DataFrame], total: int, share: float) -> Facts | None:
    wanted, runner = run.routine.collect, planning.runner_of(run.routine, run.family)
    seconds = wanted.second_visit_seconds
    request = dataclasses.replace(
        runner.request(out, Extent(resume=True)), second_visit_seconds=None if seconds is None else share * seconds
    )
    with run.listening() as stop:
        summary = collect(request, blocks, total=total, progress=run.progress, stop=stop)
    if summary.without_a_row or summary.interrupted:
        return None
    return {"device": summary.device, "measured": summary.measured, "statuses": dict(summary.statuses)}


def learn(run: FamilyRun) -> Facts | None:
    """Train and cross-validate."""
    # One that is there was trained with other settings, or in a run that was killed at its end.
    shutil.rmtree(run.model, ignore_errors=True)
    recipe, where = planning.training_of(run.routine), run.routine.train.where
    manifest = train(run.datasets, run.model, recipe, family=run.family.id, where=where, progress=run.progress).manifest
    return {"software": list(manifest.software), "rows": manifest.data.rows, "checksum": manifest.checksum}


def judge(run: FamilyRun) -> Facts | None:
    """Compare the new model with the one that it would replace."""
    new, name = Model.load(run.model), run.routine.store.given_name
    facts: Facts = {"asked": _settings(run), "against": run.store.mark(new, name), "old": None}
    try:
        entry = run.store.earlier(new, name)
        if entry is None:
            return {**facts, "verdict": NEW, "reasons": ["the store had no such model for this device"]}
        facts |= {"old": entry.id, "old_software": list(entry.software)}
        old = entry.load()
        if old.manifest.checksum == new.manifest.checksum:  # an earlier run was killed right after adding it
            return {**facts, "verdict": SAME, "reasons": ["the store has this very model"]}
    except BadFile as error:
        return {**facts, "verdict": UNREADABLE, "reasons": [str(error)]}
    judged, where = run.folder / "judged", run.routine.train.where
    shutil.rmtree(judged, ignore_errors=True)
    verdict = compare_fairly(old, new, run.datasets[0], judged, planning.limits_of(run.routine), where)
    if verdict is None:
        why = "there is no problem on which both models can be judged without having seen it"
        return {**facts, "verdict": NOT_COMPARABLE, "reasons": [why]}
    write_bytes(run.folder / "comparison.json", json_text(verdict.as_json()))
    return {**facts, "verdict": verdict.verdict, "reasons": list(verdict.reasons), "problems": verdict.n}


def replace(run: FamilyRun) -> Facts | None:
    """Put the new model into the store, over nothing but the model that it was compared with."""
    name, state = run.routine.store.given_name, run.state()
    while True:
        compared = run.facts("compare")
        refused = {"WORSE", NOT_COMPARABLE} | ({"AMBIGUOUS"} if run.routine.compare.strict else set())
        if compared["verdict"] in refused:
            return {"replaced": False, "model": str(run.model), "waits": False}
        if not run.replaces and compared["against"]:
            return {"replaced": False, "model": str(run.model), "waits": True}
        origin = {
            "routine": f"{state.routine} {run.routine.digest}", "host": state.host, "regenerated": state.begun,
            "kerncast": state.kerncast, "verdict": compared["verdict"],
        }  # fmt: skip
        try:
            entry = run.store.add(run.model, name=name, replace=True, origin=origin, over=compared["against"])
            return {"replaced": True, "model": entry.id, "waits": False}
        except Changed:
            # Another process added a model meanwhile, and this one was not compared with it.
            walk({"compare": partial(judge, run)}, run.family.id, run.progress, run.keep)


def _settings(run: FamilyRun) -> Facts:
    """What decides a comparison, besides the models."""
    compare = msgspec.structs.asdict(run.routine.compare)
    return {"store": str(run.store.path.resolve()), "name": run.routine.store.name, **compare}


STEPS: Mapping[str, Callable[[FamilyRun], Facts | None]] = {
    "sweep": sweep, "collect": measure, "repeat": repeat, "train": learn,
    "report": figures.report, "export": figures.export, "race": figures.race,
    "compare": judge, "replace": replace,
}  # fmt: skip


@dataclass(frozen=True)
class FamilyOutcome:
    """The result for one family; without a verdict it is unfinished, and the same call continues."""

    family: str
    verdict: str | None
    reasons: list[str]
    replaced: bool
    model: str
    """Where the new model is: in the store, or, if it did not get there, in the work directory."""
    waits: bool = False
    """Whether it is not worse than the one in the store, and only `replace` is missing."""

    @property
    def finished(self) -> bool:
        return self.verdict is not None


def regenerate(
    routine: Routine,
    store: Store,
    folder: Path,
    *,
    again: bool = False,
    replace: bool = False,
    progress: Progress = QUIET,
    listening: Listening = lambda: nullcontext(never),
) -> list[FamilyOutcome]:
    """Run every step that is not done yet, for every family; results of finished ones are read from the state."""
    before = going_on(folder, routine, again)
    swept = [] if before is None else [name for name in routine.families if {"sweep", "collect"} & {*before.of(name)}]
    planning.check(routine, swept)
    if before is None and (finished := read(folder)) is not None and finished.finished:
        # The new name says when that run began.
        os.rename(folder, folder.with_name(f"{folder.name}.{finished.begun.replace(':', '').replace('-', '')}"))
    folder.mkdir(parents=True, exist_ok=True)
    with one_writer(folder, LOCK, "choose another `out`"):
        # Another run may have got further before it released the lock.
        state = going_on(folder, routine) or RoutineState(
            routine.name, routine.measures, routine.learns, now(), platform.node() or "unknown", own_version(),
            tuple(routine.families), routine.steps,
        )  # fmt: skip
        if state.learns != routine.learns:  # the measurements are kept
            for family in state.families:
                state = state.without(family, "train")
        write(folder, msgspec.structs.replace(state, steps=routine.steps, learns=routine.learns))
        outcomes: list[FamilyOutcome] = []
        for family in routine.families:
            one = FamilyRun(routine, store, folder, FAMILIES.get(family), replace, progress, listening)
            outcomes.append(_outcome(one))
            if not outcomes[-1].finished:
                break
        return outcomes


def _outcome(run: FamilyRun) -> FamilyOutcome:
    """Run the steps of one family; stop at one that does not finish."""
    done = run.state().of(run.family.id)
    waits = run.replaces and "replace" in done and done["replace"].facts["waits"]
    if "compare" in done and (waits or len(done) < len(run.routine.steps) or done["compare"].facts["asked"] != _settings(run)):
        # Another model may be in the store by now, or other limits hold; or the new model waited for `replace`.
        write(run.root, run.state().without(run.family.id, "compare"))
    run.folder.mkdir(parents=True, exist_ok=True)
    own: dict[str, Step] = {name: partial(STEPS[name], run) for name in run.routine.steps}
    stopped = walk(own, run.family.id, run.progress, run.keep, run.state().of(run.family.id))
    if stopped is not None:
        return FamilyOutcome(run.family.id, None, [f"stopped during {stopped}"], False, "")
    facts: Facts = {"verdict": TRAINED, "reasons": ["nothing was compared"], "replaced": False, "model": str(run.model)}
    for step in ("compare", "replace"):
        facts |= run.facts(step) if step in own else {}
    named = (item.name for item in fields(FamilyOutcome))
    return FamilyOutcome(run.family.id, **{name: facts[name] for name in named if name in facts})
