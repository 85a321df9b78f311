"""A collection on the devices of many machines: one actor per device, one driver that hands out vectors and writes.

Rows of one dataset are of one kind of device. When a cluster has several kinds, each has a dataset of its own.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Container
from pathlib import Path

from kerncast.core.op import Family
from kerncast.data import journal as journals
from kerncast.data.dataset import Dataset
from kerncast.data.journal import software_text
from kerncast.measuring.messages import Ready

LONGEST_NAME = 60

Kind = tuple[str, str]
"""Device and software: what the rows of one dataset share."""


def kind_of(ready: Ready) -> Kind:
    """The kind of a device that came up."""
    return str(ready.device["name"]), software_text(ready.software)


def place_for(kind: Kind, out: Path, family: Family, taken: Container[Path]) -> Path:
    """The dataset of a kind: `out`, unless that is of another kind; else one beside it, named after the device."""
    if out not in taken:
        known = _kinds_at(out, family)
        if not known or kind in known:
            return out
    device = re.sub(r"[^A-Za-z0-9._]+", "-", kind[0]).strip("-.")[:LONGEST_NAME] or "device"
    numbers = itertools.chain([""], (f"-{number}" for number in itertools.count(2)))
    paths = (out.with_name(f"{out.name}-{device}{number}") for number in numbers)
    return next(path for path in paths if path not in taken and (not path.exists() or kind in _kinds_at(path, family)))


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
