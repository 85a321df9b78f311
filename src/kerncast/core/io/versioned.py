"""JSON files that say what they are: a format, a version and contents of one type.

    dataset = Versioned("kerncast-dataset", 1, DatasetFile, "a kerncast dataset", "import the data again")
    dataset.read(path)

`text` writes one with the checksum of its contents (`seal`), which `read` compares. A file of another format or version, or
with other contents, is refused with one sentence that names the file and the next step.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from kerncast.core.io.foreign import JSON, decode_json, key_rule
from kerncast.errors import BadFile

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
                raise BadFile(f"{file} differs from its checksum: {remedy}")
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
