"""Reading a CSV file strictly: every cell as text, every row with its line number."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path

import polars as pl

from kerncast.errors import BadFile

LINE = "source_line"


def read_csv_text(path: Path) -> pl.DataFrame:
    """All cells as stripped text, with `source_line`; ragged, undecodable or headless files are refused."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, strict=True)
            header = [name.strip() for name in next(reader, [])]
            _check_header(header)
            lines: list[int] = []
            cells: list[list[str]] = []
            for row in reader:
                if not row:
                    continue
                if len(row) != len(header):
                    raise BadFile(
                        f"line {reader.line_num} has {len(row)} cells, the header has {len(header)}: the file is cut or damaged"
                    )
                lines.append(reader.line_num)
                cells.append([cell.strip() for cell in row])
    except UnicodeDecodeError as error:
        raise BadFile(f"not a text file ({error.reason} at byte {error.start}): is it compressed?") from error
    except csv.Error as error:
        raise BadFile(f"line {reader.line_num} is not CSV ({error})") from error
    columns = {name: [row[index] for row in cells] for index, name in enumerate(header)}
    frame = pl.DataFrame(columns, schema=dict.fromkeys(header, pl.String))
    return frame.with_columns(pl.Series(LINE, lines, dtype=pl.Int64))


def _check_header(header: list[str]) -> None:
    if not header or not all(header):
        raise BadFile("line 1 must name every column (is the file empty, or the header missing?)")
    repeated = sorted({name for name in header if header.count(name) > 1})
    if repeated:
        raise BadFile(f"line 1 names the column '{repeated[0]}' twice: rename one")
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


def refuse_cells(frame: pl.DataFrame, bad: pl.Series, column: str, rule: str) -> None:
    """Refuse the first bad cell with its line."""
    bad = bad.fill_null(False)
    if bad.any():
        row = bad.arg_max() or 0
        raise BadFile(f"line {frame[LINE][row]}: {column} {rule}, got '{frame[column][row]}'")


def whole_numbers(frame: pl.DataFrame, column: str) -> pl.Series:
    """A text column as integers."""
    values = frame[column].cast(pl.Int64, strict=False)
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
    bad = total != 1
    if bad.any():
        row = bad.arg_max() or 0
        raise BadFile(f"line {frame[LINE][row]}: exactly one of {', '.join(labels)} must be 1, {total[row]} are")
    chosen = pl.coalesce(pl.when(pl.col(name) == 1).then(pl.lit(label)) for name, label in labels.items())
    return flags.select(chosen).to_series()
