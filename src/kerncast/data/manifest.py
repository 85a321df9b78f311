"""The contents of `dataset.json`: which parts a dataset has, where its rows came from and what they were measured on."""

from __future__ import annotations

import msgspec

from kerncast.core.device import Device
from kerncast.core.op import Family
from kerncast.data import skipping
from kerncast.data.hardware import Hardware
from kerncast.library.declared.declaration import Declaration, declaration_of

FORMAT = "kerncast-dataset"
VERSION = 1
MANIFEST = "dataset.json"
# The folder in which torch.compile records what it timed (`inductor.observed_log`).
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
