"""Which model answers a request: by op, family and device, then by what the model covers, then by its software and date."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from kerncast.answering.prediction import Ask, OpAnswerer
from kerncast.core import software as softwares
from kerncast.core.op import Family
from kerncast.core.software import newest_version
from kerncast.errors import InvalidValue, NotFound
from kerncast.library.devices import profiles
from kerncast.library.registry import OPS
from kerncast.models.limits.envelope import Coverage
from kerncast.models.model import Model
from kerncast.models.store.entry import Entry
from kerncast.models.store.groups import ModelChoice, is_meant
from kerncast.models.store.store import Store
from kerncast.native.query import device_names


class Address(msgspec.Struct, frozen=True, gc=False):
    """The part of a request that says which models may answer."""

    op: str | None = None
    family: str | None = None
    device: str | None = None
    software: str | None = None


@dataclass(frozen=True)
class ModelTarget:
    """A model that answers, and what to say about it."""

    path: Path
    device: str | None = None
    """The device to answer for, if the model is one of several devices."""
    names: tuple[str, ...] = ()
    """What the device is called: the model must not see another name (`local`)."""
    warning: str | None = None
    software: str | None = None
    """What the model was trained on, if the model itself does not say."""
    entry: str | None = None
    """The model's id in the store."""

    @property
    def key(self) -> tuple[Path, str | None]:
        """What has the same key is answered by the same selector."""
        return self.path, self.device


@dataclass(frozen=True, eq=False)
class Route:
    """Who answers requests that name the same op, family, device and software."""

    target: ModelTarget | None = None
    """A model that answers all of them."""
    choice: ModelChoice[ModelTarget] | None = None
    """Models that cover different problems: the first one that covers a problem answers, else the one that comes closest."""
    ready: OpAnswerer | None = None
    """Set if the store has no model: what ships with the package answers, a model or the roofline."""


Find = Callable[[Address], Route]
"""Who may answer; a NotFound or InvalidValue says why nobody does."""


def asking_for(software: str, find: Find) -> Find:
    """Find models of some software for requests that name none."""
    return lambda asked: find(asked if asked.software is not None else msgspec.structs.replace(asked, software=software))


def in_store(store: Store, strict: bool = False, ask: Ask | None = None) -> Find:
    """Find models in a store, in the store's order; `ask` asks those that ship, if not `Model.predict`."""

    def find(asked: Address) -> Route:
        if asked.op is None:
            raise InvalidValue('a request must name its op: {"op": "exp", …}')
        try:
            op = OPS.get(asked.op).name
        except NotFound:  # an op of the user's own is known by its models alone
            if not store.entries(asked.op):
                raise
            op = asked.op
        try:
            found = store.lookup(op, asked.family, asked.device, asked.software, strict=strict)
        except NotFound as error:
            return _ready(asked, store, strict, error, ask)
        if asked.device is not None and any(len(entry.record.devices) > 1 for entry in found.entries):
            return Route(ready=_answerer(asked, store, strict, ask))
        if len(found.entries) == 1 or found.family is None:
            return Route(_stored(found.entries[0], asked))
        return _narrowed(found.family, [(_stored(entry, asked), coverage) for entry, coverage in found.coverages])

    return find


def _ready(asked: Address, store: Store, strict: bool, error: NotFound, ask: Ask | None) -> Route:
    """What ships answers in the place of a store without a model; if it has nothing to say either, the error stays."""
    if asked.op is None or asked.device is None:
        raise NotFound(f'{error}; or name the device, {{"device": "h100", …}}, for what comes with kerncast') from error
    answerer = _answerer(asked, store, strict, ask)
    if not answerer.groups and ((strict and asked.software is not None) or answerer.profile is None):
        raise error
    return Route(ready=answerer)


def _answerer(asked: Address, store: Store, strict: bool, ask: Ask | None) -> OpAnswerer:
    assert asked.op is not None
    assert asked.device is not None
    return OpAnswerer(asked.op, asked.device, asked.software, asked.family, store=store, strict=strict, lenient=True, ask=ask)


def _stored(entry: Entry, asked: Address) -> ModelTarget:
    warning = entry.warning
    if warning is not None and asked.software is not None and not entry.software:
        warning = _other(entry.software, asked.software)
    known = profiles()
    names = tuple(alias for name in entry.record.devices for alias in (name, *(known[name].aliases if name in known else ())))
    return ModelTarget(entry.path, None, names, warning, softwares.telling(entry.software), entry.id)


def _narrowed(family: Family, models: Sequence[tuple[ModelTarget, Coverage]]) -> Route:
    """The first model alone, if the others cover the same problems and can be asked in the same ways."""
    choice = ModelChoice(family, models)
    return Route(choice=choice) if choice.apart or family.op.products else Route(models[0][0])


def among(models: Sequence[Model], strict: bool = False) -> Find:
    """Find the models that fit the op, family and device of a request among these; they must be of one family and device."""
    several = {model.path for model in models if len(model.manifest.devices) > 1}
    models = [model.on(record.name) for model in models for record in model.manifest.devices]

    def find(asked: Address) -> Route:
        meant = (asked.op, asked.family, asked.device)
        fitting = [item for item in models if is_meant(meant, item.manifest.op, item.family.id, device_names(item))]
        if not fitting:
            there = ", ".join(f"{model.family.id} on {model.device.name}" for model in models)
            on = f" on {asked.device}" if asked.device else ""
            raise NotFound(f"no given model is for {asked.family or asked.op}{on}, only for {there}: name one with `model`")
        if len({(model.family.id, model.device.name) for model in fitting}) > 1:
            there = ", ".join(f"{model.family.id} on {model.device.name}" for model in fitting)
            raise NotFound(f"several models fit ({there}): name the family and the device")
        wanted = asked.software
        same = [model for model in fitting if wanted is None or softwares.is_same(model.manifest.software, wanted)]
        if wanted is not None:
            same = sorted(same, key=lambda model: newest_version(model.manifest.software, wanted), reverse=True)
        if strict and not same:
            warning = _other(fitting[0].manifest.software, asked.software or "")
            raise NotFound(f"{fitting[0].path}: {warning}: leave out `strict` to use it, or train one on that software")
        ordered = same if strict else [*same, *(model for model in fitting if model not in same)]
        if len(ordered) == 1:
            return Route(_given(ordered[0], asked, several))
        family = ordered[0].family
        known = [(_given(model, asked, several), Coverage.of(model.manifest, family.problem.parameters)) for model in ordered]
        return _narrowed(family, known)

    return find


def _given(model: Model, asked: Address, several: Collection[Path]) -> ModelTarget:
    known, device = model.manifest.software, model.device.name if model.path in several else None
    same = asked.software is None or softwares.is_same(known, asked.software)
    return ModelTarget(model.path, device, device_names(model), None if same else _other(known, asked.software or ""))


def _other(known: Sequence[str], asked: str) -> str:
    """The warning about a model that was trained on other software."""
    return (
        f"trained on {'; '.join(known)}, not on {asked}"
        if known
        else f"asked for {asked}, the model {softwares.trained(known)}"
    )
