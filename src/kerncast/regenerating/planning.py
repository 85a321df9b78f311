"""Turn a routine into what the other parts of kerncast take, and refuse mistakes before anything is measured."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from kerncast.core.device import Device
from kerncast.core.expr import Program
from kerncast.core.io.quoting import word
from kerncast.core.op import Family
from kerncast.data.formats import get_importer
from kerncast.errors import BadFile, InvalidValue, NotFound
from kerncast.evaluating import Limits
from kerncast.evaluating.report.page import check_can_report
from kerncast.learning.learners.kinds import learner_class
from kerncast.library import devices
from kerncast.library.families.gemm_cpu import config_set, gemm_cpu
from kerncast.library.problems import parse_vary
from kerncast.library.registry import FAMILIES
from kerncast.measuring.plan import Measuring, Runner, runner
from kerncast.measuring.sweeping import Selection, SuiteSweep, Sweep, open_sweep, parse_selection
from kerncast.models.store.store import Store
from kerncast.regenerating.routine import ImportSection, Routine
from kerncast.training.procedure import Procedure, Recipe, tuning_ranges

# How a benchmark asks for a setting that is missing or wrong.
SETTING = "`settings` "
# Configs that a family declares promising: `promising:104`.
PROMISING = "promising"
AnySweep = Sweep | SuiteSweep


@dataclass(frozen=True)
class FamilyPlan:
    """What a regeneration would do for one family."""

    family: str
    problems: int | None
    vectors: int | None
    """None: what the files of an import have."""
    seconds: float | None
    """Measuring time if every kernel is shorter than a sample; unknown for an external benchmark, none for an import."""
    old: str | None
    """The model that the new one would be compared with."""


def plan(routine: Routine, store: Store) -> list[FamilyPlan]:
    """What a regeneration would do; nothing is written or measured."""
    by_family = check(routine)
    plans = []
    for name in routine.families:
        family = FAMILIES.get(name)
        if routine.imported is not None:
            device = devices.get(routine.imported.device) if routine.imported.device is not None else None
            plans.append(FamilyPlan(name, None, None, 0.0, None if device is None else _old(routine, store, family, device)))
            continue
        sweeps = by_family[name]
        benchmark = runner_of(routine, family).benchmark
        problems, vectors = sum(sweep.problem_count for sweep in sweeps), sum(sweep.count() for sweep in sweeps)
        policy = measuring_of(routine).policy(benchmark)
        per_vector = (policy.warmup_ns + 0.6 * policy.samples * policy.sample_ns) / 1e9  # as `collect --dry-run` has it
        seconds = None if benchmark else vectors * per_vector
        plans.append(FamilyPlan(name, problems, vectors, seconds, _old(routine, store, family, sweeps[0].device)))
    return plans


def _old(routine: Routine, store: Store, family: Family, device: Device) -> str | None:
    if "compare" not in routine.steps:
        return None
    try:
        return store.lookup(family.op.name, family.id, device.name, name=routine.store.name).entries[0].id
    except NotFound:
        return None
    except BadFile:  # a damaged old model does not prevent a new one
        return "one that cannot be read"


def check(routine: Routine, swept: Collection[str] = ()) -> dict[str, list[AnySweep]]:
    """Refuse what would fail after hours of measuring. Returns the sweeps, except of families in `swept`, which are done."""
    limits_of(routine)
    recipe = training_of(routine)
    Procedure(recipe).options()
    if recipe.tune:
        tuning_ranges(learner_class(recipe.kind))
    if "report" in routine.steps:
        check_can_report()
    if routine.imported is not None:
        _check_import(routine, routine.imported)
    by_family: dict[str, list[AnySweep]] = {}
    for name in routine.families:
        family = FAMILIES.get(name)
        runs = None if routine.imported is not None else runner_of(routine, family)
        if recipe.target is not None:
            _check_target(recipe.target, family)
        if "report" in routine.steps and not family.config.parameters:
            raise InvalidValue(f"the step report judges choices, and {family.id} has one config: leave the step out")
        if runs is not None and name not in swept:
            by_family[name] = sweeps_of(routine, family, device_of(runs))
            _check_sweeps(routine, by_family[name])
    return by_family


def _check_import(routine: Routine, wanted: ImportSection) -> None:
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


def _check_sweeps(routine: Routine, sweeps: Sequence[AnySweep]) -> None:
    """Refuse sweeps with nothing to measure, with too few groups for the folds, or that a step cannot take."""
    family, device = sweeps[0].family, sweeps[0].device
    if not any(block.height for sweep in sweeps for block in sweep.iter_blocks()):
        count = sum(sweep.problem_count for sweep in sweeps)
        raise InvalidValue(
            f"no config of {family.id} can run any of the {count:,} problems of routine {routine.name} on "
            f"{device.name}: see the constraints in `kerncast list family {word(family.id)}`"
        )
    if "sweep" in routine.steps and len(sweeps) > 1:
        raise InvalidValue(
            f"promising configs of several dtypes are several sweeps: leave out the step sweep of {routine.name}"
        )
    problems = [sweep.problems for sweep in sweeps if isinstance(sweep, Sweep)]
    if not problems:
        if "repeat" in routine.steps:
            raise InvalidValue(
                f"the step repeat draws from problem sets, and {family.op.name} generates its sweep: leave it out"
            )
        return
    groups = pl.concat(problems).select(family.op.split_group).n_unique()
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
        wanted.backend,
        wanted.benchmark,
        wanted.settings,
        wanted.devices,
        build_jobs=wanted.build_jobs,
        samples=wanted.samples,
        cache=wanted.cache,
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
        raise type(error)(str(error).replace(SETTING, "`changes` collect.settings.")) from error


def device_of(runs: Runner) -> Device:
    """The device whose limits apply to a sweep. The limits of this CPU are known without a backend."""
    if runs.benchmark is None and runs.kind.runs_on_cpu:
        return devices.local()
    with _in_the_words_of_a_routine():
        return runs.backend().device()


def sweeps_of(routine: Routine, family: Family, device: Device) -> list[AnySweep]:
    """The vectors of one family: one sweep, or, of promising configs, one for each dtype."""
    wanted = routine.sweep
    assert wanted is not None
    axes = parse_vary(family, wanted.vary)
    promising = _promising_count(wanted.configs, family)
    selection = None if promising else parse_selection(family, wanted.configs)
    whole = open_sweep(
        family, device, wanted.problems, axes, selection,
        seed=wanted.seed, max_vectors=wanted.max_vectors, max_flops=wanted.max_flops, max_bytes=wanted.max_bytes,
    )  # fmt: skip
    if wanted.max_problems is None and not promising:
        return [whole]
    if not isinstance(whole, Sweep):
        raise InvalidValue(
            f"sweep.max_problems draws from problem sets, and {wanted.problems[0]} is a sweep that {family.op.name} generates "
            "piece by piece: limit it with sweep.max_vectors"
        )
    problems = whole.problems
    if wanted.max_problems is not None and wanted.draw == "even":
        problems = _drawn_evenly(family, problems, wanted.max_problems, axes)
    elif wanted.max_problems is not None and problems.height > wanted.max_problems:
        drawn = np.random.default_rng(wanted.seed).permutation(problems.height)[: wanted.max_problems]
        problems = problems[np.sort(drawn)]
    if promising:
        return list(_promising_sweeps(family, device, problems, promising))
    return [Sweep(family, device, problems, whole.selection, seed=wanted.seed, max_vectors=wanted.max_vectors)]


def _drawn_evenly(
    family: Family, problems: pl.DataFrame, count: int, axes: Mapping[str, Sequence[int | bool | str | None]]
) -> pl.DataFrame:
    """As many problems of each kind, evenly spread over the arithmetic that they need; each kind gets others."""
    work = family.op.work(family.op.namespace())
    if work is None:
        raise InvalidValue(f"sweep.draw even goes by FLOPs, which {family.op.name} does not declare: leave it out")
    flops = Program({"flops": work.flops}).frame(problems.rename(lambda name: f"p.{name}"))["flops"]
    sizes = [name for name, parameter in family.problem.parameters.items() if parameter.ordered and name not in axes]
    ordered = problems.with_columns(flops.alias("__flops")).sort("__flops", *sizes).drop("__flops")
    kinds = list(itertools.product(*axes.values()))
    each, parts = max(1, count // len(kinds)), []
    for number, kind in enumerate(kinds):
        own = ordered.filter(pl.col(name).eq_missing(value) for name, value in zip(axes, kind, strict=True))
        step = max(1, own.height // each)
        parts.append(own[number % step :].gather_every(step)[:each])
    return pl.concat(parts)


def _promising_count(configs: str, family: Family) -> int | None:
    """N of `promising:N`; None for what `kerncast sweep` knows."""
    name, _, count = configs.partition(":")
    if name != PROMISING:
        return None
    if family is not gemm_cpu or not count.isdigit() or int(count) < 1:
        raise InvalidValue(f"sweep.configs promising:N (N ≥ 1) is for {gemm_cpu.id}, got '{configs}' for {family.id}")
    return int(count)


def _promising_sweeps(family: Family, device: Device, problems: pl.DataFrame, count: int) -> Iterator[Sweep]:
    """The first configs of every layout, on each problem that can run them: one pool, so one config can win everywhere."""
    for _, part in problems.group_by("dtype", maintain_order=True):
        kinds = part.select("dtype", "layout", "threads").unique(maintain_order=True)
        sets = [config_set("quick", kind, device).head(count) for kind in kinds.iter_rows(named=True)]
        yield Sweep(family, device, part, Selection(portfolio=pl.concat(sets).unique(maintain_order=True)))


def repeated(sweeps: Sequence[AnySweep], count: int) -> tuple[pl.DataFrame, float]:
    """Some problems of the sweeps, evenly spread over kinds and sizes, as `problem.*`; and which share of all they are."""
    problems = pl.concat([sweep.problems for sweep in sweeps if isinstance(sweep, Sweep)])
    kept = min(count, problems.height)
    places = [round(place * (problems.height - 1) / max(1, count - 1)) for place in range(kept)]
    return problems[places].rename(lambda name: f"problem.{name}"), kept / problems.height


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
