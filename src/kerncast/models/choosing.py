"""Which of several models of one family covers a problem."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Generic, TypeVar

from kerncast.models.limits.trained import COVERED, Coverage, Distance, Inside
from kerncast.models.products import Product, products_of
from kerncast.op import Family
from kerncast.parameters import Value

T = TypeVar("T")


class ModelChoice(Generic[T]):
    """Models with what they cover, in the order in which they are taken."""

    def __init__(self, family: Family, models: Sequence[tuple[T, Coverage]]) -> None:
        self.family, self.models = family, models

    @cached_property
    def apart(self) -> frozenset[str]:
        """The parameters whose trained values differ. Only these are compared: most are the same in all models."""
        names = {name for _, item in self.models for name in (*item.hull, *item.facts)}
        seen = {name: [(item.hull.get(name), item.facts.get(name)) for _, item in self.models] for name in names}
        return frozenset(name for name, values in seen.items() if any(value != values[0] for value in values))

    @cached_property
    def _inside(self) -> list[dict[str, Inside]]:
        """By model: whether it covers a value of each of these parameters. A list of requests asks thousands of times."""
        return [{name: coverage.limits[name].covers for name in self.apart} for _, coverage in self.models]

    @cached_property
    def _products(self) -> list[dict[str, Product]]:
        """By model: what its problems may be given by instead of two sizes."""
        found = ([] if item.manifest is None else products_of(item.manifest, self.family, item) for _, item in self.models)
        return [{product.name: product for product in products} for products in found]

    def nearest(self, problem: Mapping[str, Value]) -> T:
        """The first model that covers a problem, else the first of those that come closest: it says what it was trained with.

        A problem may be given in part, and by products of its sizes.
        """
        totals = [name for name in self.family.op.products if name in problem]
        compared = {name: problem[name] for name in self.apart if name in problem}
        if not totals:
            for (model, _), inside in zip(self.models, self._inside, strict=True):
                if all(inside[name](value) for name, value in compared.items()):
                    return model
        best, least = self.models[0][0], None
        for place, (model, coverage) in enumerate(self.models):
            distance = coverage.distance(compared) if not totals else self.distance(place, problem)
            if distance == COVERED:
                return model
            if least is None or distance < least:
                best, least = model, distance
        return best

    def distance(self, place: int, problem: Mapping[str, Value]) -> Distance:
        """How far a problem is from being covered by a model; products that it cannot be asked by count like labels."""
        totals = [name for name in self.family.op.products if name in problem]
        values, lacking = {name: value for name, value in problem.items() if name not in totals}, 0
        for name in totals:
            product, total = self._products[place].get(name), problem[name]
            if not isinstance(total, int) or (product and any(values.get(factor) is not None for factor in product.factors)):
                continue
            shape = None if product is None or product.readers else product.shape(total, values)
            if product is None or shape is None:
                lacking += 1
            else:
                values |= dict(zip(product.factors, shape, strict=True))
        labels, sizes, unlike = self.models[place][1].distance(values)
        return labels + lacking, sizes, unlike
