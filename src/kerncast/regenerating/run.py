"""The stages of a regeneration. Each can be repeated, so after a kill the same call continues.

A work directory holds, for each family, `vectors`, `dataset`, `model`, `judged` (the rows the models were compared on)
and `comparison.json`, and one `state.json` that says what is done.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from kerncast.collecting.run import Request, Stop, collect, never
from kerncast.data.dataset import Dataset
from kerncast.data.importers import Options, import_files
from kerncast.errors import BadFile, CannotWrite
from kerncast.files.atomic import write_bytes
from kerncast.files.lock import one_writer
from kerncast.files.versioned import json_text
from kerncast.models.model import Model
from kerncast.op import Family
from kerncast.progress import QUIET, Progress
from kerncast.regenerating import planning
from kerncast.regenerating import state as states
from kerncast.regenerating.comparing import compare_fairly
from kerncast.regenerating.routine import Import, Routine
from kerncast.registry import FAMILIES
from kerncast.store.store import Changed, Entry, Store
from kerncast.sweeping import Vectors, write_vectors
from kerncast.training.train import train

# Verdicts besides those of `compare`: there was no old model, it could not be read, or nothing can be compared.
NEW, UNREADABLE, NOT_COMPARABLE = "NEW", "OLD UNREADABLE", "NOT COMPARABLE"


Listening = Callable[[], AbstractContextManager[Stop]]
"""Makes a context manager that is entered while measuring and yields a `Stop`; the command line catches signals there."""


@dataclass(frozen=True)
class Outcome:
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
) -> list[Outcome]:
    """Run every stage that is not done yet, for every family; results of finished ones are read from the state."""
    before = states.going_on(folder, routine, again)
    planning.check(routine, [name for name in routine.families if before is not None and "sweep" in before.of(name)])
    if before is None:
        states.set_aside(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with one_writer(folder, states.LOCK, "choose another `out`"):
        # Another run may have got further before it released the lock.
        state = states.going_on(folder, routine) or states.new(routine)
        states.write(folder, state)
        if state.learns != routine.learns:
            _forget_models(folder, state, routine)
        outcomes: list[Outcome] = []
        for family in routine.families:
            outcomes.append(_Run(routine, store, folder, FAMILIES.get(family), replace, progress, listening).all())
            if not outcomes[-1].finished:
                break
        return outcomes


def _forget_models(root: Path, state: states.State, routine: Routine) -> None:
    """Keep the measurements, and remove the models that were trained with other settings."""
    for family in state.families:
        state = state.without(family, "train")
    # If killed in between, a model that is still there belongs to no routine.
    states.write(root, msgspec.structs.replace(state, learns=""))
    for family in state.families:
        model = _folder(root, family) / "model"
        try:
            if model.exists():
                shutil.rmtree(model)
        except OSError as error:
            raise CannotWrite(
                f"could not remove {model}: {error.strerror}; remove it and run the same command again"
            ) from error
    states.write(root, msgspec.structs.replace(state, learns=routine.learns))


def _folder(root: Path, family: str) -> Path:
    return root / family.replace("/", "-")


class _Run:
    """The stages of one family."""

    def __init__(
        self, routine: Routine, store: Store, folder: Path, family: Family, replace: bool, progress: Progress,
        listening: Listening,
    ) -> None:  # fmt: skip
        self.routine, self.store, self.root, self.family = routine, store, folder, family
        self.replaces, self.progress, self.listening = replace, progress, listening
        self.folder = _folder(folder, family.id)

    def all(self) -> Outcome:
        """Run the stages in order; stop at one that does not finish."""
        self._doubt()
        for stage in states.STAGES:
            done = self._state().of(self.family.id)
            self._begin(stage, stage in done)
            if stage in done:
                continue
            self.folder.mkdir(parents=True, exist_ok=True)
            facts = getattr(self, f"_{stage}")()
            if facts is None:
                return Outcome(self.family.id, None, [f"stopped during {stage}"], False, "")
            states.write(self.root, self._state().with_done(self.family.id, stage, facts))
        done = self._state().of(self.family.id)
        compared, replaced = done["compare"].facts, {"waits": False} | done["replace"].facts
        return Outcome(
            self.family.id,
            compared["verdict"],
            compared["reasons"],
            replaced["replaced"],
            replaced["model"],
            replaced["waits"],
        )

    def _begin(self, stage: str, already: bool = False) -> None:
        name = f"{self.family.id}: {stage}{' (done before)' if already else ''}"
        self.progress.stage(name, states.STAGES.index(stage) + 1, len(states.STAGES))

    def _doubt(self) -> None:
        """Discard a comparison with another model than the one that would be replaced now, or with other limits."""
        state = self._state()
        done = state.of(self.family.id)
        if "compare" not in done:
            return
        if self.replaces and "replace" in done and done["replace"].facts.get("waits"):
            state = state.without(self.family.id, "replace")
            states.write(self.root, state)
            done = state.of(self.family.id)
        facts = done["compare"].facts
        same = facts.get("asked") == self._asked()
        if same and "replace" not in done:
            new = Model.load(self.folder / "model")
            same = facts.get("against") == self._against(new) or self._is_there(new, self._origin(state)) is not None
        if not same:
            states.write(self.root, state.without(self.family.id, "compare"))

    def _state(self) -> states.State:
        found = states.read(self.root)
        if found is None:
            raise BadFile(f"{self.root / states.FILE} disappeared while it was in use: run the same command again")
        return found

    # -- the stages: facts for the state, or None where it was interrupted ---------------------------------

    def _sweep(self) -> dict[str, Any] | None:
        if self.routine.imported is not None:
            return {"files": [str(path) for path in self.routine.imported.paths]}
        vectors = self.folder / "vectors"
        # Half a sweep is not worth continuing: a sweep takes seconds, and this machine's numbers may have changed.
        shutil.rmtree(vectors, ignore_errors=True)
        sweep = planning.sweep_of(self.routine, self.family, planning.device_of(planning.runner_of(self.routine, self.family)))
        written = write_vectors(sweep, vectors, progress=self.progress)
        return {"problems": written.problems, "configs": written.configs, "vectors": written.vectors}

    def _collect(self) -> dict[str, Any] | None:
        if self.routine.imported is not None:
            return self._imported(self.routine.imported)
        wanted = self.routine.collect
        runner = planning.runner_of(self.routine, self.family)
        vectors = Vectors.open(self.folder / "vectors")
        request = Request(
            self.family, runner.name, runner.devices, self.folder / "dataset",
            planning.measuring_of(self.routine).policy(runner.benchmark), extend=True, options=runner.options,
            build_jobs=wanted.build_jobs, reset_command=runner.reset_words,
        )  # fmt: skip
        with self.listening() as stop:
            summary = collect(request, vectors.iter_blocks(), total=vectors.count(), progress=self.progress, stop=stop)
        if summary.without_a_row:
            return None
        return {"device": summary.device, "measured": summary.measured, "statuses": dict(summary.statuses)}

    def _imported(self, wanted: Import) -> dict[str, Any]:
        """The rows of files, which are there whole or not at all."""
        path = self.folder / "dataset"
        if not path.exists():
            options = Options(wanted.device, wanted.software, values=wanted.settings)
            import_files(wanted.format, wanted.paths, path, options, self.progress.say)
        rows = Dataset.open(path).read(self.family, columns=["device", "status"])
        return {"device": sorted(rows["device"].unique()), "measured": rows.height,
                "statuses": dict(sorted(rows["status"].value_counts().iter_rows()))}  # fmt: skip

    def _train(self) -> dict[str, Any] | None:
        out = self.folder / "model"
        if not out.exists():
            recipe = planning.training_of(self.routine)
            where = self.routine.train.where
            train(self.folder / "dataset", out, recipe, family=self.family.id, where=where, progress=self.progress)
        manifest = Model.load(out).manifest
        return {"software": list(manifest.software), "rows": manifest.data.rows, "checksum": manifest.checksum}

    def _compare(self) -> dict[str, Any] | None:
        new = Model.load(self.folder / "model")
        shutil.rmtree(self.folder / "judged", ignore_errors=True)
        facts: dict[str, Any] = {"asked": self._asked(), "against": self._against(new), "old": None}
        try:
            entry = self._old(new)
            if entry is None:
                return {**facts, "verdict": NEW, "reasons": ["the store had no such model for this device"]}
            facts = {**facts, "old": entry.id, "old_software": list(entry.software)}
            old = entry.load()
        except BadFile as error:
            return {**facts, "verdict": UNREADABLE, "reasons": [str(error)]}
        found = compare_fairly(
            old, new, self.folder / "dataset", self.folder / "judged", planning.limits_of(self.routine),
            self.routine.train.where,
        )  # fmt: skip
        if found is None:
            why = "there is no problem on which both models can be judged without having seen it"
            return {**facts, "verdict": NOT_COMPARABLE, "reasons": [why]}
        report = found.as_json()
        write_bytes(self.folder / "comparison.json", json_text(report))
        return {**facts, "verdict": found.verdict, "reasons": list(found.reasons), "problems": found.n}

    def _replace(self) -> dict[str, Any] | None:
        path = self.folder / "model"
        new, name = Model.load(path), self.routine.store.given_name
        while True:
            state = self._state()
            compared, origin = state.of(self.family.id)["compare"].facts, self._origin(state)
            refused = {"WORSE", NOT_COMPARABLE} | ({"AMBIGUOUS"} if self.routine.compare.strict else set())
            if compared["verdict"] in refused:
                return {"replaced": False, "model": str(path)}
            entry = self._is_there(new, origin)
            if entry is not None:  # an earlier run was killed right after adding it
                return {"replaced": True, "model": entry.id}
            if not self.replaces and self.store.mark(new, name):
                return {"replaced": False, "model": str(path), "waits": True}
            try:
                entry = self.store.add(path, name=name, replace=True, origin=origin, over=compared["against"][0])
                return {"replaced": True, "model": entry.id}
            except Changed:
                # Another process added a model meanwhile, and this one was not compared with it.
                self._begin("compare")
                states.write(self.root, state.with_done(self.family.id, "compare", self._compare() or {}))

    # -- the store -----------------------------------------------------------------------------------------

    def _old(self, new: Model) -> Entry | None:
        """The model that the new one would replace, else the one that is found in its place now."""
        return self.store.earlier(new, self.routine.store.given_name)

    def _asked(self) -> dict[str, Any]:
        """The settings of a comparison."""
        return {
            "store": str(self.store.path.resolve()),
            "name": self.routine.store.name,
            **msgspec.structs.asdict(self.routine.compare),
        }

    def _against(self, new: Model) -> list[str]:
        """What the store holds to compare with: the mark of the entry to replace, and the model found in its place."""
        try:
            entry = self._old(new)
            answers = "" if entry is None else f"{entry.id} {entry.record.checksum}"
        except BadFile as error:
            answers = str(error)
        return [self.store.mark(new, self.routine.store.given_name), answers]

    def _origin(self, state: states.State) -> dict[str, str]:
        return {
            "recipe": f"{state.routine} {self.routine.digest}", "host": state.host, "regenerated": state.begun,
            "kerncast": state.kerncast, "verdict": state.of(self.family.id)["compare"].facts["verdict"],
        }  # fmt: skip

    def _is_there(self, new: Model, origin: dict[str, str]) -> Entry | None:
        """The new model in the store, if this run has put it there."""
        try:
            entry = self.store.at(new, self.routine.store.given_name)
        except BadFile:
            return None
        own = entry is not None and (entry.record.checksum, entry.record.origin) == (new.manifest.checksum, origin)
        return entry if own else None
