"""Keeps pauses short: Python's collector looks at everything that is loaded, which takes a tenth of a second."""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Iterator

# How long a thread may hold up the event loop before it has to let others run.
SWITCH_SECONDS = 0.0005
_STEADY = False


@contextlib.contextmanager
def steady() -> Iterator[None]:
    """While a server runs: what is loaded is not looked at again, and threads give way to each other sooner."""
    global _STEADY
    before = sys.getswitchinterval()
    _STEADY = True
    sys.setswitchinterval(SWITCH_SECONDS)
    settle()
    try:
        yield
    finally:
        _STEADY = False
        sys.setswitchinterval(before)
        gc.unfreeze()


def settle() -> None:
    """A model was loaded, and stays: the collector need not look at it again. Does nothing unless a server runs steadily."""
    if _STEADY:
        gc.collect()
        gc.freeze()
