"""Contract tests that every importer, backend, model and exporter must pass.

How often a test repeats: `make test` has minutes, `make soak` has hours.
"""

from __future__ import annotations

import os

SOAK = "KERNCAST_SOAK"


def soaking() -> bool:
    """Whether the long form of the tests is asked for."""
    return bool(os.environ.get(SOAK))


def repeats(few: int, many: int) -> int:
    """`few`, or `many` in `make soak`."""
    return many if soaking() else few
