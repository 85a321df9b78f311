"""The configs that may run a group of problems, and which of them each problem allows.

Constraints that read the config, the device and the group's labels (its dtype, say) are applied once, while
the pool is listed. Those that read a problem's numbers are a mask, computed for whole blocks of problems.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from functools import reduce
from typing import Any

import numpy as np
import polars as pl

from kerncast.core.arrays import Flags, Ints
from kerncast.core.device import Device
from kerncast.core.expr import Expr, Program
from kerncast.core.op import Family, hash_key, key_text
from kerncast.core.parameters import Parameter
from kerncast.data.schema import column_type
from kerncast.library.problems.files import complete
from kerncast.measuring.sweeping.selection import Offered

PROBLEM, CONFIG = "problem.", "config."
BLOCK_ROWS = 131_072
# Held in small types, 1 or 2 bytes per cell: the largest pool takes some 200 MB. A larger space is walked again
# for each problem.
POOL_ROWS = 8_000_000
# Configs that a sample tries first for each one that it needs: enough if one in four is valid.
TRIES = 4
# Configs drawn from a space too large to hold in memory; samples are taken from these. To count such a space and draw from
# it takes a second: the last ones are kept.
DRAWN_ROWS = 131_072
KEPT_DRAWN = 8
# About as many as NVIDIA's exhaustive list has; how much work a problem is can only be estimated.
ABOUT = 1_900
_INDEX = "__config"
_drawn: list[WalkedPool] = []


def open_pool(family: Family, device: Device, labels: Mapping[str, Any], portfolio: pl.DataFrame | None) -> ConfigPool:
    """The pool of a group: listed if it fits in memory, else walked."""
    known = family.bindings(labels, device)
    if portfolio is not None:
        return ListedPool(family, compact(family, portfolio), check_of(family, known, whole=True))
    if not family.config.parameters:
        return ListedPool(family, pl.DataFrame({_INDEX: [0]}), check_of(family, known, whole=True))
    for pool in _drawn:
        if pool.family is family and pool.device == device and pool.known == known:
            return pool
    check = check_of(family, known, whole=False)
    size = family.config.count(known)
    if size > POOL_ROWS:
        _drawn[KEPT_DRAWN - 1 :] = []
        _drawn.insert(0, WalkedPool(family, device, known, size))
        return _drawn[0]
    nothing = pl.DataFrame(schema=dict.fromkeys(family.config.parameters, pl.Int64))
    frames = [compact(family, frame) for frame in itertools.chain([nothing], family.config.frames(known))]
    return ListedPool(family, pl.concat(frames), check)


def check_of(family: Family, known: Mapping[str, Any], *, whole: bool) -> Program | None:
    """What is left to check for a problem and a config; `whole` includes what listing the space applies."""
    own = {f"c.{name}" for name in family.config.parameters}
    readable = own | {f"p.{name}" for name in family.problem.parameters}
    due: list[Expr] = []
    for constraint in family.config.constraints:
        program = constraint.program.bind(known)
        reads = {symbol.name for symbol in program.symbols}
        if reads <= readable and (whole or not reads <= own):
            due += program.outputs.values()
    return Program({"holds": reduce(lambda a, b: a & b, due)}) if due else None


def compact(family: Family, frame: pl.DataFrame) -> pl.DataFrame:
    """Configs in small types, under the names that columns of vectors have."""

    def small(parameter: Parameter) -> pl.DataType:
        if parameter.codes:
            return pl.Enum([label for label, _ in parameter.codes])
        if isinstance(parameter.value(0), bool):
            return pl.Boolean()
        largest = max(abs(parameter.number(0)), abs(parameter.number(parameter.size - 1)))
        types: list[tuple[pl.DataType, int]] = [(pl.Int8(), 2**7), (pl.Int16(), 2**15), (pl.Int32(), 2**31)]
        return next((dtype for dtype, limit in types if largest < limit), pl.Int64())

    items = family.config.parameters.items()
    return frame.select(pl.col(name).cast(small(item)).alias(CONFIG + name) for name, item in items)


def _vectors(family: Family, problems: pl.DataFrame, configs: pl.DataFrame) -> pl.DataFrame:
    """Two halves side by side, in the types that every vector column has."""
    columns = {PROBLEM + name: item for name, item in family.problem.parameters.items()}
    columns |= {CONFIG + name: item for name, item in family.config.parameters.items()}
    both = pl.concat([problems.rename(lambda name: PROBLEM + name), configs], how="horizontal")
    return both.select(pl.col(name).cast(column_type(item)) for name, item in columns.items())


def _generator(seed: int, family: Family, problem: Mapping[str, Any]) -> np.random.Generator:
    """A random stream per problem, so that its sample depends neither on other problems nor on slices."""
    return np.random.default_rng(int(hash_key(key_text(family.id, str(seed), problem.items(), ())), 16))


class ListedPool:
    """A pool in memory; `check` reads a problem and a config, None when every problem allows every config."""

    def __init__(self, family: Family, configs: pl.DataFrame, check: Program | None) -> None:
        self.family, self.configs, self.check = family, configs, check
        columns = {name.removeprefix(CONFIG): configs[name] for name in configs.columns}
        wanted = [
            np.logical_and.reduce([(columns[name] == value).fill_null(False).to_numpy() for name, value in values.items()])
            for values in family.always
        ]
        self.always: Ints = np.flatnonzero(np.logical_or.reduce(wanted)) if wanted else np.zeros(0, dtype=np.int64)
        """Rows that every sample begins with, if the problem allows them."""

        self.size, self.checks_problems = configs.height, check is not None

    def _first(self, rows: Ints) -> Ints:
        """The rows in their order, after those that belong to every sample."""
        return rows if not len(self.always) else np.concatenate([self.always, rows[~np.isin(rows, self.always)]])

    def counts(self, problems: pl.DataFrame, at_most: int | None, seed: int) -> Ints:
        """How many configs each problem allows, counting no further than `at_most`."""
        if self.check is None:
            return np.full(problems.height, min(self.configs.height, at_most or self.configs.height), dtype=np.int64)
        if at_most is not None:
            wanted = np.full(problems.height, at_most, dtype=np.int64)
            return np.array([len(picked) for picked in self.samples(problems, wanted, seed)], dtype=np.int64)
        parts = [self._mask(piece).sum(axis=1) for piece in problems.iter_slices(_width(self.configs.height))]
        return np.concatenate(parts).astype(np.int64) if parts else np.zeros(0, dtype=np.int64)

    def _holds(self, problems: pl.DataFrame, configs: pl.DataFrame) -> Flags:
        """Whether each problem allows the config in the same row."""
        if self.check is None:
            return np.ones(problems.height, dtype=np.bool_)
        names = [symbol.name for symbol in self.check.symbols]
        both = pl.concat([problems.with_row_index("__problem"), configs], how="horizontal")
        columns = (pl.col(name[2:] if name.startswith("p.") else CONFIG + name[2:]).alias(name) for name in names)
        holds = self.check.frame(both.select("__problem", *columns), trusted=True).to_series() != 0.0
        found: Flags = holds.to_numpy()
        return found

    def _mask(self, problems: pl.DataFrame) -> Flags:
        """Which configs (columns) each problem (row) allows."""
        masks = [np.zeros((problems.height, 0), dtype=np.bool_)]
        for piece in self.configs.iter_slices(BLOCK_ROWS):
            rows = np.repeat(np.arange(problems.height), piece.height)
            columns = np.tile(np.arange(piece.height), problems.height)
            masks.append(self._holds(problems[rows], piece[columns]).reshape(problems.height, piece.height))
        return np.concatenate(masks, axis=1)

    def samples(self, problems: pl.DataFrame, take: Ints, seed: int) -> Iterator[Ints]:
        """For each problem the rows of `take` valid configs, or of all if there are fewer.

        Configs are tried in a random order until enough are valid, so a sample need not check the whole pool.
        """
        total = self.configs.height
        tries = np.minimum(take * (1 if self.check is None else TRIES), total)
        width = _width(int(tries.max(initial=0)))
        for start in range(0, problems.height, width):
            piece, sizes = problems.slice(start, width), tries[start : start + width]
            streams = [_generator(seed, self.family, row) for row in piece.iter_rows(named=True)]
            drawn = [stream.choice(total, size, replace=False) for stream, size in zip(streams, sizes, strict=True)]
            tried = [self._first(rows) for rows in drawn]
            sizes = np.array([len(rows) for rows in tried])
            rows = np.repeat(np.arange(piece.height), sizes)
            holds = np.split(self._holds(piece[rows], self.configs[np.concatenate(tried)]), np.cumsum(sizes)[:-1])
            for row, stream in enumerate(streams):
                wanted, found = int(take[start + row]), tried[row][holds[row]]
                if len(found) < wanted and sizes[row] < total:
                    everything = np.flatnonzero(self._mask(piece[row]))
                    mixed = self._first(everything[stream.permutation(len(everything))])
                    found = mixed[np.isin(mixed, everything)]
                yield np.sort(found[:wanted])

    def _picks(self, problems: pl.DataFrame, take: Ints | None, seed: int) -> Iterator[tuple[Ints, Ints]]:
        """Rows of `problems` and rows of the pool that go together."""
        if take is not None:
            chosen = np.flatnonzero(take)
            if self.check is None and self.configs.height == 1:
                yield chosen, np.zeros_like(chosen)
                return
            for row, columns in zip(chosen, self.samples(problems[chosen], take[chosen], seed), strict=True):
                yield np.full(len(columns), row), columns
            return
        width = _width(self.configs.height)
        for start in range(0, problems.height, width):
            rows, columns = np.nonzero(self._mask(problems.slice(start, width)))
            yield rows + start, columns

    def blocks(self, problems: pl.DataFrame, take: Ints | None, seed: int) -> Iterator[pl.DataFrame]:
        """The vectors, problem after problem; `take` limits each problem to a uniform sample."""
        held: list[tuple[Ints, Ints]] = []
        height = 0
        for rows, columns in self._picks(problems, take, seed):
            held.append((rows, columns))
            height += len(rows)
            if height >= BLOCK_ROWS:
                yield from self._gather(problems, held)
                held, height = [], 0
        if height:
            yield from self._gather(problems, held)

    def _gather(self, problems: pl.DataFrame, held: list[tuple[Ints, Ints]]) -> Iterator[pl.DataFrame]:
        rows, columns = (np.concatenate(side) for side in zip(*held, strict=True))
        for start in range(0, len(rows), BLOCK_ROWS):
            part = slice(start, start + BLOCK_ROWS)
            yield _vectors(self.family, problems[rows[part]], self.configs[columns[part]])


class WalkedPool:
    """A space too large to hold: walked for each problem separately, or sampled from one large uniform draw."""

    checks_problems = True

    def __init__(self, family: Family, device: Device, known: Mapping[str, Any], size: int) -> None:
        self.family, self.device, self.known, self.size = family, device, known, size
        self._drawn: tuple[int, ListedPool] | None = None

    def _draw(self, seed: int) -> ListedPool:
        """Configs to sample from. A uniform sample of a uniform draw is uniform, and a draw per problem costs 0.1 s."""
        if self._drawn is None or self._drawn[0] != seed:
            configs = compact(self.family, self.family.config.sample(DRAWN_ROWS, seed, self.known))
            self._drawn = seed, ListedPool(self.family, configs, check_of(self.family, self.known, whole=False))
        return self._drawn[1]

    def counts(self, problems: pl.DataFrame, at_most: int | None, seed: int) -> Ints:
        wanted = np.full(problems.height, at_most or 0, dtype=np.int64)
        if at_most is not None and self._draw(seed).counts(problems, at_most, seed).min(initial=at_most) == at_most:
            return wanted
        rows = problems.iter_rows(named=True)
        found = np.array([self.family.config.count(self.family.bindings(row, self.device)) for row in rows], dtype=np.int64)
        return found if at_most is None else np.minimum(found, at_most)

    def blocks(self, problems: pl.DataFrame, take: Ints | None, seed: int) -> Iterator[pl.DataFrame]:
        if take is None:
            for index in range(problems.height):
                yield from self._apart(problems[index], None, seed)
            return
        drawn = self._draw(seed)
        found = drawn.counts(problems, int(take.max(initial=0)), seed)
        # Runs of problems that the draw serves, and between them those whose valid configs are too rare in it.
        served = found >= take
        for run in np.split(np.arange(problems.height), np.flatnonzero(np.diff(served)) + 1):
            if len(run) and served[run[0]]:
                yield from drawn.blocks(problems[run], take[run], seed)
            else:
                for index in run:
                    yield from self._apart(problems[int(index)], int(take[index]), seed)

    def _apart(self, problem: pl.DataFrame, wanted: int | None, seed: int) -> Iterator[pl.DataFrame]:
        """The vectors of one problem, from the space itself."""
        row = problem.row(0, named=True)
        known = self.family.bindings(row, self.device)
        if wanted is None:
            frames = self.family.config.frames(known)
        else:
            own_seed = int(_generator(seed, self.family, row).integers(2**63))
            frames = iter([self.family.config.sample(wanted, own_seed, known)])
        for frame in frames:
            for piece in frame.iter_slices(BLOCK_ROWS):
                yield _vectors(self.family, problem[[0] * piece.height], piece.rename(lambda name: CONFIG + name))


class OfferedPool:
    """A pool whose configs Inductor lists, problem by problem."""

    size, checks_problems = ABOUT, True

    def __init__(self, family: Family, device: Device, known: Mapping[str, Any], offer: Offered) -> None:
        self.family, self.device, self.offer = family, device, offer
        self._check = check_of(family, known, whole=True)

    def _pool(self, problem: Mapping[str, Any]) -> ListedPool:
        frame = pl.DataFrame(self.offer.configs(problem, self.device), infer_schema_length=None)
        whole = complete(self.family.config, frame, "Inductor", strict=False)
        return ListedPool(self.family, compact(self.family, whole), self._check)

    def counts(self, problems: pl.DataFrame, at_most: int | None, seed: int) -> Ints:
        pools = zip(problems.iter_rows(named=True), problems.iter_slices(1), strict=True)
        return np.array([self._pool(row).counts(piece, at_most, seed)[0] for row, piece in pools], dtype=np.int64)

    def blocks(self, problems: pl.DataFrame, take: Ints | None, seed: int) -> Iterator[pl.DataFrame]:
        for index, row in enumerate(problems.iter_rows(named=True)):
            yield from self._pool(row).blocks(problems[[index]], None if take is None else take[index : index + 1], seed)


def _width(rows: int) -> int:
    """How many problems of `rows` vectors make a block."""
    return max(1, BLOCK_ROWS // max(rows, 1))


ConfigPool = ListedPool | WalkedPool | OfferedPool
"""The configs for problems that agree in the labels that constraints read."""
