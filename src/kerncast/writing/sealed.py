"""Arrays with a checksum over all of them, which the artefact recomputes when a context is created."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kerncast.arrays import Ints
from kerncast.writing.c import array

# Odd numbers that make a change of one field of a struct differ from the same change of another.
FIELD_FACTORS = (1, 65_537, 4_294_967_311)


class Sealed:
    """Writes constant arrays and keeps a checksum of them: the sum of each number times its (odd) position.

    It detects a flipped bit and a swapped pair.
    """

    def __init__(self) -> None:
        self._total = 0
        self._lines: list[str] = []

    def array(self, kind: str, name: str, values: npt.NDArray[np.generic]) -> str:
        """A constant array of numbers."""
        flat = np.asarray(values).ravel() if values.size else np.zeros(1, np.int64)
        bits = flat.astype(np.float64).view(np.uint64) if kind == "double" else flat.astype(np.int64).view(np.uint64)
        self._add(name, bits, f"kc_bits({name}[i])" if kind == "double" else f"(uint64_t)(int64_t){name}[i]")
        return array(kind, name, values)

    def triples(self, kind: str, name: str, fields: tuple[str, str, str], values: Ints) -> str:
        """A constant array of structs of three whole numbers."""
        rows = values if len(values) else np.zeros((1, 3), np.int64)
        numbers = np.ascontiguousarray(rows).view(np.uint64).reshape(-1, 3)
        with np.errstate(over="ignore"):
            mixed = (numbers * np.array(FIELD_FACTORS, np.uint64)).sum(axis=1, dtype=np.uint64)
        reads = [
            f"(uint64_t)(int64_t){name}[i].{field} * UINT64_C({factor})"
            for field, factor in zip(fields, FIELD_FACTORS, strict=True)
        ]
        self._add(name, mixed, " + ".join(reads))
        texts = [f"{{{a}, {b}, {c}}}" for a, b, c in rows.tolist()]
        body = ",\n    ".join(", ".join(texts[i : i + 8]) for i in range(0, len(texts), 8))
        return f"static const {kind} {name}[{len(texts)}] = {{\n    {body}\n}};\n"

    def _add(self, name: str, bits: npt.NDArray[np.uint64], read: str) -> None:
        places = np.arange(len(bits), dtype=np.uint64) * np.uint64(2) + np.uint64(1)
        with np.errstate(over="ignore"):
            self._total = (self._total * 31 + int((bits * places).sum(dtype=np.uint64))) % 2**64
        self._lines += [
            "    part = 0;",
            f"    for (uint64_t i = 0; i < sizeof {name} / sizeof {name}[0]; i++) part += ({read}) * (2 * i + 1);",
            "    total = total * 31 + part;",
        ]

    @property
    def parts(self) -> str:
        """Statements of C that add up `total`, array by array."""
        return "\n".join(self._lines)

    @property
    def total(self) -> str:
        """The expected total, as a literal."""
        return f"0x{self._total:016x}"
