"""Which model answers: by op, family, device and software, then by what it covers; the user's store first, then what ships.

A problem is found a model before it is validated: the names of an op set parameters, parameters may be missing, a product may
stand for two sizes, an element type for its twin, and a problem that is too large may be divided.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from kerncast.core import dtypes
from kerncast.core.device import Device
from kerncast.core.op import Family, Problem
from kerncast.core.software import is_same, lacks, matching
from kerncast.core.space import Value
from kerncast.errors import InvalidValue, NotFound
from kerncast.library import devices as profiles
from kerncast.library.registry import OPS
from kerncast.models.answer import Answer
from kerncast.models.limits.configs import never_seen
from kerncast.models.limits.envelope import COVERED, Coverage
from kerncast.models.manifest import MANIFEST
from kerncast.models.model import Model
from kerncast.models.store.entry import Entry, shipped_entries
from kerncast.models.store.groups import ModelGroup, canonical, in_order, of_one_family
from kerncast.models.store.store import Store

SHALLOWEST = 1_024
"""K of a product whose parts take as long as the whole."""
MOST_PARTS = 16
# Sizes that kernels like: what is added to the last part does not count.
STEP = 256


@dataclass(frozen=True)
class DividedSize:
    """A size that may be divided: parts that are at least so large take as long as the whole, by these factors."""

    name: str
    least: int
    whole: tuple[float, float]


# Nine of ten wholes in AIConfigurator's tables take so many times two halves (benchmarks/wide_products.py): products with
# N = 65,536, products with M = 32,768 and experts with 16,384 tokens.
SIDES = {
    "gemm": (DividedSize("N", 32_768, (0.90, 1.02)), DividedSize("M", 16_384, (0.83, 1.18))),
    "moe": (DividedSize("tokens", 8_192, (0.76, 1.08)),),
}


@dataclass(frozen=True)
class Parts:
    """One way to divide a problem: launches whose times add up to that of the whole."""

    side: DividedSize
    whole: int
    count: int
    size: int
    """Of all parts but the last, which may be smaller."""

    def problem_of_one(self, problem: Mapping[str, Any]) -> dict[str, Any]:
        """The problem of one part."""
        return {**problem, self.side.name: self.size}

    def problem_of_all(self, problem: Mapping[str, Any]) -> dict[str, Any]:
        """The whole problem of a part's."""
        return {**problem, self.side.name: self.whole}

    def added(self, part: Answer, problem: Problem, model: str) -> Answer:
        """The answer about the whole problem, from that about one part; one without a time stays without."""
        if part.time_ns is None:
            return replace(part, problem=problem)
        many, (less, more) = self.whole / self.size, self.side.whole
        lower = None if part.lower_ns is None else part.lower_ns * many * less
        upper = None if part.upper_ns is None else part.upper_ns * many * more
        why = f"{self.side.name}={self.whole:,} is more than {model} saw: {self.count} parts of {self.size:,}, added"
        reason = "; ".join(filter(None, [why, part.reason]))
        return replace(part, problem=problem, time_ns=part.time_ns * many, lower_ns=lower, upper_ns=upper, reason=reason)


def ways_to_divide(op: str, problem: Mapping[str, Any]) -> Iterator[Parts]:
    """The ways to divide a problem, those with fewer parts first; none if its parts would take longer than the whole."""
    if (problem.get("K") or SHALLOWEST) < SHALLOWEST:
        return
    for side in SIDES.get(op, ()):
        whole = problem.get(side.name) or 0
        for count in range(2, min(MOST_PARTS, whole // side.least) + 1):
            yield Parts(side, whole, count, -(-whole // (count * STEP)) * STEP)


# Models are of several devices from this number on: then they may be asked about one that they have not seen.
POOLED = 2
TWIN_PARAMETERS = ("dtype", "kv_dtype")
Point = Mapping[str, Any]


@dataclass(frozen=True)
class ModelMatch:
    """The model that answers one problem, and what it is asked."""

    group: ModelGroup
    entry: Entry
    problem: Point
    filled: Point
    """Parameters that were not given, and of which the model saw one value only."""
    covered: bool
    near: bool
    """Whether the model gives a time: it covers the problem, or has only seen none that is like it."""
    taken: Point
    """Element types that stand for those asked about."""
    parts: Parts | None = None
    """Set if the problem is larger than all that were measured: `problem` is then one of its parts."""

    @property
    def key(self) -> tuple[str, ...]:
        """What is answered together."""
        return (self.entry.id, *(f"{name}={value}" for name, value in self.taken.items()))

    @property
    def whole(self) -> Point:
        """The problem that was asked about."""
        return self.problem if self.parts is None else self.parts.problem_of_all(self.problem)


def find(groups: Sequence[ModelGroup], problem: Point, profile: Device | None) -> ModelMatch:
    """The model for a problem: one that covers it, or the twin of an element type, or parts of it; else the closest one."""
    match = _or_twin(groups, problem, profile)
    family = match.group.family
    if match.near or family is None:
        return match
    for parts in ways_to_divide(family.op.name, match.problem):
        part = _or_twin(groups, parts.problem_of_one(problem), profile)
        if part.near:
            return replace(part, parts=parts)
    return match


def _or_twin(groups: Sequence[ModelGroup], problem: Point, profile: Device | None) -> ModelMatch:
    """The model that covers a problem, else one that covers it with the twin of an element type, else the closest one."""
    match = _nearest(groups, problem)
    twins = {} if match.covered else twins_of(problem, profile)
    if twins:
        with contextlib.suppress(InvalidValue, NotFound):  # one of the two may not be a type of the op
            other = _nearest(groups, {**problem, **twins})
            if other.near:
                return replace(other, taken=twins)
    return match


def _nearest(groups: Sequence[ModelGroup], problem: Point) -> ModelMatch:
    """The first model that covers a problem, else the one that comes closest in the first group."""
    first: ModelMatch | None = None
    for group in groups:
        family = group.family
        assert family is not None
        products = {name: value for name, value in problem.items() if name in family.op.products}
        try:
            given = group.checked({name: value for name, value in problem.items() if name not in products})
        except (InvalidValue, NotFound):
            if first is None:
                raise
            continue  # what a later group does not know, the first one has to answer
        entry = group.covering(given)
        if entry is None and first is not None:
            continue
        nearest = entry or group.nearest(problem)
        coverage = group.coverage(nearest)
        filled = _filled(coverage, family, given, products)
        near = entry is not None or (coverage is not None and coverage.distance(given)[:2] == COVERED[:2])
        match = ModelMatch(group, nearest, {**given, **products, **filled}, filled, entry is not None, near, {})
        if entry is not None:
            return match
        first = match
    assert first is not None
    return first


def _filled(coverage: Coverage | None, family: Family, given: Point, products: Point) -> dict[str, Any]:
    """The parameters that are not given and of which the model saw one value only."""
    filled: dict[str, Any] = {}
    hull = {} if coverage is None else coverage.hull
    factors = {factor for name in products for factor in family.op.products[name]}
    for name, parameter in family.problem.parameters.items():
        seen = hull.get(name)
        if given.get(name) is not None or seen is None or parameter.optional or name in factors:
            continue
        if len(seen.labels) == 1:
            filled[name] = seen.labels[0]
        elif seen.low is not None and seen.low == seen.high:
            filled[name] = seen.low
    return filled


# -- element types that stand for each other ---------------------------------------------------------------


def twins_of(problem: Point, device: Device | None) -> dict[str, str]:
    """By parameter: the type that may stand for the problem's; none if the device has another rate for it.

    fp16 and bf16 both have two bytes, and devices that have both multiply them at one rate. Libraries are often measured with
    one of them only.
    """
    asked = {name: str(problem[name]) for name in TWIN_PARAMETERS if problem.get(name) in dtypes.TWINS}
    twins = {name: dtypes.TWINS[value] for name, value in asked.items()}
    peaks = {} if device is None else device.peak_tflops
    apart = [name for name in asked if peaks.get(asked[name], 0.0) != peaks.get(twins[name], peaks.get(asked[name], 0.0))]
    return {} if apart else twins


def with_rates_of_twins(device: Device) -> Device:
    """The device, with the rate of one type for its twin where it has one of them only: V100 has no bf16."""
    peaks = device.peak_tflops
    added = {twin: peaks[name] for name, twin in dtypes.TWINS.items() if name in peaks and twin not in peaks}
    return replace(device, peak_tflops={**peaks, **added}) if added else device


# -- configs that the caller names -----------------------------------------------------------------------------


def knowing(groups: Iterable[ModelGroup], device: str, config: Point | None) -> list[ModelGroup]:
    """Each group with the models that have seen a config; with all of them if none has, or no config is named."""
    known = []
    for group in groups:
        seen = [entry for entry in group.entries if config and never_seen(loaded(entry), device, config) is None]
        known.append(replace(group, entries=tuple(seen)) if seen else group)
    return known


@lru_cache(64)
def _loaded(path: Path, _: int) -> Model:
    return Model.load(path)


def loaded(entry: Entry) -> Model:
    """The model of an entry; kept, and read again if its manifest changes."""
    file = entry.path / MANIFEST
    if not file.is_file():
        return entry.load()  # says what is wrong with it, or is of another system
    return _loaded(entry.path, file.stat().st_mtime_ns)


# -- where models are looked for -------------------------------------------------------------------------------


def groups_of(
    op: str,
    device: Device | str | None,
    *,
    family: str | None = None,
    software: str | None = None,
    store: Store | None = None,
    strict: bool = False,
) -> list[ModelGroup]:
    """Where to ask about an op on a device, the first one first; empty: no model is of it.

    Models that were trained on the device come before models of several others, the user's own before those that ship. Of
    each place only models of the software that is asked for are taken, if it has any; with `strict` no others at all.
    """
    asked, preset = op, dict[str, Value]()
    with contextlib.suppress(NotFound):
        found_op = OPS.alone(asked)
        op, preset = found_op.name, dict(found_op.aliases.get(asked, {}))
    name = None if device is None else device.name if isinstance(device, Device) else canonical(device)
    opened = Store.open() if store is None else store
    groups, others = list[ModelGroup](), list[ModelGroup]()
    for there in (opened.entries(op), shipped_entries(op)):
        of_family = _of_family(there, op, family)
        told = [entry for entry in of_family if name is None or _is_of(entry, name)]
        pooled = [entry for entry in of_family if entry not in told and len(entry.record.devices) >= POOLED]
        kept, warn = _of_software(told, software, strict)
        if kept:
            ordered = in_order(of_one_family(kept, op, None), software if warn else None)
            groups.append(ModelGroup(ordered, asked, preset, True, name))
        kept, _ = _of_software(pooled, software, strict)
        families = sorted({entry.family for entry in kept})
        others += [ModelGroup(tuple(e for e in kept if e.family == own), asked, preset, False, name) for own in families]
    return [*groups, *others]


def entries_of(op: str, family: str | None, software: str | None, store: Store) -> list[Entry]:
    """All models of an op, the user's own first: those of the software that is asked for, if there are any."""
    with contextlib.suppress(NotFound):
        op = OPS.alone(op).name
    found = _of_family([*store.entries(op), *shipped_entries(op)], op, family)
    return _of_software(found, software, strict=False)[0]


def only_group(
    op: str,
    family: str | None = None,
    device: str | None = None,
    software: str | None = None,
    name: str | None = None,
    strict: bool = False,
    store: Store | None = None,
) -> ModelGroup:
    """The models that may answer for an op on a device: those of the user's store, else those that ship."""
    opened = Store.open() if store is None else store
    try:
        return opened.lookup(op, family, device, software, name, strict)
    except NotFound:
        known = groups_of(op, device, family=family, software=software, store=opened, strict=strict)
        shipped = [item for item in known if item.seen and item.entries[0].shipped]
        if not shipped or name is not None:
            raise
        return shipped[0]


def _is_of(entry: Entry, device: str) -> bool:
    """Whether a model was trained on a device; its data may call it by an alias."""
    return device in entry.record.devices or (
        not entry.shipped and device in {canonical(item) for item in entry.record.devices}
    )


def _of_family(there: Iterable[Entry], op: str, family: str | None) -> list[Entry]:
    return [entry for entry in there if family is None or entry.family in (family, f"{op}/{family}")]


def _of_software(entries: list[Entry], software: str | None, strict: bool) -> tuple[list[Entry], bool]:
    """The models of the software that is asked for, if there are any; else all of them, to be warned about."""
    if software is None or not entries:
        return entries, False
    same = [entry for entry in entries if is_same(entry.software, software) or matching(software, entry.software)]
    return (same, False) if same or strict else (entries, True)


def no_model(op: str, device: Device | str, software: str | None, store: Store, family: str | None = None) -> str:
    """Why no model answers, in words."""
    name = device if isinstance(device, str) else device.name
    there = _of_family([*store.entries(op), *shipped_entries(op)], op, family)
    if not there:
        return f"there is no model of {op}" if family is None else f"there is no model of {op} in the family {family}"
    known = sorted({item for entry in there for item in entry.record.devices})
    if name not in known:
        return f"there is no model of {op} on {name}, only on {', '.join(known)}"
    texts = [text for entry in there if name in entry.record.devices for text in entry.software]
    return f"{op} on {name} {lacks(software, texts)}" if software is not None else f"no model of {op} on {name} can be used"


def profile_of(device: Device | str) -> Device | None:
    """The profile of a device; None: there is none of this name, and only models can know it."""
    return device if isinstance(device, Device) else profiles.find(device)
