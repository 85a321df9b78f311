"""`entry.json` of a store: what a model is, where it is, and checks before an entry is used."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import inf
from pathlib import Path
from typing import Any

import msgspec

from kerncast.core import software as softwares
from kerncast.core.io.artefact import Versioned
from kerncast.core.io.foreign import guarded, read_json
from kerncast.core.io.quoting import word
from kerncast.core.op import Family
from kerncast.errors import BadFile, InvalidValue
from kerncast.library.declared.declaration import resolve
from kerncast.models.limits.envelope import Coverage, part_name
from kerncast.models.manifest import EVALUATION, MANIFEST, Manifest, Range, manifest_alone
from kerncast.models.model import Model, is_ck_directory

ENTRY = "entry.json"
FORMAT = "kerncast-store-entry"
VERSION = 1
DEFAULT = "default"
LONGEST_NAME = 100
# How the id of a shipped model begins; no op is called so.
SHIPPED = "shipped"
# The end of the name of a model that `update` has replaced.
PREVIOUS = ".previous"
# What the store calls a model of a part of an op; a user's name has no '=', so it is never one of these.
_PART = re.compile(r"\w+=[\w+-]+(,\w+=[\w+-]+)*", re.ASCII)


@lru_cache(64)
def _kept(path: Path, *_: int) -> Manifest:
    return manifest_alone(path)


def _manifest(path: Path) -> Manifest:
    """The manifest of a model; kept, and read again if it changes."""
    file = path / MANIFEST
    if not file.is_file():
        return manifest_alone(path)  # says what is wrong
    found = file.stat()
    return _kept(path, found.st_mtime_ns, found.st_ino)


class EntryRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The contents of `entry.json`."""

    op: str
    family: str
    devices: tuple[str, ...]
    software: tuple[str, ...]
    name: str
    added: str
    """UTC."""
    model: str
    """The model's directory, next to this file."""
    checksum: str
    """Of the model's manifest, which has those of all its files; empty for another tool's layout without one."""
    kind: str
    dtypes: tuple[str, ...]
    rows: int
    problems: int
    r2: float | None
    mape: float | None
    efficiency: float | None
    bytes: int
    origin: dict[str, str] = {}
    """Where it came from (routine, host …), as given when it was added."""
    format: str = FORMAT
    version: int = VERSION


@dataclass(frozen=True)
class Entry:
    """A model of the store; `path` is what `Model.load` takes."""

    path: Path
    record: EntryRecord
    warning: str | None = None
    """Set by `find` if the model is not exactly what was asked for."""
    shipped: bool = False
    """Whether it came with the package, rather than being in the store."""

    @property
    def op(self) -> str:
        return self.record.op

    @property
    def family(self) -> str:
        return self.record.family

    @property
    def device(self) -> str:
        """The device, or the first one of a pooled model."""
        return self.record.devices[0]

    @property
    def software(self) -> tuple[str, ...]:
        return self.record.software

    @property
    def named(self) -> bool:
        """Whether the user named it; other models are called by the part of the op that they are of."""
        return not self.shipped and self.record.name != DEFAULT and not _PART.fullmatch(self.record.name)

    def declared_family(self) -> Family:
        """The model's family, from its manifest alone."""
        if is_ck_directory(self.path):
            return _ck_coverage(self.path)[0]
        manifest = _manifest(self.path)
        return resolve(manifest.family, manifest.declaration, self.path)

    def coverage(self, family: Family | None) -> Coverage:
        """What the model was trained with: its manifest is read, its weights are not. CK's files say the dtypes alone."""
        if is_ck_directory(self.path):
            return Coverage(_ck_coverage(self.path)[1], {}, {} if family is None else family.problem.parameters)
        return Coverage.of(_manifest(self.path), {} if family is None else family.problem.parameters)

    @property
    def id(self) -> str:
        """What `show` and `remove` call it: `gemm/cpu/<device>/<software digest>/<name>`, or `shipped/<name>`."""
        record = self.record
        if self.shipped:
            return f"{SHIPPED}/{record.name}"
        return "/".join(place_of(record.family, record.devices, record.software, record.name))

    def load(self) -> Model:
        """Load the model and verify its checksums."""
        if not self.path.is_dir():
            raise BadFile(
                f"{self.path.parent / ENTRY} names the model {self.path}, which is gone: put it back, or remove the entry with "
                f"`kerncast models remove {word(self.id)}`"
            )
        model = Model.load(self.path)
        if model.manifest.checksum != self.record.checksum and not self.shipped:
            raise BadFile(
                f"{self.path} is not the model that {self.path.parent / ENTRY} names (their checksums differ): remove "
                f"it with `kerncast models remove {word(self.id)}` and add the model again"
            )
        return model

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        found: dict[str, Any] = msgspec.to_builtins(self.record)
        for name in ("format", "version", "model"):
            found.pop(name)
        return {"id": self.id, **found, "path": str(self.path), "warning": self.warning, "shipped": self.shipped}


def _ck_coverage(path: Path) -> tuple[Family, dict[str, Range]]:
    from kerncast.models.ck import read_coverage  # it imports what trains forests

    return read_coverage(path)


def place_of(family: str, devices: Sequence[str], software: Sequence[str], name: str) -> tuple[str, ...]:
    """The folders of an entry: op, family, the device or several, software, name."""
    joined = "+".join(devices)
    device = joined if len(joined) <= 100 else f"{len(devices)}-devices-{softwares.digest(devices)}"
    return (*family.split("/"), device, softwares.digest(software), name)


def check_name(name: str) -> None:
    """Refuse a model's name that cannot be one folder."""
    if _PART.fullmatch(name.removesuffix(PREVIOUS)):  # the store's own
        return
    if not name.replace("-", "").replace("_", "").replace(".", "").isalnum() or name.startswith("."):
        raise InvalidValue(f"a model's name is letters, digits, '-', '_' and '.', got '{name}'")
    if len(name.encode()) > LONGEST_NAME:
        raise InvalidValue(f"a model's name has at most {LONGEST_NAME} bytes, got {len(name.encode())}: choose a shorter one")


def own_name(model: Model) -> str:
    """What the store calls a model that the user did not name: by the part of the op that it covers, else `default`."""
    part = part_name(model.manifest, model.family.problem.parameters)
    if not part:
        return DEFAULT
    if len(part) > LONGEST_NAME or not _PART.fullmatch(part):
        return f"part={softwares.digest([part])}"
    return part


ENTRY_FILE = Versioned(FORMAT, VERSION, EntryRecord, "an entry of a kerncast store", "add the model again")


def read_entry(file: Path) -> Entry:
    """Read an entry, and refuse it unless it names a directory next to it and is in its right place."""
    remedy = f"remove {file.parent} and add the model again"
    try:
        record = ENTRY_FILE.read(file, remedy)
    except OSError as error:
        raise BadFile(f"{file} cannot be read ({error.strerror}): {remedy}") from error
    # Path("").name and Path("..").name are unchanged, but neither names a directory next to this file.
    if record.model in ("", "..") or Path(record.model).name != record.model:
        raise BadFile(f"{file} is damaged (it names the model '{record.model}'): {remedy}")
    place = place_of(record.family, record.devices, record.software, record.name)
    if not all(record.devices) or place != file.parent.parts[-len(place) :] or record.op != place[0]:
        raise BadFile(f"{file} is damaged (it is the entry of {record.op} at {'/'.join(place)}): {remedy}")
    return Entry(file.parent / record.model, record)


VARIABLE = "KERNCAST_SHIPPED"
AGAIN = f"install kerncast again, or name another folder with {VARIABLE}"
# What was installed with the package.
INSTALLED = Path(__file__).resolve().parents[2] / "library" / SHIPPED


class _Device(msgspec.Struct):
    name: str


class _Data(msgspec.Struct):
    rows: int
    problems: int


class _Head(msgspec.Struct):
    """The part of a manifest that says what a model is of. The whole is read and verified when the model is loaded."""

    op: str
    family: str
    kind: str
    devices: tuple[_Device, ...]
    dtypes: tuple[str, ...]
    software: tuple[str, ...]
    data: _Data
    checksum: str


def folder() -> Path | None:
    """Where the shipped models are; None: there are none."""
    given = os.environ.get(VARIABLE)
    if given is not None:
        return Path(given) if given else None
    return INSTALLED


def shipped_entries(op: str | None = None) -> list[Entry]:
    """The shipped models, or those of one op: by family, more rows first, then the smaller held-out error.

    Raises if one is damaged.
    """
    place, entries = folder(), list[Entry]()
    if place is None:
        return entries
    # Each question asks, so no `Path` is made for files that did not change.
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(place) as there:
        for item in there:
            try:
                changed = os.stat(f"{item.path}/{MANIFEST}").st_mtime_ns
            except (FileNotFoundError, NotADirectoryError):
                continue
            entries.append(_entry(item.path, changed))
    return sorted((entry for entry in entries if op in (None, entry.record.op)), key=_order)


def _order(entry: Entry) -> tuple[str, int, float, str]:
    record = entry.record
    return record.family, -record.rows, inf if record.mape is None else record.mape, record.name


@lru_cache(256)
def _entry(path: str, _: int) -> Entry:
    """The entry of the model in a folder; its files are read again if they change."""
    folder = Path(path)
    file = folder / MANIFEST
    with guarded(file, AGAIN):
        head = read_json(file, _Head)
    figures = _figures(folder / EVALUATION)
    record = EntryRecord(
        op=head.op, family=head.family, devices=tuple(device.name for device in head.devices), software=head.software,
        name=folder.name, added="", model=folder.name, checksum=head.checksum, kind=head.kind, dtypes=head.dtypes,
        rows=head.data.rows, problems=head.data.problems, r2=_value(figures.r2), mape=_value(figures.mape),
        efficiency=_value(figures.efficiency_mean),
        bytes=sum(item.stat().st_size for item in folder.iterdir()),
    )  # fmt: skip
    return Entry(folder, record, shipped=True)


class _Figure(msgspec.Struct):
    value: float | None


class _Overall(msgspec.Struct):
    r2: _Figure | None = None
    mape: _Figure | None = None
    efficiency_mean: _Figure | None = None


class _Evaluation(msgspec.Struct):
    overall: _Overall


def _value(figure: _Figure | None) -> float | None:
    return None if figure is None else figure.value


def _figures(file: Path) -> _Overall:
    """The out-of-fold figures of a model."""
    with guarded(file, AGAIN):
        return read_json(file, _Evaluation).overall if file.exists() else _Overall()
