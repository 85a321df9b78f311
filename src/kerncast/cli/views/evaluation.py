"""Print results: lines as they are, tables ruled on a terminal and plain elsewhere."""

from __future__ import annotations

from collections.abc import Iterable

from kerncast.api.printing import echo
from kerncast.cli.views.output import draw
from kerncast.writing.terminal import TextTable


def show(blocks: Iterable[str | TextTable]) -> None:
    """Print lines and tables on stdout."""
    for block in blocks:
        if isinstance(block, TextTable):
            draw(block)
        else:
            echo(*block.split("\n"))
