"""Problems that are given by the product of two sizes: a reshard by its `tiles` instead of its height and width.

A model that reads the two sizes in no other way than through their product (`Op.products`) can be asked so. Any shape with
that product has the same time then; the shape that stands for all of them is chosen here, and in C by the same rule.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from kerncast.core.arrays import Flags, Ints
from kerncast.core.device import hardware_namespace
from kerncast.core.expr import Expr, Symbol
from kerncast.core.op import Family
from kerncast.core.parameters import Int
from kerncast.errors import InvalidValue
from kerncast.learning.learners.kinds import learner_class
from kerncast.models.limits.envelope import Coverage
from kerncast.models.manifest import Manifest

if TYPE_CHECKING:
    from kerncast.models.model import Model

# Features that a message lists.
LISTED = 3
# What targets divide the time by, besides the time itself.
_WORK_OF = {"relative": "expected_ns", "tflops": "flops", "bandwidth": "bytes"}


@dataclass(frozen=True)
class SizeProduct:
    """A value that may be given instead of two sizes, to one model."""

    name: str
    factors: tuple[str, str]
    family: Family
    coverage: Coverage
    readers: tuple[str, ...]
    """What else in the model reads the sizes; if there is anything, the product is not enough."""

    @property
    def rules(self) -> tuple[Int, Int]:
        """The declared ranges of the two sizes."""
        first, second = (self.family.problem.parameters[name] for name in self.factors)
        assert isinstance(first, Int)
        assert isinstance(second, Int)
        return first, second

    @property
    def most(self) -> int:
        """The largest product."""
        return self.rules[0].high * self.rules[1].high

    @property
    def rule(self) -> str:
        """What completes "must be" in a refusal of a value."""
        return f"a whole number from 1 to {self.most}"

    @property
    def parted(self) -> str:
        """What completes "must be" in a refusal of a number that is no product of two sizes in range."""
        names, ranges = self.factors, [rule.describe() for rule in self.rules]
        each = f"each {ranges[0]}" if ranges[0] == ranges[1] else f"{ranges[0]} and {ranges[1]}"
        return f"{names[0]} times {names[1]}, {each}"

    @property
    def needs(self) -> str:
        """Why the product is not enough; empty if it is."""
        if not self.readers:
            return ""
        shown = ", ".join(self.readers[:LISTED]) + (" …" if len(self.readers) > LISTED else "")
        return (
            f"this model needs {' and '.join(self.factors)} themselves, not only {self.name} (its {shown} read them): give "
            "both, or ask a model that reads only their product"
        )

    def shape(self, total: int, problem: Mapping[str, Any]) -> tuple[int, int] | None:
        """The two sizes that stand for a product: the middle one of the best kind, ordered by the first size.

        The best kind of shape was trained with, the next best obeys the rules of the problem, the last is only in range. None:
        there is no shape in range.
        """
        first = _divisors(total)
        pairs = [first, total // first]
        for place, rule in enumerate(self.rules):
            one = pairs[place]
            inside = (one >= rule.low) & (one <= rule.high) & ((one - rule.low) % rule.step == 0)
            pairs = [sizes[inside] for sizes in pairs]
        if not len(pairs[0]):
            return None
        fit = self._fit(pairs, problem)
        best = np.flatnonzero(fit == fit.max())
        middle = best[(len(best) - 1) // 2]
        return int(pairs[0][middle]), int(pairs[1][middle])

    def _fit(self, pairs: list[Ints], problem: Mapping[str, Any]) -> Ints:
        """By shape: 2 if the problem was trained with, 1 if it obeys the rules, else 0."""
        space, count = self.family.problem, len(pairs[0])
        own = dict(zip(self.factors, (int(one[0]) for one in pairs), strict=True))
        broken = {item.name for item in space.validate({**problem, **own})}
        if broken & {*space.parameters, *(name for name in problem if name not in space.parameters)}:
            return np.zeros(count, np.int64)
        point = space.fill({**problem, **own})
        columns = {f"p.{name}": pl.Series([value] * count) for name, value in point.items()}
        columns |= {f"p.{name}": pl.Series(one) for name, one in zip(self.factors, pairs, strict=True)}
        symbols = pl.DataFrame(columns)
        obeys = np.ones(count, dtype=bool)
        for constraint in space.constraints:
            obeys &= constraint.program.frame(symbols, trusted=True).to_series().to_numpy() != 0.0
        return obeys.astype(np.int64) + (obeys & self._trained(pairs, point))

    def _trained(self, pairs: list[Ints], point: Mapping[str, Any]) -> Flags:
        others = {name: value for name, value in point.items() if name not in self.factors}
        known = not self.coverage.outside(others) and self.coverage.unlike(others) is None
        found = np.full(len(pairs[0]), known)
        for name, one in zip(self.factors, pairs, strict=True):
            seen, fact = self.coverage.hull.get(name), self.coverage.facts.get(name)
            if seen is not None and seen.low is not None and seen.high is not None:
                found &= (one >= seen.low) & (one <= seen.high)
            if fact is not None:
                found &= one % fact.step == fact.rest
        return found

    def whole(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """A problem with its two sizes instead of their product; refuses a product that contradicts them or is not enough."""
        total = values[self.name]
        rest = {name: value for name, value in values.items() if name != self.name and value is not None}
        if isinstance(total, bool) or not isinstance(total, int | np.integer) or not 1 <= total <= self.most:
            raise InvalidValue(f"{self.name} must be {self.rule}, got {total!r}")
        given = [name for name in self.factors if name in rest]
        if given:
            pair = self.completed(int(total), {name: rest[name] for name in given})
            if pair is None:
                said = " ".join(f"{name}={rest[name]}" for name in given)
                raise InvalidValue(f"{self.name}={total} contradicts {said}: leave one of them out")
        elif self.readers:
            raise InvalidValue(self.needs)
        else:
            pair = self.shape(int(total), rest)
            if pair is None:
                raise InvalidValue(f"{self.name} must be {self.parted}, got {total}")
        return {**rest, **dict(zip(self.factors, pair, strict=True))}

    def completed(self, total: int, given: Mapping[str, Any]) -> tuple[int, int] | None:
        """The two sizes, of which one or both are given; None if their product is not this one."""
        one = given.get(self.factors[0], given.get(self.factors[1]))
        if isinstance(one, bool) or not isinstance(one, int | np.integer) or one < 1 or total % one:
            return None
        pair = (int(one), total // int(one)) if self.factors[0] in given else (total // int(one), int(one))
        return pair if all(given.get(name, size) == size for name, size in zip(self.factors, pair, strict=True)) else None


def products_of(manifest: Manifest, family: Family, coverage: Coverage) -> tuple[SizeProduct, ...]:
    """The products that problems of a model may be given by; its manifest is enough."""
    return tuple(
        SizeProduct(name, factors, family, coverage, tuple(_readers(manifest, family, name, factors)))
        for name, factors in family.op.products.items()
    )


def whole_problem(model: Model, values: Mapping[str, Any]) -> Mapping[str, Any]:
    """The values of a problem with sizes instead of their product, if it is given by one."""
    asked = [name for name in model.family.op.products if name in values]
    if not asked:
        return values
    for product in model.products:
        values = product.whole(values) if product.name in asked else values
    return values


def _readers(manifest: Manifest, family: Family, name: str, factors: tuple[str, str]) -> Iterable[str]:
    """What of a model reads two sizes in another way than through their product."""
    read = {f"p.{factor}" for factor in factors}
    product = family.op.derived[name].digest
    for item, expr in _inputs(manifest, family).items():
        if _reaches(expr, read, product):
            yield item


def _inputs(manifest: Manifest, family: Family) -> dict[str, Expr]:
    """Everything that a prediction is computed from."""
    kind = learner_class(manifest.kind)
    found: dict[str, Expr] = {}
    if kind.reads_features:
        outputs = family.feature_program.outputs
        found |= {name: outputs[name] for name in manifest.features.names}
    elif family.op.line_program is not None:
        found["size"] = family.op.line_program.outputs["size"]
    work, hw = family.work(family.op.namespace()), hardware_namespace()
    if work is not None:
        known = {"expected_ns": work.expected_ns(hw, 0.0), "flops": work.flops, "bytes": work.bytes}
        wanted = [_WORK_OF[manifest.target]] if manifest.target in _WORK_OF else []
        if not kind.reads_features and not found:
            wanted = list(known)
        found |= {item: expr for item in wanted if isinstance(expr := known[item], Expr)}
    return found


def _reaches(expr: Expr, names: set[str], product: bytes) -> bool:
    """Whether an expression reads one of some symbols elsewhere than below the product of them."""
    seen, stack = set(), [expr]
    while stack:
        item = stack.pop()
        if item.digest == product or item.digest in seen:
            continue
        seen.add(item.digest)
        if isinstance(item.payload, Symbol) and item.payload.name in names:
            return True
        stack.extend(item.args)
    return False


def _divisors(total: int) -> Ints:
    """All divisors, ascending."""
    small = np.arange(1, int(np.sqrt(float(total))) + 2)
    small = small[(small * small <= total) & (total % small == 0)]
    large = (total // small)[::-1]
    return np.concatenate([small, large[large > small[-1]]])
