"""Text for a terminal or a log: plain tables, times and assignments as a person reads them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


def printable(text: object) -> str:
    """Text from data in one line: control characters (colours, cursor moves, line ends) are escaped."""
    plain = str(text)
    if plain.isprintable():
        return plain
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in plain)


@dataclass(frozen=True)
class TextTable:
    """A table that is not drawn yet; `str` aligns it with spaces, and nothing is cut."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    title: str = ""
    right: Sequence[str] = ()
    """The columns that are aligned to the right."""

    @property
    def cells(self) -> list[list[str]]:
        """The rows as text without control characters."""
        return [["" if cell is None else printable(cell) for cell in row] for row in self.rows]

    def __str__(self) -> str:
        cells = self.cells
        widths = [max(len(text) for text in column) for column in zip(self.columns, *cells, strict=True)]
        align: list[Callable[[str, int], str]] = [str.rjust if name in self.right else str.ljust for name in self.columns]
        lines = [
            "  ".join(place(text, width) for place, text, width in zip(align, row, widths, strict=True)).rstrip()
            for row in [list(self.columns), *cells]
        ]
        return "\n".join([printable(self.title), *lines] if self.title else lines)


def duration(nanoseconds: float | None) -> str:
    """A time that a person can read."""
    if nanoseconds is None:
        return "-"
    for factor, unit in ((1e9, "s"), (1e6, "ms"), (1e3, "us")):
        if nanoseconds >= factor:
            return f"{nanoseconds / factor:.3g} {unit}"
    return f"{nanoseconds:.3g} ns"


def assignments(values: Mapping[str, Any]) -> str:
    """`M=128 N=256`: parameters in one line."""
    return " ".join(f"{name}={value}" for name, value in values.items())


def known(values: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters without those that are inactive."""
    return {name: value for name, value in values.items() if value is not None}
