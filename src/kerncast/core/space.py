"""A space: declared parameters and constraints. Validate a point, list the valid ones, sample, project.

Points travel as plain dicts here; `Problem` and `Config` (op/values.py) are the frozen values that a space has
validated. The search itself is in `enumeration.py`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING, Any

from kerncast.core.expr import Expr, Namespace, Program, symbol
from kerncast.core.io import html
from kerncast.core.io.terminal import TextTable, assignments, printable
from kerncast.core.parameters import Bool, Categorical, Choice, Computed, Int, Parameter, PowerOfTwo, Value
from kerncast.errors import InvalidValue, NotFound

if TYPE_CHECKING:
    import polars as pl

    from kerncast.core.enumeration import Enumeration

__all__ = [
    "Bool",
    "Categorical",
    "Choice",
    "Constraint",
    "Int",
    "Parameter",
    "PowerOfTwo",
    "Space",
    "Value",
    "Violation",
]

Point = dict[str, Value]
Bindings = Mapping[str, "Value | Expr | float"]


@dataclass(frozen=True, eq=False)
class Constraint:
    """A predicate with a name, and the sentence that a user sees when it does not hold."""

    name: str
    sentence: str
    holds: Expr

    @cached_property
    def program(self) -> Program:
        """The predicate, ready to evaluate."""
        return Program({self.name: self.holds})


@dataclass(frozen=True)
class Violation:
    """One broken rule: of a parameter (by its name) or a constraint (by its name)."""

    name: str
    sentence: str
    got: str = ""
    """What a constraint was about, as `M=128 K=64`."""

    def __str__(self) -> str:
        return f"{self.sentence}, got {self.got}" if self.got else self.sentence


class Space:
    """Parameters in declared order. `namespace` is `p` (problems) or `c` (configs)."""

    def __init__(
        self,
        owner: str,
        namespace: str,
        parameters: Mapping[str, Parameter],
        constraints: Iterable[Constraint] = (),
    ) -> None:
        self.owner = owner
        self.namespace = namespace
        self.parameters: dict[str, Parameter] = dict(parameters)
        self.symbols: dict[str, Expr] = {
            name: symbol(parameter.symbol(f"{namespace}.{name}")) for name, parameter in self.parameters.items()
        }
        scope = Namespace(owner, self.symbols)
        self.active: dict[str, Program] = {
            name: Program({name: parameter.when(scope)})
            for name, parameter in self.parameters.items()
            if parameter.when is not None
        }
        self.constraints = tuple(constraints)
        self.optional: dict[str, Program | None] = {
            name: Program({name: parameter.usual.rule(scope)}) if isinstance(parameter.usual, Computed) else None
            for name, parameter in self.parameters.items()
            if parameter.optional
        }
        self._check_optional()
        self.condition_order = self._order_conditions()
        for name, parameter in self.parameters.items():
            if parameter.default is not None and parameter.index(parameter.default) is None:
                raise InvalidValue(f"{owner}: the default of {name} must be {parameter.describe()}, got {parameter.default!r}")

    def _check_optional(self) -> None:
        """An optional parameter has no default and no condition; a computed usual value follows from what is always there."""
        for name, program in self.optional.items():
            rule = self.parameters[name]
            if rule.default is not None or rule.when is not None:
                raise InvalidValue(f"{self.owner}: {name} is optional, so it must have neither a default nor a condition")
            read = [item.name.removeprefix(f"{self.namespace}.") for item in program.symbols] if program else []
            if any(self.parameters[other].nullable for other in read):
                raise InvalidValue(f"{self.owner}: the usual value of {name} may only read parameters that are never None")

    def _order_conditions(self) -> tuple[str, ...]:
        """Conditional parameters, each after those that its condition reads; a cycle is refused."""
        reads = {
            name: {item.name.removeprefix(f"{self.namespace}.") for item in program.symbols}
            for name, program in self.active.items()
        }
        try:
            return tuple(name for name in TopologicalSorter(reads).static_order() if name in reads)
        except CycleError as error:
            raise InvalidValue(f"{self.owner}: the conditions of {', '.join(error.args[1])} depend on each other") from error

    @cached_property
    def reading_order(self) -> tuple[str, ...]:
        """The parameters in the order in which values are read: what others depend on first."""
        plain = [name for name, rule in self.parameters.items() if not rule.nullable]
        return (*plain, *self.optional, *self.condition_order)

    @cached_property
    def digest(self) -> str:
        """A stable hash of the declaration: values, codes, conditions, usual values and constraints."""
        hasher = hashlib.blake2b(digest_size=16)
        for name, parameter in self.parameters.items():
            when = self.active[name].digest if name in self.active else ""
            computed = self.optional.get(name)
            usual = parameter.usual_word if computed is None else computed.digest
            text = repr((name, parameter.describe(), parameter.codes, parameter.inactive, when, usual))
            hasher.update(text.encode())
        for constraint in self.constraints:
            hasher.update(repr((constraint.name, constraint.program.digest)).encode())
        return hasher.hexdigest()

    def qualified(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The same values under their symbol names."""
        return {f"{self.namespace}.{name}": value for name, value in values.items()}

    # -- showing it --------------------------------------------------------------------------------

    def _lines(self) -> list[tuple[str, str, str]]:
        return [
            (
                name,
                rule.describe() + (", where it applies" if name in self.active else ""),
                rule.usual_word or _shown(rule.default),
            )
            for name, rule in self.parameters.items()
        ]

    def __repr__(self) -> str:
        what = "problems" if self.namespace == "p" else "configs"
        counted = f"{len(self.parameters)} parameters, {len(self.constraints)} constraints"
        title = f"Space({what} of {self.owner}; {counted})"
        return str(TextTable(("parameter", "values", "default"), self._lines(), title)) if self.parameters else printable(title)

    def html_parts(self, what: str) -> list[str]:
        """Tables of its parameters and of its constraints, if it has any."""
        parts = [html.table((f"{what} parameter", "values", "default"), self._lines())] if self.parameters else []
        rules = [(rule.name, rule.sentence) for rule in self.constraints]
        return [*parts, html.table((f"{what} constraint", "rule"), rules)] if rules else parts

    def _repr_html_(self) -> str:
        what = "problem" if self.namespace == "p" else "config"
        return html.panel(f"{self.owner}: {what} space", *self.html_parts(what))

    # -- one point ---------------------------------------------------------------------------------

    def fill(self, values: Mapping[str, Any]) -> Point:
        """The values in declared order, defaults filled in; inactive parameters are None."""
        point: Point = {name: values.get(name, parameter.default) for name, parameter in self.parameters.items()}
        for name, parameter in self.parameters.items():
            found = parameter.index(point[name])
            if found is not None:  # numpy values become plain Python values
                point[name] = parameter.value(found)
        for name in self.optional:
            found = self.parameters[name].index(point[name])
            if found is not None and self.is_usual(name, self.parameters[name].number(found), point):
                point[name] = None
        for name in self.condition_order:
            if name not in values and not self._applies(name, point):
                point[name] = None
        return point

    def is_usual(self, name: str, number: int, point: Mapping[str, Any]) -> bool:
        """Whether a value of an optional parameter, as the number that expressions read, stands for None at a point."""
        rule, program = self.parameters[name], self.optional[name]
        if number == rule.inactive or program is None:
            return number == rule.inactive
        try:
            return program.scalar(self.qualified(point))[name] == number
        except InvalidValue:  # a parameter that it reads is missing or wrong, which is said elsewhere
            return False

    def _applies(self, name: str, point: Mapping[str, Any]) -> bool:
        """Whether a conditional parameter applies; a condition that cannot be read counts as yes."""
        if name not in self.active:
            return True
        try:
            return bool(self.active[name].scalar(self.qualified(point))[name])
        except InvalidValue:
            return True

    def validate(self, values: Mapping[str, Any], bindings: Bindings | None = None) -> list[Violation]:
        """Every broken rule at once; constraints whose other symbols are not bound are left for later."""
        return self._broken(values, self.fill(values), bindings)

    def _broken(self, values: Mapping[str, Any], point: Point, bindings: Bindings | None) -> list[Violation]:
        broken = [
            Violation(name, str(NotFound.named(f"parameter of {self.owner}", name, self.parameters)))
            for name in values
            if name not in self.parameters
        ]
        for name, parameter in self.parameters.items():
            value = point[name]
            if not self._applies(name, point):
                if value is not None:
                    broken.append(Violation(name, f"{name} does not apply here and must be left out, got {value!r}"))
            elif value is None and not parameter.optional:
                broken.append(Violation(name, f"{self.owner} needs {name}: {parameter.describe()}"))
            elif value is not None and parameter.index(value) is None:
                broken.append(Violation(name, f"{name} {parameter.refusal(value)}"))
        if not broken:
            known = {**(bindings or {}), **self.qualified(point)}
            numbers = {name: plain for name, given in known.items() if not isinstance(plain := _plain(given), Expr)}
            for constraint in self.constraints:
                program = constraint.program
                if not all(symbol.name in numbers for symbol in program.symbols):
                    # What is known may decide it all the same.
                    program = program.bind(known)
                    if program.symbols:
                        continue
                if not program.scalar(numbers)[constraint.name]:
                    broken.append(Violation(constraint.name, constraint.sentence, self._got(constraint, point)))
        return broken

    def _got(self, constraint: Constraint, point: Mapping[str, Any]) -> str:
        """The values of this space that a constraint is about."""
        read = {symbol.name for symbol in constraint.program.symbols}
        own = {name: value for name, value in point.items() if f"{self.namespace}.{name}" in read and value is not None}
        return assignments(own)

    def check(self, values: Mapping[str, Any], bindings: Bindings | None = None) -> Point:
        """The filled point, or an InvalidValue that names every broken rule."""
        point = self.fill(values)
        broken = self._broken(values, point, bindings)
        if broken:
            raise InvalidValue("; ".join(map(str, broken)))
        return point

    # -- many points -------------------------------------------------------------------------------

    def without_usual(self, frame: pl.DataFrame, prefix: str = "") -> pl.DataFrame:
        """The points of a frame (a column `prefix` + name each), null where an optional parameter's value stands for null."""
        import polars as pl

        from kerncast.core.expr.to_columns import read_column

        given = [name for name in self.optional if frame[f"{prefix}{name}"].null_count() < frame.height]
        symbols = frame.rename({f"{prefix}{name}": f"{self.namespace}.{name}" for name in self.parameters}) if given else frame
        for name in given:
            column, rule, usual = f"{prefix}{name}", self.parameters[name], self.optional[name]
            number = pl.Series(read_column(rule.symbol(name), frame[column]))
            same = number == float(rule.inactive)
            if usual is not None:
                same |= number == usual.frame(symbols, trusted=True).to_series()
            frame = frame.with_columns(pl.when(~same).then(pl.col(column)).alias(column))
        return frame

    def _search(self, bindings: Bindings | None, given: Point | None = None) -> Enumeration:
        from kerncast.core.enumeration import Enumeration

        return Enumeration(self, bindings or {}, given)

    def frames(self, bindings: Bindings | None = None) -> Iterator[pl.DataFrame]:
        """The valid points as dataframes, lazily, in a fixed order. Columns are named like parameters.

        A space without parameters has one point without columns, so it gives no frame.
        """
        return self._search(bindings).frames()

    def enumerate(self, bindings: Bindings | None = None) -> Iterator[Point]:
        """The valid points one by one, lazily, in a fixed order."""
        if not self.parameters:
            yield from ({} for _ in range(self.count(bindings)))
        for frame in self.frames(bindings):
            yield from frame.iter_rows(named=True)

    def count(self, bindings: Bindings | None = None) -> int:
        """How many points are valid."""
        return self._search(bindings).count()

    def sample(self, n: int, seed: int, bindings: Bindings | None = None) -> pl.DataFrame:
        """`n` different valid points (all of them if there are fewer), uniform over the valid ones."""
        return self._search(bindings).sample(n, seed)

    def project(self, values: Mapping[str, Any], bindings: Bindings | None = None) -> Point | None:
        """The valid point with the fewest index steps from `values`; None when there is no valid point.

        A change of a label or a flag is one step. A parameter given as None may become anything at no cost; an optional
        one stays as it is given.
        Ties go to the point whose values come first in declared order.
        """
        unknown = [name for name in values if name not in self.parameters]
        if unknown:
            raise NotFound.named(f"parameter of {self.owner}", unknown[0], self.parameters)
        near = {
            name: rule.value(rule.nearest(values[name]))
            for name, rule in self.parameters.items()
            if name in self.optional and values.get(name) is not None
        }
        given = {name: value for name, value in self.fill({**values, **near}).items() if name in self.optional}
        return self._search(bindings, given).project(values)


def _shown(default: Value) -> str:
    return "-" if default is None else str(default)


def _plain(given: Value | Expr | float) -> Value | Expr | float:
    """A constant as its number."""
    return given.payload if isinstance(given, Expr) and isinstance(given.payload, float) else given
