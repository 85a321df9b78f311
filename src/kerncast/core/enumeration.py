"""Listing the valid points of a space without visiting the invalid ones.

Parameters are bound one after another and a constraint is applied as soon as its last parameter is bound,
on whole blocks of partial points at a time. Parameters that no constraint connects are independent: they
are listed separately and multiplied, so counting and sampling never walk the full product.

Optional parameters are not searched: they are left out, or as a projection is given them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from kerncast.core.arrays import Ints
from kerncast.core.expr import Expr, Program
from kerncast.core.parameters import Int, Parameter
from kerncast.errors import InvalidValue

if TYPE_CHECKING:
    from kerncast.core.space import Space

FIRST_BLOCK_ROWS = 2_048
# Parameters that nothing connects are listed together while their product stays below this.
FREE_ROWS = 1_024
LARGEST_BLOCK_ROWS = 262_144
# Below this share of valid points among raw ones, a sample lists the valid points instead of drawing raw ones.
REJECTION_ACCEPTANCE = 0.02
LISTED_ROWS_LIMIT = 20_000_000
PROJECTED_ROWS_LIMIT = 2_000_000
STEPS = "__steps"


@dataclass(frozen=True)
class _Component:
    """Parameters that constraints connect, in search order, with the checks due after each."""

    names: tuple[str, ...]
    checks: tuple[Program | None, ...]


@dataclass(frozen=True)
class _Window:
    """Where a projection starts: index per parameter (None: free), and how far it may go in total."""

    centre: Mapping[str, int | None]
    radius: int
    free: bool
    """No constraint applies here, so a parameter given as None takes its first value."""


class Enumeration:
    """One search: a space whose outside symbols (`p`, `hw`) are bound as far as they are known."""

    def __init__(self, space: Space, bindings: Mapping[str, Any], given: Mapping[str, Any] | None = None) -> None:
        """`given` are values of optional parameters."""
        self.space = space
        self.fixed = {name: (given or {}).get(name) for name in space.optional}
        self.searched = {name: parameter for name, parameter in space.parameters.items() if name not in self.fixed}
        own = {f"{space.namespace}.{name}": name for name in space.parameters}
        searched = sorted(set(own) & set(bindings))
        if searched:
            raise InvalidValue(
                f"{searched[0]} is one of the parameters that are searched: bindings are for the problem and the device"
            )
        checks: list[tuple[frozenset[str], Program]] = []
        self.impossible = False
        for constraint in space.constraints:
            program = constraint.program.bind({**bindings, **space.qualified(self.fixed)})
            reads = {declared.name for declared in program.symbols}
            if not reads:
                self.impossible |= not program.scalar({})[constraint.name]
            elif reads <= own.keys():
                checks.append((frozenset(own[name] for name in reads), program))
        self.conditions = {
            name: frozenset(own[declared.name] for declared in program.symbols) for name, program in space.active.items()
        }
        self.components = [self._plan(names, checks) for names in self._connected(checks)]

    def _connected(self, checks: list[tuple[frozenset[str], Program]]) -> list[list[str]]:
        """The parameters, grouped by what reads them together; each group in declared order."""
        group = {name: {name} for name in self.searched}
        edges = [names for names, _ in checks] + [reads | {name} for name, reads in self.conditions.items()]
        for names in edges:
            merged = set().union(*(group[name] for name in names))
            for name in merged:
                group[name] = merged
        seen: set[str] = set()
        groups: list[list[str]] = []
        free: list[str] = []
        for name, parameter in self.searched.items():
            if name in seen:
                continue
            seen |= group[name]
            size = math.prod(self.space.parameters[other].size for other in free) * parameter.size
            if len(group[name]) == 1 and size <= FREE_ROWS and not any(name in names for names in edges):
                free.append(name)
            else:
                groups.append([other for other in self.searched if other in group[name]])
        return [*groups, free] if free else groups

    def _plan(self, names: list[str], checks: list[tuple[frozenset[str], Program]]) -> _Component:
        """A search order that completes the cheapest constraint first, conditions before what they govern."""
        pending = [(reads, program) for reads, program in checks if reads <= set(names)]
        order: list[str] = []

        def bind(name: str) -> None:
            if name not in order:
                for other in sorted(self.conditions.get(name, ()), key=names.index):
                    bind(other)
                order.append(name)

        def cost(reads: frozenset[str]) -> float:
            return math.prod(self.space.parameters[name].size for name in reads if name not in order)

        due: list[list[Program]] = []
        while pending:
            index = min(range(len(pending)), key=lambda i: (cost(pending[i][0]), i))
            for name in sorted(pending[index][0], key=names.index):
                bind(name)
            due += [[] for _ in range(len(order) - len(due))]
            due[-1] += [program for reads, program in pending if reads <= set(order)]
            pending = [item for item in pending if not item[0] <= set(order)]
        for name in names:
            bind(name)
        due += [[] for _ in range(len(order) - len(due))]
        checks_in_order = tuple(Program({"holds": _all(programs)}) if programs else None for programs in due)
        return _Component(tuple(order), checks_in_order)

    # -- blocks of partial points, columns named like symbols, holding numbers -----------------------

    def _column(self, name: str) -> str:
        return f"{self.space.namespace}.{name}"

    def _expand(self, block: pl.DataFrame, name: str, rows: int, window: _Window | None) -> Iterator[pl.DataFrame]:
        """`block` crossed with the values of one parameter, in pieces of about `rows`, depth first."""
        parameter = self.space.parameters[name]
        column = self._column(name)
        indices, steps = _values(parameter, name, window)
        height = max(1, rows // len(indices))
        for start in range(0, block.height, height):
            piece = block.slice(start, height)
            if name in self.space.active:
                applies = self.space.active[name].frame(piece, trusted=True).to_series() != 0.0
                piece, off = piece.filter(applies), piece.filter(~applies)
                if off.height:
                    yield off.with_columns(pl.lit(None, dtype=pl.Int64).alias(column))
            for first in range(0, len(indices), rows) if piece.height else ():
                chosen = np.array(indices[first : first + rows])
                values = pl.DataFrame({column: _numbers(parameter, chosen)})
                if window is None:
                    yield piece.join(values, how="cross", maintain_order="left_right")
                else:
                    values = values.with_columns(pl.Series("__more", steps(chosen)))
                    crossed = piece.join(values, how="cross", maintain_order="left_right")
                    crossed = crossed.with_columns(pl.col(STEPS) + pl.col("__more")).drop("__more")
                    yield crossed.filter(pl.col(STEPS) <= window.radius)

    def _walk(self, component: _Component, window: _Window | None = None) -> Iterator[pl.DataFrame]:
        """The valid partial points of one component, depth first, a block at a time."""
        limit, tried = FIRST_BLOCK_ROWS, 0

        def descend(block: pl.DataFrame, depth: int) -> Iterator[pl.DataFrame]:
            nonlocal limit, tried
            if depth == len(component.names):
                limit = min(limit * 2, LARGEST_BLOCK_ROWS)
                yield block
                return
            for expanded in self._expand(block, component.names[depth], limit, window):
                tried += expanded.height
                if window is not None and tried > PROJECTED_ROWS_LIMIT:
                    raise InvalidValue(
                        f"no valid combination of {', '.join(component.names)} is near the values given, and there are "
                        "too many further away to try them all: start closer to a valid combination"
                    )
                expanded = _satisfying(component.checks[depth], expanded)
                if expanded.height:
                    yield from descend(expanded, depth + 1)

        if not self.impossible:
            yield from descend(pl.DataFrame({STEPS: [0]}, schema={STEPS: pl.Int64}), 0)

    def _listed(self, component: _Component) -> pl.DataFrame:
        """All valid points of one component."""
        parts, rows = [], 0
        for part in self._walk(component):
            parts.append(part)
            rows += part.height
            if rows > LISTED_ROWS_LIMIT:
                raise InvalidValue(
                    f"{self.space.owner} has over {LISTED_ROWS_LIMIT:,} valid combinations of "
                    f"{', '.join(component.names)}: bind more of the problem and the device, or add constraints"
                )
        return pl.concat(parts) if parts else self._nothing()

    def decoded(self, block: pl.DataFrame) -> pl.DataFrame:
        """A block as people see it: plain names in declared order, labels and flags."""
        columns = []
        for name, parameter in self.searched.items():
            column = pl.col(self._column(name))
            if parameter.codes:
                column = column.replace_strict({code: label for label, code in parameter.codes}, return_dtype=pl.String)
            elif isinstance(parameter.value(0), bool):
                column = column.cast(pl.Boolean)
            columns.append(column.alias(name))
        for name, value in self.fixed.items():
            labels, flags = self.space.parameters[name].codes, isinstance(self.space.parameters[name].value(0), bool)
            kind = pl.String if labels else pl.Boolean if flags else pl.Int64
            columns.append(pl.lit(value, dtype=kind).alias(name))
        return block.with_columns(columns).select(list(self.space.parameters))

    # -- what a space offers -------------------------------------------------------------------------

    def frames(self) -> Iterator[pl.DataFrame]:
        """Every valid point, lazily: the components one inside the other."""

        limit = FIRST_BLOCK_ROWS

        def nest(block: pl.DataFrame, rest: list[_Component]) -> Iterator[pl.DataFrame]:
            nonlocal limit
            if not rest:
                limit = min(limit * 2, LARGEST_BLOCK_ROWS)
                yield self.decoded(block)
                return
            for part in self._walk(rest[0]):
                part = part.drop(STEPS)
                width = max(1, limit // part.height)
                for start in range(0, block.height, width):
                    piece = block.slice(start, width).join(part, how="cross", maintain_order="left_right")
                    yield from nest(piece, rest[1:])

        if not self.impossible:
            yield from nest(pl.DataFrame({"__one": [0]}), self.components)

    def _count(self, component: _Component) -> int:
        if not any(component.checks) and not any(name in self.conditions for name in component.names):
            return math.prod(self.space.parameters[name].size for name in component.names)
        return sum(part.height for part in self._walk(component))

    def count(self) -> int:
        """How many points are valid."""
        return 0 if self.impossible else math.prod(map(self._count, self.components))

    def sample(self, n: int, seed: int) -> pl.DataFrame:
        """`n` different valid points, uniform, in an order that depends on the seed alone."""
        if n < 0:
            raise InvalidValue(f"a sample needs n ≥ 0, got {n}")
        if n == 0:
            return self.decoded(self._nothing())
        rng = np.random.default_rng(seed)
        draws = [] if self.impossible else [_Draw(self, component, rng) for component in self.components]
        total = math.prod(draw.count for draw in draws) if not self.impossible else 0
        if total <= 2 * n:  # nearly all of them: shuffle the full list
            frames = list(self.frames())
            everything = pl.concat(frames) if frames else self.decoded(self._nothing())
            return everything[rng.permutation(everything.height)[:n]]
        found = pl.DataFrame()
        while found.height < n:
            more = pl.concat([draw.take(n) for draw in draws], how="horizontal")
            found = pl.concat([found, more]).unique(maintain_order=True) if found.height else more.unique(maintain_order=True)
        return self.decoded(found.head(n))

    def _nothing(self) -> pl.DataFrame:
        return pl.DataFrame(schema={self._column(name): pl.Int64 for name in self.searched})

    def project(self, values: Mapping[str, Any]) -> dict[str, Any] | None:
        """The nearest valid point: each component apart, the radius doubled until something is found."""
        centre = {
            name: None if values.get(name) is None else parameter.nearest(values[name])
            for name, parameter in self.searched.items()
        }
        if self.impossible:
            return None
        best: list[pl.DataFrame] = []
        for component in self.components:
            furthest = sum(
                self.space.parameters[name].size - 1 if self.space.parameters[name].ordered else 1 for name in component.names
            )
            radius, found = 0, pl.DataFrame()
            while found.is_empty():
                window = _Window(centre, radius, free=not any(component.checks))
                parts = list(self._walk(component, window))
                found = pl.concat(parts) if parts else found
                if radius >= furthest and found.is_empty():
                    return None
                radius = min(max(2 * radius, 1), furthest) if furthest else 0
            declared = [self._column(name) for name in self.searched if name in component.names]
            best.append(found.sort([STEPS, *declared], nulls_last=True).head(1).drop(STEPS))
        return self.decoded(pl.concat(best, how="horizontal")).row(0, named=True) if best else {}


def _all(programs: Iterable[Program]) -> Expr:
    """One predicate that holds where all of them do."""
    return reduce(lambda a, b: a & b, (expr for program in programs for expr in program.outputs.values()))


def _satisfying(check: Program | None, block: pl.DataFrame) -> pl.DataFrame:
    return block if check is None else block.filter(check.frame(block, trusted=True).to_series() != 0.0)


def _numbers(parameter: Parameter, indices: Ints) -> Ints:
    """The values at some indices, as `Parameter.number` gives them: of a range by arithmetic, else taken from a table."""
    if isinstance(parameter, Int):
        return parameter.low + indices * parameter.step
    return np.array([parameter.number(i) for i in range(parameter.size)]).take(indices)


def _values(parameter: Parameter, name: str, window: _Window | None) -> tuple[range, Callable[[Ints], Ints]]:
    """The indices to try for one parameter, and the steps that each costs."""
    centre = None if window is None else window.centre[name]
    if window is None or centre is None:
        return range(1 if window is not None and window.free else parameter.size), np.zeros_like
    if parameter.ordered:
        near = range(max(0, centre - window.radius), min(parameter.size, centre + window.radius + 1))
        return near, lambda indices: np.abs(indices - centre)
    near = range(parameter.size) if window.radius else range(centre, centre + 1)
    return near, lambda indices: (indices != centre).astype(np.int64)


class _Draw:
    """Uniform draws from the valid points of one component: by trying raw points while enough of them are
    valid, else from the full list."""

    def __init__(self, search: Enumeration, component: _Component, rng: np.random.Generator) -> None:
        self.search, self.component, self.rng = search, component, rng
        self.parameters = {name: search.space.parameters[name] for name in component.names}
        self.raw = math.prod(parameter.size for parameter in self.parameters.values())
        self.listed: pl.DataFrame | None = None
        conditional = any(name in search.conditions for name in component.names)
        if not conditional and not any(component.checks):
            self.count = self.raw
            return
        # A raw point with an inactive parameter stands for several: rejection would not be uniform.
        accepted = 0.0 if conditional else self._try(16_384).height / 16_384
        if accepted >= REJECTION_ACCEPTANCE and self.raw > LARGEST_BLOCK_ROWS:
            self.count = int(accepted * self.raw)
        else:
            self.listed = search._listed(component).select([search._column(name) for name in component.names])
            self.count = self.listed.height

    def _try(self, n: int) -> pl.DataFrame:
        columns = {}
        for name, parameter in self.parameters.items():
            columns[self.search._column(name)] = _numbers(parameter, self.rng.integers(0, parameter.size, n))
        block = pl.DataFrame(columns)
        for check in self.component.checks:
            block = _satisfying(check, block)
        return block

    def take(self, n: int) -> pl.DataFrame:
        """`n` independent draws, repeats allowed."""
        if self.listed is not None:
            return self.listed[self.rng.integers(0, self.listed.height, n)]
        found = self._try(n)
        while found.height < n:
            found = pl.concat([found, self._try(n)])
        return found.head(n)
