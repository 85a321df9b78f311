"""A dataset: a directory with `dataset.json` and `rows/<op>/<family>/*.parquet`.

Rows are only ever added, in parts that `dataset.json` lists; a part it does not list does not exist, so a
crash between the two writes loses nothing and leaves nothing half-written.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from kerncast import devices
from kerncast.data import filters, schema
from kerncast.declared.declaration import Declaration, declaration_of, joined_family, refuse_another_draft, resolve
from kerncast.device import Device
from kerncast.errors import BadFile, CannotWrite, InvalidValue, NotFound
from kerncast.op import Family

FORMAT = "kerncast-dataset"
VERSION = 1
MANIFEST = "dataset.json"
JOURNAL = "journal.jsonl"
# From an older version to the next one; a manifest is upgraded when read, files stay as they are.
UPGRADES: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {}


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One parquet file: `content` hashes its cells, `checksum` its bytes."""

    family: str
    file: str
    rows: int
    content: str
    checksum: str


class Source(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where imported rows came from; a row's `source` column holds the digest."""

    digest: str
    name: str
    format: str


class DeviceRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A device as it was when rows were collected: its features can be computed anywhere."""

    name: str
    title: str
    kind: str
    numbers: dict[str, float] = {}
    peak_tflops: dict[str, float] = {}
    sources: dict[str, str] = {}

    @property
    def device(self) -> Device:
        """The profile again."""
        return Device(self.name, self.title, self.kind, self.numbers, self.peak_tflops, self.sources)


def record_of(device: Device) -> DeviceRecord:
    """A device as a dataset keeps it."""
    return DeviceRecord(
        device.name, device.title, device.kind, dict(device.numbers), dict(device.peak_tflops), dict(device.sources)
    )


class DatasetFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The contents of `dataset.json`."""

    format: str = FORMAT
    version: int = VERSION
    parts: tuple[Part, ...] = ()
    sources: tuple[Source, ...] = ()
    devices: tuple[DeviceRecord, ...] = ()
    declarations: tuple[Declaration, ...] | msgspec.UnsetType = msgspec.UNSET
    """Ops that were drafted from an imported file; left out where there are none."""

    @property
    def declared(self) -> dict[str, Declaration]:
        """The drafted ops by the id of their family."""
        return {item.family: item for item in self.declarations or ()}


class Dataset:
    """An opened dataset. `Dataset.create` makes an empty one, `Dataset.open` reads an existing one."""

    def __init__(self, path: Path, manifest: DatasetFile) -> None:
        self.path = path
        self.contents = manifest

    @classmethod
    def create(cls, path: str | Path) -> Dataset:
        """An empty dataset in a directory that does not exist yet."""
        path = Path(path)
        if path.exists():
            raise InvalidValue(f"{path} exists already: choose another name, or remove it first")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir()
        dataset = cls(path, DatasetFile())
        dataset._write_file(dataset.contents)
        return dataset

    @classmethod
    def build(cls, path: str | Path, fill: Callable[[Dataset], None]) -> Dataset:
        """A new dataset that appears whole or not at all."""
        path = Path(path)
        if path.exists():
            raise InvalidValue(f"{path} exists already: choose another name, or remove it first")
        # Beside the place it will take, or in the nearest folder that exists: a refusal must leave no folder behind.
        beside = next(folder for folder in path.absolute().parents if folder.is_dir())
        scratch = Path(tempfile.mkdtemp(prefix=".kerncast-", dir=beside))
        try:
            draft = cls.create(scratch / "dataset")
            fill(draft)
            path.parent.mkdir(parents=True, exist_ok=True)
            os.rename(draft.path, path)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        return cls(path, draft.contents)

    @classmethod
    def open(cls, path: str | Path) -> Dataset:
        """A dataset on disk; foreign, newer, truncated or incomplete ones are refused by name."""
        path = Path(path)
        if not path.exists():
            raise NotFound(f"there is no dataset at {path}: make one with `kerncast import` or `kerncast collect`")
        if not (path / MANIFEST).is_file():
            raise BadFile(f"{path} is not a kerncast dataset: it has no {MANIFEST}")
        manifest = _read_file(path / MANIFEST)
        for part in manifest.parts:
            if not (path / part.file).is_file():
                raise BadFile(f"{path} is incomplete: {part.file} is missing; restore it, or import the data again")
        return cls(path, manifest)

    # -- reading -------------------------------------------------------------------------------------

    @property
    def families(self) -> list[Family]:
        """The families that have rows here, by id."""
        declared = self.contents.declared
        names = sorted({part.family for part in self.contents.parts})
        return [resolve(name, declared.get(name), self.path) for name in names]

    @property
    def rows(self) -> int:
        """Rows of all families."""
        return sum(part.rows for part in self.contents.parts)

    @property
    def unfinished(self) -> bool:
        """Whether a collection has results here that are not rows yet."""
        return (self.path / JOURNAL).exists()

    def refuse_if_empty(self) -> None:
        """There is nothing to work on; why depends."""
        if self.contents.parts:
            return
        if self.unfinished:
            raise InvalidValue(
                f"{self.path} is an unfinished collection, its results are in {JOURNAL}: run the `kerncast collect` that began "
                "it again to go on, then they become rows"
            )
        raise InvalidValue(f"the dataset {self.path} is empty: import or collect rows first")

    @property
    def digest(self) -> str:
        """A hash of the contents: equal rows in equal parts, equal digest."""
        text = "\n".join(sorted(f"{part.family} {part.content}" for part in self.contents.parts))
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def scan(self, family: Family | str | None = None, where: Sequence[str] = ()) -> pl.LazyFrame:
        """The rows of one family, lazily (the family may be left out when there is only one)."""
        found = self._family(family)
        parts = [part for part in self.contents.parts if part.family == found.id]
        frames = []
        for part in parts:
            file = self.path / part.file
            try:
                frames.append(schema.upgrade_columns(found, pl.scan_parquet(file, glob=False), str(file)))
            except pl.exceptions.PolarsError as error:
                raise BadFile(f"{file} is damaged ({_first_line(error)}): restore it, or import the data again") from error
        rows = pl.concat(frames)
        columns = {name: dtype() for name, dtype in schema.schema_of(found).items()}
        return rows.filter(filters.combine(where, columns)) if where else rows

    def read(self, family: Family | str | None = None, where: Sequence[str] = ()) -> pl.DataFrame:
        """The rows of one family, loaded; `suspect=false` leaves out those whose labels belong to other rows."""
        from kerncast.data.suspect import NOT_SUSPECT, without_suspect

        try:
            if NOT_SUSPECT not in where:
                return self.scan(family, where).collect()
            # Which rows are suspect only the whole file tells; the other conditions come after.
            kept = without_suspect(self._family(family), self.scan(family).collect(), self.device)
            return kept.filter(filters.combine([text for text in where if text != NOT_SUSPECT], kept.schema))
        except pl.exceptions.PolarsError as error:
            raise BadFile(f"{self.path} is damaged ({_first_line(error)}): restore it, or import the data again") from error

    def device(self, name: str) -> Device:
        """A device of these rows: as it was recorded with them, else the profile of that name."""
        for record in self.contents.devices:
            if record.name == name:
                return record.device
        return devices.get(name)

    def verify(self) -> None:
        """Compare every part with its checksum."""
        for part in self.contents.parts:
            if file_checksum(self.path / part.file) != part.checksum:
                raise BadFile(f"{self.path / part.file} differs from its checksum: restore it, or import the data again")

    def _family(self, family: Family | str | None) -> Family:
        self.refuse_if_empty()
        known = {item.id: item for item in self.families}
        if family is None:
            if len(known) > 1:
                raise InvalidValue(f"{self.path} holds several families ({', '.join(known)}): name one of them")
            return next(iter(known.values()))
        name = family if isinstance(family, str) else family.id
        if name not in known:
            raise NotFound.named(f"family in {self.path}", name, known)
        if isinstance(family, Family):
            refuse_another_draft(family, known[name], self.path)
        return known[name]

    # -- writing -------------------------------------------------------------------------------------

    def append(
        self, family: Family, rows: pl.DataFrame, sources: Iterable[Source] = (), machines: Iterable[DeviceRecord] = ()
    ) -> None:
        """Add rows; they are checked and conformed first, and nothing is written if any is refused."""
        self._append(family, schema.conform(family, rows), sources, machines)

    def _append(
        self, family: Family, rows: pl.DataFrame, sources: Iterable[Source], machines: Iterable[DeviceRecord] = ()
    ) -> None:
        with _exclusive(self.path):
            self.contents = _read_file(self.path / MANIFEST)  # another process may have appended meanwhile
            self._append_part(family, rows, sources, machines)

    def _append_part(
        self, family: Family, rows: pl.DataFrame, sources: Iterable[Source], machines: Iterable[DeviceRecord]
    ) -> None:
        parts, known = list(self.contents.parts), {source.digest: source for source in self.contents.sources}
        known |= {source.digest: source for source in sources}
        # The first record of a device stays: measured clocks and rates differ a little from run to run.
        recorded = {record.name: record for record in (*machines, *self.contents.devices)}
        if rows.height:
            number = sum(part.family == family.id for part in parts)
            file = Path("rows", *family.id.split("/"), f"part-{number:05d}.parquet")
            target = self.path / file
            target.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(target, lambda path: rows.write_parquet(path, compression="zstd", statistics=True))
            content = schema.content_digest([rows])
            parts.append(Part(family.id, file.as_posix(), rows.height, content, file_checksum(target)))
        sources_in_order = tuple(known[digest] for digest in sorted(known))
        machines_in_order = tuple(recorded[name] for name in sorted(recorded))
        declarations = _with_declaration(self.contents, family)
        self._write_file(DatasetFile(
            parts=tuple(parts), sources=sources_in_order, devices=machines_in_order, declarations=declarations or msgspec.UNSET
        ))  # fmt: skip

    def _write_file(self, manifest: DatasetFile) -> None:
        data = msgspec.json.format(msgspec.json.encode(manifest), indent=2)
        write_atomically(self.path / MANIFEST, lambda path: path.write_bytes(data + b"\n"))
        self.contents = manifest


def merge(paths: Sequence[str | Path], out: str | Path) -> tuple[Dataset, int]:
    """One dataset from several, rows that are equal in every cell kept once. Returns it and the number dropped."""
    inputs = [Dataset.open(path) for path in paths]
    for dataset in inputs:
        dataset.verify()
        if dataset.unfinished:
            raise InvalidValue(
                f"{dataset.path} is an unfinished collection, some of its results are not rows yet: run the `kerncast collect` "
                "that began it again, then merge"
            )
    names = sorted({family.id for dataset in inputs for family in dataset.families})
    if not names:
        raise InvalidValue(f"there is nothing to merge: {', '.join(map(str, paths))} hold no rows")
    dropped = 0

    def fill(draft: Dataset) -> None:
        nonlocal dropped
        sources = {source.digest: source for dataset in inputs for source in dataset.contents.sources}
        for name in names:
            holders = [dataset for dataset in inputs if name in {family.id for family in dataset.families}]
            family = joined_family([dataset._family(name) for dataset in holders])
            rows = pl.concat([dataset.read(name) for dataset in holders])
            distinct = rows.unique(maintain_order=True)
            dropped += rows.height - distinct.height
            machines = [record for dataset in inputs for record in dataset.contents.devices]
            draft._append(family, distinct, sources.values(), reversed(machines))

    return Dataset.build(out, fill), dropped


def _with_declaration(manifest: DatasetFile, family: Family) -> tuple[Declaration, ...]:
    """What is declared once rows of a family are added: a second draft of an op widens the first."""
    declared, own = manifest.declared, declaration_of(family)
    if own is not None:
        declared[own.family] = declared[own.family].joined(own) if own.family in declared else own
    return tuple(declared[name] for name in sorted(declared))


def _read_file(file: Path) -> DatasetFile:
    try:
        data = msgspec.json.decode(file.read_bytes())
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise BadFile(f"{file} is not a kerncast dataset: its format is {_format_of(data)!r}, not '{FORMAT}'")
        return msgspec.convert(_upgrade(data, file), DatasetFile)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadFile(f"{file} is damaged ({error}): restore it, or import the data again") from error


def _format_of(data: object) -> object:
    return data.get("format", "unknown") if isinstance(data, dict) else type(data).__name__


def _upgrade(data: dict[str, Any], file: Path) -> dict[str, Any]:
    version = data.get("version")
    if not isinstance(version, int) or version < 1:
        raise BadFile(f"{file} has no valid version: {version!r}")
    if version > VERSION:
        raise BadFile(f"{file} is version {version}, this kerncast reads up to version {VERSION}: upgrade kerncast")
    while data["version"] < VERSION:
        data = {**UPGRADES[data["version"]](data), "version": data["version"] + 1}
    return data


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


@contextmanager
def _exclusive(path: Path) -> Iterator[None]:
    """One appender at a time; the others wait, for an append is short."""
    fd = os.open(path / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def file_checksum(path: Path) -> str:
    """A hash of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def write_atomically(path: Path, write: Callable[[Path], Any]) -> None:
    """Temporary file, fsync, rename: the name holds the old bytes or the new ones, never a mixture."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        write(scratch)
        with scratch.open("rb+") as file:
            os.fsync(file.fileno())
        os.replace(scratch, path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise CannotWrite(
            f"could not write {path}: {error.strerror or error}; free some space or choose another place"
        ) from error
    finally:
        scratch.unlink(missing_ok=True)
