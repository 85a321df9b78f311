"""How much a file may expand to: every limit of kerncast on what it reads, and how to raise it.

A file of some kilobytes can ask for gigabytes: a compressed file that expands, an array whose header claims a size, a text
that nests a million brackets. Each limit is far above what real files need. The environment variable
`KERNCAST_MAX_<NAME>` raises it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from kerncast.errors import BadFile, InvalidValue


@dataclass(frozen=True)
class Budget:
    """One limit."""

    name: str
    default: int
    unit: str
    about: str
    """What is limited, as the docs list it."""

    @property
    def variable(self) -> str:
        """The environment variable that raises it."""
        return f"KERNCAST_MAX_{self.name.upper()}"

    @property
    def limit(self) -> int:
        """The limit now: the environment variable's, if it is set."""
        given = os.environ.get(self.variable, "")
        if not given:
            return self.default
        try:
            wanted = int(float(given))
        except (ValueError, OverflowError):
            wanted = 0
        if wanted < 1:
            raise InvalidValue(f"{self.variable} must be a whole number of at least 1, got {given!r}")
        return wanted

    def refuse(self, amount: int | None, what: str) -> None:
        """Refuse an amount above the limit; None: it is above, and nobody counted by how much."""
        limit = self.limit
        if amount is not None and amount <= limit:
            return
        has = f"more than {limit:,}" if amount is None else f"{amount:,}"
        rule = "" if amount is None else f", and at most {limit:,} are read"
        raise BadFile(f"{what} has {has} {self.unit}{rule}: if it is meant to be that large, set {self.variable}")

    def read(self, file: Path) -> bytes:
        """The bytes of a file, if they are within the limit; a device or a pipe is not read beyond it, either."""
        with file.open("rb") as stream:
            self.refuse(os.fstat(stream.fileno()).st_size, str(file))
            return self.taken(stream, str(file))

    def taken(self, stream: BinaryIO, what: str) -> bytes:
        """All the bytes of a stream, if they are within the limit."""
        data = stream.read(self.limit + 1)
        if len(data) > self.limit:
            self.refuse(None, what)
        return data


EXPANDED_BYTES = Budget("expanded_bytes", 4 * 2**30, "bytes", "what one compressed file (gzip, zip, npz, parquet) expands to")
ZIP_MEMBERS = Budget("zip_members", 100_000, "members", "the files in one zip or npz archive")
TABLE_PAGES = Budget("table_pages", 1_000_000, "pages", "the pages of one parquet table, in all its row groups and columns")
COLUMNS = Budget("columns", 20_000, "columns", "the columns of one table (CSV, parquet)")
TABLE_CELLS = Budget("table_cells", 500_000_000, "cells", "the cells of one CSV table")
LINE_CHARACTERS = Budget("line_characters", 16 * 2**20, "characters", "one line of a CSV table")
JSON_BYTES = Budget("json_bytes", 2 * 2**30, "bytes", "one file of JSON, msgpack or a program's log")
TOML_BYTES = Budget("toml_bytes", 4 * 2**20, "bytes", "one TOML file")
TOML_KEY_PARTS = Budget("toml_key_parts", 100, "parts", "one dotted key in a TOML file")
FOREST_BYTES = Budget("forest_bytes", 2**30, "bytes", "the text of one forest of trees, expanded")

ALL = (
    EXPANDED_BYTES, ZIP_MEMBERS, TABLE_PAGES, COLUMNS, TABLE_CELLS, LINE_CHARACTERS,
    JSON_BYTES, TOML_BYTES, TOML_KEY_PARTS, FOREST_BYTES,
)  # fmt: skip
