"""Numbers and labels as a person reads them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from kerncast.core.io.html import chart_text as chart_text
from kerncast.core.io.terminal import on_device, three_digits
from kerncast.evaluating.points import part_of as part_of

# Six digits draw the same picture as seventeen, in a third of the bytes.
DIGITS = 6


def percent(value: float | None, digits: int = 1) -> str:
    """`97.3 %`; a value below 100 % never rounds up to 100, and one above 0 never rounds down to 0."""
    if value is None:
        return "–"
    text = f"{100 * value:.{digits}f}"
    step = 10.0**-digits
    if value < 1 and float(text) >= 100:
        text = f"{100 - step:.{digits}f}"
    if value > 0 and float(text) <= 0:
        text = f"{step:.{digits}f}"
    return f"{text} %"


def between(figure: Mapping[str, float | None] | None) -> str:
    """The interval of a figure: `96.1 to 98.0 %`, or nothing."""
    if figure is None or figure.get("lower") is None:
        return ""
    return f"{percent(figure['lower']).removesuffix(' %')} to {percent(figure['upper'])}"


def duration(nanoseconds: float | None) -> str:
    """`12.3 µs`."""
    if nanoseconds is None or not math.isfinite(nanoseconds):
        return "–"
    for factor, unit in ((1e9, "s"), (1e6, "ms"), (1e3, "µs")):
        if nanoseconds >= factor * 0.9995:
            return f"{three_digits(nanoseconds / factor)} {unit}"
    return f"{three_digits(nanoseconds)} ns"


def assignments(values: Mapping[str, Any]) -> str:
    """`M=128 N=256`: parameters in one line."""
    return " ".join(f"{name}={value}" for name, value in values.items())


def problem_of(row: Mapping[str, Any]) -> str:
    """The problem of a row, and its device where there are several."""
    return f"{assignments(part_of(row, 'problem'))}{on_device(row)}"


def short(values: Iterable[Any]) -> list[float | None]:
    """Numbers for the page: six digits, null for what is not finite."""
    return [None if value is None or not math.isfinite(value) else float(f"{value:.{DIGITS}g}") for value in values]
