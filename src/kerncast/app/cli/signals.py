"""Ctrl-C and SIGTERM: every verb ends within a second, whatever it is doing, and leaves its output resumable or removed.

Python runs a signal handler only between two of its own instructions, so a long call of polars, LightGBM or a compiler would
delay it. Therefore the system also writes each signal into a pipe, and a thread waits at its end. If the main thread does not
end soon, that thread removes unfinished drafts, ends child processes and leaves.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import NoReturn

SIGNALS = (signal.SIGINT, signal.SIGTERM)
# How long the main thread may take to notice a signal and to clean up, before the other thread ends the process.
GRACE_SECONDS = 0.3
# How long a collection that has noticed it may take to write down what it measured.
WRITING_SECONDS = 10.0


class _State:
    """What the two threads know of each other."""

    def __init__(self) -> None:
        self.number: int | None = None
        """The signal that came."""
        self.polite = 0
        """How many `polite_signals` are active."""
        self.noticed = False
        """Whether a polite verb has seen that it is to stop."""
        self.ended = threading.Event()


_state = _State()


@contextmanager
def prompt_signals() -> Iterator[None]:
    """Make Ctrl-C and SIGTERM end what runs inside with a KeyboardInterrupt, or end the process if that takes too long."""
    global _state
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before, _state = _state, _State()
    reading, writing = os.pipe()
    os.set_blocking(writing, False)

    def interrupt(number: int, frame: FrameType | None) -> None:
        if _state.number is not None:  # the second one: do not interrupt the cleaning up half-way
            _end_at_once(number)
        _state.number = number
        raise KeyboardInterrupt

    handlers = {number: signal.signal(number, interrupt) for number in SIGNALS}
    wakeup = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    watcher = threading.Thread(target=_watch, args=(reading, _state), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        _state.ended.set()
        if _state.number is not None:
            end_children()
        signal.set_wakeup_fd(wakeup)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        os.close(writing)
        watcher.join()
        os.close(reading)
        _state = before


def _watch(reading: int, state: _State) -> None:
    while data := os.read(reading, 1):
        number = data[0]
        if number not in SIGNALS:
            continue
        began = time.monotonic()
        while not state.ended.wait(0.02):
            allowed = WRITING_SECONDS if state.polite and state.noticed else GRACE_SECONDS
            if time.monotonic() - began > allowed:
                _end_at_once(number)


def leave() -> NoReturn:
    """End a verb that was interrupted, with the exit code that a shell expects: 128 and the number of the signal."""
    if _state.number is None:  # a KeyboardInterrupt without a signal
        sys.exit(128 + signal.SIGINT)
    # Everything is cleaned up by now. Python would wait for other threads (a fit goes on until its next round) and then take
    # hundreds of megabytes apart.
    _end_at_once(_state.number, said=True)


def _end_at_once(number: int, said: bool = False) -> NoReturn:
    """End the process without returning to what it was doing."""
    from kerncast.core.io.atomic import discard_drafts

    with suppress(Exception):
        end_children()
        discard_drafts()
    with suppress(Exception):
        if not said:
            os.write(2, b"kerncast: stopped\n")
    with suppress(Exception):
        sys.stdout.flush()
    os._exit(128 + number)


def end_children() -> None:
    """Kill every process that this one started, and theirs: a compiler would go on for seconds."""
    for pid in reversed(_descendants(os.getpid())):
        with suppress(OSError):
            os.kill(pid, signal.SIGKILL)


def _descendants(pid: int) -> list[int]:
    found: list[int] = []
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError):
                for child in (task / "children").read_text().split():
                    found += [int(child), *_descendants(int(child))]
    return found


@contextmanager
def polite_signals() -> Iterator[Callable[[], bool]]:
    """Yield the `stop` function that `collect` takes: a signal makes it true, and the collection writes down what it has.

    A second signal ends it at once. Only the main thread can catch signals; elsewhere it never stops.
    """
    asked = False
    state = _state

    def ask(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        state.number = number
        if asked:
            raise KeyboardInterrupt
        asked = True

    def stop() -> bool:
        state.noticed = state.noticed or asked
        return asked

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    previous = {number: signal.signal(number, ask) for number in SIGNALS}
    state.polite += 1
    try:
        yield stop
    finally:
        state.polite -= 1
        for number, handler in previous.items():
            signal.signal(number, handler)
