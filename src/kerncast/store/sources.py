"""Where models are looked for: the user's store first, then those that come with the package."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from kerncast import devices as profiles
from kerncast.device import Device
from kerncast.errors import NotFound
from kerncast.models.hull import COVERED, Coverage
from kerncast.registry import OPS
from kerncast.software import is_same, lacks, matching
from kerncast.space import Value
from kerncast.store.entry import SHIPPED, Entry
from kerncast.store.lookup import Lookup
from kerncast.store.shipped import shipped_entries
from kerncast.store.store import Store, canonical

# Models are of several devices from this number on: then they may be asked about one that they have not seen.
POOLED = 2


@dataclass(frozen=True)
class Source:
    """Models of one family, in the order in which they are taken, that may answer for one device."""

    lookup: Lookup
    seen: bool
    """Whether they were trained on the device; otherwise they are asked about its profile."""

    device: str | None = None
    """Its name; None: any."""

    def covering(self, problem: Mapping[str, Any]) -> Entry | None:
        """The first model that covers a problem, given in part, on the device; None: none does."""
        return next((entry for entry, coverage in self._coverages if coverage.distance(problem) == COVERED), None)

    def coverage(self, entry: Entry) -> Coverage | None:
        """What one of the models covers on the device; None: it cannot be read."""
        return next((coverage for item, coverage in self._coverages if item.id == entry.id), None)

    @cached_property
    def _coverages(self) -> list[tuple[Entry, Coverage]]:
        """Read once, for a list of problems asks again and again."""
        known = self.lookup.by_coverage()
        return known if self.device is None else [(entry, coverage.on(self.device)) for entry, coverage in known]


def sources_of(
    op: str,
    device: Device | str | None,
    *,
    family: str | None = None,
    software: str | None = None,
    store: Store | None = None,
    strict: bool = False,
) -> list[Source]:
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
    found, others = list[Source](), list[Source]()
    for there, path in ((opened.entries(op), opened.path), (shipped_entries(op), Path(SHIPPED))):
        of_family = _of_family(there, op, family)
        told = [entry for entry in of_family if name is None or _is_of(entry, name)]
        pooled = [entry for entry in of_family if entry not in told and len(entry.record.devices) >= POOLED]
        kept, warn = _of_software(told, software, strict)
        if kept:
            lookup = Lookup.among(kept, asked, None, name, software if warn else None, None, False, path, preset)
            found.append(Source(lookup, True, name))
        kept, _ = _of_software(pooled, software, strict)
        families = sorted({entry.family for entry in kept})
        others += [Source(Lookup(tuple(e for e in kept if e.family == own), asked, preset), False, name) for own in families]
    return [*found, *others]


def entries_of(op: str, family: str | None, software: str | None, store: Store) -> list[Entry]:
    """All models of an op, the user's own first: those of the software that is asked for, if there are any."""
    with contextlib.suppress(NotFound):
        op = OPS.alone(op).name
    found = _of_family([*store.entries(op), *shipped_entries(op)], op, family)
    return _of_software(found, software, strict=False)[0]


def only_lookup(
    op: str,
    family: str | None = None,
    device: str | None = None,
    software: str | None = None,
    name: str | None = None,
    strict: bool = False,
    store: Store | None = None,
) -> Lookup:
    """The models that may answer for an op on a device: those of the user's store, else those that ship."""
    opened = Store.open() if store is None else store
    try:
        return opened.lookup(op, family, device, software, name, strict)
    except NotFound:
        known = sources_of(op, device, family=family, software=software, store=opened, strict=strict)
        shipped = [item for item in known if item.seen and item.lookup.entries[0].shipped]
        if not shipped or name is not None:
            raise
        return shipped[0].lookup


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
