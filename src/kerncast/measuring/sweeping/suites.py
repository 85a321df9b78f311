"""Sweeps that an op generates suite by suite (`Op.sweep`), because all their problems at once would be too many to hold."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np
import polars as pl

from kerncast.core.arrays import Ints
from kerncast.core.device import Device
from kerncast.core.io.shell import word
from kerncast.core.op import Family
from kerncast.core.parameters import Value
from kerncast.data.schema import content_digest
from kerncast.errors import InvalidValue
from kerncast.library.problems import affordable, problem_set
from kerncast.library.problems.axes import check_axes
from kerncast.library.problems.samplers import cross
from kerncast.measuring.sweeping.pool import BLOCK_ROWS
from kerncast.measuring.sweeping.selection import Selection
from kerncast.measuring.sweeping.sweep import Slice, Sweep, unchecked


@dataclasses.dataclass(frozen=True)
class _Survey:
    """The result of one pass over a sweep: a hash of its problems, how many there are, the vectors of each batch."""

    digest: str
    problems: int
    vectors: Ints


class SuiteSweep:
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
        self.family, self.device, self.name, self.seed = family, device, name, seed
        self.selection, self.part, self.max_vectors = selection or Selection(), part, max_vectors
        if max_vectors is not None and max_vectors < 1:
            raise InvalidValue(f"a sweep keeps at least one vector, got a maximum of {max_vectors}")
        checked = check_axes(family.problem, axes or {})
        self._axes: dict[str, Sequence[Value]] = {key: checked[key] for key in checked if key in family.op.parameters}
        self._environment = {key: checked[key] for key in checked if key in family.environment_parameters}
        self._limits = max_flops, max_bytes

    @cached_property
    def unchecked(self) -> dict[str, tuple[str, ...]]:
        """Constraints that cannot be checked, with the hardware numbers that the device's profile lacks."""
        return unchecked(self.family, self.device)

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
    def _survey(self) -> _Survey:
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
        return _Survey(digest, sum(heights), np.array(vectors, np.int64))

    @property
    def problem_count(self) -> int:
        """How many problems it runs through."""
        return self._survey.problems

    @property
    def problems_digest(self) -> str:
        """A hash of the problems."""
        return self._survey.digest

    def _sweeps(self) -> Iterator[Sweep]:
        """The batches as separate sweeps."""
        vectors, most = self._survey.vectors, self.max_vectors
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
