"""Read a program's answer: rows from JSON, CSV or plain text, the row that belongs to a vector, and its values."""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from kerncast.measuring.backends.command.benchmark import At, Read, Result
from kerncast.measuring.backends.command.template import Scope, text_of
from kerncast.measuring.backends.contract import Answer, Ended, Failed

UNITS = {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9}
# Floating-point operations per nanosecond: programs often print rates with more digits than times.
RATES = {"gflops": 1.0, "tflops": 1e3}
# Places in a text where a JSON value may begin that are tried before it counts as garbage.
JSON_STARTS = 10_000
_NOTHING = object()


def _step(place: Any, at: At) -> Any:
    """The value at a place; `_NOTHING` when there is none."""
    node = place
    for key in [at] if isinstance(at, str) else at:
        inside = range(-len(node), len(node)) if isinstance(node, list) else node if isinstance(node, Mapping) else ()
        if key not in inside:
            return _NOTHING
        node = node[key]
    return node


def _json_values(text: str) -> Iterator[Any]:
    """The JSON values in a text, whatever else was printed around them."""
    try:
        yield json.loads(text)
        return
    except (ValueError, RecursionError):
        pass
    decoder = json.JSONDecoder()
    end = 0
    for tried, start in enumerate(re.finditer(r"[\[{]", text)):
        if tried >= JSON_STARTS:
            return
        if start.start() < end:
            continue
        try:
            value, end = decoder.raw_decode(text, start.start())
        except (ValueError, RecursionError):
            continue
        yield value


def _json_rows(result: Result, text: str) -> Iterator[Any]:
    for value in _json_values(text):
        found = _step(value, result.rows)
        yield from found if isinstance(found, list) else [] if found is _NOTHING else [found]


def _csv_rows(result: Result, text: str) -> Iterator[Any]:
    """Rows below the first line that names every column in question."""
    wanted = {str(result.time.at), *(str(item.at) for item in result.match)}
    wanted |= {str(item.at) for item in (result.status, result.error, result.max_abs_err) if item}
    lines = [line for line in text.splitlines() if line.strip()]
    for number, line in enumerate(lines):
        if all(name in line for name in wanted):
            names = [cell.strip() for cell in next(csv.reader([line]))]
            if wanted <= set(names):
                rows = csv.reader(lines[number + 1 :])
                yield from (dict(zip(names, map(str.strip, row), strict=False)) for row in rows)
                return


def _regex_rows(result: Result, text: str) -> Iterator[Any]:
    """One row, each value the first group of its expression."""
    optional = (result.status, result.error, result.max_abs_err, result.label)
    places = [result.time.at, *(item.at for item in optional if item)]
    found = {str(at): re.search(str(at), text) for at in places}
    row = {at: match[1] for at, match in found.items() if match and match[1] is not None}
    if row:
        yield row


_ROWS: dict[str, Callable[[Result, str], Iterator[Any]]] = {"json": _json_rows, "csv": _csv_rows, "regex": _regex_rows}


def rows_of(result: Result, text: str) -> list[Any]:
    """The rows of an answer that have a time or a status."""
    try:
        rows = list(_ROWS[result.format](result, text))
    except csv.Error:
        return []
    places = [result.time.at, *([result.status.at] if result.status else [])]
    return [row for row in rows if any(_step(row, at) is not _NOTHING for at in places)]


def _fits(result: Result, row: Any, scope: Scope) -> bool:
    for item in result.match:
        found = _step(row, item.at)
        if found is _NOTHING:
            return False
        text = text_of(found)
        if item.equals is not None and text != scope.fill(item.equals):
            return False
        if item.pattern is not None and not re.fullmatch(scope.fill(item.pattern, escape=True), text):
            return False
    return True


def row_for(result: Result, rows: list[Any], scope: Scope) -> Any | None:
    """The row that belongs to a vector, by its content and never by its position; None when there is none."""
    fitting = [row for row in rows if _fits(result, row, scope)]
    if not fitting:
        return None
    if len(fitting) > 1 and result.pick == "only":
        raise Ended(
            "launch_error", f'{len(fitting)} results fit this vector: add to result.match, or set pick = "first" or "last"'
        )
    return fitting[-1 if result.pick == "last" else 0]


def _text(read: Read | None, row: Any) -> str:
    found = _NOTHING if read is None else _step(row, read.at)
    return "" if found is _NOTHING or found is None else " ".join(str(found).split())[:300]


def _number(value: Any) -> float:
    if isinstance(value, bool):
        return math.nan
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan


def answer_of(result: Result, row: Any, flops: float, verify: bool = True) -> Answer | Failed:
    """What a row says about its vector; `flops` turns a rate into a time. Only a checked row must report its error."""
    said = _text(result.error, row)
    if result.status is not None:
        word = text_of(value) if (value := _step(row, result.status.at)) is not _NOTHING else "none"
        status = result.status.values.get(word)
        if status is None:
            return Ended(
                "launch_error", f"the program said '{word[:80]}', for which result.status has no word: {said}".rstrip(": ")
            )
        if status != "ok":
            return Ended(status, said or f"the program said '{word}'")
    reported = _step(row, result.max_abs_err.at) if result.max_abs_err else None
    error = None if reported is _NOTHING or reported in (None, "") else _number(reported)
    if result.max_abs_err and result.tolerance is not None:
        if error is None and verify:
            return Ended("wrong_result", "the program was asked to check its result, but its answer has no largest error")
        if error is not None and not error <= result.tolerance:
            return Ended("wrong_result", f"the largest error is {error:g}, more than {result.tolerance:g}")
    value = _step(row, result.time.at)
    number, unit = _number(value), result.time.unit
    if not (math.isfinite(number) and number > 0):
        shown = "none" if value is _NOTHING else repr(value)[:80]
        return Ended("launch_error", f"the program's answer has no time: expected a positive number of {unit}, got {shown}")
    time_ns = number * UNITS[unit] if unit in UNITS else flops / (number * RATES[unit])
    label = _text(result.label, row)
    error = error if error is not None and math.isfinite(error) else None
    return Answer(time_ns, error, label=label if label and label.isprintable() else None)
