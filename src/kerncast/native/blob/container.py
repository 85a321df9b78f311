"""The file format: a header, a directory of named tables, and the tables; little-endian, with a checksum over all of it.

    header     8 bytes "KERNCAST", uint32 version, uint32 tables, uint64 bytes of the file, uint64 checksum
    directory  per table: 24 bytes of name (padded with 0), uint32 type, uint32 0, uint64 offset, uint64 count
    tables     each begins at a multiple of 8

A type is the character of numpy's type: B, H, h, i, q, d. The checksum is FNV-1a (64 bits) of all 8-byte words, the checksum's
own word as 0.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kerncast.errors import BadFile, InvalidValue

MAGIC = b"KERNCAST"
# Increase it whenever the meaning of a table changes or one is added; a runtime reads only its own version.
VERSION = 1
HEADER, ENTRY = struct.Struct("<8sIIQQ"), struct.Struct("<24sIIQQ")
CHECKSUM_AT = 24
TYPES = {"B": 1, "H": 2, "h": 2, "i": 4, "q": 8, "d": 8}
_BASIS, _PRIME, _WORD = 0xCBF29CE484222325, 0x100000001B3, 2**64 - 1
AGAIN = "export the model again, or restore the file"

Numbers = npt.NDArray[Any]


def checksum(data: bytes) -> int:
    """The checksum of a whole file; what its own word says does not matter."""
    words = np.frombuffer(data[: len(data) // 8 * 8], "<u8").tolist()
    found = _BASIS
    for place, word in enumerate(words):
        found = ((found ^ (0 if place == CHECKSUM_AT // 8 else word)) * _PRIME) & _WORD
    return found


def sealed(data: bytes) -> bytes:
    """The file with its right checksum."""
    return data[:CHECKSUM_AT] + struct.pack("<Q", checksum(data)) + data[CHECKSUM_AT + 8 :]


def packed(tables: Mapping[str, Numbers]) -> bytes:
    """The bytes of a file with these tables, each of one of the types."""
    offset, directory, parts = HEADER.size + ENTRY.size * len(tables), b"", []
    for name, values in tables.items():
        kind = values.dtype.char if values.dtype.char != "l" else "q"
        if kind not in TYPES or len(name) > 23:
            raise AssertionError(f"table {name} has type {values.dtype}")
        data = np.ascontiguousarray(values, f"<{kind}" if kind != "B" else "B").tobytes()
        directory += ENTRY.pack(name.encode(), ord(kind), 0, offset, values.size)
        parts.append(data + bytes(-len(data) % 8))
        offset += len(parts[-1])
    return sealed(HEADER.pack(MAGIC, VERSION, len(tables), offset, 0) + directory + b"".join(parts))


def unpacked(data: bytes, what: str) -> dict[str, Numbers]:
    """The tables of a file; `BadFile` says what is wrong with it."""
    if len(data) < HEADER.size or data[:8] != MAGIC:
        raise BadFile(f"{what} is not a model that `to=blob` exported: check the path")
    _, version, count, size, said = HEADER.unpack_from(data)
    if version != VERSION:
        raise BadFile(f"{what} has format {version}, and this kerncast reads format {VERSION}: export the model again")
    if size != len(data) or size % 8:
        raise BadFile(f"{what} has {len(data):,} bytes, and its header says {size:,}: {AGAIN}")
    if checksum(data) != said:
        raise BadFile(f"{what} does not have its checksum, so it is damaged: {AGAIN}")
    if HEADER.size + count * ENTRY.size > size:
        raise BadFile(f"{what} lists more tables than it has room for: {AGAIN}")
    found: dict[str, Numbers] = {}
    for place in range(count):
        raw, kind, _, offset, length = ENTRY.unpack_from(data, HEADER.size + place * ENTRY.size)
        name = raw.rstrip(b"\0").decode("ascii", "replace")
        known = chr(kind) if kind < 128 else ""
        if known not in TYPES or offset % 8 or offset > size or length > (size - offset) // TYPES[known] or name in found:
            raise BadFile(f"{what}: the table '{name}' is not one: {AGAIN}")
        found[name] = np.frombuffer(data, f"<{known}" if known != "B" else "B", length, offset)
    return found


def read(path: Path) -> dict[str, Numbers]:
    """The tables of the file at a path."""
    return unpacked(path.read_bytes(), str(path))


class Texts:
    """Strings, each once, one after the other with a 0 behind each; a string is known by its offset."""

    def __init__(self) -> None:
        self._offsets: dict[bytes, int] = {}
        self._data = bytearray()

    def place(self, text: str) -> int:
        """The offset of a string."""
        data = text.encode("utf-8")
        if b"\0" in data:
            raise InvalidValue(f"a name with a zero character cannot be exported, got {text!r}")
        if data not in self._offsets:
            self._offsets[data] = len(self._data)
            self._data += data + b"\0"
        return self._offsets[data]

    def table(self) -> Numbers:
        """All of them."""
        return np.frombuffer(bytes(self._data) or b"\0", np.uint8)
