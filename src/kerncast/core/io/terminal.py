"""Text for a terminal or a log: plain tables, times and assignments as a person reads them.

In the width of a terminal words stay whole, and what all rows of a table share is said once.
"""

from __future__ import annotations

import json
import re
import unicodedata
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

LONGEST_LINE = 10_000
GAP = 2
HANG = 2
# By so many rows the layout is chosen; widths are those of all rows.
SAMPLED = 200
# What is in backticks, and a command after a colon, is copied: a line end in it would run half of the command.
# A number stays with its unit.
WORD = re.compile(r"\s*(?:(?<=: )(?:kerncast|cmake) .*|\S*\d (?:[num]?s|[kMGT]?B|%)(?!\w)\S*|(?:`[^`]*`|\S)+)")
# What begins a line of facts: `best config  `.
LABEL = re.compile(r"\s*\S+(?: \S+)* {2,}(?=\S)")

Cell = str | tuple[str, ...]
"""A tuple is a list, of which only the first are shown where there is no room."""


def printable(text: object) -> str:
    """Text from data in one line: control characters (colours, cursor moves, line ends) are escaped."""
    plain = str(text)
    if plain.isprintable():
        return plain
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in plain)


def json_printable(text: str) -> str:
    """JSON whose strings have no control character: a program reads the same values, and a terminal obeys none of them."""
    if text.isprintable():
        return text
    # What is outside of strings in JSON is printable or white space.
    return "".join(char if char.isprintable() or char in " \n\t\r" else json.dumps(char)[1:-1] for char in text)


def line(text: object) -> str:
    """One line for a terminal: `printable`, and cut where nobody reads on."""
    plain = str(text)
    if len(plain) <= LONGEST_LINE:
        return printable(plain)
    return f"{printable(plain[:LONGEST_LINE])} … ({len(plain):,} characters)"


def counted(count: int, noun: str) -> str:
    """`1 row`, `2,000 rows`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def distinct(pooled: Mapping[str, int] | None) -> str:
    """What follows a count of problems of several devices, where each counts once for each device."""
    return f", {pooled['problems']:,} distinct on {counted(pooled['devices'], 'device')}" if pooled else ""


@dataclass(frozen=True)
class TextTable:
    """A table that is not drawn yet; `str` aligns it with spaces, and nothing is cut. A cell that is a tuple is a list."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    title: str = ""
    right: Sequence[str] = ()
    """The columns that are aligned to the right."""
    minor: Sequence[str] = ()
    """The columns that a narrow terminal may leave out, the least important first."""

    @property
    def head(self) -> list[str]:
        """The names of the columns, which may be names of baselines or parameters from data."""
        return [line(name) for name in self.columns]

    @property
    def cells(self) -> list[list[str]]:
        """The rows as text without control characters."""
        return [[_text(cell) for cell in row] for row in self.rows]

    def laid_out(self, width: int) -> Layout:
        """Its lines on a terminal, without the title."""
        rows = [[tuple(map(line, cell)) if isinstance(cell, tuple) else _text(cell) for cell in row] for row in self.rows]
        sides = [name in self.right for name in self.columns]
        cells = list(zip(*rows, strict=True)) or [()] * len(self.columns)
        return lay_out(list(map(Column, self.head, cells, sides)), width, self.minor)

    def __str__(self) -> str:
        cells = self.cells
        widths = [max(len(text) for text in column) for column in zip(self.head, *cells, strict=True)]
        align: list[Callable[[str, int], str]] = [str.rjust if name in self.right else str.ljust for name in self.columns]
        lines = [
            "  ".join(place(text, width) for place, text, width in zip(align, row, widths, strict=True)).rstrip()
            for row in [self.head, *cells]
        ]
        return "\n".join([line(self.title), *lines] if self.title else lines)


def _text(cell: Any) -> str:
    return "" if cell is None else line(", ".join(map(str, cell)) if isinstance(cell, tuple) else cell)


def duration(nanoseconds: float | None) -> str:
    """A time that a person can read."""
    if nanoseconds is None:
        return "-"
    for factor, unit in ((1e9, "s"), (1e6, "ms"), (1e3, "us")):
        if nanoseconds >= factor:
            return f"{nanoseconds / factor:.3g} {unit}"
    return f"{nanoseconds:.3g} ns"


def three_digits(value: float | None) -> str:
    """A number as a person reads it; a large one is not in scientific notation."""
    if value is None:
        return "-"
    return f"{value:.0f}" if value >= 99.95 else f"{value:.3g}"


def assignments(values: Mapping[str, Any]) -> str:
    """`M=128 N=256`: parameters in one line."""
    return " ".join(f"{name}={value}" for name, value in values.items())


def on_device(row: Mapping[str, Any]) -> str:
    """` on h100`, where the row says its device: it does among rows of several."""
    return f" on {row['device']}" if row.get("device") else ""


def known(values: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters without those that are inactive."""
    return {name: value for name, value in values.items() if value is not None}


# -- the width of a terminal ------------------------------------------------------------------------------


def wide(text: str) -> int:
    """How many places of a terminal a text takes: some characters take two, accents none."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(char) else 1 + (unicodedata.east_asian_width(char) in "WF") for char in text)


def wrapped(text: str, width: int, hang: int = 0) -> list[str]:
    """The text in lines of whole words, all but the first moved to the right by `hang`; a longer word has its own line."""
    lines, taken = [""], 0
    for word in WORD.findall(text):
        if taken and taken + wide(word) > width:
            lines.append("")
            word, taken = word.lstrip(), 0
            word = " " * min(hang, max(width - wide(word), 0)) + word
        lines[-1] += word
        taken += wide(word)
    return lines


def fitted(text: str, width: int) -> list[str]:
    """One printed line as lines of a terminal; what continues a fact stands below the fact."""
    if wide(text) <= width:
        return [text]
    label = LABEL.match(text)
    hang = len(label[0]) if label and len(label[0]) <= width // 2 else len(text) - len(text.lstrip()) + HANG
    return wrapped(text, width, hang)


def whole(cell: Cell) -> str:
    """A cell with nothing left out."""
    return cell if isinstance(cell, str) else ", ".join(cell)


@dataclass(frozen=True)
class Layout:
    """A table as lines: what is said above it, the names of its columns, its rows."""

    above: list[str]
    head: list[str]
    body: list[str]


def lay_out(columns: Sequence[Column], width: int, minor: Sequence[str] = ()) -> Layout:
    """A table in lines of at most `width`, where no word is longer.

    From a table that is too wide, what is the same in all rows is taken out. If it is still too wide, its columns share
    several lines, in their order, and texts go on in the next line: in the way that takes the fewest lines. Where that is
    more than two for a row, minor columns are left out, the first of them first.
    """
    same: list[str] = []
    rows = len(columns[0].cells)
    if sum(column.natural + GAP for column in columns) - GAP > width and rows > 1:
        columns, same = _without_same(columns)
    above = wrapped(f"in all rows: {'; '.join(same)}", width, HANG) if same else []
    minor = [name for name in minor if any(column.name == name for column in columns)]
    for left_out in range(len(minor) + 1):
        groups = _groups([column for column in columns if column.name not in minor[:left_out]], width)
        body = [text for place in range(rows) for group in groups for text in group.row(place)]
        if len(body) <= 2 * rows:
            break
    if minor[:left_out]:
        said = f"left out: {', '.join(minor[:left_out])} (see --json, or a wider terminal)"
        above += wrapped(said, width, HANG)
    return Layout(above, [text for group in groups for text in group.head()], body)


def _groups(columns: Sequence[Column], width: int) -> list[_Group]:
    """The columns in their order, divided so that the table takes the fewest lines."""
    ways: list[tuple[int, list[_Group]]] = [(0, [])]  # for the first n columns: how many lines they take, and in which groups
    for end in range(1, len(columns) + 1):
        longer = [
            (lines + group.count(), [*groups, group])
            for begin, (lines, groups) in enumerate(ways)
            if (group := _grouped(columns[begin:end], width, HANG if begin else 0)) is not None
        ]
        ways.append(min(reversed(longer), key=lambda way: (way[0], len(way[1]))))  # of equals, the one that fills the first
    return ways[-1][1]


@dataclass(frozen=True)
class Column:
    """A column of a table."""

    name: str
    cells: tuple[Cell, ...]
    right: bool

    @cached_property
    def natural(self) -> int:
        return max(map(wide, (self.name, *map(whole, self.cells))))

    def least(self, width: int) -> int:
        """What it needs at least; a cell that would need a wider terminal needs nothing, for its line is too long anyway."""
        return max((size for size in self._sizes if size <= width - HANG), default=1)

    @cached_property
    def _sizes(self) -> set[int]:
        return {_longest_word(self.name), *map(self._least, self.cells), 1}

    @cached_property
    def lists(self) -> bool:
        return any(isinstance(cell, tuple) for cell in self.cells)

    def _least(self, cell: Cell) -> int:
        if not isinstance(cell, str):
            return wide(_first(cell, 0))
        return wide(cell) if self.right else _longest_word(cell)  # a number and its unit stay together

    def lines(self, cell: Cell, width: int, hang: int) -> list[str]:
        if wide(whole(cell)) <= width:
            return [whole(cell)]
        return wrapped(cell, width, hang) if isinstance(cell, str) else [_first(cell, width)]


@dataclass(frozen=True)
class _Group:
    """Columns side by side."""

    columns: Sequence[Column]
    widths: Sequence[int]
    indent: int

    def count(self) -> int:
        rows = min(len(self.columns[0].cells), SAMPLED)
        return sum(sum(1 for _ in self.row(place)) for place in range(rows)) + sum(1 for _ in self.head())

    def head(self) -> Iterator[str]:
        names = [wrapped(column.name, width) for column, width in zip(self.columns, self.widths, strict=True)]
        tallest = max(map(len, names))
        yield from self._lines([[""] * (tallest - len(name)) + name for name in names])

    def row(self, place: int) -> Iterator[str]:
        # The first column of a table is moved where it goes on: it does not look like the next row.
        hangs = [0 if self.indent else HANG, *[0] * len(self.columns)]
        cells = [
            column.lines(column.cells[place], width, hang)
            for column, width, hang in zip(self.columns, self.widths, hangs, strict=False)
        ]
        if self.indent and not any(map(any, cells)):
            return
        tallest = max(map(len, cells))
        yield from self._lines([cell + [""] * (tallest - len(cell)) for cell in cells])

    def _lines(self, cells: list[list[str]]) -> Iterator[str]:
        for texts in zip(*cells, strict=True):
            placed = []
            for text, column, width in zip(texts, self.columns, self.widths, strict=True):
                space = " " * (width - wide(text))
                placed.append(space + text if column.right else text + space)
            yield (" " * self.indent + (" " * GAP).join(placed)).rstrip()


def _grouped(columns: Sequence[Column], width: int, indent: int) -> _Group | None:
    """The columns side by side, or None where they have no room. Texts share the room equally, and lists what they leave."""
    room = width - indent - GAP * (len(columns) - 1)
    least = [column.least(width) for column in columns]
    if sum(least) > room and len(columns) > 1:
        return None

    def widths(text: int, items: int) -> list[int]:
        wished = (min(items if column.lists else text, column.natural) for column in columns)
        return list(map(max, least, wished))

    def widest(used: Callable[[int], list[int]]) -> int:
        return bisect_right(range(max(room, 0) + 1), room, key=lambda level: sum(used(level))) - 1

    text = widest(lambda level: widths(level, 0))
    return _Group(columns, widths(text, widest(lambda level: widths(text, level))), indent)


def _without_same(columns: Sequence[Column]) -> tuple[list[Column], list[str]]:
    """The columns that differ in some rows; and `status ok`, `config split_k=1` for what does not."""
    left: list[Column] = []
    same: list[str] = []
    for column in columns:
        if len(set(column.cells)) == 1:
            value = whole(column.cells[0])
        else:
            column, value = _without_same_words(column)
            left.append(column)
        if value:
            same.append(f"{column.name} {value}")
    return left or list(columns[:1]), same


def _without_same_words(column: Column) -> tuple[Column, str]:
    """The same for the assignments in a column of assignments."""
    cells = [whole(cell).split() for cell in column.cells]
    if not all("=" in word for words in cells for word in words):
        return column, ""
    shared = set(cells[0]).intersection(*cells[1:])
    kept = tuple(" ".join(word for word in words if word not in shared) for words in cells)
    return replace(column, cells=kept), " ".join(word for word in cells[0] if word in shared)


def _longest_word(text: str) -> int:
    return max((wide(word.strip()) for word in WORD.findall(text)), default=0)


def _first(items: tuple[str, ...], width: int) -> str:
    """The first of them that have room, at least one, and how many more there are."""
    texts = [", ".join(items[:count]) + f" and {len(items) - count} more" for count in range(1, len(items))] or [whole(items)]
    return next((text for text in reversed(texts) if wide(text) <= width), texts[0])
