"""Rows that an import cannot represent: left out, counted by kind and kept, so that one odd row never costs its table."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import polars as pl

from kerncast.core.io.artefact import changed_since, differing, file_checksum
from kerncast.core.io.atomic import write_atomically
from kerncast.core.io.foreign import guarded
from kerncast.core.io.parquet import read_parquet
from kerncast.errors import BadFile, InvalidValue

LINE = "source_line"
FILE = "skipped.parquet"
# What is kept of a skipped row. `row` holds its cells as JSON, or its text, up to a length.
# What to do with a damaged file of a dataset.
AGAIN = "restore it, or import the data again"
COLUMNS = {"file": pl.String, "source": pl.String, LINE: pl.Int64, "kind": pl.String, "row": pl.String}
LONGEST_ROW = 500
# Characters of a cell that a message quotes.
LONGEST_QUOTED = 60
# Kinds that a message lists; the rest is counted.
KINDS_SHOWN = 8
# Rows skipped one by one that become a frame at a time.
FRAMED = 10_000

T = TypeVar("T")


class BadRows(BadFile, InvalidValue):
    """Some rows of a table break a rule. The message is about the first of them; `kind` is the rule without a value."""

    def __init__(
        self,
        message: str,
        kind: str = "",
        bad: pl.Series | None = None,
        lines: Sequence[int] | pl.Series | None = None,
        example: str = "",
    ) -> None:
        super().__init__(message)
        self.kind, self.example = kind or message, example or message
        self.bad, self.lines = bad, lines


def bad_row(line: int, kind: str, value: object = None) -> BadRows:
    """The error for one row: its line, the rule it breaks, the value that breaks it."""
    got = "" if value is None else f", got {shortened(value)!r}"
    return BadRows(f"line {line}: {kind}{got}", kind, lines=[line])


class SkippedKind(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Rows that were skipped for one reason, and what was said of the first of them."""

    kind: str
    rows: int
    example: str


class SkippedFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `dataset.json` says about `skipped.parquet`."""

    file: str
    rows: int
    checksum: str
    kinds: tuple[SkippedKind, ...]


@dataclass(frozen=True)
class Skipped:
    """The rows that an import could not represent: how many, of which kinds, and (`frame()`) the rows themselves."""

    rows: int = 0
    kinds: tuple[SkippedKind, ...] = ()
    path: Path | None = None
    checksum: str | None = None

    def frame(self) -> pl.DataFrame:
        """The skipped rows: the file, the line, the kind and the cells."""
        if self.path is None:
            return pl.DataFrame(schema=COLUMNS)
        with guarded(self.path, AGAIN, "cannot be read"):
            refuse_changed({self.path: self.checksum} if self.checksum is not None else {})
            return read_parquet(self.path)

    def __str__(self) -> str:
        return "\n".join([f"{self.rows:,} skipped", *(f"{kind.rows:,} × {kind.example}" for kind in self.kinds)])


@dataclass
class Skips:
    """Gathers the rows that one import skips. If it is strict, the first one is refused instead."""

    strict: bool = False
    kinds: dict[str, tuple[int, str]] = field(default_factory=dict)
    seen: int = 0
    """Rows of the file that were looked at, where an importer makes another number of rows of them; else 0."""
    _frames: list[pl.DataFrame] = field(default_factory=list)
    _single: list[tuple[str | None, int, str, str]] = field(default_factory=list)

    @property
    def rows(self) -> int:
        """How many rows were skipped."""
        return sum(count for count, _ in self.kinds.values())

    def add(
        self,
        kind: str,
        example: str,
        lines: Sequence[int] | pl.Series,
        texts: Sequence[str] | pl.Series,
        file: str | None = None,
    ) -> None:
        """Skip rows for one reason; `texts` holds what is kept of each."""
        if self.strict:
            raise BadRows(example, kind, lines=lines)
        kind, example = (" ".join(text.encode("utf-8", "replace").decode().split()) for text in (kind, example))
        count, first = self.kinds.get(kind, (0, example))
        self.kinds[kind] = count + len(lines), first
        if len(lines) == 1:  # a damaged file is skipped line by line: a frame for each would take a minute per 50,000
            self._single.append((file, lines[0], kind, texts[0][:LONGEST_ROW]))
            if len(self._single) == FRAMED:
                self._frame_single()
            return
        self._frame_single()
        kept = pl.DataFrame({LINE: pl.Series(lines, dtype=pl.Int64), "row": pl.Series(texts, dtype=pl.String)})
        self._frames.append(
            kept.select(
                pl.lit(file, pl.String).alias("file"), pl.lit(None, pl.String).alias("source"), LINE,
                pl.lit(kind).alias("kind"), pl.col("row").str.slice(0, LONGEST_ROW),
            )
        )  # fmt: skip

    def _frame_single(self) -> None:
        """Put rows that were skipped one by one into a frame."""
        schema = {name: COLUMNS[name] for name in ("file", LINE, "kind", "row")}
        rows = pl.DataFrame(self._single, schema=schema, orient="row")
        self._frames.append(rows.with_columns(source=pl.lit(None, pl.String)).select(list(COLUMNS)))
        self._single.clear()

    def one(self, error: BadRows, row: object, file: str | None = None) -> None:
        """Skip the one row that an error is about."""
        text = row if isinstance(row, str) else json.dumps(row, ensure_ascii=False, default=str)
        lines = error.lines if error.lines is not None else [0]
        example = error.example if file is None or error.example.startswith(file) else f"{file}, {error.example}"
        self.add(error.kind, example, lines, [text.encode("utf-8", "replace").decode()], file)

    def drop(
        self, table: pl.DataFrame, bad: pl.Series | pl.Expr, kind: str, column: str | None = None, example: str = ""
    ) -> pl.DataFrame:
        """The table without some rows; `column` holds the value to quote."""
        mask = table.with_columns(bad.alias("bad"))["bad"] if isinstance(bad, pl.Expr) else bad
        if mask.dtype == pl.Null or not mask.any():
            return table
        mask = mask.fill_null(False)
        row = mask.arg_max() or 0
        got = f", got '{shortened(table[column][row])}'" if column is not None else ""
        said = example or f"line {table[LINE][row]}: {kind}{got}"
        dropped = table.filter(mask)
        self.add(kind, said, dropped[LINE], _cells(dropped))
        return table.filter(~mask)

    def without(
        self, table: pl.DataFrame, error: BadRows, before: int = 0, where: str = "", file: str | None = None
    ) -> pl.DataFrame:
        """The table without the rows that an error is about."""
        if error.bad is None and error.lines is None:
            raise error
        mask = error.bad if error.bad is not None else table[LINE].is_in(pl.Series(error.lines, dtype=pl.Int64).implode())
        dropped = table.filter(mask.fill_null(False))
        if self.strict or not dropped.height:
            raise error
        self.add(error.kind, f"{where}{error.example}", dropped[LINE] + before, _cells(dropped), file)
        return table.filter(~mask.fill_null(False))

    def convert(
        self,
        table: pl.DataFrame,
        convert: Callable[[pl.DataFrame], T],
        before: int = 0,
        where: str = "",
        file: str | None = None,
    ) -> T:
        """What `convert` makes of a table without the rows that it refuses with `BadRows`.

        `before` rows of the same file come before the table, and `where` names the table in messages. `file` is the table's
        own file, if it is one of several in a folder.
        """
        self.seen += table.height
        while True:
            try:
                return convert(table)
            except BadRows as error:
                table = self.without(table, error, before, where, file)

    def refuse_most(self, path: Path, kept: int) -> None:
        """Refuse a file most of whose rows were skipped: not they are odd then, but the format or the mapping is wrong."""
        total = self.seen or self.rows + kept
        if self.rows * 2 > total:
            raise BadFile(
                f"{path}: {self.rows:,} of {total:,} rows cannot be represented, so this is another format, or the mapping is "
                f"wrong: {self.told()}"
            )

    def told(self) -> str:
        """The kinds with their counts, in one sentence."""
        kinds = self.summary()
        shown = [f"{kind.example} ({kind.rows:,} such row{'s' * (kind.rows > 1)})" for kind in kinds[:KINDS_SHOWN]]
        more = [f"and {len(kinds) - KINDS_SHOWN} more kinds"] if len(kinds) > KINDS_SHOWN else []
        return "; ".join([*shown, *more])

    def summary(self) -> tuple[SkippedKind, ...]:
        """The kinds, the most frequent first."""
        found = [SkippedKind(kind, count, example) for kind, (count, example) in self.kinds.items()]
        return tuple(sorted(found, key=lambda item: (-item.rows, item.kind)))

    def frame(self, name: str, digest: str | None) -> pl.DataFrame:
        """The skipped rows of a file with this name and digest."""
        self._frame_single()
        frame = pl.concat([pl.DataFrame(schema=COLUMNS), *self._frames])
        return frame.with_columns(pl.col("file").fill_null(name), source=pl.lit(digest or None, pl.String))


def refuse_changed(files: Mapping[Path, str]) -> None:
    """Refuse the first of some files of a dataset that differs from its checksum."""
    changed = differing(files)
    if changed is not None:
        raise changed_since(changed, AGAIN)


def write_skipped(folder: Path, frame: pl.DataFrame, kinds: Sequence[SkippedKind]) -> SkippedFile:
    """Write `skipped.parquet`; return what `dataset.json` says about it."""
    target = folder / FILE
    write_atomically(target, lambda path: frame.write_parquet(path, compression="zstd", statistics=True))
    return SkippedFile(FILE, frame.height, file_checksum(target), tuple(kinds))


def joined(found: Sequence[Skipped]) -> tuple[pl.DataFrame, tuple[SkippedKind, ...]]:
    """The skipped rows of several datasets, equal ones once, and their kinds."""
    rows = pl.concat([item.frame().select(list(COLUMNS)) for item in found]).unique(maintain_order=True)
    examples = {kind.kind: kind.example for item in reversed(found) for kind in item.kinds}
    counted = rows.group_by("kind").len().sort("len", "kind", descending=[True, False])
    return rows, tuple(SkippedKind(kind, count, examples.get(kind, kind)) for kind, count in counted.iter_rows())


def shortened(value: Any) -> str:
    """What a message quotes of a cell: one line, not all of a long text."""
    text = str(value)
    return " ".join(text[:LONGEST_QUOTED].split()) + "…" * (len(text) > LONGEST_QUOTED)


def _cells(table: pl.DataFrame) -> pl.Series:
    """Each row as JSON, without its line and its empty cells."""
    columns = [name for name in table.columns if name != LINE]
    texts = [
        msgspec.json.encode({name: value for name, value in zip(columns, row, strict=True) if value is not None}, enc_hook=str)
        for row in table.select(columns).iter_rows()
    ]
    return pl.Series([text.decode() for text in texts], dtype=pl.String)
