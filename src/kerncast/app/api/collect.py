"""`kerncast.collect` and `kerncast.sweep`: list what to measure, and measure it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, overload

from kerncast.app.api.arguments import (
    HERE,
    Cluster,
    FamilyOf,
    MaxFlops,
    Problems,
    connected,
    place_of,
    problem_texts,
    problems_described,
    with_preset,
)
from kerncast.app.api.showing import Wanted, shown
from kerncast.core.device import Device
from kerncast.core.io.arguments import Help, assignment_texts
from kerncast.core.op import Family
from kerncast.core.progress import Progress
from kerncast.data.dataset import Dataset
from kerncast.errors import InvalidValue
from kerncast.library import devices as profiles
from kerncast.library.declared.family_file import SUFFIX, family_with_preset
from kerncast.library.problems import parse_vary, problem_notes
from kerncast.measuring.collection import Active, CollectionSummary
from kerncast.measuring.dry_run import DryRun, estimate
from kerncast.measuring.plan import (
    EVERYTHING,
    Extent,
    Measuring,
    Planned,
    Source,
    VectorChoice,
    runner,
)
from kerncast.measuring.run import MOST_CANDIDATES
from kerncast.measuring.run import collect as run
from kerncast.measuring.sweeping import Slice, SuiteSweep, Sweep, Vectors, open_sweep, parse_selection, write_vectors
from kerncast.measuring.sweeping.files import MANIFEST as VECTORS

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import polars as pl

    from kerncast.learning.table import Table
    from kerncast.measuring.collection import Worth


# Successful rows needed before a model is trained.
FEWEST_ROWS = 20
# Small forests for times alone: a rough ranking is enough, and the devices wait for it.
QUICK: dict[str, Any] = {"trees": 80, "bags": 1, "blend": 0.0, "library_trees": 0}


def worth_by_model(family: Family, seed: int) -> Worth:
    """A function that says how much measuring a vector is worth, by models trained on the rows so far."""

    def worth(rows: pl.DataFrame, rest: pl.DataFrame, device: Device) -> npt.NDArray[np.float64] | None:
        import numpy as np

        from kerncast.learning.feature_rows import Featurizer
        from kerncast.learning.table import build_table
        from kerncast.training.procedure import Procedure, Recipe, acquisition

        if (rows["status"] == "ok").sum() < FEWEST_ROWS:
            return None
        table = _with_times(build_table(family, rows, {device.name: device}, ""))
        dtypes = tuple(sorted(rest["problem.dtype"].unique())) if "problem.dtype" in rest.columns else None
        described = Featurizer(family, table.devices[0], dtypes).describe(rest)
        # A dtype that only one of the two has may add or remove a feature.
        shared = [name for name in table.rows.names if name in described.names]
        table = replace(table, rows=table.rows.only(shared))
        columns = [name for name in rest.columns if name.startswith("problem.")]
        problem = np.unique(rest.select(columns).hash_rows(seed=0).to_numpy(), return_inverse=True)[1]
        recipe = Recipe(knobs=QUICK, seed=seed, threads=1).resolved(table, None)
        return acquisition(table, described.only(shared), problem, Procedure(recipe))

    return worth


def _with_times(table: Table) -> Table:
    """Drop groups of problems on which nothing worked, so that any part of the groups has times to learn from."""
    import numpy as np

    return table.take(np.isin(table.group, np.unique(table.group[table.ok])))


def sweep(
    family: FamilyOf,
    *,
    problems: Annotated[
        Problems,
        "A named set (gemm: small, cubes, llm, tall_skinny, k_heavy, primes, edge, wide; grouped_conv: resnet, …, wide, "
        "validation; reshard: published, fitting; TTNN's ops: published), lognormal:N, 'grid:M=1,2,4;N=256:4096:256', "
        "shapeset:FILE of torch-diode, or a .json, .parquet or .csv file (or file:FILE). May be repeated.",
        Help(metavar="SPEC", required=True),
    ],
    vary: Annotated[
        Mapping[str, Any] | Sequence[str] | None,
        "Cross the problems with one more parameter: dtype=fp32,fp64, layout=all, threads=1:8:x2. May be repeated.",
        Help(metavar="NAME=VALUES"),
    ] = None,
    x: Annotated[int | None, Help("reshard: only input grids X wide, as --vary in_x=X.", metavar="X", option="-x")] = None,
    y: Annotated[
        int | None, Help("reshard: only input grids at least Y high, as --vary in_y=Y:8:1.", metavar="Y", option="-y")
    ] = None,
    max_flops: MaxFlops = None,
    max_bytes: Annotated[
        float | None, Help("Leave out problems that move more bytes than this.", metavar="BYTES", above=0)
    ] = None,
    configs: Annotated[
        str,
        "all, sample:N (per problem, uniform over the valid ones), portfolio:FILE (.json, .parquet, .csv, or a dataset), "
        "for CK Tile kernels:FILE (names of kernels) or build:DIR (the benchmarks of a build folder), or for gemm/triton "
        "what Inductor offers: inductor, inductor:exhaustive.",
        Help(metavar="SPEC"),
    ] = "all",
    device: Annotated[
        Device | str, Help("The device whose limits apply (see `kerncast list device`).", metavar="NAME", names="devices")
    ] = "local",
    seed: Annotated[int, Help("The same seed gives the same vectors.", least=0)] = 0,
    max_vectors: Annotated[int | None, Help("Thin the whole sweep out to N vectors, in proportion.", metavar="N")] = None,
    share: Annotated[
        str | None, Help("Only the I-th of N disjoint shares of the problems.", metavar="I/N", option="--slice")
    ] = None,
    file_format: Annotated[
        str,
        "tt-sweep: vectors_export/… of tt-metal's sweep framework (reshard/single and TTNN's ops).",
        Help(option="--format", choices=("parquet", "json", "tt-sweep")),
    ] = "parquet",
    out: Annotated[str | Path | None, Help("The directory to write.", metavar="VECTORS", required=True)] = None,
    progress: Wanted = "auto",
) -> Sweep | SuiteSweep | Vectors:
    """List every problem with every valid config, lazily: `iter_blocks()` gives polars frames, `count()` their number.

    With `out`, the vectors are written there (`file_format`: parquet, json, tt-sweep); an unfinished folder is continued. The
    result reads them back, and its `summary` says what was written.
    """
    found, preset = (family, {}) if isinstance(family, Family) else family_with_preset(family)
    profile = device if isinstance(device, Device) else profiles.get(device)
    axes = (*with_preset(preset, assignment_texts(vary)), *_input_grids(found, x, y))
    specs = problem_texts(problems)
    opened = open_sweep(
        found, profile, specs, parse_vary(found, axes), parse_selection(found, configs), seed=seed,
        part=Slice.parse(share) if share else None, max_vectors=max_vectors, max_flops=max_flops, max_bytes=max_bytes,
    )  # fmt: skip
    with shown(progress) as show:
        for note in (*problem_notes(found, specs), *opened.selection.notes):
            show.say(note)
    if out is None:
        return opened
    described = {"problems": problems_described(problems), "vary": " ".join(axes), "configs": configs}
    with shown(progress) as show:
        summary = write_vectors(opened, Path(out), file_format=file_format, described=described, progress=show)
    vectors = Vectors.open(out)
    vectors.summary, vectors.sweep = summary, opened
    return vectors


def _input_grids(family: Family, x: int | None, y: int | None) -> Iterator[str]:
    """`x` and `y` as axes: one width of the input grid, and every height from one on."""
    for argument, name, start in (("x", "in_x", x), ("y", "in_y", y)):
        if start is None:
            continue
        rule = family.op.parameters.get(name)
        if rule is None:
            raise InvalidValue(f"`{argument}` chooses input grids by {name}, which {family.op.name} lacks: leave it out")
        if rule.index(start) is None:
            raise InvalidValue(f"`{argument}` must be {rule.describe()}, got {start}")
        yield f"{name}={start}" if name == "in_x" else f"{name}={start}:{rule.number(rule.size - 1)}:1"


MEASURING = Measuring()


@dataclass(frozen=True)
class Collected:
    """The result of a collection: its summary, and how many vectors were requested."""

    summary: CollectionSummary
    vectors: int
    beside: tuple[Collected, ...] = ()
    """The same for other kinds of device, if a cluster has several: a dataset each, at `summary.path`."""


@overload
def collect(family: Family | str | Path | Source, *, dry_run: Literal[True], **options: Any) -> DryRun: ...
@overload
def collect(family: Family | str | Path | Source, *, dry_run: Literal[False] = False, **options: Any) -> Dataset: ...
def collect(  # type: ignore[misc]  # the overloads name what decides the result, not all options
    family: Annotated[Family | str | Path | Source, Help(metavar="FAMILY|VECTORS", names="families")],
    *,
    problems: Annotated[
        Problems, Help("As for `kerncast sweep`: small, llm, wide, edge, lognormal:N, grid:…, FILE.", metavar="SPEC")
    ] = (),
    vary: Annotated[
        Mapping[str, Any] | Sequence[str] | None,
        Help("One more axis: dtype=fp32, layout=all, threads=1,2. May be repeated.", metavar="NAME=VALUES"),
    ] = None,
    configs: Annotated[
        str | None,
        "all, sample:N (per problem), portfolio:FILE (or a dataset), for CK Tile kernels:FILE (names of kernels) or "
        "build:DIR (the benchmarks of a build folder), or for gemm/triton what Inductor offers: inductor, "
        "inductor:exhaustive. [default: all]",
        Help(metavar="SPEC"),
    ] = None,
    max_flops: MaxFlops = None,
    seed: Annotated[int, Help(least=0)] = 0,
    out: Annotated[str | Path | None, Help("The dataset to write or to continue.", metavar="DATASET", required=True)] = None,
    measuring: Measuring = MEASURING,
    extent: Extent = EVERYTHING,
    cluster: Cluster = HERE,
    dry_run: Annotated[bool, Help("Print vectors, compilations, time (by a short trial) and disk; write nothing.")] = False,
    progress: Wanted = "auto",
) -> Dataset | DryRun:
    """Measure the kernels of a family, or the vectors of a sweep, and return the dataset; nothing measured is ever lost.

    `family` is a family, its name, a sweep, or the folder that a sweep wrote. If a collection is killed or interrupted, the
    same call with the same `out` continues. `dataset.collected` says what this call measured. With `dry_run`, no dataset is
    written, and the estimate says what it would take.

    `measuring` says what measures and how: `Measuring(samples=9, cache="cold")`. If `alike_failures` configs in a row fail in
    the same way, the cause is not the kernels: the collection stops, and none of them gets a row (0: never). `capture_hw` keeps
    what rocminfo, nvidia-smi and lscpu say in the dataset (`dataset.hardware`), and warns where it contradicts the profile of
    the device.

    `extent` says how much of it this call measures: `Extent(budget="10m", active=True)`. `retry_failed` measures failed rows of
    `out` again: True for all of them, or the statuses that are meant. Once `stop()` is true, the collection ends in about a
    second; what has no row yet is left for the next call.

    With `cluster=Cluster("ray")`, every device of a Ray cluster measures, this process alone writes, and devices and nodes may
    come and go (docs/fleet.md). `Measuring.resource` counts the devices of a node: `GPU`, or one of your own such as `card`.
    Devices of another kind than the first go to datasets of their own: `dataset.collected.beside`.
    """
    if measuring.resource is not None:
        cluster.refuse_if_local("resource")
    named, source, preset = _what(family)
    if measuring.benchmark is None and measuring.backend is None and isinstance(family, str) and family.endswith(SUFFIX):
        measuring = replace(measuring, benchmark=family)  # the same file says how its kernels are measured
    if cluster.is_ray and measuring.devices is not None:
        raise InvalidValue("the cluster says which devices there are: leave out `devices`, or count others with `resource`")
    runs = runner(named, measuring, elsewhere=cluster.is_ray)
    active = Active(worth_by_model(named, seed), seed, extent.max_vectors) if extent.active else None
    request = runs.request(place_of(out, "dataset"), extent, active)
    choice = VectorChoice(
        named,
        source,
        problem_texts(problems),
        assignment_texts(vary) if source is not None else with_preset(preset, assignment_texts(vary)),
        None if configs is None else str(configs),
        max_flops,
        seed,
        None if active else extent.max_vectors,
        MOST_CANDIDATES if active else None,
    )

    def plan(device: Device | None, show: Progress) -> Planned:
        wanted = choice.planned(device)
        notes = [] if isinstance(wanted.source, Vectors) else wanted.source.selection.notes
        for note in (*problem_notes(named, choice.problems), *notes):
            show.say(note)
        return wanted

    if cluster.is_ray:
        if dry_run:
            raise InvalidValue(
                "`dry_run` tries vectors on this machine: leave out `on=ray`, run it on a machine with such a device, and "
                "divide the time by the number of devices"
            )
        # Before the cluster is asked for anything: what no device of it could make right.
        choice.on(profiles.local())
        if request.out.exists():
            Dataset.open(request.out, journal=False)
        from kerncast.measuring.fleet.discovery import CPU, GPU
        from kerncast.measuring.fleet.run import FleetRun

        counted = measuring.resource or (CPU if runs.kind.runs_on_cpu else GPU)
        with connected(cluster.address), shown(progress) as show:
            fleet = FleetRun(request, lambda device: plan(device, show), counted, progress=show, stop=extent.stop)
            return _opened([Collected(summary, vectors) for summary, vectors in fleet.run()])
    kernels = runs.backend()
    with shown(progress) as show:
        wanted = plan(runs.device(kernels), show)
    if dry_run:
        return estimate(request, kernels, wanted)
    if runs.benchmark is not None:
        # If the benchmark's version cannot be read, fail here and not after resetting a device.
        kernels.software(named.id)
    with shown(progress, what="preparing") as show:
        summary = run(request, wanted.source.iter_blocks(), total=wanted.total, progress=show, stop=extent.stop)
    return _opened([Collected(summary, wanted.total)])


def _what(given: Family | str | Path | Source) -> tuple[Family, Source | None, Mapping[str, Any]]:
    """The family, the vectors of a sweep if one is given, and what an alias of the op means."""
    if isinstance(given, Family):
        return given, None, {}
    if isinstance(given, Source):
        return given.family, given, {}
    if (Path(given) / VECTORS).is_file():
        vectors = Vectors.open(given)
        return vectors.family, vectors, {}
    family, preset = family_with_preset(str(given))
    return family, None, preset


def _opened(found: Sequence[Collected]) -> Dataset:
    """The first dataset, with what was measured just now."""
    first, *others = found
    dataset = Dataset.open(first.summary.path)
    dataset.collected = replace(first, beside=tuple(others))
    return dataset
