"""The stages of a regeneration, each of which may be repeated: killed at any moment, the same call goes on.

A work directory holds, for each family, `vectors`, `dataset`, `model`, `judged` (what the models were compared by)
and `comparison.json`, beside one `state.json` that says what is done.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy as np

from kerncast import devices
from kerncast.backends import backend_that_runs
from kerncast.backends.command import CommandBackend
from kerncast.backends.command.recipe import Recipe as Program
from kerncast.backends.command.recipe import load as load_program
from kerncast.backends.contract import Backend
from kerncast.collect.messages import Policy
from kerncast.collect.run import Request, collect
from kerncast.collect.supervisor import Observer
from kerncast.data.lock import one_writer
from kerncast.device import Device
from kerncast.errors import BadFile, InvalidValue, NotFound
from kerncast.evaluate import Limits
from kerncast.models import Model, train
from kerncast.models import Recipe as Training
from kerncast.models.procedure import Procedure
from kerncast.models.store import Entry, Store
from kerncast.models.train import Progress
from kerncast.op import Family
from kerncast.problems import parse_vary
from kerncast.regenerate import state as states
from kerncast.regenerate.comparing import compare_fairly
from kerncast.regenerate.recipe import Recipe
from kerncast.registry import FAMILIES
from kerncast.sweep import SuiteSweep, Sweep, Vectors, open_sweep, parse_selection, write_vectors

LOCK = "regenerate.lock"
# What may be said of a new model beside compare's verdicts: there was no old one, it could not be read, or nothing tells.
NEW, UNREADABLE, NOT_COMPARABLE = "NEW", "OLD UNREADABLE", "NOT COMPARABLE"


class Show(Protocol):
    """What is told while it works."""

    def stage(self, family: str, stage: str, already: bool) -> None:
        """A stage begins, or was done in an earlier run."""

    def sweeping(self) -> AbstractContextManager[Callable[[int], None]]:
        """Hears how many vectors are written."""

    def collecting(self, total: int) -> AbstractContextManager[Observer]:
        """Watches a collection."""

    def training(self) -> AbstractContextManager[Progress]:
        """Watches a training."""


@dataclass(frozen=True)
class Outcome:
    """What came of one family; without a verdict it is unfinished, and the same call goes on."""

    family: str
    verdict: str | None
    reasons: list[str]
    replaced: bool
    model: str
    """Where the new model is: in the store, or, if it did not get there, in the work directory."""

    @property
    def finished(self) -> bool:
        return self.verdict is not None


@dataclass(frozen=True)
class Planned:
    """What a regeneration would do for one family."""

    family: str
    problems: int
    vectors: int
    seconds: float | None
    """To measure kernels that are shorter than a sample; unknown for an external program."""
    old: str | None
    """The model that the new one would be compared with."""


def regenerate(recipe: Recipe, store: Store, folder: Path, show: Show, *, again: bool = False) -> list[Outcome]:
    """Every stage that is not done yet, for every family; finished ones are read from the state."""
    # Unknown names and unfit options are refused before hours of measuring.
    for family in recipe.families:
        _runner(recipe, FAMILIES.get(family))
    Procedure(_training(recipe)).options()
    state = states.begin(folder, recipe, again)
    folder.mkdir(parents=True, exist_ok=True)
    with one_writer(folder, LOCK, "choose another --out"):
        states.write(folder, state)
        outcomes: list[Outcome] = []
        for family in recipe.families:
            outcomes.append(_Run(recipe, store, folder, show, FAMILIES.get(family)).all())
            if not outcomes[-1].finished:
                break
        return outcomes


def plan(recipe: Recipe, store: Store) -> list[Planned]:
    """What it would do; nothing is written or measured."""
    Procedure(_training(recipe)).options()
    found = []
    for name in recipe.families:
        family = FAMILIES.get(name)
        runner = _runner(recipe, family)
        sweep = _sweep(recipe, family, runner.device)
        vectors, policy = sweep.count(), _policy(recipe, runner.program)
        per_vector = (policy.warmup_ns + 0.6 * policy.samples * policy.sample_ns) / 1e9  # as `collect --dry-run` has it
        try:
            old: Entry | None = store.find(family.op.name, name, sweep.device.name, name=recipe.store.name)
        except NotFound:
            old = None
        seconds = None if runner.program else vectors * per_vector
        found.append(Planned(name, sweep.problem_count, vectors, seconds, old.id if old else None))
    return found


class _Run:
    """The stages of one family."""

    def __init__(self, recipe: Recipe, store: Store, folder: Path, show: Show, family: Family) -> None:
        self.recipe, self.store, self.root, self.show, self.family = recipe, store, folder, show, family
        self.folder = folder / family.id.replace("/", "-")

    def all(self) -> Outcome:
        """One after the other; a stage that does not finish ends it."""
        for stage in states.STAGES:
            done = self._state().of(self.family.id)
            self.show.stage(self.family.id, stage, stage in done)
            if stage in done:
                continue
            self.folder.mkdir(parents=True, exist_ok=True)
            facts = getattr(self, f"_{stage}")()
            if facts is None:
                return Outcome(self.family.id, None, [f"stopped while it was busy with {stage}"], False, "")
            states.write(self.root, self._state().with_done(self.family.id, stage, facts))
        done = self._state().of(self.family.id)
        compared, replaced = done["compare"].facts, done["replace"].facts
        return Outcome(self.family.id, compared["verdict"], compared["reasons"], replaced["replaced"], replaced["model"])

    def _state(self) -> states.State:
        found = states.read(self.root)
        if found is None:
            raise BadFile(f"{self.root / states.FILE} went away while it was in use: run the same command again")
        return found

    # -- the stages: facts for the state, or None where it was interrupted ---------------------------------

    def _sweep(self) -> dict[str, Any] | None:
        vectors = self.folder / "vectors"
        # Half a sweep is not worth going on with: it takes seconds, and this machine's numbers may differ by now.
        shutil.rmtree(vectors, ignore_errors=True)
        sweep = _sweep(self.recipe, self.family, _runner(self.recipe, self.family).device)
        with self.show.sweeping() as progress:
            written = write_vectors(sweep, vectors, progress=progress)
        if not written.vectors:
            raise InvalidValue(
                f"no config of {self.family.id} can run any of the {sweep.problem_count:,} problems of recipe "
                f"{self.recipe.name} on {sweep.device.name}: see the constraints in `kerncast families {self.family.id}`"
            )
        return {"problems": written.problems, "configs": written.configs, "vectors": written.vectors}

    def _collect(self) -> dict[str, Any] | None:
        wanted = self.recipe.collect
        runner = _runner(self.recipe, self.family)
        vectors = Vectors.open(self.folder / "vectors")
        request = Request(
            self.family, wanted.backend or runner.kind.name, wanted.devices, self.folder / "dataset",
            _policy(self.recipe, runner.program), extend=True, options=runner.options, build_jobs=wanted.build_jobs,
            reset_command=tuple(runner.program.reset_words()) if runner.program else (),
        )  # fmt: skip
        with self.show.collecting(vectors.count()) as observer:
            summary = collect(request, vectors.iter_blocks(), observer)
        if summary.without_a_row:
            return None
        return {"device": summary.device, "measured": summary.measured, "statuses": dict(summary.statuses)}

    def _train(self) -> dict[str, Any] | None:
        out = self.folder / "model"
        if not out.exists():
            with self.show.training() as progress:
                train(self.folder / "dataset", out, _training(self.recipe), family=self.family.id, progress=progress)
        manifest = Model.load(out).manifest
        return {"software": list(manifest.software), "rows": manifest.data.rows, "checksum": manifest.checksum}

    def _compare(self) -> dict[str, Any] | None:
        new, limits = Model.load(self.folder / "model"), self.recipe.compare
        shutil.rmtree(self.folder / "judged", ignore_errors=True)
        try:
            entry = self.store.find(
                self.family.op.name, self.family.id, new.device.name, new.manifest.software, self.recipe.store.name
            )
        except NotFound:
            return {"verdict": NEW, "reasons": ["the store had no such model for this device"], "old": None}
        facts: dict[str, Any] = {"old": entry.id, "old_software": list(entry.software)}
        try:
            old = entry.load()
        except BadFile as error:
            return {"verdict": UNREADABLE, "reasons": [str(error)], **facts}
        shares = (value / 100 for value in (limits.max_mean, limits.max_median, limits.max_p10, limits.max_problem))
        found = compare_fairly(old, new, self.folder / "dataset", self.folder / "judged", Limits(*shares))
        if found is None:
            why = "there is no problem on which both models can be judged without having seen it"
            return {"verdict": NOT_COMPARABLE, "reasons": [why], **facts}
        report = {"verdict": found.verdict, "reasons": found.reasons, **found.summary}
        (self.folder / "comparison.json").write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")
        return {"verdict": found.verdict, "reasons": found.reasons, "problems": found.summary["n_problems"], **facts}

    def _replace(self) -> dict[str, Any] | None:
        state, model = self._state(), self.folder / "model"
        verdict = state.of(self.family.id)["compare"].facts["verdict"]
        refused = {"WORSE", NOT_COMPARABLE} | ({"AMBIGUOUS"} if self.recipe.compare.strict else set())
        if verdict in refused:
            return {"replaced": False, "model": str(model)}
        origin = {
            "recipe": f"{state.recipe} {state.digest}", "host": state.host, "regenerated": state.begun,
            "kerncast": state.kerncast, "verdict": verdict,
        }  # fmt: skip
        entry = self.store.add(model, name=self.recipe.store.name, replace_it=True, origin=origin)
        return {"replaced": True, "model": entry.id}


@dataclass(frozen=True)
class _Runner:
    """What runs the kernels: a backend, or an external program."""

    kind: type[Backend]
    program: Program | None
    index: str
    """Of the first device."""

    @property
    def options(self) -> dict[str, str]:
        """What the backend is configured with."""
        return {} if self.program is None else CommandBackend.options(self.program)

    @property
    def device(self) -> Device:
        """Whose limits hold for a sweep. This CPU says them without being measured."""
        if self.program is None and self.kind.runs_on_cpu:
            return devices.local()
        return self.kind.configured(self.index, self.options).device()


def _runner(recipe: Recipe, family: Family) -> _Runner:
    wanted = recipe.collect
    if wanted.recipe is None:
        return _Runner(backend_that_runs(family.id, wanted.backend), None, wanted.devices[0])
    program = load_program(wanted.recipe, wanted.settings)
    if program.family != family.id:
        raise InvalidValue(f"recipe {program.name} measures {program.family}, not {family.id}")
    return _Runner(CommandBackend, program, wanted.devices[0])


def _sweep(recipe: Recipe, family: Family, device: Device) -> Sweep | SuiteSweep:
    wanted = recipe.sweep
    found = open_sweep(
        family, device, wanted.problems, parse_vary(family, wanted.vary), parse_selection(family, wanted.configs),
        seed=wanted.seed, max_vectors=wanted.max_vectors, max_flops=wanted.max_flops, max_bytes=wanted.max_bytes,
    )  # fmt: skip
    if wanted.max_problems is None:
        return found
    if not isinstance(found, Sweep):
        raise InvalidValue(
            f"sweep.max_problems draws from problem sets, and {wanted.problems[0]} is a sweep that {family.op.name} generates "
            "piece by piece: limit it with sweep.max_vectors"
        )
    if found.problems.height <= wanted.max_problems:
        return found
    drawn = np.random.default_rng(wanted.seed).permutation(found.problems.height)[: wanted.max_problems]
    problems = found.problems[np.sort(drawn)]
    return Sweep(family, device, problems, found.selection, seed=wanted.seed, max_vectors=wanted.max_vectors)


def _policy(recipe: Recipe, program: Program | None) -> Policy:
    """As the recipe has it, else as the program's own recipe has it, else as `kerncast collect` does."""
    plain = Policy()
    samples = recipe.collect.samples or (program.samples if program else None) or plain.samples
    cache = recipe.collect.cache or (program.cache if program else plain.cache)
    return Policy(samples=samples, fewest_samples=min(samples, plain.fewest_samples), cache=cache)


def _training(recipe: Recipe) -> Training:
    wanted = recipe.train
    return Training(
        wanted.model, wanted.knobs, wanted.target, folds=wanted.folds, seed=wanted.seed, threads=wanted.threads,
        hard_mining=wanted.hard_mining, tune=wanted.tune,
    )  # fmt: skip
