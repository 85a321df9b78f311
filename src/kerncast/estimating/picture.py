"""Bars as SVG: a name, a length and a label each, coloured by kind."""

from __future__ import annotations

from collections.abc import Sequence

from kerncast.writing.html import escape

WIDTH, NAMES, BAR, LABELS = 980, 330, 430, 220
LINE, TOP = 22, 64
COLOURS = ("#2a6fb0", "#e08a2e", "#8a8a8a", "#5a9e5a")
LONGEST_NAME = 46


def bars(title: str, headline: str, rows: Sequence[tuple[str, float, str, str]]) -> str:
    """One bar for each row: its name, its length, its label and its kind."""
    longest = max((row[1] for row in rows), default=1.0) or 1.0
    kinds = list(dict.fromkeys(row[3] for row in rows))
    height = TOP + LINE * (len(rows) + 1) + 16
    parts = []
    for place, (name, length, label, kind) in enumerate(rows):
        y = TOP + LINE * place
        wide = max(1.0, length / longest * BAR)
        shown = name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}…"
        parts.append(
            f'<text x="{NAMES - 8}" y="{y + 14}" text-anchor="end">{escape(shown)}</text>'
            f'<rect x="{NAMES}" y="{y + 2}" width="{wide:.1f}" height="{LINE - 6}" fill="{_colour(kinds, kind)}"/>'
            f'<text x="{NAMES + wide + 6:.1f}" y="{y + 14}">{escape(label)}</text>'
        )
    legend = "".join(
        f'<rect x="{NAMES + 130 * place}" y="{height - 24}" width="12" height="12" fill="{_colour(kinds, kind)}"/>'
        f'<text x="{NAMES + 130 * place + 18}" y="{height - 14}">{escape(kind)}</text>'
        for place, kind in enumerate(kinds)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img" '
        f'font-family="sans-serif" font-size="13"><rect width="100%" height="100%" fill="#fff"/>'
        f'<text x="16" y="24" font-size="15" font-weight="600">{escape(title)}</text>'
        f'<text x="16" y="46">{escape(headline)}</text>{"".join(parts)}{legend}</svg>\n'
    )


def _colour(kinds: Sequence[str], kind: str) -> str:
    return COLOURS[kinds.index(kind) % len(COLOURS)]
