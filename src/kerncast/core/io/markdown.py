"""Writing Markdown: text from data stays text of the line or cell that it is in."""

from __future__ import annotations

import re

from kerncast.core.io.terminal import line

# What can begin a span, an element, a link or a cell. One underscore between two letters cannot.
_SPECIAL = re.compile(r"[\\`*<>&\[\]|~]|(?<![^\W_])_|_(?![^\W_])")


def text(value: object) -> str:
    """Text within a paragraph, a heading or a cell: one line, with no markup of its own."""
    return _SPECIAL.sub(lambda found: f"\\{found[0]}", line(value))


def code(value: object) -> str:
    """A code span, also within a cell."""
    plain = line(value).replace("|", "\\|") or " "
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", plain)), default=0))
    return f"{fence}{plain}{fence}" if len(fence) == 1 else f"{fence} {plain} {fence}"
