"""The `command` backend: any external benchmark program, by a TOML file that says how to call it and how to read its answer.

The files are the pipeline: `schema` (the keys of the TOML file and its placeholders), `benchmark` (loading one, and what it
must obey), `asking` (a pass over vectors, and their answers), `process` and `guard` (programs that may do anything). Here are
the backend and its build step, one binary per kernel, made once and found again by a hash of everything that went into it:

    <cache>/command/<hash>.json     where the binary is, its size and age, and how long it took
    <cache>/command/<hash>/kernel   the binary itself, unless the benchmark says where the build puts it

A binary that was changed or removed since is built again.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Self

import msgspec

from kerncast.core.device import Device
from kerncast.core.expr import Program
from kerncast.core.io.arguments import private_cache
from kerncast.core.io.atomic import replace_file
from kerncast.core.io.foreign import decode_json
from kerncast.core.io.lock import in_turn
from kerncast.core.op import Problem
from kerncast.errors import CannotWrite, InvalidValue, KerncastError, NotFound
from kerncast.library import devices
from kerncast.measuring.backends.command.asking import Pass, Vector
from kerncast.measuring.backends.command.process import MARGIN_SECONDS, ProgramRunner, located
from kerncast.measuring.backends.command.schema import Benchmark, BuildTable, Scope, names_in, text_of
from kerncast.measuring.backends.contract import CannotCompile, Ended, Failed, ProgramAnswer, TimesItself, Unsupported

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
        settings = benchmark.setting_values()
        for name, value in settings.items():
            if benchmark.directory == f"{{{name}}}":  # other paths begin with it
                settings[name] = os.path.abspath(value)
        self.common = Scope({**settings, "device": index}, benchmark.words)
        """What is the same for all vectors."""
        self._ids = itertools.count()
        _check_places(benchmark, self.common)

    # -- what is measured on ---------------------------------------------------------------------------

    @cached_property
    def programs(self) -> ProgramRunner:
        """Starts programs, and ends them."""
        return ProgramRunner()

    def device(self) -> Device:
        return devices.get(self.common.fill(self.benchmark.device))

    @cached_property
    def _versions(self) -> dict[str, str]:
        found = {}
        for name, source in self.benchmark.software.items():
            if isinstance(source, str):
                found[name] = self.common.fill(source)
                continue
            argv = [self.common.fill(part) for part in source]
            asking = f"benchmark {self.benchmark.name} asks `{' '.join(argv)}` for the version of {name}, but"
            instead = f"or fix software.{name} in a copy of the benchmark"
            try:
                outcome = self.programs.run(argv, VERSION_SECONDS, self._environment)
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
        folder = self.common.fill(self.benchmark.directory) if self.common.knows(self.benchmark.directory) else ""
        for part in self.benchmark.argv:
            if set(names_in(part)) <= self.common.values.keys():
                text = self.common.fill(part)
                _hash_file(shutil.which(located(text, folder)) or os.path.join(folder, text), hasher)
        return known | {"program": hasher.hexdigest()}

    @cached_property
    def _environment(self) -> dict[str, str]:
        """The benchmark's variables that are the same for all vectors."""
        texts = self.benchmark.environment.items()
        return {name: self.common.fill(text) for name, text in texts if self.common.knows(text)}

    def reset(self) -> None:
        """Run the benchmark's reset command; raise an error if it fails, because the device cannot be used any more."""
        if not self.benchmark.reset:
            return
        argv = [self.common.fill(part) for part in self.benchmark.reset]
        try:
            failure = self.programs.run(argv, RESET_SECONDS, self._environment).failure({})
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
        return Builder(self.benchmark.build, self._environment, self._versions, self.programs)

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

    def scope(self, vector: Vector, identity: str, more: Mapping[str, object]) -> Scope:
        """The placeholders of one vector; a value that the benchmark does not allow is unsupported."""
        values: dict[str, Any] = {**self.common.values, **more, "id": identity}
        for prefix, point in (("problem", vector[0]), ("config", vector[1])):
            for name, value in point.items():
                values[f"{prefix}.{name}"] = value
                allowed = self.benchmark.only.get(f"{prefix}.{name}")
                # An inactive parameter is not checked. Values are compared as text, because 1 is not true.
                if allowed is not None and value is not None and text_of(value) not in map(text_of, allowed):
                    raise Unsupported(
                        f"benchmark {self.benchmark.name} allows {prefix}.{name} only as {', '.join(map(text_of, allowed))}"
                    )
        return Scope(values, self.common.words)

    def ask(
        self, vectors: Sequence[Vector], begin: Callable[[int, float], None], verify: bool, cache: str
    ) -> Iterator[tuple[int, ProgramAnswer | Failed]]:
        if cache != self.benchmark.cache and not self.benchmark.tells("cache"):
            refusal = f"benchmark {self.benchmark.name} measures {self.benchmark.cache} caches: it has no {{cache}}"
            yield from ((position, Failed(refusal)) for position in range(len(vectors)))
            return
        yield from Pass(self, vectors, begin, verify, cache).answers()

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


# -- before the first vector -----------------------------------------------------------------------------


def _check_places(benchmark: Benchmark, common: Scope) -> None:
    """Refuse a program, a folder to run in or a build folder that does not exist, if it is the same for all vectors.

    Otherwise a wrong path would give every vector a failed row, and the rows would be final.
    """

    def hint(text: str, otherwise: str) -> str:
        settings = [name.partition(".")[2] for name in names_in(text) if name.startswith("setting.")]
        return f"give its path with `settings` {settings[0]}=…" if settings else otherwise

    build, calls = benchmark.build, [("argv", benchmark.argv[0], "directory", benchmark.directory)]
    if build is not None:
        calls.insert(0, ("", "", "build.output", _folder_of_setting(build.output, common)))
        calls.append(("build.argv", build.argv[0], "build.directory", build.directory))
    for where, program, place, folder in calls:
        if not set(names_in(folder)) <= common.values.keys():
            continue
        path = common.fill(folder)
        if path and not os.path.isdir(path):
            otherwise = hint(folder, f"make it, or fix {place} of the benchmark")
            raise NotFound(f"benchmark {benchmark.name} needs the folder '{path}' ({place}), which is not here: {otherwise}")
        if program and set(names_in(program)) <= common.values.keys():
            called = common.fill(program)
            if shutil.which(located(called, path)) is None:
                otherwise = hint(program, f"install it, or fix {where} of the benchmark")
                raise NotFound(f"benchmark {benchmark.name} runs '{called}', which is not a program here: {otherwise}")


def _folder_of_setting(output: str, common: Scope) -> str:
    """The setting whose folder holds an output, directly or through words; the build does not make that folder."""
    while (names := names_in(output)) and names[0] in common.words and output.startswith("{" + names[0] + "}"):
        output = common.words[names[0]].text
    below = re.match(r"\{setting\.[^{}]+\}(?=/)", output)
    return below[0] if below else ""


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


# -- the build step ---------------------------------------------------------------------------------------


class _Stamp(msgspec.Struct, frozen=True):
    binary: str
    size: int
    modified_ns: int
    build_ns: int


@dataclass(frozen=True)
class Binary:
    """A kernel's binary: what makes it, where it is."""

    digest: str
    argv: tuple[str, ...]
    each: str
    directory: str
    path: Path


class Builder:
    """Builds binaries and remembers them."""

    def __init__(
        self, build: BuildTable, environment: dict[str, str], software: dict[str, str], programs: ProgramRunner
    ) -> None:
        self.build, self.environment, self.software, self.programs = build, environment, software, programs
        self.root = private_cache("command")
        self.broken: dict[str, str] = {}
        self.jobs = 1

    def binary(self, scope: Scope) -> Binary:
        """The binary of the kernel that a scope describes."""
        output = scope.fill(self.build.output)
        # The path that the build writes to depends on the hash, so the hash leaves it out of the argv.
        unnamed = scope.plus(binary="", build_jobs="")
        directory, each = scope.fill(self.build.directory), scope.fill(self.build.each)
        parts = [*unnamed.fill_all(self.build.argv), each, directory, output, msgspec.json.encode(self.software).decode()]
        parts += [f"{name}={value}" for name, value in sorted(self.environment.items())]
        for name in scope.fill_all(self.build.sources):
            try:
                parts.append(hashlib.blake2b(Path(name).read_bytes()).hexdigest())
            except OSError as error:
                raise CannotCompile(f"the source {name} cannot be read ({error.strerror}): fix build.sources") from error
        digest = hashlib.blake2b("\0".join(parts).encode(), digest_size=10).hexdigest()
        path = Path(directory).absolute() / output if output else self.root / digest / "kernel"
        named = scope.plus(binary=str(path), build_jobs=self.jobs)
        return Binary(digest, tuple(named.fill_all(self.build.argv)), each, directory, path)

    def stamp(self, binary: Binary) -> _Stamp | None:
        """The stamp of a binary that exists and is unchanged, else None."""
        try:
            stamp = decode_json((self.root / f"{binary.digest}.json").read_bytes(), type=_Stamp)
            found = binary.path.stat()
        except (OSError, msgspec.DecodeError):
            return None
        same = (stamp.binary, stamp.size, stamp.modified_ns) == (str(binary.path), found.st_size, found.st_mtime_ns)
        return stamp if same else None

    def missing(self, binaries: Iterable[Binary]) -> list[Binary]:
        """Those that must be built, each once."""
        wanted = {item.digest: item for item in binaries if item.digest not in self.broken}
        return [item for item in wanted.values() if self.stamp(item) is None]

    def make(self, binaries: Iterable[Binary], jobs: int) -> None:
        """Build what is missing, several at a time; what does not build is remembered."""
        todo = self.missing(binaries)
        if not self.build.each:
            with ThreadPoolExecutor(max(1, jobs)) as executor:
                list(executor.map(self._make, [[item] for item in todo]))
        elif todo and not self._make(todo):
            # Building each alone shows which of them failed and which is only a leftover of an earlier build.
            for item in todo:
                self._make([item])

    def ready(self, binary: Binary) -> int:
        """Make sure that a binary exists; return how long its build took, in nanoseconds."""
        if binary.digest not in self.broken and self.stamp(binary) is None:
            self._make([binary])
        stamp = self.stamp(binary)
        if stamp is None:
            raise CannotCompile(self.broken.get(binary.digest, f"{binary.path} is gone"))
        return stamp.build_ns

    def _make(self, binaries: list[Binary]) -> bool:
        """One call for one binary, or for many where the benchmark says how; False when a call for many failed."""
        began = time.perf_counter_ns()
        first = binaries[0]
        try:
            for folder in {self.root, *(item.path.parent for item in binaries)}:
                folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CannotWrite(f"builds cannot be kept in {self.root} ({error}): free space, or set KERNCAST_CACHE") from error
        argv = [located(first.argv[0], first.directory), *first.argv[1:], *(item.each for item in binaries if item.each)]
        # Without its own folder it runs where the collection was started, so that relative paths mean the same.
        directory = first.directory or Path.cwd()
        try:
            # One at a time: a tool that builds many at once has its own folder, which two calls would corrupt.
            with in_turn(self.root / "build.lock") if self.build.each else contextlib.nullcontext():
                ended = self.programs.run(argv, self.build.timeout * len(binaries), self.environment, directory)
            failure = ended.failure({})
        except Ended as error:
            failure = error
        if failure is not None and len(binaries) > 1:
            return False
        spent = (time.perf_counter_ns() - began) // len(binaries)
        for item in binaries:
            if failure is not None:
                self.broken[item.digest] = f"the build failed: {failure}"
            elif not item.path.is_file():
                self.broken[item.digest] = f"the build succeeded but did not make {item.path}: fix build.output"
            else:
                found = item.path.stat()
                stamp = _Stamp(str(item.path), found.st_size, found.st_mtime_ns, spent)
                replace_file(self.root / f"{item.digest}.json", partial(Path.write_bytes, data=msgspec.json.encode(stamp)))
        return True
