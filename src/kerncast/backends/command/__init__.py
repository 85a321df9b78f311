"""The `command` backend: any external benchmark program, by a TOML file that says how to call it and how to read its answer.

The files are the pipeline: `benchmark` (the TOML file) and `rules` (what it must obey), `template` (placeholders),
`build` (a binary per kernel), `process` and `guard` (programs that may do anything), `reading` (their answers).
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import msgspec

from kerncast import devices
from kerncast.backends.command.benchmark import Benchmark
from kerncast.backends.command.build import Binary, Builder
from kerncast.backends.command.places import check_places
from kerncast.backends.command.process import Outcome, Programs, located
from kerncast.backends.command.reading import answer_of, row_for, rows_of
from kerncast.backends.command.template import Scope, Value, Word, names_in, text_of
from kerncast.backends.contract import Answer, Ended, Failed, TimesItself, Unsupported
from kerncast.device import Device
from kerncast.errors import CannotWrite, InvalidValue, KerncastError, NotFound
from kerncast.expr import Program
from kerncast.op import Config, Problem

BENCHMARK, UNCHECKED = "benchmark", "unchecked"
VERSION_SECONDS = 60.0
RESET_SECONDS = 300.0
# Beyond a program's own deadline, for killing it, reading its files and a reset.
MARGIN_SECONDS = 30.0
RESULT_BYTES = 256 << 20
HASHED_BYTES = 64 << 20

Vector = tuple[Problem, Config]
Ask = tuple[int, Vector]


class CommandBackend(TimesItself):
    """Runs the program that a benchmark file describes."""

    name = "command"
    doc = "any external benchmark program, described by a TOML file"
    # Families that a shipped benchmark measures; a user's own benchmark may name any other.
    families = (
        *("eltwise_unary/single", "gemm/ck_tile", "gemm/cutlass"),
        *("grouped_conv_bwd_data/ck_tile", "grouped_conv_bwd_weight/ck_tile", "grouped_conv_forward/ck_tile"),
        "reshard/single",
    )

    @classmethod
    def configured(cls, index: str, options: Mapping[str, str]) -> Self:
        if BENCHMARK not in options:
            raise InvalidValue("backend command runs what a benchmark describes: name one with `benchmark`")
        return cls(index, msgspec.json.decode(options[BENCHMARK], type=Benchmark), UNCHECKED not in options)

    @classmethod
    def options(cls, benchmark: Benchmark, verify: bool = True) -> dict[str, str]:
        """Options that pass the benchmark to workers as it is now (its file may change), and whether results are checked."""
        return {BENCHMARK: msgspec.json.encode(benchmark).decode()} | ({} if verify else {UNCHECKED: "true"})

    def __init__(self, index: str = "0", benchmark: Benchmark | None = None, verify: bool = True) -> None:
        super().__init__(index)
        if benchmark is None:
            raise InvalidValue("backend command runs what a benchmark describes: name one with `benchmark`")
        self.benchmark, self.checked = benchmark, benchmark.checks and verify
        self.family = benchmark.measured_family
        self.words = {name: Word(item.of, item.values, item.text) for name, item in benchmark.words.items()}
        self.static: dict[str, Value] = {**benchmark.setting_values(), "device": index}
        self._ids = itertools.count()
        # Programs and folders that are the same for all vectors must exist before anything is measured.
        check_places(benchmark, self.static, self.words)

    def _early(self, text: str) -> str:
        return Scope(self.static, self.words).fill(text)

    # -- what is measured on ---------------------------------------------------------------------------

    @cached_property
    def programs(self) -> Programs:
        """Starts programs, and ends them."""
        return Programs()

    def device(self) -> Device:
        return devices.get(self._early(self.benchmark.device))

    @cached_property
    def _versions(self) -> dict[str, str]:
        found = {}
        for name, source in self.benchmark.software.items():
            if isinstance(source, str):
                found[name] = self._early(source)
                continue
            argv = [self._early(part) for part in source]
            asking = f"benchmark {self.benchmark.name} asks `{' '.join(argv)}` for the version of {name}, but"
            instead = f"or fix software.{name} in a copy of the benchmark"
            try:
                outcome = self.programs.run(argv, VERSION_SECONDS, self._environment(self.static))
            except Ended as error:
                raise NotFound(f"{asking} {argv[0]} is not a program here: install it, {instead}") from error
            failure = outcome.failure({})
            if failure is not None:
                raise InvalidValue(f"{asking} {failure}: fix that, {instead}")
            found[name] = next(iter(outcome.stdout.split("\n")), "").strip()
        return found

    def software(self, family: str) -> Mapping[str, str]:
        checked = "checked by the program" if self.checked else "not checked"
        # Rows keep the key that datasets have had from the first version on.
        known = {"recipe": f"{self.benchmark.name} {self.benchmark.digest}", "results": checked, **self._versions}
        hasher = hashlib.blake2b(digest_size=6)
        folder = self._early(self.benchmark.directory) if self._known(self.benchmark.directory, self.static) else ""
        for part in self.benchmark.argv:
            if set(names_in(part)) <= set(self.static):
                text = self._early(part)
                _hash_file(shutil.which(located(text, folder)) or os.path.join(folder, text), hasher)
        return known | {"program": hasher.hexdigest()}

    def _environment(self, values: Mapping[str, Value]) -> dict[str, str]:
        """The benchmark's variables, as far as the given values fill them."""
        scope = Scope(values, self.words)
        texts = self.benchmark.environment.items()
        return {name: scope.fill(text) for name, text in texts if self._known(text, values)}

    def _known(self, text: str, values: Mapping[str, Value]) -> bool:
        names = set(names_in(text))
        while words := names & set(self.words):
            names -= words
            for word in words:
                item = self.words[word]
                names |= {item.of} if item.of else set(names_in(item.text))
        return names <= set(values)

    def reset(self) -> None:
        """Run the benchmark's reset command; raise an error if it fails, because the device cannot be used any more."""
        if not self.benchmark.reset:
            return
        argv = [self._early(part) for part in self.benchmark.reset]
        try:
            failure = self.programs.run(argv, RESET_SECONDS, self._environment(self.static)).failure({})
        except Ended as error:
            failure = error
        if failure is not None:
            raise KerncastError(f"the reset command {argv} failed ({failure}): fix it and run the same command again")

    # -- building --------------------------------------------------------------------------------------

    @cached_property
    def builder(self) -> Builder | None:
        """What makes binaries, for a benchmark that has a build step."""
        if self.benchmark.build is None:
            return None
        return Builder(self.benchmark.build, self._environment(self.static), dict(self._versions), self.programs)

    def _binaries(self, vectors: Sequence[Vector]) -> list[Binary]:
        found = []
        for vector in vectors:
            with contextlib.suppress(Failed):  # reported when the vector itself is measured
                if self.builder is not None:
                    found.append(self.builder.binary(self._scope(vector, "", {})))
        return found

    def compile(self, vectors: Sequence[Vector], jobs: int = 1) -> None:
        if self.builder is not None:
            self.builder.jobs = jobs
            with contextlib.suppress(CannotWrite):  # reported when the first binary is needed
                self.builder.make(self._binaries(vectors), jobs)

    def compile_seconds(self, vectors: Sequence[Vector], jobs: int = 1) -> float:
        # One call for all may fail and be followed by one for each.
        build, count = self.benchmark.build, self.compilations(vectors)
        return MARGIN_SECONDS + (build.timeout * (2 * count if build.each else -(-count // max(1, jobs))) if build else 0.0)

    def compilations(self, vectors: Sequence[Vector]) -> int:
        return len(self.builder.missing(self._binaries(vectors))) if self.builder is not None else 0

    # -- asking ----------------------------------------------------------------------------------------

    def _scope(self, vector: Vector, identity: str, more: Mapping[str, Value]) -> Scope:
        """The placeholders of one vector; a value that the benchmark does not allow is unsupported."""
        values: dict[str, Value] = {**self.static, **more, "id": identity}
        for prefix, point in (("problem", vector[0]), ("config", vector[1])):
            for name, value in point.items():
                values[f"{prefix}.{name}"] = value
                allowed = self.benchmark.only.get(f"{prefix}.{name}")
                # An inactive parameter is not checked. Values are compared as text, because 1 is not true.
                if allowed is not None and value is not None and text_of(value) not in map(text_of, allowed):
                    raise Unsupported(
                        f"benchmark {self.benchmark.name} allows {prefix}.{name} only as {', '.join(map(text_of, allowed))}"
                    )
        return Scope(values, self.words)

    def ask(
        self, vectors: Sequence[Vector], begin: Callable[[int, float], None], verify: bool, cache: str
    ) -> Iterator[tuple[int, Answer | Failed]]:
        if cache != self.benchmark.cache and not self.benchmark.tells("cache"):
            refusal = f"benchmark {self.benchmark.name} measures {self.benchmark.cache} caches: it has no {{cache}}"
            yield from ((position, Failed(refusal)) for position in range(len(vectors)))
            return
        run = _Run(self, begin, {"verify": verify, "cache": cache})
        asked = list(enumerate(vectors))
        size = self.benchmark.chunk if self.benchmark.mode == "chunk" else 1
        for start in range(0, len(asked), size):
            yield from run.together(asked[start : start + size])

    def _next_id(self, vector: Vector) -> str:
        """A name for a vector that is unique to this call, so that results of older calls never match."""
        digest = hashlib.blake2b(repr((vector[0].as_dict(), vector[1].as_dict())).encode(), digest_size=8).hexdigest()
        return f"{digest}-{os.getpid()}-{next(self._ids)}"

    def _flops(self, problem: Problem) -> float:
        return self._work.scalar(self.family.problem.qualified(problem.as_dict()))["flops"] if self._work else 0.0

    @cached_property
    def _work(self) -> Program | None:
        work = self.family.op.work(self.family.op.namespace())
        return Program({"flops": work.flops}) if work is not None else None


class _Run:
    """One pass of questions: programs, their answers, and which vector is to blame when there is none."""

    def __init__(self, backend: CommandBackend, begin: Callable[[int, float], None], wanted: Mapping[str, Value]) -> None:
        self.backend, self.benchmark, self.begin, self.wanted = backend, backend.benchmark, begin, wanted

    def together(self, asked: Sequence[Ask]) -> Iterator[tuple[int, Answer | Failed]]:
        """One program for these vectors; where it fails without an answer, fewer at a time, down to the culprit."""
        scopes: dict[int, Scope] = {}
        for position, vector in asked:
            try:
                scopes[position] = self.backend._scope(vector, self.backend._next_id(vector), self.wanted)
            except Failed as error:
                yield position, error
        if not scopes:
            return
        left = [item for item in asked if item[0] in scopes]
        self.begin(left[0][0], self._seconds(len(left)) + MARGIN_SECONDS)
        try:
            failure, answers = self._program(left, scopes)
        except Failed as error:
            failure, answers = error, {}
        yield from answers.items()
        if failure is not None and failure.status in self.benchmark.reset_after:
            self.backend.reset()
        missing = [item for item in left if item[0] not in answers]
        if failure is None or len(left) == 1:
            lost = failure or Ended("launch_error", "the program ended well, but its answer has no result for this vector")
            yield from ((position, lost) for position, _ in missing)
        elif missing:
            # A program that answers as it goes stopped at the first vector without an answer; others do not show where.
            cut = 1 if answers else len(missing) // 2
            yield from self.together(missing[:cut])
            if missing[cut:]:
                yield from self.together(missing[cut:])

    def _seconds(self, count: int) -> float:
        return self.benchmark.startup + self.benchmark.timeout * count

    def _program(self, asked: Sequence[Ask], scopes: Mapping[int, Scope]) -> tuple[Failed | None, dict[int, Answer | Failed]]:
        """Start the program, wait and read: how it failed, if it did, and the answers that it gave."""
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
            )
            failure = self._pattern(outcome) or outcome.failure(benchmark.exit_codes)
            text = (
                _read_file(directory or scratch, first.fill(benchmark.result.file)) if benchmark.result.file else outcome.stdout
            )
            if failure is not None and benchmark.mode == "vector":
                return failure, {}
            return failure, self._answers(asked, scopes, text, compile_ns, outcome)

    def _input(self, scopes: Mapping[int, Scope], first: Scope, scratch: Path) -> Path | None:
        """The document with the vectors, in the scratch folder."""
        benchmark = self.benchmark
        if benchmark.input is None:
            return None
        shape: Mapping[str, Any] | None = benchmark.input.vector or None
        vectors = {text_of(scope["id"]): scope.document(shape) if shape else _plain(scope) for scope in scopes.values()}
        whole = {"vectors": list(vectors.values()), "vectors_by_id": vectors, "vector": next(iter(vectors.values()))}
        document = benchmark.input.document
        if document is None:
            document = "{vectors}" if benchmark.mode == "chunk" else "{vector}"
        path = scratch / "vectors.json"
        path.write_text(json.dumps(first.document(document, whole)), encoding="utf-8")
        return path if benchmark.input.to == "stdin" else None

    def _pattern(self, outcome: Outcome) -> Failed | None:
        for pattern in self.benchmark.patterns:
            for text in (outcome.stderr, outcome.stdout):
                if found := re.search(pattern.text, text):
                    line = text[text.rfind("\n", 0, found.start()) + 1 :].split("\n", 1)[0]
                    return Ended(pattern.status, " ".join(line.split())[:300])
        return None

    def _answers(
        self, asked: Sequence[Ask], scopes: Mapping[int, Scope], text: str, compile_ns: float | None, outcome: Outcome
    ) -> dict[int, Answer | Failed]:
        result = self.benchmark.result
        rows = rows_of(result, text)
        answers: dict[int, Answer | Failed] = {}
        for position, (problem, _) in asked:
            try:
                row = row_for(result, rows, scopes[position])
            except Failed as error:
                answers[position] = error
                continue
            if row is not None:
                said = answer_of(result, row, self.backend._flops(problem), bool(self.wanted["verify"]))
                answers[position] = replace(said, compile_ns=compile_ns) if isinstance(said, Answer) else said
            elif self.benchmark.mode == "vector":
                words = f"; its last line is: {outcome.last_line}" if outcome.last_line else "; it printed nothing"
                answers[position] = Ended("launch_error", f"the program's answer has no {result.format} result{words}")
        return answers


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


def _hash_file(path: str, hasher: Any) -> None:
    """Hash a program by its content, or by its size and age if it is too large to read quickly."""
    try:
        found = os.stat(path)
        if not os.path.isfile(path):
            return
        if found.st_size <= HASHED_BYTES:
            hasher.update(Path(path).read_bytes())
        else:
            hasher.update(f"{found.st_size} {found.st_mtime_ns}".encode())
    except OSError:
        return
