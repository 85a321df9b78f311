"""`model.json`: what a model is, what it was made from, and the checksums of its other files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from kerncast.core.device import Device
from kerncast.core.io.arguments import names_a_file_inside
from kerncast.core.io.artefact import Versioned, file_checksum
from kerncast.data.dataset import MANIFEST as DATASET
from kerncast.data.dataset import DeviceRecord
from kerncast.errors import BadFile, NotFound
from kerncast.library.declared.declaration import Declaration
from kerncast.models.conformal import Interval
from kerncast.models.limits.devices import Elsewhere

FORMAT = "kerncast-model"
VERSION = 1
MANIFEST = "model.json"
CANDIDATES = "candidates.parquet"
PROBLEMS = "problems.parquet"
LABELS = "labels.parquet"
PREDICTIONS = "predictions.parquet"
EVALUATION = "evaluation.json"
IMPORTANCES = "importances.json"
CARD = "MODEL_CARD.md"
# Learners find their files by name, so one that nobody has a checksum of must not lie there.
WEIGHTS = (".gz", ".npz")


class Features(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The inputs, in order; `digest` hashes the arithmetic that computes them."""

    names: tuple[str, ...]
    digest: str
    left_out: dict[str, tuple[str, ...]] = {}
    constant: tuple[str, ...] = ()
    aliased_rows: int = 0


class Data(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The training data."""

    digest: str
    rows: int
    failures: int
    problems: int
    groups: int
    configs: int
    noise_floor: float | None
    where: tuple[str, ...] = ()


class Range(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The values of one problem parameter that were seen: an interval, or a list of labels."""

    low: int | None = None
    high: int | None = None
    labels: tuple[str | bool, ...] = ()


class Fact(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What all measured values of a size have in common: `rest` is left when they are divided by `step`."""

    step: int
    rest: int = 0

    def holds(self, value: int) -> bool:
        """Whether a value is like the measured ones."""
        return value % self.step == self.rest


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The contents of `model.json`. Nothing in it depends on the day or the machine it was trained on."""

    kind: str
    op: str
    family: str
    devices: tuple[DeviceRecord, ...]
    dtypes: tuple[str, ...]
    software: tuple[str, ...]
    features: Features
    target: str
    target_log: bool
    options: dict[str, Any]
    size: dict[str, int]
    folds: int
    seed: int
    split_group: tuple[str, ...]
    data: Data
    hull: dict[str, Range]
    interval: Interval | None
    versions: dict[str, str]
    files: dict[str, str]
    recipe: dict[str, Any]
    """How it was trained; empty: nothing makes these weights again."""
    warm_start: tuple[str, ...]
    """Data digests of the models that it continues, the first one first."""
    declaration: Declaration | None
    """The declaration of an op that was drafted from a file; None: the op is an installed one."""
    facts: dict[str, Fact]
    """What the measured values of some sizes have in common, though the op allows others."""
    conditions: dict[str, tuple[str, ...]]
    """How the training data were measured: their `backend` and `cache`, where the data say."""
    contradicted: tuple[str, ...]
    """Rules of the family that the model does not obey, because rows that break them worked."""
    device_dtypes: dict[str, tuple[str, ...]]
    """Of a model of several devices: the dtypes that were measured on each, if not the same on all."""
    device_software: dict[str, tuple[str, ...]]
    """Of a model of several devices: the software that was measured on each, if it is known and not the same on all."""
    slim: str
    """The checksum of the model that this one was made from, without what only training reads; empty: it is whole."""
    elsewhere: Elsewhere | None
    """The interval on devices that were not measured; None: too few devices were."""
    format: str = FORMAT
    version: int = VERSION
    checksum: str = ""
    """The checksum of the other fields."""

    def sealed(self) -> Manifest:
        """The manifest with the checksum of its other fields."""
        return msgspec.structs.replace(self, checksum=_FILE.seal(msgspec.to_builtins(self)))

    def dtypes_on(self, device: str) -> tuple[str, ...]:
        """The dtypes that were measured on one of its devices."""
        return self.device_dtypes.get(device, self.dtypes)

    def software_on(self, device: str) -> tuple[str, ...]:
        """The software that was measured on one of its devices."""
        return self.device_software.get(device, self.software)

    def hull_on(self, device: str) -> dict[str, Range]:
        """The trained range on one of its devices: of the dtypes, those that were measured there."""
        if "dtype" not in self.hull or device not in {record.name for record in self.devices}:
            return self.hull
        return {**self.hull, "dtype": Range(labels=tuple(sorted(self.dtypes_on(device))))}

    @property
    def device(self) -> Device:
        """The device it was trained for (the first one of a pooled model)."""
        return self.devices[0].device


_FILE = Versioned(
    FORMAT, VERSION, Manifest, "a kerncast model's manifest", "restore it, or train the model again", seal_field="checksum"
)


def read_manifest(path: Path) -> Manifest:
    """The manifest of a model directory; foreign, newer, damaged or incomplete ones are refused by name."""
    manifest = manifest_alone(path)
    for _, wrong in damaged_files(path, manifest):
        raise BadFile(wrong)
    return manifest


def manifest_alone(path: Path) -> Manifest:
    """The manifest of a model directory whose other files were not looked at."""
    if not path.exists():
        raise NotFound(f"there is no model at {path}: make one with `kerncast train`")
    file = path / MANIFEST
    if not file.is_file() and (path / DATASET).is_file():
        raise BadFile(f"{path} is a dataset, not a model: train one on it with `kerncast train`")
    if not file.is_file():
        raise BadFile(f"{path} is not a kerncast model: it has no {MANIFEST}")
    manifest = _FILE.read(file)
    wrong = _contradiction(manifest)
    if wrong:
        raise BadFile(f"{file} contradicts itself ({wrong}): restore it, or train the model again")
    return manifest


def _contradiction(manifest: Manifest) -> str:
    """What a manifest says that cannot be, though its checksum fits."""
    if not manifest.devices:
        return "it has no device"
    interval = manifest.interval
    if interval is None:
        return ""
    bands = len(interval.edges_ns) + 1
    rows = [interval.lower, interval.upper]
    if interval.widening is not None:
        rare = len(interval.widening.edges_bits) + 1
        if {len(interval.widening.lower), len(interval.widening.upper)} != {rare}:
            return "its interval widens by other bands than it lists"
        rows += [*interval.widening.lower, *interval.widening.upper]
    return "" if all(len(row) == bands for row in rows) else f"its interval has {bands} bands and other factors"


def damaged_files(path: Path, manifest: Manifest) -> Iterator[tuple[Path, str]]:
    """The files of a model that are missing, changed or not listed, each with what is wrong with it."""
    for name, checksum in manifest.files.items():
        if "/" in name or not names_a_file_inside(name) or not (path / name).is_file():
            yield path / name, f"{path} is incomplete: {name} is missing; restore it, or train the model again"
        elif file_checksum(path / name) != checksum:
            yield path / name, f"{path / name} differs from its checksum: restore it, or train the model again"
    for file in sorted(path.iterdir()):
        if file.suffix in WEIGHTS and file.name not in manifest.files:
            said = f"{path} has a file {file.name} that its {MANIFEST} does not list: remove it, or train the model again"
            yield file, said


def write_manifest(path: Path, manifest: Manifest) -> None:
    """Write the manifest into a directory whose other files are complete."""
    (path / MANIFEST).write_bytes(_FILE.text(manifest))
