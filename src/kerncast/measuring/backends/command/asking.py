"""One pass over vectors: which go to one program, how long it may take, which is to blame where there is no answer, and how an
answer is read: rows from JSON, CSV or plain text, the row that belongs to a vector, and its values."""

from __future__ import annotations

import csv
import json
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kerncast.core.op import Config, Problem
from kerncast.measuring.backends.command.process import MARGIN_SECONDS, ProgramEnd, Pulse, located
from kerncast.measuring.backends.command.schema import (
    RATES,
    UNITS,
    At,
    InputTable,
    ResultTable,
    Scope,
    ValuePlace,
    progress_pattern,
    text_of,
)
from kerncast.measuring.backends.contract import Ended, Failed, ProgramAnswer

if TYPE_CHECKING:
    from kerncast.measuring.backends.command import CommandBackend

RESULT_BYTES = 256 << 20
# Places in a text where a JSON value may begin that are tried before it counts as garbage.
JSON_STARTS = 10_000
_NOTHING = object()

Vector = tuple[Problem, Config]
Answers = dict[int, ProgramAnswer | Failed]


@dataclass(frozen=True)
class _ProgramAnswers:
    """What came of one program: how it failed, if it did, the answers that it gave, and the vector that it was at."""

    failure: Failed | None
    answers: Answers
    at: int | None = None


class Pass:
    """Questions about many vectors: programs, their answers, and which vector is to blame when there is none."""

    def __init__(
        self, backend: CommandBackend, vectors: Sequence[Vector], begin: Callable[[int, float], None], verify: bool, cache: str
    ) -> None:
        self.backend, self.benchmark, self.begin, self.verify = backend, backend.benchmark, begin, verify
        self.vectors = vectors
        self.wanted = {"verify": verify, "cache": cache}

    def answers(self) -> Iterator[tuple[int, ProgramAnswer | Failed]]:
        """The answers about all vectors, as many to a program as it takes."""
        alike: dict[tuple[str, ...], list[int]] = {}
        for position, vector in enumerate(self.vectors):
            try:
                scope = self.backend.scope(vector, "", self.wanted)
                key = tuple(text_of(scope[name]) for name in self.benchmark.alike)
            except Failed:  # reported when the vector is asked about
                key = ()
            alike.setdefault(key, []).append(position)
        size = self.benchmark.chunk if self.benchmark.mode == "chunk" else 1
        for group in alike.values():
            for start in range(0, len(group), size):
                yield from self._together(group[start : start + size])

    def _together(self, positions: Sequence[int]) -> Iterator[tuple[int, ProgramAnswer | Failed]]:
        """One program for these vectors; where it fails without an answer, fewer at a time, down to the culprit."""
        scopes: dict[int, Scope] = {}
        for position in positions:
            vector = self.vectors[position]
            try:
                scopes[position] = self.backend.scope(vector, self.backend.next_id(vector), self.wanted)
            except Failed as error:
                yield position, error
        if not scopes:
            return
        self.begin(next(iter(scopes)), self._longest(len(scopes)) + MARGIN_SECONDS)
        try:
            ran = self._program(scopes)
        except Failed as error:
            ran = _ProgramAnswers(error, {})
        yield from ran.answers.items()
        if ran.failure is not None and ran.failure.status in self.benchmark.reset_after:
            self.backend.reset()
        missing = [position for position in scopes if position not in ran.answers]
        if ran.failure is None or len(scopes) == 1:
            lost = ran.failure or Ended("launch_error", "the program ended well, but its answer has no result for this vector")
            yield from ((position, lost) for position in missing)
            return
        if ran.at in missing:  # the program said which vector it was at
            parts = [ran.at], [position for position in missing if position != ran.at]
        else:
            # A program that answers as it goes stopped at the first vector without an answer; others do not show where.
            cut = 1 if ran.answers else len(missing) // 2
            parts = missing[:cut], missing[cut:]
        for part in parts:
            yield from self._together(part)

    def _longest(self, count: int) -> float:
        """Seconds that a program may take which reports every vector in time."""
        return self.benchmark.startup + self.benchmark.timeout * count

    @cached_property
    def _progress(self) -> re.Pattern[bytes] | None:
        """What the program prints when it begins a vector; the group `id` tells which."""
        text = self.benchmark.progress
        return re.compile(progress_pattern(text).encode()) if text else None

    def _program(self, scopes: Mapping[int, Scope]) -> _ProgramAnswers:
        """Start the program, wait and read."""
        backend, benchmark, count = self.backend, self.benchmark, len(scopes)
        with backend.programs.folder() as scratch:
            document, file = scratch / "vectors.json", benchmark.result.file
            files = {"scratch": str(scratch), "vectors_file": str(document), "result_file": str(scratch / "result")}
            scopes = {position: scope.plus(**files) for position, scope in scopes.items()}
            first = next(iter(scopes.values()))
            compile_ns: float | None = None
            if backend.builder is not None:
                binary = backend.builder.binary(first)
                compile_ns = float(backend.builder.ready(binary))
                first = first.plus(binary=str(binary.path))
            if benchmark.input is not None:
                document.write_text(json.dumps(self._document(benchmark.input, first, scopes)), encoding="utf-8")
            directory = first.fill(benchmark.directory)
            program, *arguments = first.fill_all(benchmark.argv)
            # Of a program that reports nothing, one vector may be slow; the others take `each`.
            usual = min(benchmark.timeout, benchmark.each or benchmark.timeout)
            ended = backend.programs.run(
                [located(program, directory), *arguments],
                benchmark.startup + benchmark.timeout + usual * (count - 1),
                {name: first.fill(text) for name, text in benchmark.environment.items()},
                directory or scratch,
                document if benchmark.input is not None and benchmark.input.to == "stdin" else None,
                self._progress and Pulse(self._progress, benchmark.timeout, benchmark.startup, self._longest(count)),
            )
            failure = self._status_of_output(ended) or ended.failure(benchmark.exit_codes)
            if failure is not None and benchmark.mode == "vector":
                return _ProgramAnswers(failure, {})
            text = _read_file(directory or scratch, first.fill(file)) if file else ended.stdout
            named = {text_of(scope["id"]): position for position, scope in scopes.items()}
            return _ProgramAnswers(failure, self._read(scopes, text, compile_ns, ended), named.get(ended.at))

    def _document(self, wanted: InputTable, first: Scope, scopes: Mapping[int, Scope]) -> Any:
        """What the program is sent."""
        vectors = {text_of(scope["id"]): vector_document(wanted, scope) for scope in scopes.values()}
        document = wanted.document
        if document is None:
            document = "{vectors}" if self.benchmark.mode == "chunk" else "{vector}"
        every = list(vectors.values())
        return first.plus(vectors=every, vectors_by_id=vectors, vector=every[0]).document(document)

    def _status_of_output(self, ended: ProgramEnd) -> Failed | None:
        for pattern in self.benchmark.patterns:
            for text in (ended.stderr, ended.stdout):
                if found := re.search(pattern.text, text):
                    line = text[text.rfind("\n", 0, found.start()) + 1 :].split("\n", 1)[0]
                    return Ended(pattern.status, " ".join(line.split())[:300])
        return None

    def _read(self, scopes: Mapping[int, Scope], text: str, compile_ns: float | None, ended: ProgramEnd) -> Answers:
        result = self.benchmark.result
        rows = rows_of(result, text)
        answers: Answers = {}
        for position, scope in scopes.items():
            try:
                row = row_for(result, rows, scope)
                if row is not None:
                    said = answer_of(result, row, self.backend.flops(self.vectors[position][0]), self.verify)
                    answers[position] = replace(said, compile_ns=compile_ns)
                elif self.benchmark.mode == "vector":
                    words = f"; its last line is: {ended.last_line}" if ended.last_line else "; it printed nothing"
                    form = f"result that matches {result.time.at!r}" if result.format == "regex" else f"{result.format} result"
                    raise Ended("launch_error", f"the program's answer has no {form}{words}")
            except Failed as error:
                answers[position] = error
        return answers


def vector_document(wanted: InputTable, scope: Scope) -> Any:
    """One vector in the shape that the program reads."""
    shape = wanted.vector
    for variant in wanted.variants:
        if text_of(scope[variant.of]) in variant.values:
            shape = variant.changed(shape)
    if shape:
        return scope.document(shape)
    # As it is, for programs that read kerncast's own form.
    parts: dict[str, dict[str, Any]] = {"problem": {}, "config": {}}
    for name, value in scope.values.items():
        half, _, short = name.partition(".")
        if half in parts:
            parts[half][short] = value
    return {"id": scope["id"], **parts}


def _read_file(directory: str | Path, path: str) -> str:
    """The text of a result file, empty if there is none; a relative path starts at the program's folder."""
    try:
        with open(os.path.join(directory, path), "rb") as file:
            return file.read(RESULT_BYTES).decode(errors="replace")
    except OSError:
        return ""


# -- answers ---------------------------------------------------------------------------------------------


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


def _json_rows(result: ResultTable, text: str) -> Iterator[Any]:
    for value in _json_values(text):
        found = _step(value, result.rows)
        yield from found if isinstance(found, list) else [] if found is _NOTHING else [found]


def _csv_rows(result: ResultTable, text: str) -> Iterator[Any]:
    """Rows below the first line that names every column in question."""
    wanted = {str(at) for key, at in result.places() if key != "result.label"}
    lines = [line for line in text.splitlines() if line.strip()]
    for number, line in enumerate(lines):
        if all(name in line for name in wanted):
            names = [cell.strip() for cell in next(csv.reader([line]))]
            if wanted <= set(names):
                rows = csv.reader(lines[number + 1 :])
                yield from (dict(zip(names, map(str.strip, row), strict=False)) for row in rows)
                return


def _regex_rows(result: ResultTable, text: str) -> Iterator[Any]:
    """One row, each value the first group of its expression."""
    found = {str(at): re.search(str(at), text) for _, at in result.places()}
    row = {at: match[1] for at, match in found.items() if match and match[1] is not None}
    if row:
        yield row


_ROWS: dict[str, Callable[[ResultTable, str], Iterator[Any]]] = {"json": _json_rows, "csv": _csv_rows, "regex": _regex_rows}


def rows_of(result: ResultTable, text: str) -> list[Any]:
    """The rows of an answer that have a time or a status."""
    try:
        rows = list(_ROWS[result.format](result, text))
    except csv.Error:
        return []
    places = [item.at for item in (result.time, result.status) if item]
    return [row for row in rows if any(_step(row, at) is not _NOTHING for at in places)]


def _fits(result: ResultTable, row: Any, scope: Scope) -> bool:
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


def row_for(result: ResultTable, rows: list[Any], scope: Scope) -> Any | None:
    """The row that belongs to a vector, by its content and never by its position; None when there is none."""
    fitting = [row for row in rows if _fits(result, row, scope)]
    if not fitting:
        return None
    if len(fitting) > 1 and result.pick == "only":
        many = f'{len(fitting)} results fit this vector: add to result.match, or set pick = "first" or "last"'
        raise Ended("launch_error", many)
    return fitting[-1 if result.pick == "last" else 0]


def _text(read: ValuePlace | None, row: Any) -> str:
    found = _NOTHING if read is None else _step(row, read.at)
    return "" if found is _NOTHING or found is None else " ".join(str(found).split())[:300]


def _number(value: Any) -> float:
    if isinstance(value, bool):
        return math.nan
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan


def answer_of(result: ResultTable, row: Any, flops: float, verify: bool = True) -> ProgramAnswer:
    """What a row says about its vector; `flops` turns a rate into a time. Only a checked row must report its error."""
    if result.status is not None:
        said = _text(result.error, row)
        word = text_of(value) if (value := _step(row, result.status.at)) is not _NOTHING else "none"
        status = result.status.values.get(word)
        if status is None:
            unknown = f"the program said '{word[:80]}', for which result.status has no word: {said}"
            raise Ended("launch_error", unknown.rstrip(": "))
        if status != "ok":
            raise Ended(status, said or f"the program said '{word}'")
    reported = _step(row, result.max_abs_err.at) if result.max_abs_err else None
    error = None if reported is _NOTHING or reported in (None, "") else _number(reported)
    if result.max_abs_err and result.tolerance is not None:
        if error is None and verify:
            raise Ended("wrong_result", "the program was asked to check its result, but its answer has no largest error")
        if error is not None and not error <= result.tolerance:
            raise Ended("wrong_result", f"the largest error is {error:g}, more than {result.tolerance:g}")
    value = _step(row, result.time.at)
    number, unit = _number(value), result.time.unit
    if not (math.isfinite(number) and number > 0):
        shown = "none" if value is _NOTHING else repr(value)[:80]
        raise Ended("launch_error", f"the program's answer has no time: expected a positive number of {unit}, got {shown}")
    time_ns = number * UNITS[unit] if unit in UNITS else flops / (number * RATES[unit])
    label = _text(result.label, row)
    error = error if error is not None and math.isfinite(error) else None
    return ProgramAnswer(time_ns, error, label=label if label and label.isprintable() else None)
