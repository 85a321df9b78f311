"""Print results: lines and tables."""

from __future__ import annotations

from collections.abc import Iterable

import click

from kerncast.app.api.printing import echo
from kerncast.app.cli.options import in_options
from kerncast.app.cli.views.output import draw
from kerncast.core.io.terminal import TextTable


def show(blocks: Iterable[str | TextTable]) -> None:
    """Print lines and tables on stdout."""
    for block in blocks:
        if isinstance(block, TextTable):
            draw(block)
        else:
            echo(*in_options(block, click.get_current_context().command).split("\n"))
