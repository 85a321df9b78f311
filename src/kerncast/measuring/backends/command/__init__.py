"""The `command` backend: any external benchmark program, by a TOML file that says how to call it and how to read its answer.

The files are the pipeline: `benchmark` (the TOML file) and `rules` (what it must obey), `template` (placeholders),
`build` (a binary per kernel), `asking` (a pass over vectors), `process` and `guard` (programs that may do anything),
`reading` (their answers).
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import msgspec

from kerncast.core.device import Device
from kerncast.core.expr import Program
from kerncast.core.op import Problem
from kerncast.errors import CannotWrite, InvalidValue, KerncastError, NotFound
from kerncast.library import devices
from kerncast.measuring.backends.command.asking import Asking, Vector
from kerncast.measuring.backends.command.benchmark import Benchmark
from kerncast.measuring.backends.command.build import Binary, Builder
from kerncast.measuring.backends.command.places import check_places
from kerncast.measuring.backends.command.process import MARGIN_SECONDS, Programs, located
from kerncast.measuring.backends.command.template import Scope, Value, Word, names_in, text_of
from kerncast.measuring.backends.contract import Answer, Ended, Failed, TimesItself, Unsupported

BENCHMARK, UNCHECKED = "benchmark", "unchecked"
VERSION_SECONDS = 60.0
RESET_SECONDS = 300.0
HASHED_BYTES = 64 << 20


class CommandBackend(TimesItself):
    """Runs the program that a benchmark file describes."""

    name = "command"
    doc = "any external benchmark program, described by a TOML file"
    # Families that a shipped benchmark measures; a user's own benchmark may name any other.
    families = (
        *("concatenate_heads/single", "create_qkv_heads/single", "eltwise_unary/single", "gemm/ck_tile", "gemm/cutlass"),
        *("grouped_conv_bwd_data/ck_tile", "grouped_conv_bwd_weight/ck_tile", "grouped_conv_forward/ck_tile"),
        *("paged_sdpa_decode/single", "reshard/single"),
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
        self.static: dict[str, Value] = {**_absolute(benchmark), "device": index}
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
                    found.append(self.builder.binary(self.scope(vector, "", {})))
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

    def scope(self, vector: Vector, identity: str, more: Mapping[str, Value]) -> Scope:
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
        yield from Asking(self, begin, {"verify": verify, "cache": cache}).all(list(enumerate(vectors)))

    def next_id(self, vector: Vector) -> str:
        """A name for a vector that is unique to this call, so that results of older calls never match."""
        digest = hashlib.blake2b(repr((vector[0].as_dict(), vector[1].as_dict())).encode(), digest_size=8).hexdigest()
        return f"{digest}-{os.getpid()}-{next(self._ids)}"

    def flops(self, problem: Problem) -> float:
        """The arithmetic of a problem, 0 where it is unknown."""
        return self._work.scalar(self.family.problem.qualified(problem.as_dict()))["flops"] if self._work else 0.0

    @cached_property
    def _work(self) -> Program | None:
        work = self.family.op.work(self.family.op.namespace())
        return Program({"flops": work.flops}) if work is not None else None


def _absolute(benchmark: Benchmark) -> dict[str, str]:
    """The settings; the one that is the program's folder as an absolute path, for other paths begin with it."""
    given = benchmark.setting_values()
    return {name: os.path.abspath(value) if benchmark.directory == f"{{{name}}}" else value for name, value in given.items()}


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
