"""Importing: files of a foreign format become a dataset, which appears whole or not at all."""

from __future__ import annotations

import gzip
import hashlib
import itertools
import zipfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Self

import msgspec
import polars as pl

from kerncast.core.io.arguments import as_text, refuse_endless
from kerncast.core.io.foreign import guarded, refuse_large_members
from kerncast.core.io.parquet import parquet_columns
from kerncast.core.op import Family
from kerncast.core.progress import QUIET, Progress
from kerncast.data import schema
from kerncast.data.dataset import Dataset, DeviceRecord, Source, record_of
from kerncast.data.formats import Head, Imported, Importer, ImportOptions, get_importer, importers, listed
from kerncast.data.skipping import LINE, BadRows, SkippedKind, Skips
from kerncast.errors import BadFile, InvalidValue, KerncastError
from kerncast.library import devices

# Rows that wait in memory until they are written, and as many that are being written; all columns of a million take half a
# gigabyte.
GATHERED_ROWS = 262_144
# Enough for a header and the first rows; an archive is not unpacked further.
HEAD_BYTES = 65_536
# Files of a folder that are looked at, by name only.
MOST_NAMES = 20_000
WITH_MAPPING = {".csv": "csv", ".parquet": "parquet"}


def file_digest(path: Path) -> str:
    """The hash that identifies a source file, whatever its name."""
    refuse_endless(path)
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise BadFile(f"cannot read {path}: {error.strerror}") from error


def import_files(
    format_name: str,
    paths: Sequence[Path],
    out: Path,
    options: ImportOptions,
    report: Callable[[str], None] | None = None,
    strict: bool = False,
    progress: Progress = QUIET,
) -> Dataset:
    """Read files of one format into a new dataset, which appears whole or not at all; `report` gets what importers note.

    Rows that cannot be represented are skipped, counted and kept in `skipped.parquet`; `strict` refuses the first one.
    """
    importer = get_importer(format_name)
    if options.keep_software and not importer.selects:
        raise InvalidValue(f"`software` takes NAME=VALUE, got '{options.keep_software[0]}'")
    for argument in ("only", "devices"):
        if getattr(options, argument) and not importer.selects:
            raise InvalidValue(f"files of the format {format_name} are read whole: leave out `{argument}`")

    def fill(dataset: Dataset) -> None:
        seen: dict[str, Path] = {}
        skipped: list[tuple[str, str, Skips]] = []
        with _Gathered(dataset, progress) as gathered:
            for path in paths:
                digest = "" if path.is_dir() else file_digest(path)
                if digest in seen:
                    raise InvalidValue(f"{path} is the same file as {seen[digest]}: name it once")
                if digest:
                    seen[digest] = path
                skips = Skips(strict)
                notes = _import_one(importer, path, digest, replace(options, skips=skips), gathered)
                if report is not None:
                    for note in dict.fromkeys(notes):
                        report(f"{path}: {note}")
                skipped.append((path.name, digest, skips))
            gathered.write()
            gathered.wait()
        dataset._keep_skipped(pl.concat([item.frame(name, digest) for name, digest, item in skipped]), _kinds(skipped))

    return Dataset.build(out, fill)


def _import_one(importer: Importer, path: Path, digest: str, options: ImportOptions, gathered: _Gathered) -> list[str]:
    """Read one file; return what to say about it."""
    named = devices.get(options.device) if options.device is not None else None
    software = msgspec.json.encode(dict(sorted(options.software.items()))).decode() if options.software else None
    kept, notes, unknown = 0, list[str](), dict[str, None]()
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
        rows, sources = _sourced(rows, table.files, path, digest, importer.name)
        checked = _conformed(table.family, rows, path, options.skips)
        kept += checked.height
        gathered.add(table.family, checked, sources, machines)
        notes += table.notes
        if table.extra is not None:
            unknown |= dict.fromkeys(name for name in table.extra.columns if name != LINE)
            gathered.wait()
            _keep_extra(gathered.dataset, table.extra, checked, path, options.skips.strict)
    options.skips.refuse_most(path, kept)
    if unknown:
        notes.append(f"kept {len(unknown):,} columns that are not known here beside the rows: {listed(unknown)}")
    if not kept:
        raise BadFile(f"{path} holds no rows: there is nothing to import")
    return notes


_Waiting = dict[str, tuple[Family, list[pl.DataFrame], list[Source], list[DeviceRecord]]]


class _Gathered:
    """Rows that wait to become parts of a dataset: hundreds of small tables would give as many small files.

    A thread writes them while the next ones are read and checked. It ends with the `with` block, so that nothing is written
    into the folder of an import that failed.
    """

    def __init__(self, dataset: Dataset, progress: Progress) -> None:
        self.dataset, self.progress = dataset, progress
        self._waiting: _Waiting = {}
        self._rows = self._done = 0
        self._writer = ThreadPoolExecutor(1, "kerncast-import")
        self._written: Future[None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.shutdown(wait=True)

    def add(self, family: Family, rows: pl.DataFrame, sources: Sequence[Source], machines: Sequence[DeviceRecord]) -> None:
        """Take rows of a family; once there are many, write all that wait."""
        if family.id in self._waiting and self._waiting[family.id][0] is not family:  # another draft of an op
            self.write()
        _, frames, known, records = self._waiting.setdefault(family.id, (family, [], [], []))
        frames.append(rows)
        known += sources
        records += machines
        self._rows += rows.height
        self._done += rows.height
        self.progress.step("rows", self._done)
        if self._rows >= GATHERED_ROWS:
            self.write()

    def write(self) -> None:
        """Begin to write what waits, in the order in which its families came, once all before it is written."""
        self.wait()
        self._written = self._writer.submit(self._append, self._waiting)
        self._waiting, self._rows = {}, 0

    def wait(self) -> None:
        """Return when everything that `write` was called for is in the dataset; what went wrong there is raised here."""
        if self._written is not None:
            self._written.result()
            self._written = None

    def _append(self, waiting: _Waiting) -> None:
        for family, frames, sources, machines in waiting.values():
            self.dataset._append(family, pl.concat(frames), sources, reversed(machines))


def _conformed(family: Family, rows: pl.DataFrame, path: Path, skips: Skips) -> pl.DataFrame:
    """Rows as they are stored, without those whose values the family does not know."""
    while True:
        try:
            return schema.conform(family, rows)
        except BadRows as error:
            if skips.strict:
                raise BadFile(f"{path}, {error}") from error
            rows = skips.without(rows, error)
        except InvalidValue as error:
            raise BadFile(f"{path}, {error}") from error


def _keep_extra(dataset: Dataset, extra: pl.DataFrame, rows: pl.DataFrame, path: Path, strict: bool) -> None:
    """Keep unknown columns of the rows that were kept, under the file and line of each."""
    if strict:
        name = next(name for name in extra.columns if name != LINE)
        raise BadFile(
            f"{path}, line 1: unknown column '{name}': leave `strict` out to keep it beside the rows, list it under `ignore` "
            "if there is a mapping, or remove it"
        )
    lines = rows.select("source", LINE).unique(maintain_order=True)
    dataset._keep_extra(lines.join(extra, on=LINE, how="inner", maintain_order="left"))


def _kinds(skipped: Sequence[tuple[str, str, Skips]]) -> list[SkippedKind]:
    """The kinds of several files; an example names its file if there are several."""
    total: dict[str, SkippedKind] = {}
    for name, _, skips in skipped:
        for kind in skips.summary():
            known = total.get(kind.kind)
            example = f"{name}, {kind.example}" if len(skipped) > 1 else kind.example
            total[kind.kind] = SkippedKind(
                kind.kind, kind.rows + (known.rows if known else 0), known.example if known else example
            )
    return sorted(total.values(), key=lambda kind: (-kind.rows, kind.kind))


def _sourced(
    rows: pl.DataFrame, files: tuple[Path, ...], path: Path, digest: str, format_name: str
) -> tuple[pl.DataFrame, list[Source]]:
    """Rows with the digest of the file that each came from, and these files."""
    if not files:
        return rows.with_columns(source=pl.lit(digest)), [Source(digest, as_text(path.name), format_name)]
    names = [file.relative_to(path).as_posix() if file.is_relative_to(path) and file != path else file.name for file in files]
    sources = [Source(file_digest(file), as_text(name), format_name) for file, name in zip(files, names, strict=True)]
    digests = {place: source.digest for place, source in enumerate(sources)}
    return rows.with_columns(pl.col("source").replace_strict(digests, return_dtype=pl.String)), sources


def _read_named(importer: Importer, path: Path, options: ImportOptions) -> Iterator[Imported]:
    """The tables of one file; an error that does not name the file gets its name."""
    try:
        yield from importer.read(path, options)
    except KerncastError as error:
        if str(error).startswith(str(path)):
            raise
        raise type(error)(f"{path}, {error}") from error
    except OSError as error:
        raise BadFile(f"cannot read {path}: {error.strerror}") from error


# -- which format a file has ---------------------------------------------------------------------------------


def recognised(paths: Sequence[Path], mapped: bool = False) -> str:
    """The format of some files; if no importer recognises it, or several do, the caller must name it."""
    suffix = paths[0].suffix.lower()
    if mapped and suffix in WITH_MAPPING:
        return WITH_MAPPING[suffix]
    head = head_of(paths[0])
    known = [name for name, importer in importers().items() if importer.recognises(head)]
    if len(known) == 1:
        return known[0]
    formats = ", ".join(importers())
    if known:
        raise InvalidValue(f"{paths[0]} may be {' or '.join(known)}: say which with `file_format`")
    if suffix in WITH_MAPPING:
        raise InvalidValue(
            f"{paths[0]} has columns that no known format has: say which column is which parameter with `mapping`, "
            f"or name the `file_format` ({formats})"
        )
    raise InvalidValue(f"{paths[0]} is not recognised: name its `file_format` ({formats})")


def head_of(path: Path) -> Head:
    """The beginning of a file, unpacked if it is an archive or gzipped; of a folder, the names in it."""
    refuse_endless(path)
    with guarded(path, "is it damaged?", "cannot be read"):
        if path.is_dir():
            names = itertools.islice((item.relative_to(path).as_posix() for item in path.rglob("*")), MOST_NAMES)
            return Head(path, names=tuple(sorted(names)))
        with path.open("rb") as file:
            data = file.read(HEAD_BYTES)
        if data.startswith(b"PK"):
            return _archive(path)
        if data.startswith(b"PAR1"):
            return Head(path, columns=parquet_columns(path))
        if data.startswith(b"\x1f\x8b"):
            with gzip.open(path) as file:
                data = file.read(HEAD_BYTES)
        return Head(path, text=data.decode("utf-8", errors="replace"))


def _archive(path: Path) -> Head:
    with zipfile.ZipFile(path) as archive:
        refuse_large_members(archive, path)
        files = [item for item in archive.infolist() if not item.is_dir() and not item.filename.startswith("__MACOSX/")]
        names = tuple(item.filename for item in files)
        text = ""
        if files:
            with archive.open(files[0]) as file:
                text = file.read(HEAD_BYTES).decode("utf-8", errors="replace")
    return Head(path, text=text, names=names)
