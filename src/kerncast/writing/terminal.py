"""Text for a terminal or a log: plain tables, times and assignments as a person reads them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kerncast.writing.layout import Column, Layout, lay_out

LONGEST_LINE = 10_000


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
