"""Turn a routine into what the other parts of kerncast take, and refuse mistakes before anything is measured."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np

from kerncast import devices
from kerncast.collecting.plan import Measuring, Runner, runner
from kerncast.data.importers import get_importer
from kerncast.device import Device
from kerncast.errors import BadFile, InvalidValue, NotFound
from kerncast.evaluating import Limits
from kerncast.learners.kinds import learner_class
from kerncast.op import Family
from kerncast.problems import parse_vary
from kerncast.regenerating.routine import Import, Routine
from kerncast.registry import FAMILIES
from kerncast.store.store import Store
from kerncast.sweeping import SuiteSweep, Sweep, open_sweep, parse_selection
from kerncast.training.procedure import Procedure, tuning_ranges
from kerncast.training.recipe import Recipe
from kerncast.writing.shell import word

# How a benchmark asks for a setting that is missing or wrong.
SETTING = "`changes` "


@dataclass(frozen=True)
class Planned:
    """What a regeneration would do for one family."""

    family: str
    problems: int | None
    vectors: int | None
    """None: what the files of an import have."""
    seconds: float | None
    """Measuring time if every kernel is shorter than a sample; unknown for an external benchmark, none for an import."""
    old: str | None
    """The model that the new one would be compared with."""


def plan(routine: Routine, store: Store) -> list[Planned]:
    """What a regeneration would do; nothing is written or measured."""
    found = []
    if routine.imported is not None:
        check(routine)
        device = devices.get(routine.imported.device) if routine.imported.device is not None else None
        for name in routine.families:
            old = None if device is None else _old(routine, store, FAMILIES.get(name), device)
            found.append(Planned(name, None, None, 0.0, old))
        return found
    for sweep in check(routine):
        benchmark = runner_of(routine, sweep.family).benchmark
        vectors, policy = sweep.count(), measuring_of(routine).policy(benchmark)
        per_vector = (policy.warmup_ns + 0.6 * policy.samples * policy.sample_ns) / 1e9  # as `collect --dry-run` has it
        seconds = None if benchmark else vectors * per_vector
        old = _old(routine, store, sweep.family, sweep.device)
        found.append(Planned(sweep.family.id, sweep.problem_count, vectors, seconds, old))
    return found


def _old(routine: Routine, store: Store, family: Family, device: Device) -> str | None:
    try:
        return store.lookup(family.op.name, family.id, device.name, name=routine.store.name).entries[0].id
    except NotFound:
        return None
    except BadFile:  # a damaged old model does not prevent a new one
        return "one that cannot be read"


def check(routine: Routine, swept: Collection[str] = ()) -> list[Sweep | SuiteSweep]:
    """Refuse what would fail after hours of measuring. Returns the sweeps, except of families in `swept`, which are done."""
    limits_of(routine)
    wanted = training_of(routine)
    Procedure(wanted).options()
    if wanted.tune:
        tuning_ranges(learner_class(wanted.kind))
    sweeps: list[Sweep | SuiteSweep] = []
    if routine.imported is not None:
        _check_import(routine, routine.imported)
    for name in routine.families:
        family = FAMILIES.get(name)
        if routine.imported is not None:
            if wanted.target is not None:
                _check_target(wanted.target, family)
            continue
        runs = runner_of(routine, family)
        if wanted.target is not None:
            _check_target(wanted.target, family)
        if name not in swept:
            sweeps.append(sweep_of(routine, family, device_of(runs)))
            _check_sweep(routine, sweeps[-1])
    return sweeps


def _check_import(routine: Routine, wanted: Import) -> None:
    """Refuse an import whose files are not named or not there."""
    get_importer(wanted.format)
    if wanted.device is not None:
        devices.get(wanted.device)
    if not wanted.paths:
        where = f" ({wanted.source})" if wanted.source else ""
        raise InvalidValue(
            f"routine {routine.name} reads files that you have{where}: name them with `changes` import.files=FILE"
        )
    missing = [path for path in wanted.paths if not path.exists()]
    if missing:
        raise NotFound(f"there is no {missing[0]}, which import.files names")


def _check_target(target: str, family: Family) -> None:
    """Refuse a target that needs work which the family does not declare."""
    work = family.work(family.op.namespace())
    if work is None and target != "latency":
        raise InvalidValue(
            f"train.target {target} needs the FLOPs and bytes of {family.op.name}, which it does not declare: use latency"
        )


def _check_sweep(routine: Routine, sweep: Sweep | SuiteSweep) -> None:
    """Refuse a sweep with nothing to measure, or with too few groups for the folds."""
    family = sweep.family
    if not any(block.height for block in sweep.iter_blocks()):
        raise InvalidValue(
            f"no config of {family.id} can run any of the {sweep.problem_count:,} problems of routine {routine.name} on "
            f"{sweep.device.name}: see the constraints in `kerncast list family {word(family.id)}`"
        )
    if not isinstance(sweep, Sweep):
        return
    groups = sweep.problems.select(family.op.split_group).n_unique()
    # A single problem is split by its configs.
    if 1 < groups < routine.train.folds:
        raise InvalidValue(
            f"train.folds is {routine.train.folds} and the problems of {family.id} make {groups} groups "
            f"({', '.join(family.op.split_group)}), which stay whole: name more problems, or `changes` train.folds={groups}"
        )


def measuring_of(routine: Routine) -> Measuring:
    """How to measure, in the words of `kerncast collect`."""
    wanted = routine.collect
    return Measuring(
        wanted.backend, wanted.benchmark, wanted.settings, wanted.devices, samples=wanted.samples, cache=wanted.cache
    )


def runner_of(routine: Routine, family: Family) -> Runner:
    """What measures a family; refused if it cannot run here."""
    with _in_the_words_of_a_routine():
        return runner(family, measuring_of(routine))


@contextlib.contextmanager
def _in_the_words_of_a_routine() -> Iterator[None]:
    """A setting of a benchmark is a key of the section `collect` here."""
    try:
        yield
    except (InvalidValue, NotFound) as error:
        if SETTING not in str(error):
            raise
        raise type(error)(str(error).replace(SETTING, f"{SETTING}collect.settings.")) from error


def device_of(runs: Runner) -> Device:
    """The device whose limits apply to a sweep. The limits of this CPU are known without a backend."""
    if runs.benchmark is None and runs.kind.runs_on_cpu:
        return devices.local()
    with _in_the_words_of_a_routine():
        return runs.backend().device()


def sweep_of(routine: Routine, family: Family, device: Device) -> Sweep | SuiteSweep:
    """The vectors of one family."""
    wanted = routine.sweep
    assert wanted is not None
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


def training_of(routine: Routine) -> Recipe:
    """How to learn."""
    wanted = routine.train
    return Recipe(
        wanted.model, wanted.knobs, wanted.target, folds=wanted.folds, seed=wanted.seed, threads=wanted.threads,
        hard_mining=wanted.hard_mining, tune=wanted.tune,
    )  # fmt: skip


def limits_of(routine: Routine) -> Limits:
    """How far the new model may fall behind."""
    wanted = routine.compare
    return Limits(wanted.max_mean, wanted.max_median, wanted.max_p10, wanted.max_problem)
