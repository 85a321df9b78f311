"""The models that come with the package: slim ones, read where they are installed, and asked after the user's own.

`KERNCAST_SHIPPED` names another folder of models (one for a whole site, say); an empty one means none.
"""

from __future__ import annotations

import contextlib
import os
from functools import lru_cache
from math import inf
from pathlib import Path

import msgspec

from kerncast.core.io.foreign import guarded, read_json
from kerncast.models.manifest import EVALUATION, MANIFEST
from kerncast.models.store.entry import SHIPPED, Entry, Record

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
    record = Record(
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
