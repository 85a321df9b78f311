"""`kerncast.collect`: measure the kernels of a family."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, overload

from kerncast import devices as profiles
from kerncast.api.active import worth_by_model
from kerncast.api.on_ray import LOCAL, connected, wanted_on_ray
from kerncast.api.results import Problems, assignments, named_values, place_of, problem_texts, with_preset
from kerncast.api.showing import Wanted, shown
from kerncast.collecting.active import MOST_CANDIDATES
from kerncast.collecting.alike import LIMIT
from kerncast.collecting.estimate import Estimate, estimate
from kerncast.collecting.plan import (
    Measuring,
    Planned,
    Runner,
    Source,
    asked_vectors,
    memory_bytes,
    planned,
    retried,
    runner,
    seconds,
)
from kerncast.collecting.request import Active, Request, Stop, Summary, never
from kerncast.collecting.run import collect as run
from kerncast.data.dataset import Dataset
from kerncast.declared.family_file import SUFFIX, family_with_preset
from kerncast.device import Device
from kerncast.errors import InvalidValue
from kerncast.op import Family
from kerncast.problems import problem_notes
from kerncast.progress import Progress
from kerncast.sweeping import Vectors


@dataclass(frozen=True)
class Collected:
    """The result of a collection: its summary, and how many vectors were requested."""

    summary: Summary
    vectors: int
    beside: tuple[Collected, ...] = ()
    """The same for other kinds of device, if a cluster has several: a dataset each, at `summary.path`."""


@overload
def collect(family: Family | str | Source, *, dry_run: Literal[True], **options: Any) -> Estimate: ...
@overload
def collect(family: Family | str | Source, *, dry_run: Literal[False] = False, **options: Any) -> Dataset: ...
def collect(  # type: ignore[misc]  # the overloads name what decides the result, not all options
    family: Family | str | Source,
    *,
    problems: Problems = (),
    vary: Mapping[str, Any] | Sequence[str] | None = None,
    max_flops: float | None = None,
    configs: str | None = None,
    vectors: str | Path | None = None,
    backend: str | None = None,
    benchmark: str | None = None,
    set: Mapping[str, str] | Sequence[str] | None = None,
    build_jobs: int = 2,
    out: str | Path | None = None,
    devices: str | Sequence[str] | None = None,
    on: str = LOCAL,
    address: str | None = None,
    resource: str | None = None,
    resume: bool = False,
    retry_failed: bool | str | Sequence[str] | None = None,
    budget: str | float | None = None,
    max_vectors: int | None = None,
    active: bool = False,
    samples: int | None = None,
    warmup: str | float | None = None,
    timeout: str | float | None = None,
    chunk_size: int = 64,
    cache: str | None = None,
    memory: str | float | None = None,
    verify: bool = True,
    reset_command: str | None = None,
    alike_failures: int = LIMIT,
    capture_hw: bool = False,
    seed: int = 0,
    dry_run: bool = False,
    stop: Callable[[], bool] = never,
    progress: Wanted = "auto",
) -> Dataset | Estimate:
    """Measure the kernels of a family, or the vectors of a sweep, and return the dataset; nothing measured is ever lost.

    If it is killed or interrupted, the same call with the same `out` continues. `dataset.collected` says what this call
    measured. With `dry_run`, no dataset is written, and the estimate says what it would take. Once `stop()` is true, the
    collection ends in about a second; what has no row yet is left for the next call.

    `retry_failed` measures failed rows of `out` again: True for all of them, or the statuses that are meant. If
    `alike_failures` configs in a row fail in the same way, the cause is not the kernels: the collection stops, and
    none of them gets a row (0: never).

    `capture_hw` keeps what rocminfo, nvidia-smi and lscpu say in the dataset (`dataset.hardware`), and warns where it
    contradicts the profile of the device.

    With `on="ray"`, every device of a Ray cluster measures, this process alone writes, and devices and nodes may come and go
    (docs/fleet.md). `address` is the cluster's; `resource` counts the devices of a node: `GPU`, or one of your own such as
    `card`. Devices of another kind than the first go to datasets of their own: `dataset.collected.beside`.
    """
    far = wanted_on_ray(on, address=address, resource=resource)
    measuring = Measuring(samples, warmup, timeout, cache, memory, verify, reset_command)
    given: Path | Source | None = None if vectors is None else Path(vectors)
    if isinstance(family, Source):
        if given is not None:
            raise InvalidValue("a sweep says what to measure: `vectors` cannot be combined with it")
        given, family = family, family.family
    found, preset = (family, {}) if isinstance(family, Family) else family_with_preset(family)
    if benchmark is None and backend is None and isinstance(family, str) and family.endswith(SUFFIX):
        benchmark = family  # the same file says how its kernels are measured
    if far and devices is not None:
        raise InvalidValue("the cluster says which devices there are: leave out `devices`, or count others with `resource`")
    runs = runner(
        found, backend, benchmark, named_values(set, "set"), "0" if devices is None else devices, measuring, elsewhere=far
    )
    request = Request(
        family=found,
        backend=runs.name,
        devices=runs.devices,
        out=place_of(out, "dataset"),
        policy=measuring.policy(runs.benchmark),
        chunk_size=chunk_size,
        budget_seconds=None if budget is None else seconds(budget),
        extend=resume or bool(retry_failed),
        reset_command=runs.reset_words or measuring.reset_words,
        options=runs.options,
        build_jobs=build_jobs,
        alike_failures=alike_failures,
        capture_hw=capture_hw,
        retry=retried(retry_failed),
        memory_bytes=memory_bytes(memory),
        active=Active(worth_by_model(found, seed), seed, max_vectors) if active else None,
    )
    specs = problem_texts(problems)

    asked: dict[str, Any] = {
        "vectors": given, "problems": specs,
        "vary": assignments(vary) if given is not None else with_preset(preset, assignments(vary)),
        "configs": configs, "max_flops": max_flops, "seed": seed, "max_vectors": None if active else max_vectors,
    }  # fmt: skip

    def plan(device: Device | None) -> Planned:
        return planned(found, **asked, device=device, most_candidates=MOST_CANDIDATES if active else None)

    def say_notes(wanted: Planned, show: Progress) -> Planned:
        given = [] if isinstance(wanted.source, Vectors) else wanted.source.selection.notes
        for note in (*problem_notes(found, specs), *given):
            show.say(note)
        return wanted

    if far:
        if dry_run:
            raise InvalidValue(
                "`dry_run` tries vectors on this machine: leave out `on=ray`, run it on a machine with such a device, and "
                "divide the time by the number of devices"
            )
        _refuse_early(request, asked)
        with connected(address), shown(progress) as show:
            return _opened(_on_fleet(request, lambda device: say_notes(plan(device), show), runs, resource, show, stop))
    kernels = runs.backend()
    wanted = plan(runs.device(kernels))
    with shown(progress) as show:
        say_notes(wanted, show)
    if dry_run:
        return estimate(request, kernels, wanted)
    if runs.benchmark is not None:
        # If the benchmark's version cannot be read, fail here and not after resetting a device.
        kernels.software(found.id)
    with shown(progress, what="preparing") as show:
        summary = run(request, wanted.blocks(), total=wanted.total, progress=show, stop=stop)
    return _opened([Collected(summary, wanted.total)])


def _refuse_early(request: Request, asked: dict[str, Any]) -> None:
    """Refuse, before a cluster is asked for anything, what no device of it could make right."""
    asked_vectors(request.family, profiles.local(), **asked)
    if request.out.exists():
        Dataset.open(request.out, journal=False)


def _on_fleet(
    request: Request, plan: Callable[[Device], Planned], runs: Runner, resource: str | None, show: Progress, stop: Stop
) -> list[Collected]:
    from kerncast.collecting.fleet.roster import CPU, GPU
    from kerncast.collecting.fleet.run import collect_on_fleet

    counted = resource or (CPU if runs.kind.runs_on_cpu else GPU)
    found = collect_on_fleet(request, plan, counted, progress=show, stop=stop)
    return [Collected(summary, vectors) for summary, vectors in found]


def _opened(found: Sequence[Collected]) -> Dataset:
    """The first dataset, with what was measured just now."""
    first, *others = found
    dataset = Dataset.open(first.summary.path)
    dataset.collected = replace(first, beside=tuple(others))
    return dataset
