"""Tables that users have: CSV and parquet files, frames of polars or pandas; cells as text, rows with their line numbers.

Lines that are no row are skipped or refused. pandas is no dependency: its frames are read by their columns, and a frame is
given back by the methods of the one that came in."""

from __future__ import annotations

import csv
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import IO, Any, TypeAlias

import polars as pl

from kerncast.core.io.foreign import CELL, CHARACTER, COLUMN, guarded
from kerncast.core.io.parquet import read_parquet
from kerncast.data.skipping import LINE, BadRows, Skips, shortened
from kerncast.errors import BadFile, InvalidValue

__all__ = [
    "FLAGS",
    "LINE",
    "as_type",
    "fold_one_hot",
    "numbers",
    "plain_text",
    "read_csv_text",
    "read_parquet_table",
    "refuse_cells",
    "refuse_rows",
    "respelled",
    "whole_numbers",
]

# Rows that become a frame at a time: lists of cells take ten times the memory of a frame.
CHUNK = 50_000
# Lines that the quoted cells of one row may span.
LONGEST_CELL_LINES = 30


def read_csv_text(path: Path, skips: Skips | None = None) -> pl.DataFrame:
    """All cells as stripped text, with `source_line`. Without `skips`, a line that is no row refuses the file."""
    skips = skips or Skips(strict=True)
    frames: list[pl.DataFrame] = []
    lines: list[int] = []
    cells: list[list[str]] = []

    def flush() -> None:
        columns = {name: [row[index] for row in cells] for index, name in enumerate(header)}
        frame = pl.DataFrame(columns, schema=dict.fromkeys(header, pl.String))
        frames.append(frame.with_columns(pl.Series(LINE, lines, dtype=pl.Int64)))
        lines.clear()
        cells.clear()

    # A byte that is not UTF-8 becomes half of a surrogate pair, so that it costs its own row only.
    with path.open(newline="", encoding="utf-8-sig", errors="surrogateescape") as file:
        lines_of_file = _lines(file)
        heading = next(lines_of_file, "")
        separator = _separator(heading)
        rows = _rows(chain([heading], lines_of_file), separator)
        first, row, text = next(rows, (1, [], ""))
        if not _is_text(text):
            raise BadFile("line 1 is not text in UTF-8: unpack the file if it is compressed, or save it as UTF-8")
        if row is None:
            raise BadFile(f"line {first} is not CSV")
        header = [name.strip() for name in row]
        if len(header) > 1 and not header[0] and "index" not in header:
            header[0] = "index"  # pandas writes its row numbers under no name
        _check_header(header)
        most = CELL.most // len(header)
        for line, row, text in rows:
            if line > most:
                CELL.refuse(None, "the table")
            said = _no_row(line, row, text, len(header))
            if said is not None:
                skips.seen += 1
                skips.add(said.kind, str(said), [line], [text.encode("utf-8", "replace").decode()])
            elif row:
                lines.append(line)
                cells.append([cell.strip() for cell in row])
                if len(lines) == CHUNK:
                    flush()
    flush()
    table = pl.concat(frames, rechunk=True)
    return table if separator == "," else table.with_columns(_with_points(table[name]) for name in header)


def read_parquet_table(path: Path) -> pl.DataFrame:
    """A parquet file with row numbers for lines."""
    with guarded("the table", "is it cut or damaged?", "is not a parquet file"):
        table = read_parquet(path)
    nested = [name for name, dtype in table.schema.items() if dtype.is_nested()]
    if nested:
        raise BadFile(f"column '{nested[0]}' is nested: flatten it first")
    if LINE in table.columns:
        raise BadFile(f"there is a column '{LINE}', which is reserved for provenance: rename it")
    return table.with_columns(pl.int_range(1, pl.len() + 1, dtype=pl.Int64).alias(LINE))


def plain_text(data: bytes) -> str:
    """The text of a file; what is compressed is none."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadFile(f"not a text file ({error.reason} at byte {error.start}): is it compressed?") from error


def _separator(heading: str) -> str:
    """What stands between the cells: of comma, semicolon and tab the one that makes most columns of the header."""
    return max(",;\t", key=lambda mark: len(_parsed([heading], mark) or ()))


def _with_points(cells: pl.Series) -> pl.Series:
    """Numbers with a decimal comma, as programs write them beside semicolons, if it cannot be one of thousands."""
    comma = cells.filter(cells.str.contains(",", literal=True))
    fits = comma.str.contains(r"^-?\d+,\d+$").all() and comma.str.contains(r"^-?0,|,(\d{1,2}|\d{4,})$").any()
    return cells.str.replace(",", ".", literal=True) if fits else cells


def _lines(file: IO[str]) -> Iterator[str]:
    """The lines of a file, each no longer than a line may be."""
    most = CHARACTER.most
    number = 0
    while line := file.readline(most + 1):
        number += 1
        if len(line) > most:
            CHARACTER.refuse(None, f"line {number}")
        yield line


def _rows(file: Iterable[str], separator: str) -> Iterator[tuple[int, list[str] | None, str]]:
    """The rows with their last line and text; None for a line that is not CSV. A quoted cell may span several lines."""
    lines = iter(file)
    waiting: deque[str] = deque()
    number = 0

    def following() -> str | None:
        return waiting.popleft() if waiting else next(lines, None)

    while (line := following()) is not None:
        number += 1
        row, taken = _parsed([line], separator), [line]
        if row is None and line.count('"') % 2:
            while row is None and len(taken) < LONGEST_CELL_LINES and (more := following()) is not None:
                taken.append(more)
                row = _parsed(taken, separator)
            if row is None:  # the quote was never closed: only the line that opens it is lost
                waiting.extendleft(reversed(taken[1:]))
                taken = [line]
        number += len(taken) - 1
        yield number, row, "".join(taken)


def _parsed(lines: list[str], separator: str) -> list[str] | None:
    try:
        found = list(csv.reader(lines, delimiter=separator, strict=True))
    except csv.Error:
        return None
    return found[0] if found else []


def _is_text(text: str) -> bool:
    return text.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in text)


def _no_row(line: int, row: list[str] | None, text: str, width: int) -> BadRows | None:
    """Why a line is no row, if it is none."""
    if not _is_text(text):
        return BadRows(f"line {line} is not text in UTF-8", "a line must be text in UTF-8")
    if row is None:
        long = len(text) > csv.field_size_limit()
        said = "has a cell that is too long, or no end of a quote" if long else "is not CSV: is a quote missing?"
        return BadRows(f"line {line} {said}", "a line must be CSV")
    if row and len(row) != width:
        kind = "a line must have as many cells as the header"
        return BadRows(f"line {line} has {len(row)} cells, the header has {width}: the file is cut or damaged", kind)
    return None


def respelled(table: pl.DataFrame, wanted: Iterable[str]) -> pl.DataFrame:
    """Columns that differ from a wanted name only in case and blanks get that name, if there is no doubt."""
    plain: dict[str, list[str]] = {}
    for name in table.columns:
        plain.setdefault(_plain(name), []).append(name)
    names = [name for name in dict.fromkeys(wanted) if name not in table.columns]
    clear = {name for name in names if sum(_plain(name) == _plain(other) for other in names) == 1}
    found = {plain[_plain(name)][0]: name for name in names if name in clear and len(plain.get(_plain(name), ())) == 1}
    return table.rename({old: new for old, new in found.items() if old not in set(wanted)})


def _plain(name: str) -> str:
    return name.strip().casefold()


def _check_header(header: list[str]) -> None:
    COLUMN.refuse(len(header), "line 1")
    if not header or not all(header):
        raise BadFile("line 1 must name every column (is the file empty, or the header missing?)")
    repeated = sorted(name for name, count in Counter(header).items() if count > 1)
    if repeated:
        raise BadFile(f"line 1 names the column '{shortened(repeated[0])}' twice: rename one")
    if LINE in header:
        raise BadFile(f"line 1 names a column '{LINE}', which is reserved for provenance: rename it")
    if all(_is_number(name) for name in header):
        raise BadFile("line 1 holds numbers, not column names: add a header")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def refuse_rows(frame: pl.DataFrame, bad: pl.Series, kind: str, told: Callable[[int], str] = lambda row: "") -> None:
    """Refuse rows that break a rule; `told` gives what to add for a row."""
    if bad.dtype != pl.Null and bad.any():
        bad = bad.fill_null(False)
        row = bad.arg_max() or 0
        raise BadRows(f"line {frame[LINE][row]}: {kind}{told(row)}", kind, lines=frame[LINE].filter(bad))


def refuse_cells(frame: pl.DataFrame, bad: pl.Series, column: str, rule: str) -> None:
    """Refuse rows with a bad cell; the message quotes the first one with its line."""
    refuse_rows(frame, bad, f"{column} {rule}", lambda row: f", got '{shortened(frame[column][row])}'")


FLAGS = {"true": True, "false": False, "1": True, "0": False}


def as_type(values: pl.Series, dtype: type[pl.DataType]) -> pl.Series:
    """Convert values to a type; null where they do not fit, such as 28.5 as a whole number."""
    if isinstance(values.dtype, pl.Categorical | pl.Enum):
        values = values.cast(pl.String)
    if values.dtype == pl.Binary or (dtype != pl.String and values.dtype.is_temporal()):
        # Bytes are neither text nor numbers, and a date would become a count of days.
        return pl.Series(values.name, [None], dtype).new_from_index(0, len(values))
    if dtype == pl.Boolean and values.dtype == pl.String:
        return values.str.to_lowercase().replace_strict(FLAGS, default=None, return_dtype=pl.Boolean)
    if dtype == pl.Int64 and not values.dtype.is_integer():
        real = values.cast(pl.Float64, strict=False)
        whole = real.set(real != real.floor(), None).cast(pl.Int64, strict=False)
        # Text that is a plain integer is read exactly; a float has 53 bits.
        return values.cast(pl.Int64, strict=False).fill_null(whole) if values.dtype == pl.String else whole
    return values.cast(dtype, strict=False)


def whole_numbers(frame: pl.DataFrame, column: str) -> pl.Series:
    """A text column as integers."""
    values = as_type(frame[column], pl.Int64)
    refuse_cells(frame, values.is_null(), column, "must be a whole number")
    return values


def numbers(frame: pl.DataFrame, column: str) -> pl.Series:
    """A text column as floats; empty, NaN and infinite cells are refused."""
    values = frame[column].cast(pl.Float64, strict=False)
    refuse_cells(frame, values.is_null() | ~values.is_finite(), column, "must be a finite number")
    return values


def fold_one_hot(frame: pl.DataFrame, labels: Mapping[str, str]) -> pl.Series:
    """The label of the one column that holds 1; none or several is refused with the line."""
    flags = frame.select(pl.col(LINE), *(whole_numbers(frame, name).alias(name) for name in labels))
    for name in labels:
        refuse_cells(frame, ~flags[name].is_in([0, 1]), name, "is one of a group of flags and must be 0 or 1")
    total = flags.select(pl.sum_horizontal(list(labels))).to_series()
    refuse_rows(frame, total != 1, f"exactly one of {', '.join(labels)} must be 1", lambda row: f", {total[row]} are")
    chosen = pl.coalesce(pl.when(pl.col(name) == 1).then(pl.lit(label)) for name, label in labels.items())
    return flags.select(chosen).to_series()


Frame: TypeAlias = Any
"""A frame of polars or pandas; their types cannot be told here, for pandas may not be installed."""


def is_frame(given: Any) -> bool:
    """Whether it is a frame of polars or of pandas."""
    return isinstance(given, pl.DataFrame) or _is_pandas(given)


def as_polars(given: Any) -> pl.DataFrame:
    """A frame as polars has it; NaN and NA of pandas are empty cells, and its index is left aside."""
    if isinstance(given, pl.DataFrame):
        return given
    names = [str(name) for name in given.columns]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidValue(f"the frame has two columns '{twice}': rename one of them")
    return pl.DataFrame([_column(name, given.iloc[:, place]) for place, name in enumerate(names)])


def with_columns(given: Any, columns: pl.DataFrame) -> Any:
    """The frame with further columns, in place of those of the same name; a pandas frame keeps its index."""
    if isinstance(given, pl.DataFrame):
        return given.with_columns(columns.get_columns())
    return given.assign(**{column.name: _values(column) for column in columns})


def _is_pandas(given: Any) -> bool:
    return type(given).__module__.partition(".")[0] == "pandas" and hasattr(given, "iloc") and hasattr(given, "columns")


def _column(name: str, values: Any) -> pl.Series:
    numbers = values.to_numpy()
    if numbers.dtype.kind in "iub":
        return pl.Series(name, numbers)
    if numbers.dtype.kind == "f":
        return pl.Series(name, numbers, nan_to_null=True)
    items = [None if empty else item for item, empty in zip(numbers.tolist(), values.isna().tolist(), strict=True)]
    try:
        return pl.Series(name, items)
    except (TypeError, pl.exceptions.PolarsError):  # of several types: each is read as text, like a cell of a table
        return pl.Series(name, [None if item is None else str(item) for item in items], dtype=pl.String)


def _values(column: pl.Series) -> Any:
    """As pandas has it: whole numbers with empty cells are floats, texts and flags objects."""
    if column.dtype.is_numeric():
        return column.to_numpy()
    return column.to_list() if column.null_count() or column.dtype != pl.Boolean else column.to_numpy()
