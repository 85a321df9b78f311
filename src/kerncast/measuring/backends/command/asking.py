"""One pass over vectors: which go to one program, how long it may take, and which is to blame where there is no answer."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kerncast.core.op import Config, Problem
from kerncast.measuring.backends.command.process import MARGIN_SECONDS, Outcome, Pulse, located
from kerncast.measuring.backends.command.reading import answer_of, row_for, rows_of
from kerncast.measuring.backends.command.template import Scope, Value, names_in, text_of
from kerncast.measuring.backends.contract import Answer, Ended, Failed

if TYPE_CHECKING:
    from kerncast.measuring.backends.command import CommandBackend
    from kerncast.measuring.backends.command.benchmark import Input

RESULT_BYTES = 256 << 20
ID = "id"

Vector = tuple[Problem, Config]
Ask = tuple[int, Vector]
Answers = dict[int, Answer | Failed]


@dataclass(frozen=True)
class _Ran:
    """What came of one program: how it failed, if it did, the answers that it gave, and the vector that it was at."""

    failure: Failed | None
    answers: Answers
    at: int | None = None


class Asking:
    """One pass of questions: programs, their answers, and which vector is to blame when there is none."""

    def __init__(self, backend: CommandBackend, begin: Callable[[int, float], None], wanted: Mapping[str, Value]) -> None:
        self.backend, self.benchmark, self.begin, self.wanted = backend, backend.benchmark, begin, wanted

    def all(self, asked: Sequence[Ask]) -> Iterator[tuple[int, Answer | Failed]]:
        """The answers about all vectors, as many to a program as it takes."""
        size = self.benchmark.chunk if self.benchmark.mode == "chunk" else 1
        for group in self._alike(asked):
            for start in range(0, len(group), size):
                yield from self.together(group[start : start + size])

    def _alike(self, asked: Sequence[Ask]) -> list[list[Ask]]:
        """The vectors that may share a program: those for which the placeholders in `alike` stand for the same."""
        found: dict[tuple[str, ...], list[Ask]] = {}
        for position, vector in asked:
            try:
                scope = self.backend.scope(vector, "", self.wanted)
                key = tuple(text_of(scope[name]) for name in self.benchmark.alike)
            except Failed:  # reported when the vector is asked about
                key = ()
            found.setdefault(key, []).append((position, vector))
        return list(found.values())

    def together(self, asked: Sequence[Ask]) -> Iterator[tuple[int, Answer | Failed]]:
        """One program for these vectors; where it fails without an answer, fewer at a time, down to the culprit."""
        scopes: dict[int, Scope] = {}
        for position, vector in asked:
            try:
                scopes[position] = self.backend.scope(vector, self.backend.next_id(vector), self.wanted)
            except Failed as error:
                yield position, error
        if not scopes:
            return
        left = [item for item in asked if item[0] in scopes]
        self.begin(left[0][0], self._longest(len(left)) + MARGIN_SECONDS)
        try:
            ran = self._program(left, scopes)
        except Failed as error:
            ran = _Ran(error, {})
        yield from ran.answers.items()
        if ran.failure is not None and ran.failure.status in self.benchmark.reset_after:
            self.backend.reset()
        missing = [item for item in left if item[0] not in ran.answers]
        if ran.failure is None or len(left) == 1:
            lost = ran.failure or Ended("launch_error", "the program ended well, but its answer has no result for this vector")
            yield from ((position, lost) for position, _ in missing)
            return
        for part in _parts(missing, ran):
            yield from self.together(part)

    def _longest(self, count: int) -> float:
        """Seconds that a program may take which reports every vector in time."""
        return self.benchmark.startup + self.benchmark.timeout * count

    def _seconds(self, count: int) -> float:
        """Seconds that a program may take which reports nothing: one vector may be slow, the others take `each`."""
        timeout = self.benchmark.timeout
        usual = timeout if self.benchmark.each is None else min(timeout, self.benchmark.each)
        return self.benchmark.startup + timeout + usual * (count - 1)

    @cached_property
    def _progress(self) -> re.Pattern[bytes] | None:
        """What the program prints when it begins a vector; the group `id` tells which."""
        text = self.benchmark.progress
        return re.compile(progress_pattern(text).encode()) if text else None

    def _program(self, asked: Sequence[Ask], scopes: Mapping[int, Scope]) -> _Ran:
        """Start the program, wait and read."""
        backend, benchmark = self.backend, self.benchmark
        with backend.programs.folder() as scratch:
            files: dict[str, Value] = {"scratch": str(scratch), "vectors_file": str(scratch / "vectors.json")}
            files["result_file"] = str(scratch / "result")
            scopes = {position: Scope({**scope.values, **files}, scope.words) for position, scope in scopes.items()}
            first = scopes[asked[0][0]]
            compile_ns: float | None = None
            if backend.builder is not None:
                binary = backend.builder.binary(first)
                compile_ns = float(backend.builder.ready(binary))
                first = Scope({**first.values, "binary": str(binary.path)}, first.words)
            stdin = self._input(scopes, first, scratch)
            directory = first.fill(benchmark.directory)
            program, *arguments = first.fill_all(benchmark.argv)
            outcome = backend.programs.run(
                [located(program, directory), *arguments],
                self._seconds(len(asked)),
                {name: first.fill(text) for name, text in benchmark.environment.items()},
                directory or scratch,
                stdin,
                self._pulse(len(asked)),
            )
            failure = self._pattern(outcome) or outcome.failure(benchmark.exit_codes)
            text = (
                _read_file(directory or scratch, first.fill(benchmark.result.file)) if benchmark.result.file else outcome.stdout
            )
            if failure is not None and benchmark.mode == "vector":
                return _Ran(failure, {})
            named = {text_of(scope[ID]): position for position, scope in scopes.items()}
            return _Ran(failure, self._answers(asked, scopes, text, compile_ns, outcome), named.get(outcome.at))

    def _pulse(self, count: int) -> Pulse | None:
        """How the program is watched, if it says where it is."""
        if self._progress is None:
            return None
        return Pulse(self._progress, self.benchmark.timeout, self.benchmark.startup, self._longest(count))

    def _input(self, scopes: Mapping[int, Scope], first: Scope, scratch: Path) -> Path | None:
        """The document with the vectors, in the scratch folder."""
        wanted = self.benchmark.input
        if wanted is None:
            return None
        vectors = {text_of(scope[ID]): _vector(wanted, scope) for scope in scopes.values()}
        whole = {"vectors": list(vectors.values()), "vectors_by_id": vectors, "vector": next(iter(vectors.values()))}
        document = wanted.document
        if document is None:
            document = "{vectors}" if self.benchmark.mode == "chunk" else "{vector}"
        path = scratch / "vectors.json"
        path.write_text(json.dumps(first.document(document, whole)), encoding="utf-8")
        return path if wanted.to == "stdin" else None

    def _pattern(self, outcome: Outcome) -> Failed | None:
        for pattern in self.benchmark.patterns:
            for text in (outcome.stderr, outcome.stdout):
                if found := re.search(pattern.text, text):
                    line = text[text.rfind("\n", 0, found.start()) + 1 :].split("\n", 1)[0]
                    return Ended(pattern.status, " ".join(line.split())[:300])
        return None

    def _answers(
        self, asked: Sequence[Ask], scopes: Mapping[int, Scope], text: str, compile_ns: float | None, outcome: Outcome
    ) -> Answers:
        result = self.benchmark.result
        rows = rows_of(result, text)
        answers: Answers = {}
        for position, (problem, _) in asked:
            try:
                row = row_for(result, rows, scopes[position])
            except Failed as error:
                answers[position] = error
                continue
            if row is not None:
                said = answer_of(result, row, self.backend.flops(problem), bool(self.wanted["verify"]))
                answers[position] = replace(said, compile_ns=compile_ns) if isinstance(said, Answer) else said
            elif self.benchmark.mode == "vector":
                words = f"; its last line is: {outcome.last_line}" if outcome.last_line else "; it printed nothing"
                wanted = f"result that matches {result.time.at!r}" if result.format == "regex" else f"{result.format} result"
                answers[position] = Ended("launch_error", f"the program's answer has no {wanted}{words}")
        return answers


def progress_pattern(text: str) -> str:
    """`progress` as a regular expression: `{id}` becomes a group of that name, doubled braces single ones."""
    return Scope({ID: "(?P<id>[0-9a-f]+-[0-9]+-[0-9]+)"}, {}).fill(text) if names_in(text) else Scope({}, {}).fill(text)


def _parts(missing: list[Ask], ran: _Ran) -> list[list[Ask]]:
    """How the vectors without an answer are asked about again."""
    here = [item for item in missing if item[0] == ran.at]
    if here:  # the program said which vector it was at
        others = [item for item in missing if item[0] != ran.at]
        return [part for part in (here, others) if part]
    # A program that answers as it goes stopped at the first vector without an answer; others do not show where.
    cut = 1 if ran.answers else len(missing) // 2
    return [part for part in (missing[:cut], missing[cut:]) if part]


def _vector(wanted: Input, scope: Scope) -> Any:
    """One vector in the shape that the program reads."""
    shape = dict(wanted.vector)
    for variant in wanted.variants:
        if text_of(scope[variant.of]) in variant.values:
            shape = {name: text for name, text in shape.items() if name not in variant.without} | variant.vector
    return scope.document(shape) if shape else _plain(scope)


def _plain(scope: Scope) -> dict[str, Any]:
    """A vector as it is, for programs that read kerncast's own form."""
    parts = {
        kind: {name.partition(".")[2]: value for name, value in scope.values.items() if name.startswith(f"{kind}.")}
        for kind in ("problem", "config")
    }
    return {"id": scope["id"], **parts}


def _read_file(directory: str | Path, path: str) -> str:
    """The text of a result file, empty if there is none; a relative path starts at the program's folder."""
    try:
        with open(os.path.join(directory, path), "rb") as file:
            return file.read(RESULT_BYTES).decode(errors="replace")
    except OSError:
        return ""
