"""Plan a collection from the caller's arguments: backend, devices, policy, vectors.

The public function, the command line, `models check` and regeneration all use this module.
"""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import polars as pl
from msgspec import structs

from kerncast.core.device import Device
from kerncast.core.io.arguments import Help, named_values
from kerncast.core.io.quoting import word
from kerncast.core.op import Family
from kerncast.core.progress import Stop, never
from kerncast.data.schema import Status
from kerncast.errors import InvalidValue, KerncastError, NotFound
from kerncast.library import devices as profiles
from kerncast.library.problems import named_sets, parse_vary
from kerncast.library.problems.axes import sizes
from kerncast.measuring.backends import backend_for, backend_that_runs, get_backend
from kerncast.measuring.backends.command import CommandBackend
from kerncast.measuring.backends.command.benchmark import load, shipped_for
from kerncast.measuring.backends.command.schema import Benchmark
from kerncast.measuring.backends.contract import Backend, TimesItself
from kerncast.measuring.collection import Active, Request
from kerncast.measuring.messages import Policy
from kerncast.measuring.scheduling import LIMIT
from kerncast.measuring.sweeping import Selection, SuiteSweep, Sweep, Vectors, open_sweep, parse_selection

Source: TypeAlias = Sweep | SuiteSweep | Vectors
# An active choice compares at least so many configs of each problem.
FEWEST_CANDIDATES = 16
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}


def seconds(given: str | float) -> float:
    """`90s`, `10m`, `1.5h`, or a plain number of seconds."""
    if not isinstance(given, str):
        return float(given)
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", given)
    if not match:
        raise InvalidValue(f"a duration is a number with s, m or h (90s, 10m, 1.5h), got '{given}'")
    return float(match[1]) * _SECONDS[match[2] or "s"]


def memory_bytes(given: str | float | None) -> int | None:
    """`2.5` (GB), `none` or `0` for no limit (0), nothing for the default (None)."""
    if given is None or given == "none":
        return None if given is None else 0
    if not re.fullmatch(r"\d+(?:\.\d+)?", str(given)):
        raise InvalidValue(f"`memory` takes GB (2.5), or none for no limit, got '{given}'")
    return int(float(given) * 1e9)


def retried(given: bool | str | Iterable[str] | None) -> frozenset[str]:
    """The statuses of rows to measure again: all failures for True and `all`, else those that are named."""
    failures = frozenset(map(str, Status)) - {Status.OK}
    names = given.split(",") if isinstance(given, str) else ["all"] if given is True else list(given or ())
    if names == ["all"]:
        return failures
    for name in names:
        if name not in failures:
            raise NotFound.named("status of a failed row", name, failures)
    return frozenset(names)


@dataclass(frozen=True)
class Measuring:
    """What measures vectors, on which devices, and how. For None, the benchmark or the backend decides."""

    backend: Annotated[
        str | None, Help("What runs the kernels. [default: the first that knows the family]", metavar="NAME")
    ] = None
    benchmark: Annotated[
        str | None,
        Help(
            "An external benchmark program instead: ck-tile, ck-tile-conv, cutlass-profiler, tt-metal-concatenate-heads, "
            "tt-metal-create-qkv-heads, tt-metal-paged-sdpa-decode, tt-metal-reshard, tt-metal-sweep, or a TOML file "
            "(docs/command.md).",
            metavar="NAME|FILE",
        ),
    ] = None
    settings: Annotated[
        Mapping[str, str] | Sequence[str] | None,
        Help("A setting of the benchmark. May be repeated.", metavar="NAME=VALUE", option="--set"),
    ] = None
    devices: Annotated[
        str | Sequence[str] | None,
        Help("Device indices, one worker process each: 0,1. [default: 0]", metavar="LIST", several=False),
    ] = None
    resource: Annotated[
        str | None,
        Help(
            "With `on=ray`: what counts the devices of a node, such as card. [default: GPU; for CPU kernels one device "
            "per node]",
            metavar="NAME",
        ),
    ] = None
    build_jobs: Annotated[int, Help("Kernels to build at the same time.", least=1)] = 2
    samples: Annotated[int | None, Help("Maximum samples per vector.", metavar="N", least=1)] = None
    warmup: Annotated[str | float | None, Help("Warm-up time per vector: 0.002s.", metavar="TIME")] = None
    timeout: Annotated[
        str | float | None, Help("Kill a launch or a benchmark program after this long: 10s.", metavar="TIME")
    ] = None
    chunk_size: Annotated[int, Help("Vectors whose samples are interleaved.", least=1)] = 64
    cache: Annotated[str | None, Help("State of the caches before each launch. [default: warm]", choices=("warm", "cold"))] = (
        None
    )
    memory: Annotated[
        str | float | None,
        Help(
            "Memory limit of a worker (0: none); exceeding it is out_of_memory. [default: its share of 80 % of free memory]",
            metavar="GB|none",
        ),
    ] = None
    verify: Annotated[bool, Help("Do not check that kernels compute the right results.")] = True
    reset_command: Annotated[
        str | None, Help("Run after a worker is lost, without a shell; {device} is its index.", metavar="CMD")
    ] = None
    alike_failures: Annotated[
        int, Help("Stop when N configs in a row fail in the same way, without a row for them (0: never).", metavar="N", least=0)
    ] = LIMIT
    capture_hw: Annotated[
        bool,
        Help("Keep what rocminfo, nvidia-smi and lscpu say in the dataset; warn where it contradicts the device's profile."),
    ] = False

    @property
    def reset_words(self) -> tuple[str, ...]:
        """The words of the reset command, divided as a shell does."""
        try:
            return tuple(shlex.split(self.reset_command or ""))
        except ValueError as error:
            raise InvalidValue(f"`reset_command` {self.reset_command!r} cannot be divided into words ({error})") from error

    @property
    def deadline(self) -> float | None:
        """The longest that one launch may take, in seconds."""
        if self.timeout is None:
            return None
        found = seconds(self.timeout)
        if not found:
            raise InvalidValue(f"`timeout` must be more than 0, got '{self.timeout}': everything would be killed at once")
        return found

    def policy(self, benchmark: Benchmark | None) -> Policy:
        """The policy: the values given here, else the benchmark's, else the defaults."""
        samples, cache = self.samples, self.cache or "warm"
        if samples is not None and not isinstance(samples, Integral):
            raise InvalidValue(f"`samples` must be a whole number, got {samples!r}")
        if benchmark is not None:
            samples, cache = samples or benchmark.samples, self.cache or benchmark.cache
        changes: dict[str, Any] = {"cache": cache, "verify": self.verify, "memory_bytes": memory_bytes(self.memory) or 0}
        if samples is not None:
            changes |= {"samples": samples, "fewest_samples": min(samples, Policy().fewest_samples)}
        if self.warmup is not None:
            changes["warmup_ns"] = int(seconds(self.warmup) * 1e9)
        if self.deadline is not None:
            ceiling = int(self.deadline * 1e9)
            changes |= {"deadline_ceiling_ns": ceiling, "deadline_floor_ns": min(ceiling, Policy().deadline_floor_ns)}
        return Policy(**changes)


@dataclass(frozen=True)
class Extent:
    """How much of it one call measures, and when it ends."""

    budget: Annotated[
        str | float | None, Help("Stop after this long, from the start of the command: 90s, 10m, 1h.", metavar="TIME")
    ] = None
    max_vectors: Annotated[int | None, Help("Measure N vectors in total, spread over all problems.", metavar="N", least=1)] = (
        None
    )
    active: Annotated[
        bool, Help("Within `budget` or `max_vectors`, measure next the fast configs that a model is least sure about.")
    ] = False
    resume: Annotated[
        bool, Help("Measure what a dataset lacks, finished or not. (An unfinished one continues without it.)")
    ] = False
    retry_failed: Annotated[
        bool | str | Sequence[str] | None,
        Help(
            "Measure failed vectors of the dataset again: all of them, or those with these statuses: compile_error,crash.",
            metavar="[STATUS,…]",
            alone="all",
            several=False,
        ),
    ] = None
    stop: Stop = never
    """Asked several times a second; once it is true, the collection ends in about a second."""


EVERYTHING = Extent()


@dataclass(frozen=True)
class Runner:
    """What runs the kernels of a family: a backend, or an external benchmark, on some devices."""

    family: Family
    measuring: Measuring
    kind: type[Backend]
    benchmark: Benchmark | None
    devices: tuple[str, ...]

    @property
    def _options(self) -> dict[str, str]:
        """What the backend is configured with."""
        return {} if self.benchmark is None else CommandBackend.options(self.benchmark, self.measuring.verify)

    def request(self, out: Path, extent: Extent = EVERYTHING, active: Active | None = None) -> Request:
        """The collection into a dataset."""
        measuring = self.measuring
        own_reset = () if self.benchmark is None else tuple(self.benchmark.reset_words())
        return Request(
            family=self.family,
            backend=measuring.backend or self.kind.name,
            devices=self.devices,
            out=out,
            policy=measuring.policy(self.benchmark),
            chunk_size=measuring.chunk_size,
            budget_seconds=None if extent.budget is None else seconds(extent.budget),
            extend=extent.resume or bool(extent.retry_failed),
            reset_command=own_reset or measuring.reset_words,
            options=self._options,
            build_jobs=measuring.build_jobs,
            alike_failures=measuring.alike_failures,
            capture_hw=measuring.capture_hw,
            retry=retried(extent.retry_failed),
            memory_bytes=memory_bytes(measuring.memory),
            active=active,
        )

    def backend(self) -> Backend:
        """The backend on the first device; a missing program is refused here, before anything is written."""
        try:
            return self.kind.configured(self.devices[0], self._options)
        except (KerncastError, OSError):
            raise
        except Exception as error:  # a backend of another package may raise anything
            why = f"{type(error).__name__}: {error}"
            raise KerncastError(f"device {self.devices[0]} does not start ({why}): fix it and run the same again") from error

    def device(self, backend: Backend) -> Device | None:
        """The device whose limits a sweep obeys; None: this CPU, whose limits are known without measuring."""
        return backend.device() if self.benchmark or not self.kind.runs_on_cpu else None


def runner(family: Family, measuring: Measuring, *, elsewhere: bool = False) -> Runner:
    """The runner that measures a family; refused if it cannot run here, unless it runs `elsewhere`, on devices unknown here."""
    described = _benchmark(family, measuring)
    kind = CommandBackend if described else _backend(family.id, measuring.backend, elsewhere)
    indices = () if elsewhere else device_indices(kind, "0" if measuring.devices is None else measuring.devices)
    return Runner(family, measuring, kind, described, indices)


def _backend(family_id: str, name: str | None, elsewhere: bool) -> type[Backend]:
    kind = get_backend(name) if name else backend_for(family_id)
    if kind is CommandBackend:
        known = " or ".join([*shipped_for(family_id), "a TOML file"])
        why = "backend command runs external programs" if name else f"no backend here runs {family_id} by itself"
        raise InvalidValue(f"{why}: name its benchmark with `benchmark` ({known})")
    return backend_that_runs(family_id, name, here=not elsewhere)


def _benchmark(family: Family, measuring: Measuring) -> Benchmark | None:
    """The external benchmark with the changes of the other arguments."""
    name, backend, settings = measuring.benchmark, measuring.backend, named_values(measuring.settings, "settings")
    if name is None:
        if settings:
            raise InvalidValue("`settings` changes a setting of a benchmark: name one with `benchmark`")
        return None
    if backend not in (None, "command"):
        raise InvalidValue(f"`benchmark` is for the backend command, not for {backend}: leave one of them out")
    found = load(name, settings, family)
    if found.family != family.id:
        raise InvalidValue(f"benchmark {found.name} measures {found.family}, not {family.id}")
    if measuring.warmup:
        raise InvalidValue(f"benchmark {found.name} warms up by itself: leave out `warmup`, or see its settings")
    if measuring.deadline is not None:
        found = structs.replace(found, timeout=measuring.deadline)
    if measuring.reset_command:
        found = structs.replace(found, reset=list(measuring.reset_words))
    if measuring.cache not in (None, found.cache) and not found.tells("cache"):
        raise InvalidValue(
            f"benchmark {found.name} measures {found.cache} caches: leave out `cache={measuring.cache}`, "
            "or use {cache} in its argv"
        )
    return found


def device_indices(kind: type[Backend], given: str | Sequence[str]) -> tuple[str, ...]:
    """Which devices to use, one worker each: `0,1` or a list."""
    found = tuple(given.split(",")) if isinstance(given, str) else tuple(map(str, given))
    text = ",".join(found)
    # Only the program of a benchmark knows which devices it can use.
    known = None if issubclass(kind, TimesItself) else kind.devices()
    for index in found:
        if not index.strip() or (known is not None and index not in known):
            choice = f"one or more of {', '.join(known)}" if known else "an index or several with commas between them (0,1)"
            raise InvalidValue(f"`devices` takes {choice} for backend {kind.name}, got '{text}'")
    if len(set(found)) < len(found):
        raise InvalidValue(f"`devices` names a device twice: two workers on one would disturb each other, got '{text}'")
    return found


@dataclass(frozen=True)
class Planned:
    """The vectors to measure, lazily."""

    source: Source
    total: int
    """How many there are."""
    exact: bool = True
    """Whether `total` is a count; else it is an estimate, because counting would take long."""

    def drawn(self, vectors: int) -> pl.DataFrame:
        """All vectors, or about so many of them if there are more."""
        if isinstance(self.source, Vectors):
            every = max(1, min(len(self.source.contents.parts) // 8, self.total // vectors))
            blocks, share = self.source.iter_blocks(every), vectors / (self.total / every)
            thinned = (block.sample(fraction=min(1.0, share), seed=0) for block in blocks)
            return pl.concat(list(itertools.islice(thinned, 64)))
        source = self.source if self.exact and self.total <= vectors else self.source.drawn(vectors)
        return pl.concat(list(source.iter_blocks()))


@dataclass(frozen=True)
class VectorChoice:
    """Which vectors of a family to measure: those of a sweep, or of problems and configs by their texts."""

    family: Family
    sweep: Source | None = None
    problems: Sequence[str] = ()
    vary: Sequence[str] = ()
    configs: str | None = None
    max_flops: float | None = None
    seed: int = 0
    max_vectors: int | None = None
    most_candidates: int | None = None
    """For an active choice, which holds its candidates in memory: problems get fewer configs, drawn by the seed, if there were
    more vectors than that."""

    def on(self, device: Device) -> Source:
        """The vectors, not counted yet; what is wrong on any device is refused here."""
        if self.sweep is not None:
            if self.problems or self.vary or self.max_flops or self.configs is not None:
                raise InvalidValue(
                    "a sweep says what to measure: `problems`, `vary`, `configs` and `max_flops` cannot be combined with it"
                )
            if self.max_vectors is not None:
                raise InvalidValue(
                    "a sweep says what to measure: give `max_vectors` to the sweep, or choose from it with `active`"
                )
            return self.sweep
        if not self.problems:
            grid = ";".join(f"{name}=…" for name in sizes(self.family.problem))
            named = ", ".join([*list(named_sets(self.family.op))[:2], f"grid:{grid}", "a table in FILE.csv"])
            raise InvalidValue(f"say what to measure: `problems` ({named}), or a sweep instead of the family")
        selection = parse_selection(self.family, "all" if self.configs is None else self.configs)
        return self._opened(device, selection, self.max_vectors)

    def _opened(self, device: Device, selection: Selection, max_vectors: int | None) -> Sweep | SuiteSweep:
        return open_sweep(
            self.family, device, self.problems, parse_vary(self.family, self.vary), selection, seed=self.seed,
            max_vectors=max_vectors, max_flops=self.max_flops,
        )  # fmt: skip

    def planned(self, device: Device | None = None) -> Planned:
        """The vectors, and how many there are, on a device or on this CPU."""
        local = device or profiles.local()
        source = self.on(local)
        if isinstance(source, Vectors):
            return Planned(source, source.count())
        selection = source.selection
        fixed = self.sweep is not None or selection.given is not None or not self.family.config.parameters
        if self.most_candidates is not None and not fixed:
            share = max(FEWEST_CANDIDATES, self.most_candidates // max(1, source.problem_count))
            selection = replace(selection, per_problem=min(share, selection.per_problem or share))
            many = share * source.problem_count > self.most_candidates
            source = self._opened(local, selection, self.most_candidates if many else None)
        total, exact = source.count_about()
        if not total and exact:
            raise InvalidValue(
                f"no config of {self.family.id} can run any of the {source.problem_count:,} problems on "
                f"{'this machine' if device is None else device.name}: see the constraints in "
                f"`kerncast list family {word(self.family.id)}`"
            )
        return Planned(source, total, exact)
