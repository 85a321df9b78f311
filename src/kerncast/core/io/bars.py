"""Bars with intervals as SVG: one picture that a browser, a README and an HTML page show alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kerncast.core.io.html import escape

PLOT, ROW, LEFT, RIGHT, TOP, BOTTOM = 480, 28, 190, 90, 56, 44
# About the width of a character of 13 pixels, and of one of the title; longer labels and titles are cut.
CHARACTER, TITLE_CHARACTER, LONGEST_LABEL, LONGEST_TITLE = 7.2, 8.6, 60, 200
COLOURS = {"model": "#2a6fb0", "roofline": "#c77f2a"}
OTHER = "#777777"


@dataclass(frozen=True)
class Bar:
    """One bar: its value, the interval around it, and a mark (a floor, say)."""

    label: str
    value: float
    text: str
    """What is written at its end."""
    lower: float | None = None
    upper: float | None = None
    mark: float | None = None
    kind: str = "model"


def bars_svg(title: str, subtitle: str, bars: Sequence[Bar], mark: str = "") -> str:
    """Horizontal bars from top to bottom; `mark` says what the marks are, `subtitle` what the lengths are."""
    longest = max([value for bar in bars for value in (bar.value, bar.upper, bar.mark) if value is not None], default=1.0)
    height = TOP + ROW * len(bars) + BOTTOM
    scale = PLOT / longest if longest > 0 else 0.0
    title, subtitle = _cut(title, LONGEST_TITLE), _cut(subtitle, LONGEST_TITLE)
    left = max(LEFT, *(round(CHARACTER * len(_cut(bar.label))) + 16 for bar in bars), 0)
    right = max(RIGHT, *(round(CHARACTER * len(_cut(bar.text))) + 16 for bar in bars), 0)
    width = max(left + PLOT + right, round(TITLE_CHARACTER * len(title)) + 32, round(CHARACTER * len(subtitle)) + 32)
    parts = [_bar(bar, left, TOP + ROW * place, scale) for place, bar in enumerate(bars)]
    kinds = dict.fromkeys(bar.kind for bar in bars)
    legend = [f"{kind}: {'blue' if kind == 'model' else 'orange' if kind == 'roofline' else 'grey'}" for kind in kinds]
    legend += ["line: 90 % interval"] if any(bar.lower is not None for bar in bars) else []
    legend += [f"dot: {mark}"] if mark and any(bar.mark is not None for bar in bars) else []
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
        f'font-family="sans-serif" font-size="13"><rect width="100%" height="100%" fill="#fff"/>'
        f'<text x="16" y="24" font-size="15" font-weight="600">{escape(title)}</text>'
        f'<text x="16" y="44" fill="#555">{escape(subtitle)}</text>{"".join(parts)}'
        f'<text x="16" y="{height - 16}" fill="#555">{escape("; ".join(legend))}</text></svg>\n'
    )


def _cut(text: str, longest: int = LONGEST_LABEL) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def _bar(bar: Bar, left: float, top: float, scale: float) -> str:
    middle, end = top + ROW / 2, left + bar.value * scale
    told = max(value for value in (bar.value, bar.upper, bar.mark) if value is not None) * scale + left + 8
    colour = COLOURS.get(bar.kind, OTHER)
    drawn = (
        f'<text x="{left - 8}" y="{middle + 4:.1f}" text-anchor="end">{escape(_cut(bar.label))}</text>'
        f'<rect x="{left}" y="{top + 5:.1f}" width="{max(end - left, 1.0):.1f}" height="{ROW - 10}" fill="{colour}"/>'
    )
    if bar.lower is not None and bar.upper is not None:
        drawn += (
            f'<path d="M{left + bar.lower * scale:.1f} {middle:.1f} H{left + bar.upper * scale:.1f}" stroke="#222" '
            'stroke-width="2"/>'
        )
    if bar.mark is not None:
        drawn += f'<circle cx="{left + bar.mark * scale:.1f}" cy="{middle:.1f}" r="4" fill="#fff" stroke="#222"/>'
    return drawn + f'<text x="{told:.1f}" y="{middle + 4:.1f}">{escape(_cut(bar.text))}</text>'


def bars_page(title: str, subtitle: str, bars: Sequence[Bar], mark: str = "") -> str:
    """The same picture as a page of its own."""
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title></head>'
        f"<body>{bars_svg(title, subtitle, bars, mark)}</body></html>\n"
    )
