"""How `import` and `inspect` show the rows that could not be represented."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from kerncast.core.io.terminal import printable
from kerncast.data.skipping import KINDS_SHOWN, Skipped


def skipped_facts(skipped: Skipped) -> dict[str, Any]:
    """For `--json`."""
    path = None if skipped.path is None else str(skipped.path)
    return {"rows": skipped.rows, "file": path, "kinds": [msgspec.to_builtins(kind) for kind in skipped.kinds]}


def skipped_lines(skipped: Skipped) -> Iterator[str]:
    """One line for each kind, with its first row."""
    if not skipped.rows:
        return
    yield f"skipped {skipped.rows:,} rows that cannot be represented (kept in {skipped.path}):"
    for kind in skipped.kinds[:KINDS_SHOWN]:
        # The example quotes a file: control characters are escaped.
        yield f"  {kind.rows:,} × {printable(kind.example)}"
    if len(skipped.kinds) > KINDS_SHOWN:
        yield f"  and {len(skipped.kinds) - KINDS_SHOWN} more kinds"
