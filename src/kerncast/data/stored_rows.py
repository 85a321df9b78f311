"""Reading the rows of a dataset: whole, lazily, some columns, some rows, or a bounded number at a time."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from kerncast.core.arrays import Ints
from kerncast.core.device import Device
from kerncast.core.io.foreign import guarded
from kerncast.core.io.parquet import read_parquet, scan_parquet
from kerncast.core.op import Family
from kerncast.data import filters, journal, schema, skipping
from kerncast.data.filters import DrawnProblems
from kerncast.data.manifest import DatasetFile, Hardware, Part
from kerncast.data.skipping import AGAIN
from kerncast.errors import BadFile, InvalidValue, NotFound
from kerncast.library import devices
from kerncast.library.declared.declaration import refuse_another_draft, resolve

# Rows of which all columns are in memory, where that would be too much for all rows.
PIECE_ROWS = 131_072


class StoredRows:
    """The rows that a dataset has on disk, and those in the journal of its unfinished collection."""

    def __init__(self, path: Path, manifest: DatasetFile, *, journal: bool = True) -> None:
        self.path = path
        self.contents = manifest
        self.reads_journal = journal

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
        return sum(part.rows for part in self.contents.parts) + self._journaled_rows

    def rows_of(self, family: Family) -> int:
        """Rows of one family."""
        stored = sum(part.rows for part in self.contents.parts if part.family == family.id)
        return stored + sum(rows.height for rows in self._of_journal(family))

    @property
    def unfinished(self) -> bool:
        """Whether a collection in it did not measure everything that it was asked for."""
        return (self.path / journal.NAME).exists()

    @property
    def completeness(self) -> journal.Completeness | None:
        """How far an unfinished collection came; None if there is none."""
        if not self.unfinished:
            return None
        return journal.completeness(self.path, self._journaled_rows)

    @property
    def _journaled_rows(self) -> int:
        return 0 if self._journaled is None else self._journaled[1].height

    def _of_journal(self, family: Family) -> list[pl.DataFrame]:
        """The rows of a family in the journal: one frame, or none."""
        return [] if self._journaled is None or self._journaled[0].id != family.id else [self._journaled[1]]

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
            raise journal.damaged(path, error) from error

    @property
    def skipped(self) -> skipping.Skipped:
        """The rows that the import of these rows could not represent: their number, their kinds and `frame()`."""
        found = self.contents.skipped
        if found is None:
            return skipping.Skipped()
        return skipping.Skipped(found.rows, found.kinds, self.path / found.file, found.checksum)

    def extra(self) -> pl.DataFrame:
        """The columns of the imported files that have no place in the rows; join them by `source` and `source_line`."""
        self.refuse_changed({item.file: item.checksum for item in self.contents.extra})
        with guarded(self.path, AGAIN):
            frames = [read_parquet(self.path / item.file) for item in self.contents.extra]
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
        own = self._family(family)
        kept = self._kept(own, where)
        parts = [part for part in self.contents.parts if part.family == own.id]
        self.refuse_changed({part.file: part.checksum for part in parts})
        rows = pl.concat([*(self.stored(own, part) for part in parts), *(rows.lazy() for rows in self._of_journal(own))])
        return rows.filter(kept) if where else rows

    def devices_and_software(self, family: Family | str | None = None) -> list[tuple[str, str | None]]:
        """The devices of a family's rows, each with every software text that its rows have."""
        pairs = self.scan(family).select("device", "software").unique().collect(engine="streaming")
        return list(pairs.sort("device", "software").iter_rows())

    def stored(self, family: Family, part: Part) -> pl.LazyFrame:
        """The rows of one part, with the columns that its family has today."""
        file = self.path / part.file
        self.refuse_changed({part.file: part.checksum})
        with guarded(file, AGAIN):
            return schema.with_every_column(family, scan_parquet(file), str(file))

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

        with guarded(self.path, AGAIN):
            if NOT_SUSPECT not in where:
                rows = self.scan(family, where)
                return (rows if columns is None else rows.select(columns)).collect()
            # Finding the suspect rows takes the whole file, so the other conditions are applied afterwards.
            own = self._family(family)
            kept = without_suspect(own, self.scan(family).collect(), self.device)
            kept = kept.filter(self._kept(own, [item for item in where if item != NOT_SUSPECT]))
            return kept if columns is None else kept.select(columns)

    def pieces(
        self,
        family: Family | str | None = None,
        where: Sequence[filters.Condition] = (),
        columns: Sequence[str] | None = None,
    ) -> Iterator[pl.DataFrame]:
        """The rows of one family in their order, a bounded number at a time: all columns of all rows take much memory.

        `columns` loads only these.
        """
        from kerncast.data.label_shift import NOT_SUSPECT

        found = self._family(family)
        if NOT_SUSPECT in where:
            yield from self.read(found, where, columns).iter_slices(PIECE_ROWS)
            return
        kept, chosen = self._kept(found, where), pl.all() if columns is None else pl.col(columns)
        # Of a draw there is little in each part, and polars finds it without decoding the rest.
        drawn = any(isinstance(item, DrawnProblems) for item in where)
        with guarded(self.path, AGAIN):
            for part in self.contents.parts:
                if part.family != found.id:
                    continue
                stored = self.stored(found, part)
                for start in (0,) if drawn else range(0, part.rows, PIECE_ROWS):
                    piece = stored if drawn else stored.slice(start, PIECE_ROWS)
                    own = piece.filter(kept).select(chosen).collect()
                    yield _own_copy(own) if where else own
        for journaled in self._of_journal(found):
            yield from (own.filter(kept).select(chosen) for own in journaled.iter_slices(PIECE_ROWS))

    def _kept(self, family: Family, where: Sequence[filters.Condition]) -> pl.Expr:
        """Which rows satisfy some conditions."""
        if not where:
            return pl.lit(True)
        columns = {name: dtype() for name, dtype in schema.schema_of(family).items()}
        resolved = filters.resolved(where, partial(self.devices_and_software, family), f"{family.id} in {self.path}")
        return filters.combine(resolved, columns)

    def rows_at(
        self,
        family: Family,
        places: Ints,
        where: Sequence[filters.Condition] = (),
        columns: Sequence[str] | None = None,
    ) -> pl.DataFrame:
        """Some of the rows that `pieces` gives, by their places among them, in the order of `places`."""
        order = np.argsort(places, kind="stable")
        wanted, found, before = places[order], list[pl.DataFrame](), 0
        for piece, rows in self._pieces_around(family, wanted, where, columns):
            low, high = np.searchsorted(wanted, (before, before + rows))
            if piece is not None and high > low:
                found.append(piece[wanted[low:high] - before])
            before += rows
        back = np.empty(len(order), np.int64)
        back[order] = np.arange(len(order))
        return pl.concat(found)[back]

    def _pieces_around(
        self, family: Family, wanted: Ints, where: Sequence[filters.Condition], columns: Sequence[str] | None
    ) -> Iterator[tuple[pl.DataFrame | None, int]]:
        """Pieces and their sizes; without conditions, those without a wanted row are not read."""
        if where:
            yield from ((piece, piece.height) for piece in self.pieces(family, where, columns))
            return
        chosen, before = pl.all() if columns is None else pl.col(columns), 0
        for part in self.contents.parts:
            for start in range(0, part.rows, PIECE_ROWS) if part.family == family.id else ():
                rows = min(PIECE_ROWS, part.rows - start)
                low, high = np.searchsorted(wanted, (before, before + rows))
                piece = self.stored(family, part).slice(start, rows).select(chosen).collect() if high > low else None
                yield piece, rows
                before += rows
        yield from ((rows.select(chosen), rows.height) for rows in self._of_journal(family))

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

    def device(self, name: str) -> Device:
        """A device of these rows: as it was recorded with them, else the profile of that name."""
        for record in self.contents.devices:
            if record.name == name:
                return record.device
        return devices.get(name)

    @property
    def hardware(self) -> tuple[Hardware, ...]:
        """What rocminfo, nvidia-smi and lscpu said when rows were collected with `capture_hw`, the earliest first."""
        return self.contents.hardware

    @property
    def checksums(self) -> dict[str, str]:
        """The files beside `dataset.json` that it lists, with their checksums."""
        files = {part.file: part.checksum for part in self.contents.parts}
        files |= {item.file: item.checksum for item in self.contents.extra}
        if self.contents.skipped is not None:
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
        skipping.refuse_changed({self.path / file: checksum for file, checksum in files.items()})

    def _missing(self, file: str) -> str:
        return f"{self.path} is incomplete: {file} is missing; {AGAIN}"

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

    def family(self, name: str | None = None) -> Family:
        """The family of that id; it may be left out when there is only one."""
        return self._family(name)


def _own_copy(rows: pl.DataFrame) -> pl.DataFrame:
    """Rows that a filter kept, in memory of their own: a caller who holds them would hold what the filter read, too.

    Training on a hundredth of 10^8 rows, which are read a part at a time, took 13.6 GiB; with copies it takes 1.5.
    """
    return rows[np.arange(rows.height)]
