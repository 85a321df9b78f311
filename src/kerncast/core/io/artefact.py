"""Kinds of artefacts: how each is known by what lies at a path, and what `kerncast inspect --verify` checks of it.

Each kind is declared beside the code that reads it. A check uses that code, runs nothing of the artefact, and goes on after a
fault, so that all of them are named.
"""

from __future__ import annotations

import hashlib
import os
import threading
import tomllib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from kerncast.core.io.atomic import replace_file
from kerncast.core.io.foreign import JSON, decode_json, key_rule, read_toml
from kerncast.core.progress import QUIET, Progress
from kerncast.errors import BadFile, KerncastError

# Bytes of a file that say what it is.
HEAD_BYTES = 4096


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong: the file, and a sentence with the next step."""

    file: Path
    sentence: str


@dataclass(frozen=True)
class Checked:
    """One artefact."""

    path: Path
    kind: str
    checks: tuple[str, ...]
    """What was found to be as it should be."""
    faults: tuple[Fault, ...]
    notes: tuple[str, ...]
    """What is no damage but should be known: an unfinished collection, files that nobody lists."""

    @property
    def whole(self) -> bool:
        """Whether nothing is wrong with it."""
        return not self.faults


class Findings:
    """Gathers what is found about one artefact."""

    def __init__(self, path: Path, kind: str, progress: Progress = QUIET) -> None:
        self.path, self.kind, self.progress = path, kind, progress
        self.checks: list[str] = []
        self.faults: list[Fault] = []
        self.notes: list[str] = []

    @contextmanager
    def looking(self, file: Path, what: str = "") -> Iterator[None]:
        """What an error inside says is wrong with the file; without one, `what` was checked."""
        try:
            yield
        except KerncastError as error:
            self.wrong(file, str(error))
        except OSError as error:
            self.wrong(file, f"{file} cannot be read ({error.strerror or error}): restore it")
        else:
            if what:
                self.checks.append(what)

    def wrong(self, file: Path, sentence: str) -> None:
        """Record a fault; one that several checks come across counts once."""
        fault = Fault(file, sentence)
        if fault not in self.faults:
            self.faults.append(fault)

    def checked(self) -> Checked:
        """What was found."""
        return Checked(self.path, self.kind, tuple(self.checks), tuple(self.faults), tuple(self.notes))


class PathContents:
    """What lies at a path, as far as it tells the kind of an artefact."""

    def __init__(self, path: Path) -> None:
        self.path, self.is_folder, self.is_file = path, path.is_dir(), path.is_file()

    def holds(self, *names: str) -> bool:
        """Whether it is a folder with one of these files in it."""
        return self.is_folder and any((self.path / name).exists() for name in names)

    def holds_like(self, pattern: str) -> bool:
        """Whether it is a folder with such a file in it, or further down."""
        return self.is_folder and next(self.path.glob(pattern), None) is not None

    @cached_property
    def head(self) -> bytes:
        """The beginning of a file; nothing of one that cannot be read, or of a pipe, which may never end."""
        if not self.is_file:
            return b""
        try:
            with self.path.open("rb") as file:
                return file.read(HEAD_BYTES)
        except OSError:
            return b""

    @cached_property
    def toml(self) -> Mapping[str, Any]:
        """The tables of a TOML file; of anything else none."""
        try:
            return read_toml(self.path) if self.is_file and self.path.suffix == ".toml" else {}
        except (OSError, KerncastError, tomllib.TOMLDecodeError):
            return {}


@dataclass(frozen=True)
class ArtefactKind:
    """One kind of artefact."""

    name: str
    is_at: Callable[[PathContents], bool]
    """A folder is known by the names in it, so that one with a damaged or missing manifest is still known."""
    check: Callable[[Findings], None]
    manifests: tuple[str, ...] = ()
    """Its files whose name stands for the folder."""
    holds_others: bool = False
    """Whether the artefacts inside of the folder are checked by themselves."""


def kind_that_is_read(
    name: str, is_at: Callable[[PathContents], bool], read: Callable[[Path], object], what: str
) -> ArtefactKind:
    """A kind of which `verify` checks what its reader does: `what`."""

    def check(findings: Findings) -> None:
        with findings.looking(findings.path, what):
            read(findings.path)

    return ArtefactKind(name, is_at, check)


def kind_of_toml(name: str, keys: frozenset[str], read: Callable[[Path], object], what: str = "keys") -> ArtefactKind:
    """A TOML file that people write, known by its keys."""
    return kind_that_is_read(name, lambda contents: keys <= contents.toml.keys(), read, what)


T = TypeVar("T", bound=msgspec.Struct)
SEAL = "seal"


@dataclass(frozen=True)
class Versioned(Generic[T]):
    """One kind of file."""

    format: str
    version: int
    contents: type[T]
    what: str
    """What such a file is, with its article."""
    remedy: str
    """What to do with a file that is not one, or is damaged."""
    format_field: str = "format"
    version_field: str = "version"
    seal_field: str = SEAL
    """Where the checksum is; it may be a field of the contents. Empty: who keeps the text keeps its checksum."""

    def text(self, value: T, indent: int = 2) -> bytes:
        """A file with this value and its checksum."""
        data = msgspec.json.decode(msgspec.json.encode(value))
        return json_text({**data, self.seal_field: self.seal(data)}, indent)

    def seal(self, data: dict[str, Any]) -> str:
        """The checksum of contents, which may have a field for it."""
        return seal_of({**data, self.seal_field: ""} if self.seal_field in data else data)

    def read(self, file: Path, remedy: str | None = None) -> T:
        """The contents of a file; `remedy` replaces the usual one."""
        if file.exists() and not file.is_file():  # a pipe would never end
            raise BadFile(f"{file} is not a file: {remedy or self.remedy}")
        return self.decode(JSON.read(file), file, remedy)

    def decode(self, text: bytes, file: Path, remedy: str | None = None) -> T:
        """The contents of a text; `file` is named in errors."""
        remedy = remedy or self.remedy
        try:
            data = decode_json(text)
            if not isinstance(data, dict) or data.get(self.format_field) != self.format:
                found = data.get(self.format_field, "unknown") if isinstance(data, dict) else type(data).__name__
                raise BadFile(f"{file} is not {self.what}: its {self.format_field} is {found!r}, not '{self.format}'; {remedy}")
            self._check_version(data, file, remedy)
            return self._converted(data, file, remedy)
        except (msgspec.DecodeError, RecursionError) as error:
            raise BadFile(f"{file} is damaged ({key_rule(error)}): {remedy}") from error

    def _converted(self, data: dict[str, Any], file: Path, remedy: str) -> T:
        """The contents of a file that is as it was written."""
        if self.seal_field:
            kept = self.seal_field in self.contents.__struct_fields__
            seal = data.get(self.seal_field) if kept else data.pop(self.seal_field, None)
            if seal is None:
                raise BadFile(f"{file} has no checksum: {remedy}")
            if seal != self.seal(data):
                raise changed_since(file, remedy)
        try:
            return msgspec.convert(data, self.contents)
        except msgspec.ValidationError as error:
            if not self.seal_field:
                raise
            raise BadFile(f"{file} is of another version of kerncast ({key_rule(error)}): {remedy}") from error

    def _check_version(self, data: dict[str, Any], file: Path, remedy: str) -> None:
        version = data.get(self.version_field)
        if not isinstance(version, int) or isinstance(version, bool) or version < 1:
            raise BadFile(f"{file} has no valid version: {version!r}; {remedy}")
        if version > self.version:
            raise BadFile(f"{file} is version {version}, this kerncast reads up to version {self.version}: upgrade kerncast")
        if version < self.version:
            raise BadFile(f"{file} is version {version}, this kerncast reads version {self.version}: {remedy}")


def seal_of(data: dict[str, Any]) -> str:
    """The checksum of contents."""
    return hashlib.blake2b(msgspec.json.encode(data), digest_size=16).hexdigest()


def json_text(value: Any, indent: int = 2) -> bytes:
    """A value as kerncast writes JSON files: indented, with a newline at the end."""
    return msgspec.json.format(msgspec.json.encode(value), indent=indent) + b"\n"


# Reading is about as fast as hashing, so a few threads are enough.
THREADS = 4
# Device, inode, size and time of the last change → checksum. A file that was changed or replaced has another key.
_KNOWN: dict[tuple[int, int, int, int], str] = {}
# Files that this process has written, by the same: they need not be doubted.
_OWN: set[tuple[int, int, int, int]] = set()
_LOCK = threading.Lock()


def file_checksum(path: Path) -> str:
    """A hash of a file's bytes, computed if this process has not yet done so since the file was last changed."""
    key = file_state(path)
    with _LOCK:
        known = _KNOWN.get(key)
    if known is None:
        known = _hashed(path)
        # A file that changes while it is read has no checksum that could be kept.
        if file_state(path) == key:
            with _LOCK:
                _KNOWN[key] = known
    return known


def _hashed(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def changed_since(file: Path, remedy: str) -> BadFile:
    """The error for a file that is not as it was written."""
    return BadFile(f"{file} differs from its checksum: {remedy}")


def differing(files: Mapping[Path, str]) -> Path | None:
    """The first file that differs from its checksum; None: all are as they should be."""
    paths = list(files)
    if len(paths) < 2:
        found = [file_checksum(path) for path in paths]
    else:
        with ThreadPoolExecutor(min(THREADS, len(paths), os.cpu_count() or 1)) as pool:
            found = list(pool.map(file_checksum, paths))
    return next((path for path, own in zip(paths, found, strict=True) if own != files[path]), None)


def own_checksums(folder: Path) -> dict[str, str]:
    """The checksums of the files in a folder, by name; this process has just written all of them, and `is_own` knows it."""
    files = sorted(folder.iterdir())
    _OWN.update(map(file_state, files))
    return {file.name: file_checksum(file) for file in files}


def is_own(file: Path) -> bool:
    """Whether a file is as this process wrote it."""
    return file_state(file) in _OWN


def keep_sum(file: Path) -> None:
    """Write the checksum of a file beside it (`.sum`). The caller handles an `OSError`."""
    checksum = file_checksum(file)
    replace_file(file.with_suffix(".sum"), lambda draft: draft.write_text(checksum))


def is_intact(file: Path) -> bool:
    """Whether a file is there and as it was when `keep_sum` wrote its checksum."""
    try:
        return file.is_file() and file_checksum(file) == file.with_suffix(".sum").read_text(errors="replace")
    except OSError:
        return False


def file_state(path: Path) -> tuple[int, int, int, int]:
    """What changes when a file is changed or replaced."""
    found = path.stat()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
