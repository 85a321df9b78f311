"""Writing HTML: text and attributes, tables, lists of facts. Text from data reaches HTML through `escape` alone.

What a notebook shows has no script and no style sheet: it must look right in light and dark themes, and where scripts
are not trusted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

# The five characters that can end a text or an attribute.
_NAMES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#x27;"})
_HIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
FONT = "font-family:system-ui,sans-serif;font-size:0.95em"
TABLE = "border-collapse:collapse;margin:0.4em 0"
CELL = "padding:0.15em 0.8em 0.15em 0;vertical-align:top;white-space:pre-wrap"


def escape(text: object) -> str:
    """Escape text for an element or a quoted attribute, so that it can end neither."""
    return visible(str(text)).translate(_NAMES)


def visible(text: str) -> str:
    """Text without the control characters that HTML does not allow, and without marks that turn the text around them."""
    return _HIDDEN.sub("\ufffd", text)


def chart_text(text: object) -> str:
    """Escape data for a plotly chart, which interprets some HTML tags but does not decode escaped quotes."""
    return visible(str(text)).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


@dataclass(frozen=True)
class Markup:
    """Text that is HTML already; everything else is escaped where it is put into a table."""

    text: str


def _cell(value: object) -> str:
    return value.text if isinstance(value, Markup) else escape("" if value is None else value)


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], title: str = "", right: Sequence[str] = ()) -> str:
    """A table; cells are escaped unless they are `Markup`."""
    sides = ["right" if name in right else "left" for name in columns]
    head = "".join(
        f'<th style="{CELL};text-align:{side}">{escape(name)}</th>' for name, side in zip(columns, sides, strict=True)
    )
    body = "".join(
        "<tr>"
        + "".join(f'<td style="{CELL};text-align:{side}">{_cell(cell)}</td>' for cell, side in zip(row, sides, strict=True))
        + "</tr>"
        for row in rows
    )
    caption = f'<caption style="text-align:left;caption-side:top;font-weight:600">{escape(title)}</caption>' if title else ""
    return f'<table style="{TABLE}">{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def facts(pairs: Iterable[tuple[str, object]]) -> str:
    """Names and values, one pair per line."""
    lines = "".join(
        f'<tr><th style="{CELL};text-align:left;font-weight:400;opacity:0.7">{escape(name)}</th>'
        f'<td style="{CELL};text-align:left">{_cell(value)}</td></tr>'
        for name, value in pairs
    )
    return f'<table style="{TABLE}"><tbody>{lines}</tbody></table>'


def panel(title: str, *parts: str) -> str:
    """What a notebook shows: a heading and parts that are HTML already."""
    return f'<div style="{FONT}"><div style="font-weight:650;margin:0.2em 0">{escape(title)}</div>{"".join(parts)}</div>'


def note(text: object) -> str:
    """A sentence on its own line."""
    return f'<div style="opacity:0.8;margin:0.2em 0;max-width:50em">{escape(text)}</div>'
