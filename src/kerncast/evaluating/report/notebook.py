"""An evaluation as a notebook shows it: the headline, the tiles, the efficiency curve. No script, no style sheet."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from kerncast.core.io import html
from kerncast.core.io.terminal import counted, distinct
from kerncast.evaluating.report.headline import Card, cards, headline, levels, warnings
from kerncast.evaluating.report.words import percent

if TYPE_CHECKING:
    from kerncast.evaluating.results import Evaluation

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 560, 220, 46, 34, 10
# More points than this draw the same line.
MOST_POINTS = 400
COLOURS = {"@model": "#5b78e6", "@accent": "#d9772e", "@best": "#1fa07e"}
TILE = "border:1px solid rgba(128,128,128,0.35);border-radius:8px;padding:0.5em 0.8em;min-width:9em;max-width:14em"


def evaluation_html(evaluation: Evaluation) -> str:
    """The whole cell."""
    summary = evaluation.as_json()
    top = headline(summary)
    parts = [html.note(text) for text in warnings(summary)]
    if top is not None:
        parts.append(html.note(top.sentence))
    tiles = "".join(_tile(card) for card in cards(summary))
    parts.append(f'<div style="display:flex;flex-wrap:wrap;gap:0.5em;margin:0.6em 0">{tiles}</div>')
    if evaluation.overall.efficiency is not None and evaluation.problems.height:
        parts.append(_curve(evaluation, summary))
    parts.append(
        f'<details><summary>all figures</summary><pre style="overflow-x:auto">{html.escape(evaluation)}</pre></details>'
    )
    return html.panel(f"{evaluation.family}: {counted(evaluation.n, 'problem')}{distinct(summary['pooled'])}", *parts)


def _tile(card: Card) -> str:
    small = [text for text in (card.interval, card.beside) if text]
    lines = "".join(f'<div style="font-size:0.8em;opacity:0.75">{html.escape(text)}</div>' for text in small)
    title, value = html.escape(card.title), html.escape(card.value)
    return (
        f'<div style="{TILE}" title="{html.escape(card.meaning)}"><div style="font-size:0.85em;opacity:0.8">{title}</div>'
        f'<div style="font-size:1.4em;font-weight:600">{value}</div>{lines}</div>'
    )


def _curve(evaluation: Evaluation, summary: dict[str, Any]) -> str:
    """Every problem from the worst to the best, as a line; the baseline to beat and the noise ceiling across it."""
    values = np.sort(evaluation.problems["efficiency"].to_numpy())
    kept = np.unique(np.linspace(0, len(values) - 1, min(len(values), MOST_POINTS)).round().astype(int))
    lines = levels(summary)
    least = min(float(values[0]), *(value for value, _ in lines.values()), 0.99)
    low = max(0.0, math.floor(10 * least - 0.5) / 10)

    def x(share: float) -> float:
        return LEFT + share * (WIDTH - LEFT - 12)

    def y(value: float) -> float:
        return TOP + (1.0 - (value - low) / (1.0 - low)) * (HEIGHT - TOP - BOTTOM)

    points = [f"{x((place + 1) / len(values)):.1f},{y(float(values[place])):.1f}" for place in kept]
    if len(points) == 1:  # a single problem is a flat line
        points = [f"{x(0):.1f},{y(float(values[0])):.1f}", *points]
    step = 0.1 if low >= 0.5 else 0.2
    drawn = [_tick_y(value, y(value)) for value in np.arange(1.0, low - 1e-9, -step)]
    drawn += [_tick_x(share, x(share)) for share in (0.0, 0.25, 0.5, 0.75, 1.0)]
    for value, colour in lines.values():
        drawn.append(
            f'<line x1="{x(0):.1f}" x2="{x(1):.1f}" y1="{y(value):.1f}" y2="{y(value):.1f}" stroke="{COLOURS[colour]}" '
            'stroke-width="1.5" stroke-dasharray="5 4"/>'
        )
    drawn.append(f'<polyline points="{" ".join(points)}" fill="none" stroke="{COLOURS["@model"]}" stroke-width="2"/>')
    keys = [
        ("the model's choice", "@model"),
        *((f"{name}, {percent(value)}", colour) for name, (value, colour) in lines.items()),
    ]
    legend = " ".join(
        f'<span style="margin-right:1em"><span style="color:{COLOURS[colour]}">&#9644;</span> {html.escape(text)}</span>'
        for text, colour in keys
    )
    return (
        f'<div style="font-size:0.85em">{legend}</div><svg viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" role="img" '
        'aria-label="Efficiency by share of problems, from the worst to the best" style="max-width:100%;height:auto">'
        f"{''.join(drawn)}</svg>"
    )


def _tick_y(value: float, place: float) -> str:
    return (
        f'<line x1="{LEFT}" x2="{WIDTH - 12}" y1="{place:.1f}" y2="{place:.1f}" stroke="currentColor" stroke-opacity="0.15"/>'
        f'<text x="{LEFT - 6}" y="{place + 4:.1f}" text-anchor="end" font-size="11" fill="currentColor">{value:.0%}</text>'
    )


def _tick_x(share: float, place: float) -> str:
    last = " of problems" if share == 1.0 else ""
    anchor = "end" if last else "middle"
    return (
        f'<text x="{place:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="{anchor}" font-size="11" fill="currentColor">'
        f"{share:.0%}{last}</text>"
    )
