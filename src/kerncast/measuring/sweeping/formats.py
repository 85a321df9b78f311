"""How vectors are laid out in files: parts of a fixed size as parquet or JSON, or another program's own layout."""

from __future__ import annotations

import abc
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import polars as pl

from kerncast.core.io.foreign import guarded, read_json
from kerncast.core.io.parquet import read_parquet
from kerncast.core.op import Family
from kerncast.data.schema import column_type, parameter_columns, with_optional
from kerncast.errors import BadFile, InvalidValue, NotFound
from kerncast.measuring.sweeping.pool import BLOCK_ROWS

AGAIN = "fix it, or make the vectors again with `kerncast sweep`"
_JSON_TYPES: dict[type[pl.DataType], type] = {pl.Int64: int, pl.Boolean: bool, pl.String: str}


class Format(abc.ABC):
    """One layout."""

    name: ClassVar[str]
    rows: ClassVar[int]
    """Rows after which the list of finished files is written again: the most that a crash can lose."""

    def check(self, family: Family) -> None:
        """Refuse families that the layout cannot express."""
        return

    @abc.abstractmethod
    def cut(self, blocks: Iterable[pl.DataFrame]) -> Iterator[tuple[str, pl.DataFrame]]:
        """The rows of each file with its name, in order."""

    @abc.abstractmethod
    def write(self, rows: pl.DataFrame, file: Path) -> None:
        """Write one file."""

    @abc.abstractmethod
    def read(self, file: Path, family: Family) -> pl.DataFrame:
        """Read the rows of a file, with the columns of the family."""


def vector_columns(family: Family) -> dict[str, type[pl.DataType]]:
    """The columns of a family's vectors with their types."""
    return {name: column_type(space.parameters[item]) for name, (space, item) in parameter_columns(family).items()}


def cut_rows(blocks: Iterable[pl.DataFrame], rows: int) -> Iterator[pl.DataFrame]:
    """The same rows in pieces of exactly `rows`, the last one shorter."""
    held: list[pl.DataFrame] = []
    height = 0
    for block in blocks:
        held.append(block)
        height += block.height
        while height >= rows:
            joined = pl.concat(held)
            yield joined.head(rows)
            held, height = [joined.slice(rows)], height - rows
    if height:
        yield pl.concat(held)


class _Parts(Format):
    """Files of equal length, numbered."""

    def cut(self, blocks: Iterable[pl.DataFrame]) -> Iterator[tuple[str, pl.DataFrame]]:
        for number, rows in enumerate(cut_rows(blocks, self.rows)):
            yield f"part-{number:05d}.{self.name}", rows


class Parquet(_Parts):
    """Columns `problem.*` and `config.*`."""

    name, rows = "parquet", 524_288

    def write(self, rows: pl.DataFrame, file: Path) -> None:
        rows.write_parquet(file, compression="zstd", row_group_size=BLOCK_ROWS)

    def read(self, file: Path, family: Family) -> pl.DataFrame:
        found = with_optional(family, read_parquet(file))
        wanted = vector_columns(family)
        for name in {*found.columns} ^ {*wanted}:
            what = "has the unknown column" if name in found.columns else "lacks the column"
            raise BadFile(f"{file} {what} '{name}' of {family.id}: {AGAIN}")
        return found.select(list(wanted))


class Json(_Parts):
    """A list of {"problem": {…}, "config": {…}}; what does not apply is left out."""

    name, rows = "json", 65_536

    def write(self, rows: pl.DataFrame, file: Path) -> None:
        lines = b",\n".join(msgspec.json.encode(_nested(row)) for row in rows.iter_rows(named=True))
        file.write_bytes(b"[\n" + lines + b"\n]\n")

    def read(self, file: Path, family: Family) -> pl.DataFrame:
        columns = vector_columns(family)
        with guarded(file, AGAIN, "is not a list of vectors"):
            rows = read_json(file, type=list[dict[str, dict[str, Any]]])
        values: dict[str, list[Any]] = {name: [] for name in columns}
        for number, row in enumerate(rows, 1):
            cells = {f"{half}.{item}": value for half, items in row.items() for item, value in items.items()}
            for name in cells:
                if name not in columns:
                    raise BadFile(
                        f"{file}, row {number}: {NotFound.named(f'parameter of {family.id}', name, columns)}; {AGAIN}"
                    )
            for name, kind in columns.items():
                value = cells.get(name)
                # True is a whole number to Python, but not to a reader.
                if value is not None and type(value) is not _JSON_TYPES[kind]:
                    expected = _JSON_TYPES[kind].__name__
                    raise BadFile(f"{file}, row {number}: {name} must be of type {expected}, got {value!r}; {AGAIN}")
                values[name].append(value)
        return pl.DataFrame(values, schema=columns)


def _nested(row: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    halves: dict[str, dict[str, Any]] = {"problem": {}, "config": {}}
    for column, value in row.items():
        if value is not None:
            half, _, name = column.partition(".")
            halves[half][name] = value
    return halves


def format_named(name: str) -> Format:
    """The layout called `name`."""
    from kerncast.measuring.sweeping.tt_sweep import TtSweep

    known: dict[str, type[Format]] = {kind.name: kind for kind in (Parquet, Json, TtSweep)}
    if name not in known:
        raise NotFound.named("format of vectors", name, known)
    return known[name]()


def refuse(layout: Format, family: Family, *only: str) -> None:
    """Refuse a family for a layout that can express only some others."""
    if family.id not in only:
        raise InvalidValue(
            f"`file_format={layout.name}` writes vectors of {', '.join(only)}, not of {family.id}: use parquet or json"
        )
