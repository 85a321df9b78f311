"""The rows to write, by what one file of an auto-tuner holds: one problem on one device."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from kerncast.core.io.atomic import drafted, write_bytes
from kerncast.core.op import Family
from kerncast.data.dataset import Dataset
from kerncast.data.importers.tuned import COLUMN_PREFIX, OWN, RESTORED, device_of
from kerncast.data.schema import MEASURED
from kerncast.errors import InvalidValue
from kerncast.library.declared.declaration import AXES, declaration_of

LONGEST_STEM = 120


@dataclass(frozen=True)
class Measured:
    """The rows of one problem on one device."""

    family: Family
    device: str
    """What a reader looks up: the device's title where that leads back to it, else its name."""
    problem: Mapping[str, Any]
    rows: Sequence[Mapping[str, Any]]

    @property
    def kernel(self) -> str:
        """What the kernel is called: as the file said that the family was drafted from, else its op."""
        return str(self.problem.get("kernel", self.family.op.name)) if declaration_of(self.family) else self.family.op.name

    @property
    def sizes(self) -> list[int]:
        """The sizes of a drafted problem."""
        return [self.problem[f"size_{axis}"] for axis in AXES if f"size_{axis}" in self.problem]

    @property
    def parameters(self) -> list[str]:
        """The parameters that some config has."""
        names = list(self.family.config.parameters)
        return [name for name in names if any(row[f"config.{name}"] is not None for row in self.rows)]

    @property
    def header(self) -> dict[str, Any]:
        """What a file says about itself beyond its format, so that it is read back as it was."""
        drafted_from_file = declaration_of(self.family) is not None
        return {OWN: {"family": self.family.id, "problem": {} if drafted_from_file else dict(self.problem)}}

    def config(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """The config of a row."""
        return {name: row[f"config.{name}"] for name in self.parameters}


def refuse_nothing(rows: pl.DataFrame, dataset: Dataset) -> None:
    """Refuse to write a file without rows."""
    if rows.is_empty():
        raise InvalidValue(f"no row of {dataset.path} matches: there is nothing to write")


def columns_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of a measurement that no foreign format has, under names of their own."""
    return {f"{COLUMN_PREFIX}{name}": row[name] for name in MEASURED if name in RESTORED and row.get(name) is not None}


def split(dataset: Dataset, name: str | None, where: Sequence[str]) -> Iterator[Measured]:
    """The rows, a problem and a device at a time, in the order of their first rows."""
    family, rows = dataset.family(name), dataset.read(name, where)
    refuse_nothing(rows, dataset)
    names = list(family.problem.parameters)
    groups = rows.partition_by("device", *(f"problem.{name}" for name in names), maintain_order=True)
    for group in groups:
        first = group.row(0, named=True)
        device = dataset.device(first["device"])
        told = device.title if (found := device_of(device.title)) is not None and found.name == device.name else device.name
        problem = {name: first[f"problem.{name}"] for name in names if first[f"problem.{name}"] is not None}
        yield Measured(family, told, problem, group.to_dicts())


def write_each(parts: Sequence[Measured], out: Path, content: Callable[[Measured], Any]) -> list[Path]:
    """One JSON file, or a folder of them if there are several problems or devices."""
    if len(parts) == 1:
        write_bytes(out, _json(content(parts[0])))
        return [out]
    with drafted(out) as folder:
        for number, part in enumerate(parts, 1):
            write_bytes(folder / f"{number:05d}_{_stem(part, parts)}.json", _json(content(part)))
    return sorted(out.iterdir())


def _json(document: Any) -> bytes:
    """One entry a line, as Kernel Tuner has it; strict JSON."""
    return msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n"


def _stem(part: Measured, parts: Sequence[Measured]) -> str:
    """What tells a file from the others: the parameters that differ."""
    varying = [name for name in part.problem if len({repr(other.problem.get(name)) for other in parts}) > 1]
    words = [f"{name}{part.problem[name]}" for name in varying]
    if len({other.device for other in parts}) > 1:
        words.insert(0, part.device)
    return re.sub(r"[^\w.+-]+", "_", "_".join(words), flags=re.ASCII)[:LONGEST_STEM].strip("._") or "results"
