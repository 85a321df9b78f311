"""A dataset: a directory with `dataset.json` and `rows/<op>/<family>/*.parquet`.

Rows are only ever added, in parts that `dataset.json` lists. A part that is not listed is ignored, so a
crash between the two writes loses nothing and leaves nothing half-written. What a collection measured is in its journal until
it is finished; those results are rows like the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from kerncast.core.io.arguments import names_a_file_inside
from kerncast.core.io.artefact import Versioned, file_checksum
from kerncast.core.io.atomic import cannot_write, copy_directory, drafted, refuse_existing, write_atomically, write_bytes
from kerncast.core.io.lock import in_turn
from kerncast.core.op import Family
from kerncast.data import schema, skipping
from kerncast.data.manifest import (
    FORMAT,
    MANIFEST,
    VERSION,
    DatasetFile,
    DeviceRecord,
    ExtraFile,
    Hardware,
    Part,
    Source,
    latest,
    record_of,
    with_declaration,
)
from kerncast.data.skipping import AGAIN
from kerncast.data.stored_rows import PIECE_ROWS, StoredRows
from kerncast.data.tables import Frame, as_polars, is_frame
from kerncast.errors import BadFile, InvalidValue, NotFound
from kerncast.library.declared.declaration import joined_family

__all__ = ["MANIFEST", "PIECE_ROWS", "Dataset", "DatasetFile", "DeviceRecord", "Part", "Source", "merge", "record_of"]

# A part is read as a whole, and what it expands to has a limit (`core.io.foreign`).
ROWS_PER_PART = 2_000_000


class Dataset(StoredRows):
    """An opened dataset. `Dataset.create` makes an empty one, `Dataset.open` reads an existing one."""

    collected: Any = None
    """What `kerncast.collect` measured just now: its summary."""
    notes: tuple[str, ...] = ()
    """What `kerncast.read` left out or changed, and why."""

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

    # -- writing -------------------------------------------------------------------------------------

    def keep_hardware(self, *found: Hardware) -> None:
        """Keep what was captured, beside what is there already."""
        with in_turn(self.path / ".lock"):
            self.contents = _FILE.read(self.path / MANIFEST)
            self._write_file(msgspec.structs.replace(self.contents, hardware=latest((*self.hardware, *found))))

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
        # What a model estimated of one is the model's own.
        recorded = {
            record.name: msgspec.structs.replace(record, estimated={}) for record in (*machines, *self.contents.devices)
        }
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
        declarations = with_declaration(self.contents, family)
        self._write_file(msgspec.structs.replace(
            self.contents, parts=tuple(parts), sources=sources_in_order, devices=machines_in_order,
            declarations=declarations,
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
        known = self.contents.extra
        file = Path("extra", f"part-{len(known):05d}.parquet")
        (self.path / file).parent.mkdir(exist_ok=True)
        write_atomically(self.path / file, lambda path: frame.write_parquet(path, compression="zstd"))
        names = tuple(name for name in frame.columns if name not in ("source", skipping.LINE))
        found = ExtraFile(file.as_posix(), frame.height, names, file_checksum(self.path / file))
        self._write_file(msgspec.structs.replace(self.contents, extra=(*known, found)))

    def __repr__(self) -> str:
        from kerncast.data.quality import dataset_text

        return dataset_text(self)

    def _repr_html_(self) -> str:
        from kerncast.data.quality import dataset_html

        return dataset_html(self)

    def save(self, path: str | Path) -> Dataset:
        """Write a copy to `path`, whole or not at all. This keeps a result that is in a temporary folder."""
        copy_directory(self.path, Path(path))
        return Dataset.open(path)

    def export(
        self, path: str | Path, *, to: str = "csv", family: str | None = None, where: Sequence[str] | str = ()
    ) -> list[Path]:
        """Write the rows of one family for other tools, and return the files.

        `csv` and `parquet`: a table, with a mapping file that imports it again. `t4`: the auto-tuning community's results
        format. `kernel-tuner`: a cache of Kernel Tuner. These two have one file for each problem and device: `path` is a
        folder if there are several. `tt-sweep`: measured reshards as vectors and results of tt-metal's sweep framework.
        """
        from kerncast.data.formats import writer

        importer = writer(to)
        refuse_existing(Path(path))
        return importer.write(self, Path(path), family, (where,) if isinstance(where, str) else tuple(where))

    def inspect(self, where: Sequence[str] | str = ()) -> dict[str, Any]:
        """What it holds, how noisy it is and what is wrong with it; `kerncast inspect` prints it."""
        from kerncast.data.quality import inspect_dataset

        return inspect_dataset(self, (where,) if isinstance(where, str) else tuple(where))

    @staticmethod
    def guess_mapping(path: str | Path | Frame, *, file_format: str | None = None, family: str | None = None) -> str:
        """Draft the mapping file with which `kerncast.read` imports a CSV or parquet table, or a frame; `?` marks what to add.

        A table that no installed op describes becomes an op of its own. `family` may be a TOML file that declares one.
        """
        from kerncast.data.formats.table import read_table, table_format
        from kerncast.data.formats.table.guess import draft_mapping

        if is_frame(path):
            table = as_polars(path).drop(skipping.LINE, strict=False)
            return draft_mapping(table.with_row_index(skipping.LINE, 1), family, "frame")
        return draft_mapping(read_table(table_format(Path(path), file_format), Path(path)), family, Path(path).stem)

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


_FILE = Versioned(FORMAT, VERSION, DatasetFile, "a kerncast dataset", AGAIN)
