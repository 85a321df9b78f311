"""The build step: one binary per kernel, made once and found again by a hash of everything that went into it.

    <cache>/command/<hash>.json     where the binary is, its size and age, and how long it took
    <cache>/command/<hash>/kernel   the binary itself, unless the benchmark says where the build puts it

A binary that was changed or removed since is built again.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import msgspec

from kerncast.core.io.atomic import replace_file
from kerncast.core.io.foreign import decode_json
from kerncast.core.io.lock import in_turn
from kerncast.core.io.places import private_cache
from kerncast.errors import CannotWrite
from kerncast.measuring.backends.command.benchmark import Build
from kerncast.measuring.backends.command.process import Programs, located
from kerncast.measuring.backends.command.template import Scope
from kerncast.measuring.backends.contract import CannotCompile, Ended


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

    def __init__(self, build: Build, environment: dict[str, str], software: dict[str, str], programs: Programs) -> None:
        self.build, self.environment, self.software, self.programs = build, environment, software, programs
        self.root = private_cache("command")
        self.broken: dict[str, str] = {}
        self.jobs = 1

    def binary(self, scope: Scope) -> Binary:
        """The binary of the kernel that a scope describes."""
        output = scope.fill(self.build.output)
        # The path that the build writes to depends on the hash, so the hash leaves it out of the argv.
        unnamed = Scope({**scope.values, "binary": "", "build_jobs": ""}, scope.words)
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
        named = Scope({**scope.values, "binary": str(path), "build_jobs": self.jobs}, scope.words)
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
            with self._alone():
                outcome = self.programs.run(argv, self.build.timeout * len(binaries), self.environment, directory)
            failure = outcome.failure({})
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
                self._remember(item, spent)
        return True

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Run one build at a time: a tool that builds many at once has its own folder, which two calls would corrupt."""
        if not self.build.each:
            yield
            return
        with in_turn(self.root / "build.lock"):
            yield

    def _remember(self, binary: Binary, build_ns: int) -> None:
        found = binary.path.stat()
        stamp = _Stamp(str(binary.path), found.st_size, found.st_mtime_ns, build_ns)
        replace_file(self.root / f"{binary.digest}.json", lambda draft: draft.write_bytes(msgspec.json.encode(stamp)))
