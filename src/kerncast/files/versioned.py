"""JSON files that say what they are: a format, a version and contents of one type.

    dataset = Versioned("kerncast-dataset", 1, DatasetFile, "a kerncast dataset", "import the data again")
    dataset.read(path)

`text` writes one with the checksum of its contents (`seal`), which `read` compares; files of earlier versions have none.
A file of another format, of a version that this kerncast cannot read, or with other contents is refused with one sentence
that names the file and the next step.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from kerncast.errors import BadFile
from kerncast.files.foreign import JSON, decode_json, key_rule

T = TypeVar("T", bound=msgspec.Struct)
SEAL = "seal"
Upgrade = Callable[[dict[str, Any]], dict[str, Any]]


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
    upgrades: Mapping[int, Upgrade] = field(default_factory=dict)
    """From an older version to the next one; contents are upgraded when read, and the file is not changed."""
    format_field: str = "format"
    version_field: str = "version"

    def text(self, value: T, indent: int = 2) -> bytes:
        """A file with this value and its checksum."""
        data = msgspec.json.decode(msgspec.json.encode(value))
        return json_text({**data, SEAL: seal_of(data)}, indent)

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
            seal = data.pop(SEAL, None)
            version = data.get(self.version_field)
            # A later version may compute its checksum in another way; that it is later is said first.
            later = isinstance(version, int) and version > self.version
            if seal is not None and not later and seal != seal_of(data):
                raise BadFile(f"{file} differs from its checksum: {remedy}")
            return msgspec.convert(self._upgraded(data, file, remedy), self.contents)
        except (msgspec.DecodeError, RecursionError) as error:
            raise BadFile(f"{file} is damaged ({key_rule(error)}): {remedy}") from error

    def _upgraded(self, data: dict[str, Any], file: Path, remedy: str) -> dict[str, Any]:
        version = data.get(self.version_field)
        if not isinstance(version, int) or isinstance(version, bool) or version < 1:
            raise BadFile(f"{file} has no valid version: {version!r}; {remedy}")
        if version > self.version:
            raise BadFile(f"{file} is version {version}, this kerncast reads up to version {self.version}: upgrade kerncast")
        while version < self.version:
            if version not in self.upgrades:
                raise BadFile(f"{file} is version {version}, this kerncast reads version {self.version}: {remedy}")
            data = {**self.upgrades[version](data), self.version_field: version + 1}
            version += 1
        return data


def has_seal(file: Path) -> bool:
    """Whether a file that can be read has a checksum of its own; those of earlier versions have none."""
    data = decode_json(file.read_bytes())
    return isinstance(data, dict) and SEAL in data


def seal_of(data: dict[str, Any]) -> str:
    """The checksum of contents."""
    return hashlib.blake2b(msgspec.json.encode(data), digest_size=16).hexdigest()


def json_text(value: Any, indent: int = 2) -> bytes:
    """A value as kerncast writes JSON files: indented, with a newline at the end."""
    return msgspec.json.format(msgspec.json.encode(value), indent=indent) + b"\n"
