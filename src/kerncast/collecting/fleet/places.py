"""Where the rows of each kind of device go, when a cluster has several: a dataset each."""

from __future__ import annotations

import itertools
import re
from collections.abc import Container, Iterator
from pathlib import Path

from kerncast.collecting.fleet.roster import Kind
from kerncast.data import journal as journals
from kerncast.data.dataset import Dataset
from kerncast.data.journal import software_text
from kerncast.op import Family

LONGEST_NAME = 60


def place_for(kind: Kind, out: Path, family: Family, taken: Container[Path]) -> Path:
    """The dataset of a kind: the one that was begun with it, else `out`, else a new one beside it, named after the device."""
    beside = sorted(path for path in out.absolute().parent.glob(f"{_literal(out.name)}-*") if path.is_dir())
    there = [path for path in (out, *(out.parent / path.name for path in beside)) if path.exists() and path not in taken]
    for path in there:
        if kind in _kinds_at(path, family):
            return path
    if out not in taken and (not out.exists() or not _kinds_at(out, family)):
        return out
    name = re.sub(r"[^A-Za-z0-9._]+", "-", kind[0]).strip("-.")[:LONGEST_NAME] or "device"
    return next(path for path in _names(out, name) if path not in taken and not path.exists())


def _names(out: Path, device: str) -> Iterator[Path]:
    yield out.with_name(f"{out.name}-{device}")
    for number in itertools.count(2):
        yield out.with_name(f"{out.name}-{device}-{number}")


def _literal(name: str) -> str:
    """A name in which a pattern has no stars."""
    return re.sub(r"([*?\[])", r"[\1]", name)


def _kinds_at(path: Path, family: Family) -> set[Kind]:
    """The kinds of device that a dataset has rows of, or was begun for."""
    if journals.is_begun(path / journals.NAME):
        header = journals.header_of(path / journals.NAME)
        return {(header.device, software_text(header.software))}
    if not (path / "dataset.json").exists():
        return set()
    dataset = Dataset.open(path, journal=False)
    if family not in dataset.families:
        return set()
    return {(device, software or "") for device, software in dataset.devices_and_software(family)}
