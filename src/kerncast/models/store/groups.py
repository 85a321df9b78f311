"""Models of one family that may answer: which of them covers a problem, then their software, then their date."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, TypeVar

from kerncast.core import software as softwares
from kerncast.core.op import Family
from kerncast.core.software import newest_version, short_name
from kerncast.core.space import Value
from kerncast.errors import BadFile, InvalidValue, KerncastError, NotFound
from kerncast.library import devices as profiles
from kerncast.library.registry import OPS
from kerncast.models.limits.envelope import COVERED, Coverage, Distance, Inside, range_words
from kerncast.models.products import SizeProduct, products_of
from kerncast.models.store.entry import DEFAULT, Entry

# Models that an error lists.
LISTED = 12
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
    def _products(self) -> list[dict[str, SizeProduct]]:
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


@dataclass(frozen=True)
class ModelGroup:
    """Models of one family that may answer for one device, in the order in which they are taken."""

    entries: tuple[Entry, ...]
    """One of the requested software first, then one that the user did not name, then the newest."""
    asked: str
    """The op as it was asked for."""
    preset: Mapping[str, Value]
    """The parameters that this name of the op sets (`exp`: func=exp)."""
    seen: bool = True
    """Whether the models were trained on the device; otherwise they are asked about its profile."""
    device: str | None = None
    """Its name; None: any."""

    @cached_property
    def family(self) -> Family | None:
        """The family, if it is installed here or declared by a model."""
        for entry in self.entries:
            with contextlib.suppress(KerncastError):
                return entry.declared_family()
        return None

    @cached_property
    def coverages(self) -> list[tuple[Entry, Coverage]]:
        """The models with what they cover, in order. One that cannot be read is left out, unless there is no other.

        Read once, for a list of problems asks again and again.
        """
        known, damaged = [], []
        for entry in self.entries:
            try:
                known.append((entry, entry.coverage(self.family)))
            except BadFile as error:
                damaged.append(error)
        if not known:
            raise damaged[0]
        return known

    @cached_property
    def _on_device(self) -> list[tuple[Entry, Coverage]]:
        """The same for the device alone."""
        device = self.device
        return [(entry, coverage if device is None else coverage.on(device)) for entry, coverage in self.coverages]

    def covering(self, problem: Mapping[str, Any]) -> Entry | None:
        """The first model that covers a problem, given in part, on the device; None: none does."""
        return next((entry for entry, coverage in self._on_device if coverage.distance(problem) == COVERED), None)

    def coverage(self, entry: Entry) -> Coverage | None:
        """What one of the models covers on the device; None: it cannot be read."""
        return next((coverage for item, coverage in self._on_device if item is entry), None)

    # -- problems --------------------------------------------------------------------------------------

    def checked(self, problem: Mapping[str, Any]) -> dict[str, Value]:
        """The given parameters, each of which must be one of the family's, and those that the name of the op sets."""
        if self.family is None:
            if problem:
                raise NotFound(f"{self.entries[0].family} is not installed here, so its problems are unknown: name a model")
            return {}
        known_parameters(self.family, problem)
        for name, value in self.preset.items():
            if problem.get(name, value) != value:
                raise InvalidValue(
                    f"{self.asked} means {name}={value}, which contradicts {name}={problem[name]}: leave one of them out"
                )
        return {**self.preset, **problem}

    def only(self, problem: Mapping[str, Any]) -> Entry:
        """The model for a problem, of which some parameters may be given; an error if no model covers it, or several do."""
        if len(self.entries) == 1 and not problem:
            return self.entries[0]
        asked = self.checked(problem)
        distances = [self.choice.distance(number, asked) for number in range(len(self.coverages))]
        covering = [item for item, distance in zip(self.coverages, distances, strict=True) if distance == COVERED]
        if not covering:
            raise self._uncovered(*self.coverages[distances.index(min(distances))], asked)
        first, widest = covering[0]
        rivals = [(entry, coverage) for entry, coverage in covering[1:] if _rank(entry) == _rank(first)]
        clash = [entry for entry, coverage in rivals if entry.named or not widest.contains(coverage)]
        clash = [entry for entry in clash if entry.record.name != first.record.name]
        if clash:
            told = [(entry, coverage) for entry, coverage in covering if entry in (first, *clash)]
            raise _ambiguous(told, problem)
        return first

    def nearest(self, problem: Mapping[str, Any]) -> Entry:
        """The first model that covers a problem, else the first of those that come closest: it says what it was trained with.

        A problem may be given in part, and by products of its sizes; what is wrong with it is for the model to say.
        """
        if len(self.entries) == 1 or self.family is None:
            return self.entries[0]
        rules = self.family.problem.parameters
        valid = {name: value for name, value in problem.items() if name in rules and rules[name].index(value) is not None}
        totals = {name: value for name, value in problem.items() if name in self.family.op.products}
        return self.choice.nearest({**self.preset, **valid, **totals})

    @cached_property
    def choice(self) -> ModelChoice[Entry]:
        """The models with what they cover, to choose among."""
        assert self.family is not None
        return ModelChoice(self.family, self.coverages)

    def _uncovered(self, entry: Entry, coverage: Coverage, asked: Mapping[str, Value]) -> NotFound:
        products = {} if self.family is None else self.family.op.products
        sizes = {name: value for name, value in asked.items() if name not in products}
        outside = [*coverage.outside(sizes), *filter(None, [coverage.unlike(sizes)])]
        rules = "; ".join(f"{item.parameter} was trained with {item.rule} only, got {item.value}" for item in outside)
        for name in (name for name in products if name in asked and not rules):
            rules = f"no {' and '.join(products[name])} that it was trained with make {name}={asked[name]}, or it reads both"
        return NotFound(
            f"no model of {entry.family} on {entry.device} in the store covers this problem; the nearest is {entry.id}: "
            f"{rules}; train one on such problems and add it"
        )


def known_parameters(family: Family, problem: Mapping[str, Any]) -> dict[str, Any]:
    """The given values of a problem, each of which must be a parameter of the family, or a product of two, and valid."""
    for name, value in problem.items():
        rule = family.problem.parameters.get(name)
        if name in family.op.products:
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InvalidValue(f"{name} must be a whole number from 1, got {value!r}")
        elif rule is None:
            raise NotFound.named(f"parameter of {family.op.name}", name, family.problem.parameters)
        elif value is not None and rule.index(value) is None:
            raise InvalidValue(f"{name} {rule.refusal(value)}")
    return {name: value for name, value in problem.items() if value is not None}


def in_order(
    entries: list[Entry], software: str | Sequence[str] | None = None, name: str | None = None, strict: bool = False
) -> tuple[Entry, ...]:
    """Models of one family in the order in which they are taken; those of other software than asked for have a warning."""
    if name is not None:
        named = [entry for entry in entries if entry.record.name == name or (name == DEFAULT and not entry.named)]
        if not named:
            raise NotFound.named(f"model of {entries[0].family}", name, {entry.record.name for entry in entries})
        entries = named
    entries = sorted(entries, key=lambda entry: entry.record.added, reverse=True)
    if isinstance(software, str):  # of several versions that a name such as `vllm` means, the newest comes first
        entries = sorted(entries, key=lambda entry: newest_version(entry.software, software), reverse=True)
    entries = sorted(entries, key=lambda entry: entry.named)
    if software is None:
        return tuple(entries)
    same = [entry for entry in entries if softwares.is_same(entry.software, software)]
    if strict and not same:
        raise _no_such_software(entries, software)
    return tuple(same if strict else [*same, *(_warned(entry, software) for entry in entries if entry not in same)])


def _ambiguous(several: list[tuple[Entry, Coverage]], problem: Mapping[str, Any]) -> InvalidValue:
    listed = ", ".join(entry.id for entry, _ in several[:LISTED]) + (" …" if len(several) > LISTED else "")
    names = dict.fromkeys(name for _, coverage in several for name in coverage.hull if name not in problem)
    differ = [name for name in names if len({range_words(c.hull[name]) for _, c in several if name in c.hull}) > 1]
    how = f"give parameters of the problem that tell them apart ({', '.join(differ)}), or " if differ else ""
    return InvalidValue(f"{len(several)} models of {several[0][0].family} may answer: {listed}; {how}choose one with `name`")


def _rank(entry: Entry) -> tuple[bool, bool]:
    return entry.warning is not None, entry.named


def _warned(entry: Entry, software: str | Sequence[str]) -> Entry:
    """The entry with a warning that it was trained on other software than asked for."""
    asked = _asked(software)
    if not entry.software:
        return replace(entry, warning=f"asked for {asked}, the model {softwares.trained(())}")
    return replace(entry, warning=f"trained on {', '.join(map(short_name, entry.software))}, not on {asked}")


def _asked(software: str | Sequence[str]) -> str:
    return (software if isinstance(software, str) else "; ".join(software)) or "software without a name"


def _no_such_software(there: list[Entry], software: str | Sequence[str]) -> NotFound:
    newest = there[0]
    said = "; ".join(newest.software) or "software that its data do not name"
    known = dict.fromkeys(short_name(text) for entry in there for text in entry.software)
    all_of_them = f" (there are {', '.join(list(known)[:LISTED])}{' …' * (len(known) > LISTED)})" * (len(known) > 1)
    return NotFound(
        f"no model of {newest.family} on {newest.device} was trained on {_asked(software)}; the newest was trained on {said}"
        f"{all_of_them}: leave out `strict` to use it, or train one on that software"
    )


def of_one_family(there: list[Entry], op: str, family: str | None) -> list[Entry]:
    """The models of a family, which must be named if there are several."""
    known = sorted({entry.family for entry in there})
    if family is None:
        if len(known) > 1:
            raise InvalidValue(f"the store has models of several families of {op} ({', '.join(known)}): name one")
        return there
    found = [entry for entry in there if entry.family in (family, f"{op}/{family}")]
    if not found:
        raise NotFound.named("family in the store", family, known)
    return found


def on_one_device(there: list[Entry], device: str | None, path: Path) -> list[Entry]:
    """The models of a device, which must be named if there are several."""
    known = sorted({name for entry in there for name in entry.record.devices})
    if device is None:
        if len({entry.record.devices for entry in there}) > 1:
            raise InvalidValue(f"the store has models of {there[0].family} for several devices ({', '.join(known)}): name one")
        return there
    wanted = canonical(device)
    found = [entry for entry in there if wanted in {canonical(name) for name in entry.record.devices}]
    if not found:
        raise NotFound(
            f"the store {path} has no model of {there[0].family} for the device {wanted}, only for {', '.join(known)}, and "
            "a model of another device is never used: train one there"
        )
    return found


def canonical(device: str) -> str:
    """The profile name of a device; a device without a profile keeps its own name."""
    try:
        found = profiles.find(device)
    except (NotFound, InvalidValue):
        found = None
    return device if found is None else found.name


def is_meant(asked: tuple[str | None, str | None, str | None], op: str, family: str, devices: Iterable[str]) -> bool:
    """Whether a model is of the op, family and device that are asked for, as far as these are named."""
    asked_op, asked_family, asked_device = asked
    # An op of the user's own is known by its models alone.
    if asked_op not in (None, op) and OPS.get(asked_op or "").name != op:
        return False
    if asked_family not in (None, family, family.split("/")[1]):
        return False
    return asked_device is None or canonical(asked_device) in {canonical(name) for name in devices}
