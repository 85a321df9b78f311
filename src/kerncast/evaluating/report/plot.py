"""What charts are made of: a figure with its words, axes, lines and dots."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from kerncast.core.arrays import Floats, Ints
from kerncast.evaluating.report.words import duration, short

Figure = dict[str, Any]

# Points are SVG elements: more than this slow a phone down and show nothing new.
MOST_POINTS = 4_000


@dataclass(frozen=True)
class Chart:
    """A figure with its title and the sentence that says how to read it."""

    name: str
    title: str
    reading: str
    figure: Figure


def axis(title: str, **more: Any) -> dict[str, Any]:
    """An axis with its title."""
    return {"title": {"text": title}, **more}


def share_axis(title: str, low: float | None = None) -> dict[str, Any]:
    """An axis of percent."""
    return axis(title, tickformat=",.0%", **({} if low is None else {"range": [low, 1.02]}))


def log_axis(title: str, values: Floats, text: Callable[[float], str] = "{:g}".format) -> dict[str, Any]:
    """A log axis with a little room at both ends; ticks at decades, and between them where there are few."""
    low, high = math.log10(values.min()), math.log10(values.max())
    margin = 0.05 * (high - low) + 0.03
    low, high = low - margin, high + margin
    digits = (1,) if high - low > 2 else (1, 2, 5) if high - low > 0.7 else (1, 1.5, 2, 3, 4, 5, 6, 8)
    ticks = [digit * 10.0**place for place in range(math.floor(low), math.ceil(high) + 1) for digit in digits]
    return axis(title, type="log", range=short([low, high]), tickvals=short(ticks), ticktext=[text(tick) for tick in ticks])


def time_axis(title: str, values: Floats) -> dict[str, Any]:
    """A log axis of nanoseconds, each tick in the unit that fits."""
    return log_axis(title, values, duration)


def line(name: str, x: Any, y: Any, color: str, **more: Any) -> dict[str, Any]:
    """A line; colours are names that the page fills in."""
    style = {"color": color, "width": more.pop("width", 2.5), "dash": more.pop("dash", "solid")}
    return {"type": "scatter", "mode": more.pop("mode", "lines"), "name": name, "x": x, "y": y, "line": style, **more}


def dots(name: str, x: Any, y: Any, color: str, **more: Any) -> dict[str, Any]:
    """Markers; colours are names that the page fills in."""
    marker = {
        "color": color,
        "size": more.pop("size", 6),
        "opacity": more.pop("opacity", 0.8),
        "symbol": more.pop("symbol", "circle"),
    }
    return {"type": "scatter", "mode": "markers", "name": name, "x": x, "y": y, "marker": marker, **more}


def low_end(values: Floats) -> float:
    """Where an axis of shares begins: at 0, unless everything is far above it."""
    return max(0.0, math.floor(10 * float(values.min()) - 0.5) / 10) if len(values) else 0.0


def sampled(count: int, most: int = MOST_POINTS) -> Ints:
    """Indices of the points to draw: the same sample every time, in order."""
    if count <= most:
        return np.arange(count)
    return np.sort(np.random.default_rng(0).permutation(count)[:most])
