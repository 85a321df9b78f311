"""Handle Ctrl-C and SIGTERM during measurement: the first signal stops cleanly, the second ends at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def polite_signals() -> Iterator[Callable[[], bool]]:
    """Yield the `stop` function that `collect` takes. Only the main thread can catch signals; elsewhere it never stops."""
    asked = False

    def ask(signum: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    previous = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: asked
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
