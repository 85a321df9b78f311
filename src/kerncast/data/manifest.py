"""The contents of `dataset.json`: its parts, where its rows came from, and the machines that they were measured on.

What a machine's own tools said about it is kept as data, and compared with the device profile.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from kerncast.core.device import Device
from kerncast.core.op import Family
from kerncast.data import skipping
from kerncast.library import devices
from kerncast.library.declared.declaration import Declaration, declaration_of

# A dataset keeps the latest records; those that say the same are one.
MOST_RECORDS = 8
# Relative differences that are no contradiction. Clocks are rounded, and a part of the memory is reserved; GB may mean GiB.
TOLERANCE = {"max_clock_mhz": 0.05, "memory_capacity_gb": 0.10}
EXACT = 0.005
# A process may be limited to some of the CPUs and their caches, and a profile has the clock that was measured.
AT_MOST = ("num_cus", "max_clock_mhz", "l3_cache_kb")


class Tool(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One tool: what it printed, or why there is nothing."""

    name: str
    text: str = ""
    cut: bool = False
    """Whether it printed more than is kept."""
    error: str = ""


class Reported(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A device that a tool lists, with the numbers that could be read; their names are those of a device profile."""

    tool: str
    kind: str
    name: str
    numbers: dict[str, float] = {}
    facts: dict[str, str] = {}


class Hardware(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What was captured at the beginning of one collection."""

    at: str
    device: str
    """The device that the collection measured."""
    tools: tuple[Tool, ...]
    reported: tuple[Reported, ...] = ()


def latest(records: Iterable[Hardware]) -> tuple[Hardware, ...]:
    """The latest records in order of time; of those that differ in their time alone, the first."""
    found: dict[bytes, Hardware] = {}
    for item in sorted(records, key=lambda item: item.at):
        found.setdefault(msgspec.json.encode(msgspec.structs.replace(item, at="")), item)
    return tuple(found.values())[-MOST_RECORDS:]


def as_json(hardware: Hardware, device: Device) -> dict[str, Any]:
    """A record as plain values, with `contradictions`: where the tools contradict the device's profile."""
    return {**msgspec.to_builtins(hardware), "contradictions": contradictions(hardware, device)}


def contradictions(hardware: Hardware, device: Device) -> list[str]:
    """Where the tools contradict the device's profile: another device, or other numbers."""
    same_kind = [item for item in hardware.reported if item.kind == device.kind]
    meant = [item for item in same_kind if _is_named_like(item, device) is not False]
    if same_kind and not meant:
        names = ", ".join(dict.fromkeys(f"{item.name} ({item.tool})" for item in same_kind))
        return [f"the rows are of {device.name}, but this machine has {names}: name the right device"]
    return list(dict.fromkeys(said for item in meant for said in _other_numbers(item, device)))


def _is_named_like(item: Reported, device: Device) -> bool | None:
    """Whether a reported device is the profile's; None if its name says nothing."""
    if device.kind != "gpu":
        return None
    names = [item.name, *item.facts.values()]
    known = [found for name in names if (found := devices.named(name)) is not None]
    architectures = {found.architecture for found in known if found.architecture is not None}
    architectures |= {name for name in names if devices.parts(name)}
    if any(found.name == device.name for found in known):
        return True
    if device.architecture is not None and architectures:
        return device.architecture in architectures
    return False if known else None


def _other_numbers(item: Reported, device: Device) -> Iterator[str]:
    differing = []
    for name, said in item.numbers.items():
        profile = device.numbers.get(name)
        if profile is None or abs(said - profile) <= TOLERANCE.get(name, EXACT) * max(said, profile):
            continue
        if item.kind == "cpu" and name in AT_MOST and profile < said:
            continue
        differing.append(f"{name} {said:g} (profile: {profile:g})")
    if differing:
        yield (
            f"{item.tool} says of {item.name}: {', '.join(differing)}; features are computed with the profile {device.name}: "
            "correct it, or name the right device"
        )


FORMAT = "kerncast-dataset"
VERSION = 1
MANIFEST = "dataset.json"
# The folder in which torch.compile records what it timed (`torch.observed_log`).
OBSERVED = "observed"


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One parquet file: `content` hashes its cells, `checksum` its bytes."""

    family: str
    file: str
    rows: int
    content: str
    checksum: str


class ExtraFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Columns of an imported file that have no place in the rows, under the `source` and `source_line` of each row."""

    file: str
    rows: int
    columns: tuple[str, ...]
    checksum: str


class Source(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where imported rows came from; a row's `source` column holds the digest."""

    digest: str
    name: str
    format: str


class DeviceRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A device as it was when rows were collected, so that its features can be computed on any machine."""

    name: str
    title: str
    kind: str
    numbers: dict[str, float] = {}
    peak_tflops: dict[str, float] = {}
    sources: dict[str, str] = {}
    estimated: dict[str, float] = {}
    """Rates that a model estimated from its training rows; none in a dataset."""

    @property
    def device(self) -> Device:
        """The device profile of this record."""
        return Device(self.name, self.title, self.kind, self.numbers, self.peak_tflops, self.sources, estimated=self.estimated)


def record_of(device: Device) -> DeviceRecord:
    """The record of a device that a dataset stores."""
    # A whole number would come back from the file as another number.
    numbers, peaks = ({name: float(value) for name, value in given.items()} for given in (device.numbers, device.peak_tflops))
    return DeviceRecord(device.name, device.title, device.kind, numbers, peaks, dict(device.sources), dict(device.estimated))


class DatasetFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The contents of `dataset.json`."""

    format: str = FORMAT
    version: int = VERSION
    parts: tuple[Part, ...] = ()
    sources: tuple[Source, ...] = ()
    devices: tuple[DeviceRecord, ...] = ()
    declarations: tuple[Declaration, ...] = ()
    """Ops that were drafted from an imported file."""
    skipped: skipping.SkippedFile | None = None
    """The rows that an import could not represent."""
    extra: tuple[ExtraFile, ...] = ()
    """The columns that an import did not know."""
    hardware: tuple[Hardware, ...] = ()
    """What the machine's tools said about it, if they were asked."""

    @property
    def declared(self) -> dict[str, Declaration]:
        """The drafted ops by the id of their family."""
        return {item.family: item for item in self.declarations}


def with_declaration(manifest: DatasetFile, family: Family) -> tuple[Declaration, ...]:
    """The declarations after rows of a family are added; a second draft of an op extends the first."""
    declared, own = manifest.declared, declaration_of(family)
    if own is not None:
        declared[own.family] = declared[own.family].joined(own) if own.family in declared else own
    return tuple(declared[name] for name in sorted(declared))
