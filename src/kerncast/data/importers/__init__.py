"""Importers: one file per foreign format, each turning a file into rows of known families.

An importer is a class with `name`, `doc` and `read`; it is found by being in a module here, or by an entry
point in the group `kerncast.data.importers`. It refuses what it does not know, with the line number.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import msgspec
import polars as pl

from kerncast import devices
from kerncast.data import schema
from kerncast.data.dataset import Dataset, Source, record_of
from kerncast.device import Device
from kerncast.errors import BadFile, InvalidValue, KerncastError, NotFound
from kerncast.op import Family
from kerncast.registry import discover


@dataclass(frozen=True)
class Options:
    """What a file does not say about itself."""

    device: str | None = None
    software: Mapping[str, str] = field(default_factory=dict)
    mapping: Path | None = None
    values: Mapping[str, str] = field(default_factory=dict)
    """Parameters that are the same in every row: `func` → `exp`."""


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

    def read(self, path: Path, options: Options) -> Iterator[Imported]:
        """Read the rows of one file (or of a directory, if the format is one)."""
        raise NotImplementedError

    def recognises(self, head: Head) -> bool:
        """Whether a file that begins like this is certainly of this format."""
        return False


def measured_on(device: Device, options: Options) -> Device:
    """The device that a file names itself; the command line must not contradict it."""
    asked = devices.get(options.device) if options.device is not None else None
    return devices.agreed(device, asked) or device


@cache
def importers() -> dict[str, Importer]:
    """Every importer by format name."""
    found: dict[str, Importer] = {}
    for source, item in discover(__name__):
        if not (isinstance(item, type) and issubclass(item, Importer) and hasattr(item, "name")):
            continue
        if type(found.setdefault(item.name, item())) is not item:
            raise BadFile(f"{source} declares the format '{item.name}', which already exists: rename one")
    return dict(sorted(found.items()))


def get_importer(name: str) -> Importer:
    """The importer of one format."""
    if name not in importers():
        raise NotFound.named("format", name, importers())
    return importers()[name]


def file_digest(path: Path) -> str:
    """The hash that identifies a source file, whatever its name."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise BadFile(f"cannot read {path}: {error.strerror}") from error


def import_files(
    format_name: str, paths: Sequence[Path], out: Path, options: Options, report: Callable[[str], None] | None = None
) -> Dataset:
    """Read files of one format into a new dataset, which appears whole or not at all; `report` gets what importers note."""
    importer = get_importer(format_name)
    named = devices.get(options.device) if options.device is not None else None
    software = msgspec.json.encode(dict(sorted(options.software.items()))).decode() if options.software else None

    def fill(dataset: Dataset) -> None:
        seen: dict[str, Path] = {}
        for path in paths:
            digest = "" if path.is_dir() else file_digest(path)
            if digest in seen:
                raise InvalidValue(f"{path} is the same file as {seen[digest]}: name it once")
            if digest:
                seen[digest] = path
            empty = True
            for table in _read_named(importer, path, options):
                rows, device = table.rows, named or table.device
                if "device" not in rows.columns:
                    if device is None:
                        raise InvalidValue(f"{path} does not say which device it was measured on: add `device` NAME")
                    rows = rows.with_columns(device=pl.lit(device.name))
                # A profile that does not ship with kerncast goes into the dataset: other machines could not look it up.
                shipped = device is None or device.name in devices.profiles()
                machines = [] if shipped or device is None else [record_of(device)]
                if "software" not in rows.columns:
                    rows = rows.with_columns(software=pl.lit(software, dtype=pl.String))
                rows, sources = _sourced(rows, table.files, path, digest, format_name)
                try:
                    checked = schema.conform(table.family, rows)
                except InvalidValue as error:
                    raise BadFile(f"{path}, {error}") from error
                empty &= checked.is_empty()
                dataset._append(table.family, checked, sources, machines)
                if report is not None:
                    for note in table.notes:
                        report(f"{path}: {note}")
            if empty:
                raise BadFile(f"{path} holds no rows: there is nothing to import")

    return Dataset.build(out, fill)


def _sourced(
    rows: pl.DataFrame, files: tuple[Path, ...], path: Path, digest: str, format_name: str
) -> tuple[pl.DataFrame, list[Source]]:
    """Rows with the digest of the file that each came from, and these files."""
    if not files:
        return rows.with_columns(source=pl.lit(digest)), [Source(digest, path.name, format_name)]
    names = [file.relative_to(path).as_posix() if file.is_relative_to(path) and file != path else file.name for file in files]
    sources = [Source(file_digest(file), name, format_name) for file, name in zip(files, names, strict=True)]
    digests = {place: source.digest for place, source in enumerate(sources)}
    return rows.with_columns(pl.col("source").replace_strict(digests, return_dtype=pl.String)), sources


def _read_named(importer: Importer, path: Path, options: Options) -> Iterator[Imported]:
    """The tables of one file; an error that does not name the file gets its name."""
    try:
        yield from importer.read(path, options)
    except KerncastError as error:
        if str(error).startswith(str(path)):
            raise
        raise type(error)(f"{path}, {error}") from error
    except OSError as error:
        raise BadFile(f"cannot read {path}: {error.strerror}") from error
