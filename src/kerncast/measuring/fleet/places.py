"""Where the rows of each kind of device go, when a cluster has several: a dataset each."""

from __future__ import annotations

import itertools
import re
from collections.abc import Container, Iterator
from pathlib import Path

from kerncast.core.op import Family
from kerncast.data import journal as journals
from kerncast.data.dataset import Dataset
from kerncast.data.journal import software_text
from kerncast.measuring.fleet.lane import Kind

LONGEST_NAME = 60


def place_for(kind: Kind, out: Path, family: Family, taken: Container[Path]) -> Path:
    """The dataset of a kind: `out`, unless that is of another kind; else one beside it, named after the device."""
    if out not in taken and _may_hold(out, kind, family):
        return out
    name = re.sub(r"[^A-Za-z0-9._]+", "-", kind[0]).strip("-.")[:LONGEST_NAME] or "device"
    names = (path for path in _names(out, name) if path not in taken)
    return next(path for path in names if not path.exists() or kind in _kinds_at(path, family))


def is_unfinished(path: Path) -> bool:
    """Whether a collection into this dataset was begun and not finished."""
    return journals.is_begun(path / journals.NAME)


def _may_hold(path: Path, kind: Kind, family: Family) -> bool:
    known = _kinds_at(path, family)
    return not known or kind in known


def _names(out: Path, device: str) -> Iterator[Path]:
    yield out.with_name(f"{out.name}-{device}")
    for number in itertools.count(2):
        yield out.with_name(f"{out.name}-{device}-{number}")


def _kinds_at(path: Path, family: Family) -> set[Kind]:
    """The kinds of device that a dataset has rows of, or was begun for."""
    if is_unfinished(path):
        header = journals.header_of(path / journals.NAME)
        return {(header.device, software_text(header.software))}
    if not (path / "dataset.json").exists():
        return set()
    dataset = Dataset.open(path, journal=False)
    if family not in dataset.families:
        return set()
    return {(device, software or "") for device, software in dataset.devices_and_software(family)}
