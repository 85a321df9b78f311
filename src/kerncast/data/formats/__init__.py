"""The formats of other systems: one module per system, which turns files into rows of known families, and rows into files.

An importer is a class with `name`, `doc` and `read`, and `write` if the format can be written; it is found by being in a module
here, or by an entry point in the group `kerncast.importers`. A row that it cannot represent goes to `options.skips` with its
line and costs nothing else; a file that is not of its format is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import polars as pl

from kerncast.core.device import Device
from kerncast.core.op import Family
from kerncast.data.dataset import Dataset
from kerncast.data.skipping import LINE, Skips
from kerncast.errors import BadFile, InvalidValue, NotFound
from kerncast.library import devices
from kerncast.library.registry import discover

# Columns that a message lists.
COLUMNS_SHOWN = 40


@dataclass(frozen=True)
class ImportOptions:
    """What a file does not say about itself."""

    device: str | None = None
    software: Mapping[str, str] = field(default_factory=dict)
    mapping: Path | None = None
    values: Mapping[str, str] = field(default_factory=dict)
    """Parameters that are the same in every row: `func` → `exp`."""
    only: tuple[str, ...] = ()
    """The ops, families or kinds of table to read, of a format that holds several; all, if none is named."""
    devices: tuple[str, ...] = ()
    """The devices whose rows to read, of a format that names them."""
    keep_software: tuple[str, ...] = ()
    """The software whose rows to read, of a format that names it: `vllm` (of each device, the newest version)."""
    least_share: float = 0.0
    """Versions with a smaller share than this of the rows that the fullest version has on a device are passed over: the newest
    one may have a few problems alone."""
    skips: Skips = field(default_factory=Skips)
    """Where an importer puts the rows that it cannot represent; `import_files` gives each file its own."""


@dataclass(frozen=True)
class Imported:
    """Rows of one family. Columns as in `data.schema`; `device`, `software` and `source` may be left out."""

    family: Family
    rows: pl.DataFrame
    device: Device | None = None
    """The device of all rows, if the file or its mapping names it; the caller's `device` overrides it."""
    notes: tuple[str, ...] = ()
    """What the user should know: how much was left out or fixed, and why."""
    files: tuple[Path, ...] = ()
    """The files that the rows came from, if not just the path; the column `source` then holds positions in this tuple."""
    extra: pl.DataFrame | None = None
    """Columns of the file that have no place in the rows, with `source_line`; the dataset keeps them beside its rows."""


@dataclass(frozen=True)
class Head:
    """The beginning of a file, for recognising its format."""

    path: Path
    text: str = ""
    """The first characters, unpacked (of an archive: those of its first file)."""
    names: tuple[str, ...] = ()
    """The files in an archive or a folder."""
    columns: tuple[str, ...] = ()
    """The columns of a parquet file."""

    @property
    def header(self) -> frozenset[str]:
        """The first line as the column names of a CSV file."""
        return frozenset(cell.strip() for cell in self.text.partition("\n")[0].lstrip("\ufeff").split(","))


class Importer:
    """The contract: `read` yields tables with a `source_line` for every row, or raises a KerncastError."""

    name: str
    doc: str
    selects: bool = False
    """Whether it heeds `only`, `devices` and `keep_software`."""

    def read(self, path: Path, options: ImportOptions) -> Iterator[Imported]:
        """Read the rows of one file (or of a directory, if the format is one)."""
        raise NotImplementedError

    def installed(self) -> Path:
        """Where an installed package has files of this format."""
        raise InvalidValue(f"no package ships files of the format {self.name}: name the files")

    def recognises(self, head: Head) -> bool:
        """Whether a file that begins like this is certainly of this format."""
        return False

    def write(self, dataset: Dataset, out: Path, family: str | None, where: Sequence[str]) -> list[Path]:
        """Write rows of one family of a dataset to `out`, which does not exist, and return the files.

        What users should know is added to the dataset's `notes`.
        """
        raise NotImplementedError


def listed(columns: Iterable[str]) -> str:
    """Columns in a message; a table may have thousands of them."""
    names = [name for name in columns if name != LINE]
    return ", ".join(names[:COLUMNS_SHOWN]) + ", …" * (len(names) > COLUMNS_SHOWN)


def extra_columns(table: pl.DataFrame, known: Iterable[str]) -> pl.DataFrame | None:
    """The columns that an importer does not know, for `Imported.extra`."""
    names = [name for name in table.columns if name not in {*known, LINE}]
    return table.select(LINE, *names) if names else None


def numbered_after(table: Imported, before: int) -> Imported:
    """The same rows with their lines counted from `before`, for tables that follow each other in one file."""
    extra = None if table.extra is None else table.extra.with_columns(pl.col(LINE) + before)
    return replace(table, rows=table.rows.with_columns(pl.col(LINE) + before), extra=extra)


def measured_on(device: Device, options: ImportOptions) -> Device:
    """The device that a file names itself; the command line must not contradict it."""
    asked = devices.get(options.device) if options.device is not None else None
    return devices.agreed(device, asked) or device


@cache
def importers() -> dict[str, Importer]:
    """Every importer by format name."""
    found: dict[str, Importer] = {}
    for source, item in discover(__name__, "kerncast.importers"):
        if not (isinstance(item, type) and issubclass(item, Importer) and hasattr(item, "name")):
            continue
        if type(found.setdefault(item.name, item())) is not item:
            raise BadFile(f"{source} declares the format '{item.name}', which already exists: rename one")
    return dict(sorted(found.items()))


def writers() -> tuple[str, ...]:
    """The formats that can be written."""
    return tuple(name for name, importer in importers().items() if type(importer).write is not Importer.write)


def writer(name: str) -> Importer:
    """The importer of a format that can be written."""
    if name not in writers():
        raise NotFound.named("format to write", name, writers())
    return importers()[name]


def get_importer(name: str) -> Importer:
    """The importer of one format."""
    if name not in importers():
        raise NotFound.named("format", name, importers())
    return importers()[name]


def rows_to_write(dataset: Dataset, name: str | None, where: Sequence[str]) -> tuple[Family, pl.DataFrame]:
    """The rows of one family that are to be written; a file without rows is refused."""
    family, rows = dataset.family(name), dataset.read(name, where)
    if rows.is_empty():
        raise InvalidValue(f"no row of {dataset.path} matches: there is nothing to write")
    return family, rows
