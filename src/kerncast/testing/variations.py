"""Variations of a sample: its columns dropped, added, reordered and spelled in another way, and single cells changed.

A sample is taken apart by what it looks like: a CSV table (perhaps below a line of JSON), a parquet file, a JSON document with
a list of records, a text with JSON blocks, or a zip archive with one of these in it.
"""

from __future__ import annotations

import copy
import io
import json
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import polars as pl

Record = dict[str, Any]
_MARK = "the records"


@dataclass(frozen=True)
class Sample:
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


def sample_of(content: bytes) -> Sample | None:
    """The sample taken apart; None if it looks like nothing that is known here."""
    if content.startswith(b"PK"):
        return _archived(content)
    if content.startswith(b"PAR1"):
        frame = pl.read_parquet(io.BytesIO(content))
        return Sample(frame.to_dicts(), _parquet, tabular=True)
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


def _archived(content: bytes) -> Sample | None:
    """The first sample in an archive; the other members stay as they are."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    for name, data in members.items():
        inner = sample_of(data) if data else None
        if inner is not None:

            def write(records: list[Record], name: str = name, inner: Sample = inner) -> bytes:
                buffer = io.BytesIO()
                with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
                    for other, old in members.items():
                        archive.writestr(other, inner.write(records) if other == name else old)
                return buffer.getvalue()

            return Sample(inner.records, write, inner.tabular)
    return None


def _document(text: str) -> Sample | None:
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

    return Sample(list(found.values()) if isinstance(found, dict) else found, write, tabular=False)


def _lists(value: Any, path: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], Any]]:
    items = list(value.items()) if isinstance(value, dict) else list(enumerate(value)) if isinstance(value, list) else []
    if len(items) > 1 and all(isinstance(item, dict) for _, item in items):
        yield path, value
    for key, item in items:
        yield from _lists(item, (*path, key))


def _table(text: str) -> Sample | None:
    lines = [line for line in text.split("\n") if line]
    begin = 1 if lines and lines[0].startswith("{") else 0
    cells = [line.split(",") for line in lines[begin:]]
    if len(cells) < 3 or len(cells[0]) < 2 or len({len(row) for row in cells}) > 1:
        return None
    header = [name.strip() for name in cells[0]]

    def write(records: list[Record]) -> bytes:
        rows = [",".join(str(value) for value in record.values()) for record in records]
        return "\n".join([*lines[:begin], ",".join(records[0]), *rows, ""]).encode()

    return Sample([dict(zip(header, row, strict=True)) for row in cells[1:]], write, tabular=True)


def _blocks(text: str) -> Sample | None:
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

    return Sample(records, write, tabular=False)


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
