"""A sweep: problems × configs as a lazy sequence of vectors, the same in every run and on every machine."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl

from kerncast.core.arrays import Flags, Ints
from kerncast.core.device import Device
from kerncast.core.io.quoting import word
from kerncast.core.io.terminal import printable
from kerncast.core.op import Config, Family, Problem, key
from kerncast.core.parameters import Value
from kerncast.data.schema import content_digest, without_unused
from kerncast.errors import InvalidValue
from kerncast.library.problems import affordable, problem_set
from kerncast.library.problems.axes import check_axes, cross
from kerncast.library.problems.files import complete
from kerncast.measuring.sweeping.pool import BLOCK_ROWS, CONFIG, PROBLEM, TRIES, ConfigPool, ListedPool, OfferedPool, open_pool
from kerncast.measuring.sweeping.selection import Selection


@dataclass(frozen=True)
class Vector:
    """What to run: both halves validated."""

    problem: Problem
    config: Config

    def key(self, device: str) -> str:
        """The key of its measurement."""
        return key(self.problem, self.config, device)


def vectors_of(family: Family, block: pl.DataFrame) -> Iterator[Vector]:
    """The rows of a block as values; one problem's rows share their `Problem`."""
    last: tuple[dict[str, object], Problem] | None = None
    for row in block.iter_rows(named=True):
        values = {name: row[PROBLEM + name] for name in family.problem.parameters}
        if last is None or last[0] != values:
            last = values, Problem(family, values)
        config = {name: row[CONFIG + name] for name in family.config.parameters if row[CONFIG + name] is not None}
        yield Vector(last[1], Config(family, config))


# Counting may check this many problems with a config, a few seconds; beyond, a count is an estimate.
COUNTED_CHECKS = 20_000_000
# Configs of all pools that are kept in memory, some 100 MB. A pool takes seconds to list.
KEPT_CONFIGS = 10_000_000


@dataclass(frozen=True)
class Slice:
    """The `index`-th of `of` shares, counted from 1."""

    index: int
    of: int

    def __post_init__(self) -> None:
        if not 1 <= self.index <= self.of:
            raise InvalidValue(f"a slice is i/n with 1 ≤ i ≤ n, got {self}")

    @classmethod
    def parse(cls, text: str) -> Slice:
        """`3/8`."""
        match = re.fullmatch(r"(\d+)/(\d+)", text)
        if not match:
            raise InvalidValue(f"a slice is i/n with 1 ≤ i ≤ n (3/8), got '{text}'")
        return cls(int(match[1]), int(match[2]))

    def __str__(self) -> str:
        return f"{self.index}/{self.of}"


class SweepBase:
    """What both kinds of sweep are made of."""

    def __init__(
        self,
        family: Family,
        device: Device,
        selection: Selection | None,
        seed: int,
        part: Slice | None,
        max_vectors: int | None,
    ) -> None:
        self.family, self.device, self.seed = family, device, seed
        self.selection, self.part, self.max_vectors = selection or Selection(), part, max_vectors
        if max_vectors is not None and max_vectors < 1:
            raise InvalidValue(f"a sweep keeps at least one vector, got a maximum of {max_vectors}")

    @cached_property
    def unchecked(self) -> dict[str, tuple[str, ...]]:
        """Constraints that cannot be checked, with the hardware numbers that the device's profile lacks."""
        known = self.family.bindings(None, self.device)
        lacking = {}
        for constraint in self.family.config.constraints:
            names = [symbol.name for symbol in constraint.program.bind(known).symbols]
            numbers = tuple(name.removeprefix("hw.") for name in names if name.startswith("hw."))
            if numbers:
                lacking[constraint.name] = numbers
        return lacking


@dataclass(frozen=True)
class _ProblemGroup:
    """Problems with one pool of configs, from position `start` of the sweep on."""

    labels: dict[str, Any]
    problems: pl.DataFrame
    start: int


class Sweep(SweepBase):
    """The vectors of `family` on `device`.

    Vectors come problem after problem. A slice holds whole problems, drawn by the seed: the configs of one
    problem are only comparable when one machine measured them all. Every n-th problem would not be a fair share,
    because sets are regular.
    `max_vectors` bounds the whole sweep, before it is sliced: each problem keeps its share, a uniform sample.
    """

    def __init__(
        self,
        family: Family,
        device: Device,
        problems: pl.DataFrame,
        selection: Selection | None = None,
        *,
        seed: int = 0,
        part: Slice | None = None,
        max_vectors: int | None = None,
    ) -> None:
        super().__init__(family, device, selection, seed, part, max_vectors)
        self.problems = complete(family.problem, problems, "the problem set", strict=True)
        if part is not None and part.of > self.problems.height:
            raise InvalidValue(
                f"slice {part} cuts {self.problems.height:,} problems into {part.of} shares, and a share holds whole "
                f"problems: take at most {self.problems.height:,} slices"
            )
        self._pools: dict[int, ConfigPool] = {}

    def __repr__(self) -> str:
        parts = [f"{self.problem_count:,} problems"]
        if self.selection.portfolio is not None:
            parts.append(f"{self.selection.portfolio.height:,} given configs")
        elif self.selection.kernels is not None:
            parts.append(f"{self.selection.kernels.rows.height:,} kernels by name")
        elif self.selection.offered is not None:
            parts.append(f"Inductor's {self.selection.offered.space} configs of each")
        elif self.selection.per_problem is not None:
            parts.append(f"a sample of {self.selection.per_problem:,} configs of each")
        else:
            parts.append("all configs")
        if self.max_vectors is not None:
            parts.append(f"at most {self.max_vectors:,} vectors")
        if self.part is not None:
            parts.append(f"slice {self.part}")
        # Counting may take long, so a count is shown only if it is already known.
        if "_counts" in self.__dict__:
            parts.append(f"{self.count():,} vectors")
        return printable(f"Sweep({self.family.id} on {self.device.name}; {', '.join(parts)}; seed {self.seed})")

    @property
    def problem_count(self) -> int:
        """How many problems it was given."""
        return self.problems.height

    @property
    def problems_digest(self) -> str:
        """A hash of the problems."""
        own = {name: (self.family.problem, name) for name in self.family.problem.parameters}
        return content_digest([without_unused(self.family, self.problems, own)])

    @cached_property
    def _groups(self) -> list[_ProblemGroup]:
        """Problems grouped by the labels, flags and environment that constraints read, in order of appearance.

        These take few values, so each group gets its own pool.
        """
        known = self.family.bindings(None, self.device)
        read = {symbol.name for c in self.family.config.constraints for symbol in c.program.bind(known).symbols}
        labels = [
            name
            for name, parameter in self.family.problem.parameters.items()
            if f"p.{name}" in read
            and (not parameter.ordered or name in self.family.environment.parameters)
            and name not in self.family.problem.active
        ]
        problems, kernels = self.problems, self.selection.kernels
        if kernels is not None:  # a kernel is built for one kind of problem
            kinds = kernels.kinds_of(problems)
            labels += [name for name in kinds.columns if name in problems.columns and name not in labels]
            problems = problems.with_columns(kinds[name] for name in kinds.columns if name not in problems.columns)
            labels += [name for name in kinds.columns if name not in labels]
        frames = problems.partition_by(labels, maintain_order=True) if labels else [problems]
        starts = np.cumsum([0, *(frame.height for frame in frames)])
        return [
            _ProblemGroup(
                frame.select(labels).row(0, named=True) if labels else {}, frame.select(self.problems.columns), int(start)
            )
            for frame, start in zip(frames, starts, strict=False)
            if frame.height
        ]

    def _pool(self, index: int) -> ConfigPool:
        """The pool of a group; the last ones are kept, but there may be many and each may be large."""
        if index not in self._pools:
            pool = self._opened(self._groups[index].labels)
            kept = sum(other.size for other in self._pools.values() if isinstance(other, ListedPool))
            if kept + pool.size > KEPT_CONFIGS:
                self._pools.clear()
            self._pools[index] = pool
        return self._pools[index]

    def _opened(self, labels: dict[str, Any]) -> ConfigPool:
        if self.selection.offered is not None:
            return OfferedPool(self.family, self.device, self.family.bindings(labels, self.device), self.selection.offered)
        kernels = self.selection.kernels
        if kernels is None:
            return open_pool(self.family, self.device, labels, self.selection.portfolio)
        known = {name: value for name, value in labels.items() if name in self.family.problem.parameters}
        return open_pool(self.family, self.device, known, kernels.built_for(labels).configs)

    @cached_property
    def _takes_long(self) -> bool:
        """Whether checking every problem with every config that may be needed would take long."""
        pool = self._pool(0) if self._groups else None
        if pool is None or not pool.checks_problems:
            return False
        tried = pool.size if self.selection.per_problem is None else min(pool.size, TRIES * self.selection.per_problem)
        return self.problems.height * tried > COUNTED_CHECKS

    @cached_property
    def _kept(self) -> Flags:
        """Which problems belong to this slice, in the order of the groups."""
        total = self.problems.height
        if self.part is None:
            return np.ones(total, dtype=np.bool_)
        share: Ints = np.random.default_rng(self.seed).permutation(total) % self.part.of
        return np.equal(share, self.part.index - 1)

    @cached_property
    def _counts(self) -> Ints:
        """Vectors of each problem in the whole sweep, in the order of the groups."""
        limit = self.selection.per_problem
        if self.max_vectors is not None and self._takes_long:
            # Four times an even share: more would not change the shares much.
            limit = min(limit or self.max_vectors, -(-4 * self.max_vectors // self.problems.height))
        parts = [self._pool(index).counts(group.problems, limit, self.seed) for index, group in enumerate(self._groups)]
        counts = np.concatenate([np.zeros(0, dtype=np.int64), *parts])
        total = int(counts.sum())
        if self.max_vectors is None or total <= self.max_vectors:
            return counts
        # Rounding the running sum, in an order drawn by the seed, gives shares that add up exactly.
        order = np.random.default_rng([self.seed, self.max_vectors]).permutation(len(counts))
        reached = np.floor(np.cumsum(counts[order]) / total * self.max_vectors).astype(np.int64)
        shares = np.empty_like(counts)
        shares[order] = np.diff(reached, prepend=0)
        return shares

    def count_about(self) -> tuple[int, bool]:
        """How many vectors there are, and whether that is exact: if counting takes long, some problems stand for all."""
        if "_counts" in self.__dict__ or self.max_vectors is not None or not self._takes_long:
            return self.count(), True
        sizes = [group.problems.height for group in self._groups]
        means, rng = [], np.random.default_rng(self.seed)
        # Up to three groups, the largest ones: each has its own pool.
        for index in sorted(range(len(sizes)), key=lambda i: -sizes[i])[:3]:
            pool = self._pool(index)
            some = min(sizes[index], max(1, COUNTED_CHECKS // 12 // pool.size))
            drawn = self._groups[index].problems[rng.choice(sizes[index], some, replace=False)]
            means.append(float(pool.counts(drawn, self.selection.per_problem, self.seed).mean()))
        return round(float(np.mean(means)) * int(self._kept.sum())), False

    def drawn(self, vectors: int) -> Sweep:
        """A sweep of about so many vectors of this one: some problems of up to three groups, some configs of each."""
        rng = np.random.default_rng(self.seed)
        kept = [group.problems.filter(pl.Series(self._kept[group.start : group.start + group.problems.height]))
                for group in self._groups]  # fmt: skip
        largest = sorted((frame for frame in kept if frame.height), key=lambda frame: -frame.height)[:3]
        each = [frame[np.sort(rng.choice(frame.height, min(frame.height, 64), replace=False))] for frame in largest]
        problems = pl.concat(each) if each else self.problems.clear()
        per_problem = max(1, vectors // max(1, problems.height))
        if self.selection.per_problem is not None:
            per_problem = min(per_problem, self.selection.per_problem)
        selection = replace(self.selection, per_problem=per_problem)
        return Sweep(self.family, self.device, problems, selection, seed=self.seed)

    def count(self) -> int:
        """How many vectors `iter_blocks` gives. If a constraint reads a problem's numbers, each problem is checked first."""
        return int(self._counts[self._kept].sum())

    def iter_blocks(self) -> Iterator[pl.DataFrame]:
        """The vectors as frames with columns `problem.*` and `config.*`, in a fixed order, a block at a time."""
        for index, group in enumerate(self._groups):
            window = slice(group.start, group.start + group.problems.height)
            kept = self._kept[window]
            problems = group.problems.filter(pl.Series(kept))
            if not problems.height:
                continue
            take: Ints | None = None
            if self.max_vectors is not None:
                take = self._counts[window][kept]
            elif self.selection.per_problem is not None:
                take = np.full(problems.height, self.selection.per_problem, dtype=np.int64)
            yield from self._pool(index).blocks(problems, take, self.seed)


class SuiteSweep(SweepBase):
    """The vectors of one of an op's `sweeps`, in the order of its suites. It has the interface of a `Sweep`.

    Suites pass through in batches, each a small sweep with a share of `max_vectors`: memory is bounded by a batch.
    """

    def __init__(
        self,
        family: Family,
        device: Device,
        name: str,
        axes: Mapping[str, Iterable[Value]] | None = None,
        selection: Selection | None = None,
        *,
        seed: int = 0,
        part: Slice | None = None,
        max_vectors: int | None = None,
        max_flops: float | None = None,
        max_bytes: float | None = None,
    ) -> None:
        super().__init__(family, device, selection, seed, part, max_vectors)
        self.name = name
        checked = check_axes(family.problem, axes or {})
        self._axes: dict[str, Sequence[Value]] = {key: checked[key] for key in checked if key in family.op.parameters}
        self._environment = {key: checked[key] for key in checked if key in family.environment_parameters}
        self._limits = max_flops, max_bytes

    def _batches(self) -> Iterator[pl.DataFrame]:
        """The problems in pieces of whole suites, each large enough to be worth the work on it."""
        ready: list[pl.DataFrame] = []
        held: list[pl.DataFrame] = []
        height = 0
        for suite in self.family.op.sweep(self.name, self._axes):
            problems = affordable(self.family.op, suite.problems, *self._limits)
            held.append(cross(self.family.problem, self._environment, problems) if self._environment else problems)
            height += held[-1].height
            if height >= BLOCK_ROWS:
                yield from ready
                ready, held, height = [pl.concat(held)], [], 0
        # The last ones join the batch before them: a handful of problems cannot be sliced.
        if ready or held:
            yield pl.concat([*ready, *held])

    def _sweep(self, problems: pl.DataFrame, max_vectors: int | None) -> Sweep:
        return Sweep(
            self.family, self.device, problems, self.selection, seed=self.seed, part=self.part, max_vectors=max_vectors
        )

    @cached_property
    def _survey(self) -> tuple[str, int, Ints]:
        """A hash of the problems, how many there are, and the vectors of each batch if they are limited: one pass over all."""
        heights: list[int] = []
        vectors: list[int] = []

        def batches() -> Iterator[pl.DataFrame]:
            for batch in self._batches():
                heights.append(batch.height)
                if self.max_vectors is not None:
                    whole = Sweep(self.family, self.device, batch, self.selection, seed=self.seed)
                    vectors.append(whole.count())
                yield batch

        digest = content_digest(batches())
        if not sum(heights):
            raise InvalidValue(
                f"no problem of {self.name} is left: loosen `vary`, `max_flops` or `max_bytes` (`kerncast list op "
                f"{word(self.family.op.name)}` lists the values)"
            )
        return digest, sum(heights), np.array(vectors, np.int64)

    @property
    def problem_count(self) -> int:
        """How many problems it runs through."""
        return self._survey[1]

    @property
    def problems_digest(self) -> str:
        """A hash of the problems."""
        return self._survey[0]

    def _sweeps(self) -> Iterator[Sweep]:
        """The batches as separate sweeps."""
        vectors, most = self._survey[2], self.max_vectors
        if most is None or vectors.sum() <= most:
            yield from (self._sweep(batch, None) for batch in self._batches())
            return
        # Rounding the running sum gives shares that add up exactly.
        reached = np.floor(np.cumsum(vectors) / vectors.sum() * most).astype(np.int64)
        for batch, share in zip(self._batches(), np.diff(reached, prepend=0), strict=True):
            if share:
                yield self._sweep(batch, int(share))

    def count(self) -> int:
        """How many vectors `iter_blocks` gives."""
        return sum(sweep.count() for sweep in self._sweeps())

    def count_about(self) -> tuple[int, bool]:
        """`count`, which is exact."""
        return self.count(), True

    def drawn(self, vectors: int) -> Sweep:
        """A sweep of about so many vectors of this one, from its first batch."""
        first = next(self._batches())
        return self._sweep(first, None).drawn(vectors)

    def iter_blocks(self) -> Iterator[pl.DataFrame]:
        """The vectors as frames with columns `problem.*` and `config.*`, in a fixed order, a block at a time."""
        for sweep in self._sweeps():
            yield from sweep.iter_blocks()


def open_sweep(
    family: Family,
    device: Device,
    specs: Sequence[str],
    axes: Mapping[str, Iterable[Value]] | None = None,
    selection: Selection | None = None,
    *,
    seed: int = 0,
    part: Slice | None = None,
    max_vectors: int | None = None,
    max_flops: float | None = None,
    max_bytes: float | None = None,
) -> Sweep | SuiteSweep:
    """The sweep that specifications ask for: problem sets, or one sweep that the op generates itself."""
    generated = [spec for spec in specs if spec in family.op.sweeps]
    if generated and len(specs) > 1:
        raise InvalidValue(f"{generated[0]} is a whole sweep and cannot be combined with other problems: leave the others out")
    if generated:
        return SuiteSweep(
            family, device, generated[0], axes, selection, seed=seed, part=part, max_vectors=max_vectors,
            max_flops=max_flops, max_bytes=max_bytes,
        )  # fmt: skip
    problems = problem_set(family, specs, axes, seed=seed, max_flops=max_flops, max_bytes=max_bytes)
    return Sweep(family, device, problems, selection, seed=seed, part=part, max_vectors=max_vectors)
