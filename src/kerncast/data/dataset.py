"""A dataset: a directory with `dataset.json` and `rows/<op>/<family>/*.parquet`.

Rows are only ever added, in parts that `dataset.json` lists. A part that is not listed is ignored, so a
crash between the two writes loses nothing and leaves nothing half-written. What a collection measured is in its journal until
it is finished; those results are rows like the others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from kerncast import devices
from kerncast.data import filters, journal, schema, skipping
from kerncast.data.hardware import Hardware, latest
from kerncast.declared.declaration import Declaration, declaration_of, joined_family, refuse_another_draft, resolve
from kerncast.device import Device
from kerncast.errors import BadFile, InvalidValue, NotFound
from kerncast.files.atomic import (
    cannot_write,
    copy_directory,
    drafted,
    file_checksum,
    refuse_existing,
    write_atomically,
    write_bytes,
)
from kerncast.files.checksums import differing
from kerncast.files.given import names_a_file_inside
from kerncast.files.lock import in_turn
from kerncast.files.parquet import read_parquet, scan_parquet
from kerncast.files.versioned import Versioned
from kerncast.op import Family

FORMAT = "kerncast-dataset"
VERSION = 1
MANIFEST = "dataset.json"
# Rows of which all columns are in memory, where that would be too much for all rows.
PIECE_ROWS = 131_072
# A part is read as a whole, and what it expands to has a limit (`budgets`).
ROWS_PER_PART = 2_000_000


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One parquet file: `content` hashes its cells, `checksum` its bytes."""

    family: str
    file: str
    rows: int
    content: str
    checksum: str


class ExtraFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Columns of an imported file that have no place in the rows, under the `source` and `source_line` of each row."""

    file: str
    rows: int
    columns: tuple[str, ...]
    checksum: str


class Source(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where imported rows came from; a row's `source` column holds the digest."""

    digest: str
    name: str
    format: str


class DeviceRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A device as it was when rows were collected, so that its features can be computed on any machine."""

    name: str
    title: str
    kind: str
    numbers: dict[str, float] = {}
    peak_tflops: dict[str, float] = {}
    sources: dict[str, str] = {}

    @property
    def device(self) -> Device:
        """The device profile of this record."""
        return Device(self.name, self.title, self.kind, self.numbers, self.peak_tflops, self.sources)


def record_of(device: Device) -> DeviceRecord:
    """The record of a device that a dataset stores."""
    # A whole number would come back from the file as another number.
    numbers, peaks = ({name: float(value) for name, value in given.items()} for given in (device.numbers, device.peak_tflops))
    return DeviceRecord(device.name, device.title, device.kind, numbers, peaks, dict(device.sources))


class DatasetFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The contents of `dataset.json`."""

    format: str = FORMAT
    version: int = VERSION
    parts: tuple[Part, ...] = ()
    sources: tuple[Source, ...] = ()
    devices: tuple[DeviceRecord, ...] = ()
    declarations: tuple[Declaration, ...] | msgspec.UnsetType = msgspec.UNSET
    """Ops that were drafted from an imported file; omitted when there are none."""
    skipped: skipping.SkippedFile | msgspec.UnsetType = msgspec.UNSET
    """The rows that an import could not represent; omitted when there are none."""
    extra: tuple[ExtraFile, ...] | msgspec.UnsetType = msgspec.UNSET
    """The columns that an import did not know; omitted when there are none."""
    hardware: tuple[Hardware, ...] | msgspec.UnsetType = msgspec.UNSET
    """What the machine's tools said about it; omitted when it was not asked for."""

    @property
    def declared(self) -> dict[str, Declaration]:
        """The drafted ops by the id of their family."""
        return {item.family: item for item in self.declarations or ()}


class Dataset:
    """An opened dataset. `Dataset.create` makes an empty one, `Dataset.open` reads an existing one."""

    collected: Any = None
    """What `kerncast.collect` measured just now: its summary."""
    notes: tuple[str, ...] = ()
    """What `kerncast.read` left out or changed, and why."""

    def __init__(self, path: Path, manifest: DatasetFile, *, journal: bool = True) -> None:
        self.path = path
        self.contents = manifest
        self.reads_journal = journal

    @classmethod
    def create(cls, path: str | Path, *, journal: bool = True) -> Dataset:
        """An empty dataset in a directory that does not exist yet; `journal` as for `open`."""
        path = Path(path)
        refuse_existing(path)
        with drafted(path) as folder:
            draft = cls._begun(folder)
        return cls(path, draft.contents, journal=journal)

    @classmethod
    def ensured(cls, path: str | Path) -> Dataset:
        """The dataset in a folder; an empty one is made there first if there is none. Several processes may ask at once."""
        path = Path(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise cannot_write(path, error) from error
        with in_turn(path / ".lock"):
            if not (path / MANIFEST).exists():
                cls._begun(path)
        return cls.open(path, journal=False)

    @classmethod
    def build(cls, path: str | Path, fill: Callable[[Dataset], None]) -> Dataset:
        """A new dataset that appears whole or not at all."""
        path = Path(path)
        refuse_existing(path)
        with drafted(path) as folder:
            draft = cls._begun(folder)
            fill(draft)
        return cls(path, draft.contents)

    @classmethod
    def _begun(cls, folder: Path) -> Dataset:
        dataset = cls(folder, DatasetFile())
        dataset._write_file(dataset.contents)
        return dataset

    @classmethod
    def open(cls, path: str | Path, *, journal: bool = True) -> Dataset:
        """Open a dataset on disk; the error names what is foreign, newer, truncated or missing.

        The results of an unfinished collection are rows too. Only the collector leaves them out, with `journal=False`.
        """
        dataset = cls.of_manifest(path, journal=journal)
        for part in dataset.contents.parts:
            if not (dataset.path / part.file).is_file():
                raise BadFile(dataset._missing(part.file))
        return dataset

    @classmethod
    def of_manifest(cls, path: str | Path, *, journal: bool = True) -> Dataset:
        """A dataset of which only `dataset.json` was looked at; parts may be missing."""
        path = Path(path)
        if not path.exists():
            raise NotFound(f"there is no dataset at {path}: make one with `kerncast import` or `kerncast collect`")
        if not (path / MANIFEST).is_file():
            raise BadFile(
                f"{path} is not a kerncast dataset: it has no {MANIFEST}; make a dataset of another program's table with "
                "`kerncast.read` or `kerncast import`"
            )
        dataset = cls(path, _FILE.read(path / MANIFEST), journal=journal)
        for file in dataset.checksums:
            if not names_a_file_inside(file):
                raise BadFile(f"{path} is damaged: its part {file!r} is not a file in it; import the data again")
        return dataset

    # -- reading -------------------------------------------------------------------------------------

    @property
    def families(self) -> list[Family]:
        """The families that have rows here, by id."""
        declared = self.contents.declared
        names = {part.family for part in self.contents.parts}
        if self._journaled is not None:
            names.add(self._journaled[0].id)
        return [resolve(name, declared.get(name), self.path) for name in sorted(names)]

    @property
    def rows(self) -> int:
        """Rows of all families."""
        return sum(part.rows for part in self.contents.parts) + (0 if self._journaled is None else self._journaled[1].height)

    @property
    def unfinished(self) -> bool:
        """Whether a collection in it did not measure everything that it was asked for."""
        return (self.path / journal.NAME).exists()

    @property
    def completeness(self) -> journal.Completeness | None:
        """How far an unfinished collection came; None if there is none."""
        if not self.unfinished:
            return None
        return journal.completeness(self.path, 0 if self._journaled is None else self._journaled[1].height)

    @cached_property
    def _journaled(self) -> tuple[Family, pl.DataFrame] | None:
        """The family and the rows of an unfinished collection, as they were when they were first asked for."""
        path = self.path / journal.NAME
        if not self.reads_journal or not journal.is_begun(path):
            return None
        name = journal.header_of(path).family
        family = resolve(name, self.contents.declared.get(name), self.path)
        header, rows = journal.journal_rows(path, family)
        parts = [self.stored(family, part) for part in self.contents.parts if part.family == name]
        if parts:  # a crash after the rows became a part left them in both places
            both = pl.concat(parts).filter(pl.col("run_id") == header.run_id).select("key").collect()
            rows = rows.join(both, on="key", how="anti", maintain_order="left")
        try:
            return (family, schema.conform(family, rows)) if rows.height else None
        except schema.Mislabelled as error:
            raise BadFile(f"{path} is damaged, {error}: move the file away to measure again, or restore it") from error

    @property
    def skipped(self) -> skipping.Skipped:
        """The rows that the import of these rows could not represent: their number, their kinds and `frame()`."""
        found = self.contents.skipped
        if isinstance(found, msgspec.UnsetType):
            return skipping.Skipped()
        return skipping.Skipped(found.rows, found.kinds, self.path / found.file, found.checksum)

    def extra(self) -> pl.DataFrame:
        """The columns of the imported files that have no place in the rows; join them by `source` and `source_line`."""
        self.refuse_changed({item.file: item.checksum for item in self.contents.extra or ()})
        try:
            frames = [read_parquet(self.path / item.file) for item in self.contents.extra or ()]
            names = {
                name: [frame.schema[name] for frame in frames if name in frame.columns]
                for frame in frames
                for name in frame.columns
            }
            # A column that two files hold in different types is text.
            mixed = [name for name, types in names.items() if len(set(types)) > 1]
            frames = [
                frame.with_columns(pl.col(name).cast(pl.String) for name in mixed if name in frame.columns) for frame in frames
            ]
            return (
                pl.concat(frames, how="diagonal")
                if frames
                else pl.DataFrame(schema={"source": pl.String, skipping.LINE: pl.Int64})
            )
        except (pl.exceptions.PolarsError, OSError) as error:
            raise BadFile(f"{self.path} is damaged ({_first_line(error)}): restore it, or import the data again") from error

    def refuse_if_empty(self) -> None:
        """Raise an error that says why there are no rows, if there are none."""
        if self.contents.parts or self._journaled is not None:
            return
        if self.unfinished:
            raise InvalidValue(
                f"{self.path} is a collection that was ended before its first result: run the same `kerncast collect` again"
            )
        raise InvalidValue(f"the dataset {self.path} is empty: import or collect rows first")

    @property
    def digest(self) -> str:
        """A hash of the contents: equal rows in equal parts, equal digest."""
        contents = [f"{part.family} {part.content}" for part in self.contents.parts]
        if self._journaled is not None:
            contents.append(f"{self._journaled[0].id} {schema.content_digest([self._journaled[1]])}")
        text = "\n".join(sorted(contents))
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def scan(self, family: Family | str | None = None, where: Sequence[filters.Condition] = ()) -> pl.LazyFrame:
        """The rows of one family, lazily (the family may be left out when there is only one)."""
        found = self._family(family)
        where = filters.resolved(where, partial(self.devices_and_software, found), f"{found.id} in {self.path}")
        parts = [part for part in self.contents.parts if part.family == found.id]
        self.refuse_changed({part.file: part.checksum for part in parts})
        frames = [self.stored(found, part) for part in parts]
        if self._journaled is not None and self._journaled[0].id == found.id:
            frames.append(self._journaled[1].lazy())
        rows = pl.concat(frames)
        columns = {name: dtype() for name, dtype in schema.schema_of(found).items()}
        return rows.filter(filters.combine(where, columns)) if where else rows

    def devices_and_software(self, family: Family | str | None = None) -> list[tuple[str, str | None]]:
        """The devices of a family's rows, each with every software text that its rows have."""
        pairs = self.scan(family).select("device", "software").unique().sort("device", "software").collect()
        return list(pairs.iter_rows())

    def stored(self, family: Family, part: Part) -> pl.LazyFrame:
        """The rows of one part, with the columns that its family has today."""
        file = self.path / part.file
        self.refuse_changed({part.file: part.checksum})
        try:
            return schema.upgrade_columns(family, scan_parquet(file), str(file))
        except pl.exceptions.PolarsError as error:
            raise BadFile(f"{file} is damaged ({_first_line(error)}): restore it, or import the data again") from error

    def read(
        self,
        family: Family | str | None = None,
        where: Sequence[filters.Condition] = (),
        columns: Sequence[str] | None = None,
    ) -> pl.DataFrame:
        """The rows of one family, loaded; `suspect=false` leaves out those whose labels belong to other rows.

        `columns` loads only these.
        """
        from kerncast.data.label_shift import NOT_SUSPECT, without_suspect

        try:
            if NOT_SUSPECT not in where:
                rows = self.scan(family, where)
                return (rows if columns is None else rows.select(columns)).collect()
            # Finding the suspect rows takes the whole file, so the other conditions are applied afterwards.
            found = self._family(family)
            where = filters.resolved(where, partial(self.devices_and_software, found), f"{found.id} in {self.path}")
            kept = without_suspect(found, self.scan(family).collect(), self.device)
            kept = kept.filter(filters.combine([item for item in where if item != NOT_SUSPECT], kept.schema))
            return kept if columns is None else kept.select(columns)
        except pl.exceptions.PolarsError as error:
            raise BadFile(f"{self.path} is damaged ({_first_line(error)}): restore it, or import the data again") from error

    def pieces(self, family: Family | str | None = None, where: Sequence[filters.Condition] = ()) -> Iterator[pl.DataFrame]:
        """The rows of one family in their order, a bounded number at a time: all columns of all rows take much memory."""
        from kerncast.data.label_shift import NOT_SUSPECT

        found = self._family(family)
        if NOT_SUSPECT in where:
            yield from self.read(found, where).iter_slices(PIECE_ROWS)
            return
        columns = {name: dtype() for name, dtype in schema.schema_of(found).items()}
        where = filters.resolved(where, partial(self.devices_and_software, found), f"{found.id} in {self.path}")
        kept = filters.combine(where, columns) if where else pl.lit(True)
        try:
            for part in self.contents.parts:
                if part.family == found.id:
                    stored = self.stored(found, part)
                    for start in range(0, part.rows, PIECE_ROWS):
                        yield stored.slice(start, PIECE_ROWS).filter(kept).collect()
        except pl.exceptions.PolarsError as error:
            raise BadFile(f"{self.path} is damaged ({_first_line(error)}): restore it, or import the data again") from error
        if self._journaled is not None and self._journaled[0].id == found.id:
            for piece in self._journaled[1].iter_slices(PIECE_ROWS):
                yield piece.filter(kept)

    def frame(self, family: Family | str | None = None, where: Sequence[str] = ()) -> pl.DataFrame:
        """The rows of one family as a polars frame (the family may be left out when there is only one)."""
        return self.read(family, where)

    def to_pandas(self, family: Family | str | None = None, where: Sequence[str] = ()) -> Any:
        """The rows of one family as a pandas frame."""
        try:
            import pandas
        except ImportError as error:
            raise NotFound("to_pandas() needs the package pandas, which is not installed: `pip install pandas`") from error
        return pandas.DataFrame({column.name: column.to_numpy() for column in self.frame(family, where)})

    def __repr__(self) -> str:
        from kerncast.data.summary import dataset_text

        return dataset_text(self)

    def _repr_html_(self) -> str:
        from kerncast.data.summary import dataset_html

        return dataset_html(self)

    def device(self, name: str) -> Device:
        """A device of these rows: as it was recorded with them, else the profile of that name."""
        for record in self.contents.devices:
            if record.name == name:
                return record.device
        return devices.get(name)

    @property
    def hardware(self) -> tuple[Hardware, ...]:
        """What rocminfo, nvidia-smi and lscpu said when rows were collected with `capture_hw`, the earliest first."""
        return self.contents.hardware or ()

    def keep_hardware(self, *found: Hardware) -> None:
        """Keep what was captured, beside what is there already."""
        with in_turn(self.path / ".lock"):
            self.contents = _FILE.read(self.path / MANIFEST)
            self._write_file(msgspec.structs.replace(self.contents, hardware=latest((*self.hardware, *found))))

    @property
    def checksums(self) -> dict[str, str]:
        """The files beside `dataset.json` that it lists, with their checksums."""
        files = {part.file: part.checksum for part in self.contents.parts}
        files |= {item.file: item.checksum for item in self.contents.extra or ()}
        if not isinstance(self.contents.skipped, msgspec.UnsetType):
            files[self.contents.skipped.file] = self.contents.skipped.checksum
        return files

    def verify(self) -> None:
        """Compare every part with its checksum."""
        self.refuse_changed(self.checksums)

    def refuse_changed(self, files: Mapping[str, str]) -> None:
        """Refuse the first of some files that is missing or differs from its checksum."""
        for file in files:
            if not (self.path / file).is_file():
                raise BadFile(self._missing(file))
        changed = differing({self.path / file: checksum for file, checksum in files.items()})
        if changed is not None:
            raise BadFile(f"{changed} differs from its checksum: restore it, or import the data again")

    def _missing(self, file: str) -> str:
        return f"{self.path} is incomplete: {file} is missing; restore it, or import the data again"

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
        with in_turn(self.path / ".lock"):
            self.contents = _FILE.read(self.path / MANIFEST)  # another process may have appended meanwhile
            self._append_part(family, rows, sources, machines)

    def _append_part(
        self, family: Family, rows: pl.DataFrame, sources: Iterable[Source], machines: Iterable[DeviceRecord]
    ) -> None:
        rows = schema.without_unused(family, rows)
        parts, known = list(self.contents.parts), {source.digest: source for source in self.contents.sources}
        known |= {source.digest: source for source in sources}
        # The first record of a device stays: measured clocks and rates differ a little from run to run.
        recorded = {record.name: record for record in (*machines, *self.contents.devices)}
        target = self.path / "rows" / Path(*family.id.split("/"))
        for start in range(0, rows.height, ROWS_PER_PART):
            number = sum(part.family == family.id for part in parts)
            stored = schema.without_empty_labels(rows[start : start + ROWS_PER_PART])
            file = target / f"part-{number:05d}.parquet"
            target.mkdir(parents=True, exist_ok=True)
            write_atomically(file, partial(stored.write_parquet, compression="zstd", statistics=True))
            content = schema.content_digest([stored])
            parts.append(Part(family.id, file.relative_to(self.path).as_posix(), stored.height, content, file_checksum(file)))
        sources_in_order = tuple(known[digest] for digest in sorted(known))
        machines_in_order = tuple(recorded[name] for name in sorted(recorded))
        declarations = _with_declaration(self.contents, family)
        self._write_file(msgspec.structs.replace(
            self.contents, parts=tuple(parts), sources=sources_in_order, devices=machines_in_order,
            declarations=declarations or msgspec.UNSET,
        ))  # fmt: skip

    def _keep_skipped(self, rows: pl.DataFrame, kinds: Sequence[skipping.SkippedKind]) -> None:
        """Keep the rows that an import skipped, if there are any."""
        if rows.height:
            self._write_file(msgspec.structs.replace(self.contents, skipped=skipping.write_skipped(self.path, rows, kinds)))

    def _write_file(self, manifest: DatasetFile) -> None:
        write_bytes(self.path / MANIFEST, _FILE.text(manifest))
        self.contents = manifest

    def _keep_extra(self, frame: pl.DataFrame) -> None:
        """Keep columns that are not known here."""
        if frame.is_empty():
            return
        known = self.contents.extra or ()
        file = Path("extra", f"part-{len(known):05d}.parquet")
        (self.path / file).parent.mkdir(exist_ok=True)
        write_atomically(self.path / file, lambda path: frame.write_parquet(path, compression="zstd"))
        names = tuple(name for name in frame.columns if name not in ("source", skipping.LINE))
        found = ExtraFile(file.as_posix(), frame.height, names, file_checksum(self.path / file))
        self._write_file(msgspec.structs.replace(self.contents, extra=(*known, found)))

    def save(self, path: str | Path) -> Dataset:
        """Write a copy to `path`, whole or not at all. This keeps a result that is in a temporary folder."""
        copy_directory(self.path, Path(path))
        return Dataset.open(path)

    def family(self, name: str | None = None) -> Family:
        """The family of that id; it may be left out when there is only one."""
        return self._family(name)

    def export(
        self, path: str | Path, *, to: str = "csv", family: str | None = None, where: Sequence[str] | str = ()
    ) -> list[Path]:
        """Write the rows of one family for other tools, and return the files.

        `csv` and `parquet`: a table, with a mapping file that imports it again. `t4`: the auto-tuning community's results
        format. `kernel-tuner`: a cache of Kernel Tuner. These two have one file for each problem and device: `path` is a
        folder if there are several. `tt-sweep`: measured reshards as vectors and results of tt-metal's sweep framework.
        """
        from kerncast.data.exporters import export_rows

        return export_rows(self, Path(path), to, family, (where,) if isinstance(where, str) else tuple(where))

    def inspect(self, where: Sequence[str] | str = ()) -> dict[str, Any]:
        """What it holds, how noisy it is and what is wrong with it; `kerncast inspect` prints it."""
        from kerncast.data.quality import inspect_dataset

        return inspect_dataset(self, (where,) if isinstance(where, str) else tuple(where))

    @staticmethod
    def guess_mapping(path: str | Path, *, format: str | None = None, family: str | None = None) -> str:
        """Draft the mapping file with which `kerncast.read` imports a CSV or parquet table; `?` marks what to fill in."""
        from kerncast.data.importers.guess import draft_mapping
        from kerncast.data.importers.mapped import read_table, table_format

        return draft_mapping(read_table(table_format(Path(path), format), Path(path)), family)

    @staticmethod
    def merge(paths: Sequence[Dataset | str | Path], out: str | Path) -> Dataset:
        """Merge datasets into a new one. Rows equal in every cell are kept once; `notes` says how many were dropped."""
        inputs = [item if isinstance(item, Dataset) else Dataset.open(item) for item in paths]
        found, dropped = merge(inputs, out)
        unfinished = [f"{item.path}: {item.completeness}" for item in inputs if item.unfinished]
        found.notes = (f"{dropped:,} exact duplicates dropped", *unfinished)
        return found


def merge(given: Sequence[Dataset | str | Path], out: str | Path) -> tuple[Dataset, int]:
    """Merge datasets into a new one, keeping rows that are equal in every cell once. Return it and the number dropped."""
    inputs = [item if isinstance(item, Dataset) else Dataset.open(item) for item in given]
    for dataset in inputs:
        dataset.verify()
    names = sorted({family.id for dataset in inputs for family in dataset.families})
    if not names:
        raise InvalidValue(f"there is nothing to merge: {', '.join(str(dataset.path) for dataset in inputs)} hold no rows")
    dropped = 0

    def fill(draft: Dataset) -> None:
        nonlocal dropped
        sources = {source.digest: source for dataset in inputs for source in dataset.contents.sources}
        for name in names:
            holders = [dataset for dataset in inputs if name in {family.id for family in dataset.families}]
            family = joined_family([dataset._family(name) for dataset in holders])
            rows = pl.concat([dataset.read(name) for dataset in holders])
            distinct = schema.distinct_rows(rows)
            dropped += rows.height - distinct.height
            machines = [record for dataset in inputs for record in dataset.contents.devices]
            draft._append(family, distinct, sources.values(), reversed(machines))
        for dataset in inputs:
            draft._keep_extra(dataset.extra())
        draft._keep_skipped(*skipping.joined([dataset.skipped for dataset in inputs]))
        captured = [item for dataset in inputs for item in dataset.hardware]
        if captured:
            draft.keep_hardware(*captured)

    return Dataset.build(out, fill), dropped


def _with_declaration(manifest: DatasetFile, family: Family) -> tuple[Declaration, ...]:
    """The declarations after rows of a family are added; a second draft of an op extends the first."""
    declared, own = manifest.declared, declaration_of(family)
    if own is not None:
        declared[own.family] = declared[own.family].joined(own) if own.family in declared else own
    return tuple(declared[name] for name in sorted(declared))


_FILE = Versioned(FORMAT, VERSION, DatasetFile, "a kerncast dataset", "restore it, or import the data again")


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
