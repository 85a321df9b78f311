"""What every importer must do. Subclass it in a test module, fill in the attributes, let pytest collect it.

class TestMine(ImporterContract):
    format_name = "mine"
    sample = b"m,n,k,us\\n1,2,3,4.5\\n"
    options = ImportOptions(device="a100")
"""

from __future__ import annotations

import copy
import io
import json
import random
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import polars as pl

from kerncast.data import Dataset
from kerncast.data.formats import ImportOptions
from kerncast.data.importing import import_files
from kerncast.errors import KerncastError
from kerncast.testing import repeats

# A sample is taken apart by what it looks like: a CSV table (perhaps below a line of JSON), a parquet file, a JSON document
# with a list of records, a text with JSON blocks, or a zip archive with one of these in it.
Record = dict[str, Any]
_MARK = "the records"


@dataclass(frozen=True)
class FileSample:
    """A sample as records; `write` puts changed records back into its format."""

    records: list[Record]
    write: Callable[[list[Record]], bytes]
    tabular: bool
    """Whether all records have the same columns, in one order."""

    @property
    def columns(self) -> list[str]:
        """The columns of the first record; a member of a nested object is `outer.inner`."""
        return list(_paths(self.records[0]))

    def without(self, column: str) -> bytes:
        """The sample without a column."""
        return self._changed(lambda record, _: _remove(record, column))

    def with_column(self, name: str, value: str) -> bytes:
        """The sample with a column more."""
        return self._changed(lambda record, _: _set(record, name, value))

    def reordered(self) -> bytes:
        """The sample with its columns in the reverse order."""
        return self.write([dict(reversed(record.items())) for record in self.records])

    def swapped_case(self) -> bytes:
        """A table with small letters for capitals in the names of its columns, and the other way round."""
        return self.write([{name.swapcase(): value for name, value in record.items()} for record in self.records])

    def with_cell(self, row: int, column: str, value: Any) -> bytes:
        """The sample with one cell changed."""
        return self._changed(lambda record, place: _set(record, column, value) if place == row else None)

    def with_floats(self) -> bytes:
        """A table with 8.0 for 8, as text in parquet, in all columns of whole numbers."""
        whole = [name for name in self.columns if all(_is_whole(record[name]) for record in self.records)]
        return self._changed(lambda record, _: record.update({name: f"{record[name]}.0" for name in whole}))

    def _changed(self, change: Callable[[Record, int], Any]) -> bytes:
        records = copy.deepcopy(self.records)
        for place, record in enumerate(records):
            change(record, place)
        return self.write(records)


def sample_of(content: bytes) -> FileSample | None:
    """The sample taken apart; None if it looks like nothing that is known here."""
    if content.startswith(b"PK"):
        return _archived(content)
    if content.startswith(b"PAR1"):
        frame = pl.read_parquet(io.BytesIO(content))
        return FileSample(frame.to_dicts(), _parquet, tabular=True)
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        return None
    return _document(text) or _table(text) or _blocks(text)


def _parquet(records: list[Record]) -> bytes:
    buffer = io.BytesIO()
    columns = {name: [record[name] for record in records] for name in records[0]}
    # A column with a cell of another type is text, as other tools write it.
    mixed = {name for name, values in columns.items() if len({type(value) for value in values if value is not None}) > 1}
    plain = {
        name: [str(value) if name in mixed and value is not None else value for value in values]
        for name, values in columns.items()
    }
    pl.DataFrame(plain).write_parquet(buffer)
    return buffer.getvalue()


def _archived(content: bytes) -> FileSample | None:
    """The first sample in an archive; the other members stay as they are."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    for name, data in members.items():
        inner = sample_of(data) if data else None
        if inner is not None:

            def write(records: list[Record], name: str = name, inner: FileSample = inner) -> bytes:
                buffer = io.BytesIO()
                with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
                    for other, old in members.items():
                        archive.writestr(other, inner.write(records) if other == name else old)
                return buffer.getvalue()

            return FileSample(inner.records, write, inner.tabular)
    return None


def _document(text: str) -> FileSample | None:
    """A JSON document: the records are its longest list (or object) of objects."""
    try:
        whole = json.loads(text)
    except ValueError:
        return None
    places = sorted(_lists(whole, ()), key=lambda item: -len(item[1]))
    if not places:
        return None
    path, found = places[0]
    keys = list(found) if isinstance(found, dict) else None

    def write(records: list[Record]) -> bytes:
        # A record is a line, so that a change inside does not move the others.
        texts = [json.dumps(record) for record in records]
        if keys is not None:
            texts = [f"{json.dumps(key)}: {text}" for key, text in zip(keys, texts, strict=True)]
        body = ("{\n" if keys is not None else "[\n") + ",\n".join(texts) + ("\n}" if keys is not None else "\n]")
        if not path:
            return body.encode()
        changed = copy.deepcopy(whole)
        inner = changed
        for step in path[:-1]:
            inner = inner[step]
        inner[path[-1]] = _MARK
        return json.dumps(changed).replace(f'"{_MARK}"', body).encode()

    return FileSample(list(found.values()) if isinstance(found, dict) else found, write, tabular=False)


def _lists(value: Any, path: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], Any]]:
    items = list(value.items()) if isinstance(value, dict) else list(enumerate(value)) if isinstance(value, list) else []
    if len(items) > 1 and all(isinstance(item, dict) for _, item in items):
        yield path, value
    for key, item in items:
        yield from _lists(item, (*path, key))


def _table(text: str) -> FileSample | None:
    lines = [line for line in text.split("\n") if line]
    begin = 1 if lines and lines[0].startswith("{") else 0
    cells = [line.split(",") for line in lines[begin:]]
    if len(cells) < 3 or len(cells[0]) < 2 or len({len(row) for row in cells}) > 1:
        return None
    header = [name.strip() for name in cells[0]]

    def write(records: list[Record]) -> bytes:
        rows = [",".join(str(value) for value in record.values()) for record in records]
        return "\n".join([*lines[:begin], ",".join(records[0]), *rows, ""]).encode()

    return FileSample([dict(zip(header, row, strict=True)) for row in cells[1:]], write, tabular=True)


def _blocks(text: str) -> FileSample | None:
    """A text with JSON objects that begin on lines of their own."""
    pieces: list[str] = []
    records: list[Record] = []
    place, decoder = 0, json.JSONDecoder()
    while (begin := text.find("\n{", place)) >= 0:
        try:
            record, end = decoder.raw_decode(text, begin + 1)
        except ValueError:
            break
        pieces.append(text[place : begin + 1])
        records.append(record)
        place = end
    if len(records) < 2:
        return None
    rest = text[place:]

    def write(changed: list[Record]) -> bytes:
        whole = "".join(piece + json.dumps(record) for piece, record in zip(pieces, changed, strict=True))
        return (whole + rest).encode()

    return FileSample(records, write, tabular=False)


def _paths(record: Record, prefix: str = "") -> Iterator[str]:
    for name, value in record.items():
        if isinstance(value, dict) and value:
            yield from _paths(value, f"{prefix}{name}\0")
        else:
            yield prefix + name


def _owner(record: Record, column: str) -> tuple[Record, str]:
    *outer, name = column.split("\0")
    for step in outer:
        record = record.get(step) or {}
    return record, name


def _is_whole(cell: Any) -> bool:
    return (isinstance(cell, int) and not isinstance(cell, bool)) or (isinstance(cell, str) and cell.strip().isdigit())


def _set(record: Record, column: str, value: Any) -> None:
    owner, name = _owner(record, column)
    owner[name] = value


def _remove(record: Record, column: str) -> None:
    owner, name = _owner(record, column)
    owner.pop(name, None)


MUTATIONS = repeats(30, 20_000)
# What one cell of a row may turn into; every column gets one of them, in turn.
ODD = ("?", "", "-1", "2.5", "0", "99999999999999999999", "torch.float99", "inf", "1e999", "\u2028x", "True", "[1]")


class ImporterContract:
    """Reads its sample the same way twice, remembers where rows came from, refuses everything else cleanly.

    The sample is varied too: one odd cell costs at most its row, another order or spelling of columns costs nothing. It needs
    at least two rows for that.
    """

    format_name: ClassVar[str]
    sample: ClassVar[bytes]
    options: ClassVar[ImportOptions]

    def _import(self, folder: Path, content: bytes, name: str = "out") -> Dataset:
        source, notes = folder / "sample", list[str]()
        source.write_bytes(content)
        dataset = import_files(self.format_name, [source], folder / name, self.options, notes.append)
        dataset.notes = tuple(notes)
        return dataset

    def test_reads_its_sample_the_same_way_twice(self, tmp_path: Path) -> None:
        """Same file, same rows, same digest."""
        first = self._import(tmp_path, self.sample, "first")
        second = self._import(tmp_path, self.sample, "second")
        assert first.rows > 0
        assert first.digest == second.digest
        first.verify()

    def test_every_row_remembers_its_file_and_line(self, tmp_path: Path) -> None:
        """Provenance: the digest of the file, and a line that exists."""
        dataset = self._import(tmp_path, self.sample)
        digests = {source.digest for source in dataset.contents.sources}
        for family in dataset.families:
            rows = dataset.read(family)
            assert set(rows["source"].unique()) <= digests
            assert rows["source_line"].null_count() == 0
            assert rows.select(pl.struct("source", "source_line")).n_unique() == rows.height

    def test_a_device_that_is_not_named_is_asked_for(self, tmp_path: Path) -> None:
        """Unless the file says it, the device is an option, never a guess."""
        source = tmp_path / "sample"
        source.write_bytes(self.sample)
        try:
            dataset = import_files(self.format_name, [source], tmp_path / "out", replace(self.options, device=None))
        except KerncastError as error:
            assert "`device" in str(error)  # noqa: PT017 - this module does not depend on pytest
        else:
            assert all(dataset.read(family)["device"].null_count() == 0 for family in dataset.families)

    def test_empty_foreign_and_missing_files_are_refused_and_nothing_is_written(self, tmp_path: Path) -> None:
        """One sentence that names the file; no dataset, no leftovers."""
        for content in (b"", b"\n", b"\x00\xff\xfe\x1f\x8b" * 50, b"just some words\n", self.sample.splitlines()[0] + b"\n"):
            self._refused(tmp_path, content)
        try:
            import_files(self.format_name, [tmp_path / "absent"], tmp_path / "out", self.options)
        except KerncastError as error:
            assert "absent" in str(error)  # noqa: PT017
        else:
            raise AssertionError("a missing file was imported")

    def test_damaged_files_are_read_or_refused_but_never_crash(self, tmp_path: Path) -> None:
        """Bytes flipped, dropped, doubled and cut, from a fixed seed: only a KerncastError may be raised."""
        rng = random.Random(0)
        for number in range(MUTATIONS):
            damaged = bytearray(self.sample)
            for _ in range(rng.randint(1, 4)):
                place = rng.randrange(len(damaged))
                match rng.randrange(4):
                    case 0:
                        damaged[place] = rng.randrange(256)
                    case 1:
                        del damaged[place : place + rng.randint(1, 9)]
                    case 2:
                        damaged[place:place] = damaged[place : place + rng.randint(1, 9)]
                    case _:
                        damaged = damaged[: max(place, 1)]
                if not damaged:
                    damaged = bytearray(b",")
            try:
                self._import(tmp_path, bytes(damaged), f"out{number}").verify()
            except KerncastError as error:
                assert "\n" not in str(error)  # noqa: PT017
                assert not (tmp_path / f"out{number}").exists()

    def test_columns_may_come_in_another_order_case_or_company(self, tmp_path: Path) -> None:
        """Reversed columns, one more, and names in another case give the same rows; what is not known is named and kept."""
        sample, rows = self._taken_apart(tmp_path)
        assert _rows(self._import(tmp_path, sample.reordered(), "reversed")).equals(rows)
        more = self._import(tmp_path, sample.with_column("one_more", "seven"), "more")
        assert _rows(more).equals(rows)
        if not sample.tabular:
            return
        assert any("one_more" in note for note in more.notes), "an unknown column is not named"
        assert more.extra()["one_more"].unique().to_list() == ["seven"]
        other = self._import(tmp_path, sample.swapped_case(), "case")
        assert _rows(other).equals(rows), "names in another case are not found"

    def test_whole_numbers_may_be_written_as_floats(self, tmp_path: Path) -> None:
        """8.0 is 8, as tools write columns with empty cells; a parquet column of numbers may be text."""
        sample, rows = self._taken_apart(tmp_path)
        if sample.tabular:
            assert _rows(self._import(tmp_path, sample.with_floats(), "floats")).equals(rows)

    def test_a_missing_column_is_refused_or_unknown(self, tmp_path: Path) -> None:
        """Without one of its columns, a file is refused, or read with the same times, and then it is said what is unknown."""
        sample, rows = self._taken_apart(tmp_path)
        known = {row[:3] for row in rows.select("source_line", "status", "time_ns").iter_rows()}
        for number, column in enumerate(sample.columns):
            try:
                dataset = self._import(tmp_path, sample.without(column), f"out{number}")
            except KerncastError as error:
                assert "sample" in str(error)  # noqa: PT017
                assert "\n" not in str(error)  # noqa: PT017
                continue
            found = _rows(dataset)
            if sample.tabular:
                told = set(found.select("source_line", "status", "time_ns").iter_rows())
                assert told <= known, f"without '{column}', times or statuses are others"
                assert found.equals(rows) or dataset.notes or dataset.skipped.rows, f"nothing is said of the missing '{column}'"

    def test_one_odd_cell_costs_at_most_its_row(self, tmp_path: Path) -> None:
        """Whatever one cell holds, the other rows are read as before, and a row that is lost is counted."""
        sample, rows = self._taken_apart(tmp_path)
        notes = self._import(tmp_path, sample.write(sample.records), "before").notes
        row = len(sample.records) // 2
        for number, column in enumerate(sample.columns):
            value = ODD[number % len(ODD)]
            dataset = self._import(tmp_path, sample.with_cell(row, column, value), f"out{number}")
            found = _rows(dataset)
            lost = _lines(rows, found)
            assert len(lost) <= 1, f"'{value}' in '{column}' of one row changes the rows of lines {lost}"
            assert set(_lines(found, rows)) <= set(lost)
            gone = set(rows["source_line"]) - set(found["source_line"])
            told = dataset.skipped.rows >= len(gone) or dataset.notes != notes
            assert told, f"'{value}' in '{column}' loses a row without a word"
            dataset.verify()

    def _taken_apart(self, folder: Path) -> tuple[FileSample, pl.DataFrame]:
        """The sample as records, and the rows that it gives."""
        sample = sample_of(self.sample)
        assert sample is not None, "the sample looks like none of the formats that kerncast.testing.importers knows"
        # Written again, so that lines are those of the variations.
        return sample, _rows(self._import(folder, sample.write(sample.records), "whole"))

    def _refused(self, folder: Path, content: bytes) -> None:
        try:
            self._import(folder, content)
        except KerncastError as error:
            assert "sample" in str(error), f"the refusal does not name the file: {error}"  # noqa: PT017
            assert sorted(item.name for item in folder.iterdir()) == ["sample"]
        else:
            raise AssertionError(f"{content[:40]!r} was imported")


def _rows(dataset: Dataset) -> pl.DataFrame:
    """The rows of all families as text, without what differs from file to file."""
    frames = [dataset.read(family).drop("source").cast(pl.String, strict=False) for family in dataset.families]
    whole = pl.concat(frames, how="diagonal")
    whole = whole.select(sorted(whole.columns)).with_columns(pl.col("source_line", "time_ns").cast(pl.Float64))
    return whole.sort("source_line", "key", "time_ns", "error", nulls_last=True)


def _lines(rows: pl.DataFrame, other: pl.DataFrame) -> Sequence[float]:
    """The lines of the rows that are not among the others."""
    both = pl.concat([rows.with_columns(own=pl.lit(True)), other.with_columns(own=pl.lit(False))], how="diagonal")
    known = set(both.filter(~pl.col("own")).drop("own").iter_rows())
    ours = both.filter("own").drop("own")
    place = ours.columns.index("source_line")
    return sorted({row[place] for row in ours.iter_rows() if row not in known})
