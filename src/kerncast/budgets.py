"""How much a file may expand to: every limit of kerncast on what it reads, and how to raise it.

A file of some kilobytes can ask for gigabytes: a compressed file that expands, an array whose header claims a size, a text
that nests a million brackets. Each limit is far above what real files need. The environment variable
`KERNCAST_MAX_<NAME>` raises it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

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


EXPANDED_BYTES = Budget("expanded_bytes", 4 * 2**30, "bytes", "what one compressed file (gzip, zip, npz) expands to")
ZIP_MEMBERS = Budget("zip_members", 100_000, "members", "the files in one zip or npz archive")
JSON_BYTES = Budget("json_bytes", 2 * 2**30, "bytes", "the size of one JSON or TOML file")
FOREST_BYTES = Budget("forest_bytes", 2**30, "bytes", "the text of one forest of trees, expanded")

ALL = (EXPANDED_BYTES, ZIP_MEMBERS, JSON_BYTES, FOREST_BYTES)
