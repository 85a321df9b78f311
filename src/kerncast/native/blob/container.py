"""The file format of a blob, and the bytecode of the expressions in it.

The file is a header, a directory of named tables, and the tables; little-endian, with a checksum over all of it:

    header     8 bytes "KERNCAST", uint32 version, uint32 tables, uint64 bytes of the file, uint64 checksum
    directory  per table: 24 bytes of name (padded with 0), uint32 type, uint32 0, uint64 offset, uint64 count
    tables     each begins at a multiple of 8

A type is the character of numpy's type: B, H, h, i, q, d. The checksum is FNV-1a (64 bits) of all 8-byte words, the checksum's
own word as 0.

In bytecode every instruction writes a register of its own, so a program has no loops and no overwriting. Registers are
numbered: constants, then inputs, then the results of the instructions in order. An instruction has an operation and up to three
operands, which must be registers before its own.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kerncast.core.expr import ConstantTable, Expr, Symbol
from kerncast.core.expr.nodes import topological
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


# By number. `index` rounds and clamps a register to a size, `fetch` reads a table at a register. Append, never renumber.
OPERATIONS = (
    "add", "sub", "mul", "div", "min", "max", "abs", "floor", "ceil", "sqrt", "log2", "log1p", "lt", "le", "eq", "and", "or",
    "not", "where", "index", "fetch",
)  # fmt: skip
MOST_REGISTERS = 60_000


class Programs:
    """All programs of a model, in one set of tables; a program is known by its number."""

    def __init__(self) -> None:
        self._rows: list[tuple[int, ...]] = []
        self._constants: list[float] = []
        self._inputs: list[int] = []
        self._code: list[tuple[int, int, int, int]] = []
        self._outputs: list[int] = []
        self._tables: dict[ConstantTable, int] = {}
        self._sizes: dict[int, int] = {}

    def add(self, outputs: Iterable[Expr], place: Callable[[str], int]) -> int:
        """The number of a new program; `place` says where a symbol is in what the program is given."""
        program = _Program(self, list(outputs), place)
        code, written = program.compiled()
        if program.first + len(code) > MOST_REGISTERS:
            raise InvalidValue(
                f"a formula of this model has more than {MOST_REGISTERS:,} steps, too many for a blob: export it to C instead"
            )
        self._rows.append((
            len(self._constants), len(program.constants), len(self._inputs), len(program.inputs), len(self._code), len(code),
            len(self._outputs), len(written),
        ))  # fmt: skip
        self._constants += program.constants
        self._inputs += program.inputs
        self._code += code
        self._outputs += written
        return len(self._rows) - 1

    def table(self, table: ConstantTable) -> int:
        """The number of a constant table."""
        return self._tables.setdefault(table, len(self._tables))

    def size(self, size: int) -> int:
        """The number of a size that indices are clamped to."""
        return self._sizes.setdefault(size, len(self._sizes))

    def tables(self) -> dict[str, Numbers]:
        """What the runtime reads."""
        starts = np.cumsum([0, *(len(table.values) for table in self._tables)])
        return {
            "program.numbers": np.array(self._rows, np.int32).ravel(),
            "program.constants": np.array(self._constants, np.float64),
            "program.inputs": np.array(self._inputs, np.uint16),
            "program.code": np.array(self._code, np.uint16).ravel(),
            "program.outputs": np.array(self._outputs, np.uint16),
            "lookup.first": starts.astype(np.int32),
            "lookup.values": np.array([value for table in self._tables for value in table.values], np.float64),
            "lookup.sizes": np.array(list(self._sizes), np.int32),
        }


class _Program:
    """One program while it is written."""

    def __init__(self, all_of_them: Programs, outputs: list[Expr], place: Callable[[str], int]) -> None:
        self.all = all_of_them
        self.outputs = outputs
        self.order = topological(outputs)
        constants = [expr.payload for expr in self.order if isinstance(expr.payload, float)]
        # Offsets of a lookup are multiplied by sizes.
        sizes = [
            float(size) for expr in self.order if isinstance(expr.payload, ConstantTable) for size in expr.payload.shape[1:]
        ]
        self.constants = list(dict.fromkeys([*constants, *sizes]))
        symbols = [expr.payload.name for expr in self.order if isinstance(expr.payload, Symbol)]
        self.inputs = [place(name) for name in symbols]
        self.registers: dict[Any, int] = {value: number for number, value in enumerate(self.constants)}
        self.registers |= {name: len(self.constants) + number for number, name in enumerate(symbols)}
        self.first = len(self.constants) + len(self.inputs)
        self.code: list[tuple[int, int, int, int]] = []

    def compiled(self) -> tuple[list[tuple[int, int, int, int]], list[int]]:
        """The instructions, and the registers of the outputs."""
        at: dict[bytes, int] = {}
        for expr in self.order:
            if isinstance(expr.payload, float):
                at[expr.digest] = self.registers[expr.payload]
            elif isinstance(expr.payload, Symbol):
                at[expr.digest] = self.registers[expr.payload.name]
            elif isinstance(expr.payload, ConstantTable):
                at[expr.digest] = self._lookup(expr.payload, [at[arg.digest] for arg in expr.args])
            else:
                at[expr.digest] = self._emit(expr.kind, *(at[arg.digest] for arg in expr.args))
        return self.code, [at[expr.digest] for expr in self.outputs]

    def _emit(self, kind: str, *operands: int) -> int:
        a, b, c = (*operands, 0, 0)[:3]
        self.code.append((OPERATIONS.index(kind), a, b, c))
        return self.first + len(self.code) - 1

    def _lookup(self, table: ConstantTable, indices: list[int]) -> int:
        offset = self._emit("index", indices[0], self.all.size(table.shape[0]))
        for size, index in zip(table.shape[1:], indices[1:], strict=True):
            scaled = self._emit("mul", offset, self.registers[float(size)])
            offset = self._emit("add", scaled, self._emit("index", index, self.all.size(size)))
        return self._emit("fetch", offset, self.all.table(table))


def places_of(names: Iterable[str]) -> Callable[[str], int]:
    """Where each of these symbols is, in their order."""
    known: Mapping[str, int] = {name: place for place, name in enumerate(names)}
    return known.__getitem__
