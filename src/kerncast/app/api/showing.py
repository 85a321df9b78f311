"""Progress as people see it: a bar or a live panel on a terminal, plain lines elsewhere, one moving line in a notebook.

`shown` turns what a caller passes as `progress` into the `Progress` that every stage is given. What is printed for people goes
through `echo`, line by line: nothing else here or in the command line writes to a terminal.
"""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any, ClassVar, Literal, Self, Unpack

import click

from kerncast.core.io.terminal import assignments, duration, fitted, line
from kerncast.core.progress import QUIET, Facts, Progress


def terminal_width(err: bool = False) -> int | None:
    """How wide the terminal is; None where stdout (or stderr) is none: what a program reads does not depend on a width."""
    return shutil.get_terminal_size().columns if (sys.stderr if err else sys.stdout).isatty() else None


def echo(*lines: object, err: bool = False) -> None:
    """Print each argument as one line, with control characters as codes; without arguments, an empty line.

    A terminal that is too narrow gets several lines, none of which ends within a word.
    """
    width = terminal_width(err)
    for text in map(line, lines or ("",)):
        for part in [text] if width is None else fitted(text, width):
            click.echo(part, err=err)


def echo_exactly(text: str | bytes, *, nl: bool = True) -> None:
    """Print a text for a program, unchanged: JSON, a script, a path. Its writer has escaped what comes from data."""
    click.echo(text, nl=nl)


LIVE_SECONDS = 0.25
# The rate is over the last half minute: the time left follows a change of problem size, but not every chunk.
PACE_SECONDS = 30.0


def clock(seconds: float) -> str:
    """`1:02:03`: hours, minutes, seconds."""
    whole = max(0, round(seconds))
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"


class Pace:
    """Records how much was done when, and estimates the time left."""

    def __init__(self) -> None:
        self.began, self.guessed = time.monotonic(), 0.0
        self.points: list[tuple[float, float]] = [(self.began, 0.0)]

    def next(self) -> Pace:
        """The pace of the next part; a guess holds until something is measured."""
        found = Pace()
        if len(self.points) == 1:
            found.guessed = max(0.0, self.guessed - (found.began - self.began))
        return found

    def add(self, amount: float) -> None:
        """Record that `amount` is done by now."""
        now = time.monotonic()
        if len(self.points) > 1 and now - self.points[-2][0] < LIVE_SECONDS:
            self.points.pop()
        self.points.append((now, amount))
        while len(self.points) > 2 and now - self.points[0][0] > PACE_SECONDS:
            self.points.pop(0)

    def rate(self) -> float:
        """The recent amount per second."""
        (then, before), (now, after) = self.points[0], self.points[-1]
        return (after - before) / (now - then) if now > then else 0.0

    def left(self, target: float | None) -> tuple[float | None, bool]:
        """The seconds until `target`, None if nobody can say; and whether they follow from the recent rate, or are a guess."""
        now, (at, amount), rate = time.monotonic(), self.points[-1], self.rate()
        if target and amount >= target:
            return 0.0, True
        if target is not None and rate > 0:
            return max(0.0, (target - amount) / rate - (now - at)), True
        spent = now - self.began
        if target is not None and amount > 0 and spent > 0:  # no recent progress
            return (target - amount) * spent / amount, False
        return (self.guessed - spent, False) if spent < self.guessed else (None, False)


def left_in_words(seconds: float | None, measured: bool) -> str:
    """The time left, with `about` if it is only a guess."""
    return "unknown" if seconds is None else clock(seconds) if measured else f"about {clock(seconds)}"


Wanted = Progress | Literal["auto"] | bool | None
"""What a public function takes: `auto`, True (every stage, also where there is no terminal), False, or your own."""

PLAIN_SECONDS = 10.0
# A share of the work that says nothing yet about the time that the rest takes: the first tree is the slowest.
FEWEST_DONE = 0.01
PLAIN_STEP_SECONDS = 5.0
BEAT_SECONDS = 1.0
# Work that begins this soon after other work goes on where that one was silent; what lies between them may import LightGBM.
PAUSE_SECONDS = 5.0
NOTEBOOK_SECONDS = 0.5
# A bar for less than this would only flicker.
FLICKER_SECONDS = 1.0


@contextmanager
def shown(progress: Wanted = "auto", *, plain: bool = False, what: str = "") -> Iterator[Progress]:
    """Show the work inside: with `plain`, in lines where there is no terminal; `what` is shown before the first stage."""
    if isinstance(progress, Progress):
        yield progress
    elif progress is None or progress is False:
        yield QUIET
    else:
        elsewhere = LineShow if plain or progress is True else SparseShow
        kind = NotebookShow if in_notebook() else TerminalShow if sys.stderr.isatty() else elsewhere
        with kind(what) as show:
            yield show


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook; IPython on a terminal is not."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return hasattr(shell, "kernel")


class Account(Progress):
    """Keeps everything that was reported, and words it. Its subclasses draw it."""

    def __init__(self, what: str = "") -> None:
        # A terminal is drawn by another thread.
        self.lock = threading.RLock()
        self.began = self.entered = time.monotonic()
        self.name, self.number, self.of = what, 1, 1
        self.steps: tuple[str, int, int | None] | None = None
        self.share = 0.0
        self.counting = False
        self.what = "vectors"
        self.total: int | None = None
        self.pace = Pace()
        self._forget()

    def __enter__(self) -> Self:
        self.begin()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.end(whole=error is None)

    def begin(self) -> None:
        """The work begins."""

    def end(self, whole: bool) -> None:
        """It has ended, early if it is not `whole`."""

    def changed(self, what: str) -> None:
        """Something was reported, by a call of `stage`, `step`, `expect`, `guess` or `tick`: it may be drawn."""

    def _forget(self) -> None:
        self.statuses: Counter[str] = Counter()
        self.devices: Counter[str] = Counter()
        self.samples = self.disturbed_samples = 0
        self.problem: Mapping[str, Any] = {}
        self.best_ns: float | None = None

    # -- what the stages call ----------------------------------------------------------------------------

    def stage(self, name: str, number: int = 1, of: int = 1) -> None:
        """Begin a part; a part that does not follow the one before is other work, with a new pace."""
        with self.lock:
            if self.counting or of != self.of or number <= self.number:
                self.pace, self.share = self.pace.next(), 0.0
            self.name, self.number, self.of, self.steps, self.counting = name, number, of, None, False
            self.entered = time.monotonic()
            self._forget()
            self._reach((number - 1) / of)
            self.changed("stage")

    def step(self, what: str, done: int = 0, of: int | None = None) -> None:
        """Record how much of that part is done."""
        with self.lock:
            self.steps, self.counting = (what, done, of), False
            if of:
                self._reach(min((self.number - 1 + min(1.0, done / of)) / self.of, 0.999))
            self.changed("step")

    def _reach(self, share: float) -> None:
        self.share = max(self.share, share)
        if self.share:
            self.pace.add(self.share)

    def expect(self, what: str, total: int | None) -> None:
        """Start counting from zero, under this name."""
        with self.lock:
            self.what, self.total, self.counting, self.pace = what, total, True, self.pace.next()
            self.statuses.clear()
            self.changed("expect")

    def guess(self, seconds: float) -> None:
        """Set an estimate, shown as `about` until something is measured."""
        with self.lock:
            self.pace.guessed = seconds
            self.changed("guess")

    def result(self, status: str, **facts: Unpack[Facts]) -> None:
        """Count one more with its final status."""
        problem, time_ns = facts.get("problem"), facts.get("time_ns")
        with self.lock:
            self.counting = True
            self.statuses[status] += 1
            self.devices[facts.get("device", "")] += 1
            self.disturbed_samples += facts.get("disturbed", 0)
            self.samples += facts.get("samples", 0)
            if problem is not None and problem != self.problem:
                self.problem, self.best_ns = problem, None
            if time_ns is not None:
                self.best_ns = min(self.best_ns or time_ns, time_ns)

    def tick(self) -> None:
        """Update the rate from the count."""
        with self.lock:
            if self.counting and time.monotonic() - self.pace.points[-1][0] >= LIVE_SECONDS:
                self.pace.add(self.statuses.total())
            self.changed("tick")

    # -- how it is worded ----------------------------------------------------------------------------------

    def left(self) -> tuple[float | None, bool]:
        """The seconds that are left, None if nobody can say; and whether they were measured."""
        if self.counting:
            return self.pace.left(self.total)
        if 0 < self.pace.points[-1][1] < FEWEST_DONE:
            return None, False
        return self.pace.left(1.0 if self.of > 1 or (self.steps and self.steps[2]) else None)

    def remaining(self) -> str:
        """The time that is left."""
        return left_in_words(*self.left())

    def disturbed(self) -> float:
        """The share of samples that were taken while the machine was disturbed."""
        return self.disturbed_samples / max(1, self.samples)

    def title(self) -> str:
        """The current part and how far it is."""
        if self.steps is None:
            return self.name
        what, done, of = self.steps
        if of is None:
            speed = done / max(1e-9, time.monotonic() - self.pace.began)
            return f"{self.name}: {done:,} {what}, {speed:,.0f}/s"
        return f"{self.name}: {what} {done}/{of}"

    def line(self) -> str:
        """Everything in one line of text."""
        if not self.counting:
            left = self.remaining()
            return self.title() if left == "unknown" else f"{self.title()}, left {left}"
        done = self.statuses.total()
        of = f" of {self.total:,}" if self.total is not None else ""
        counts = " ".join(f"{name} {count:,}" for name, count in self.statuses.most_common())
        speed = f"{self.pace.rate():.0f}/s, left {self.remaining()}"
        return f"{done:,}{of} {self.what}, {speed}, disturbed {self.disturbed():.1%}{counts and f', {counts}'}"


class LineShow(Account):
    """Plain lines on stderr: one for each stage, and how far it is every few seconds, also while nothing is reported."""

    def __init__(self, what: str = "") -> None:
        super().__init__(what)
        self.printed = self.began
        self._ended = threading.Event()
        self._beating = threading.Thread(target=self._beat, name="progress", daemon=True)

    def begin(self) -> None:
        self._beating.start()

    def end(self, whole: bool) -> None:
        self._ended.set()
        self._beating.join()

    def _beat(self) -> None:
        """A compiler or a learner may work for half a minute without a word."""
        while not self._ended.wait(BEAT_SECONDS):
            if self.counting or self.name:
                self._print(PLAIN_SECONDS - BEAT_SECONDS)

    def _print(self, every: float) -> None:
        with self.lock:
            if time.monotonic() - self.printed >= every:
                self.printed = time.monotonic()
                echo(self.line(), err=True)

    def line(self) -> str:
        """Of a part that does not say how far it is: how long it has taken."""
        if self.counting or self.steps is not None:
            return super().line()
        return f"{super().line()} ({clock(time.monotonic() - self.entered)} so far)"

    def changed(self, what: str) -> None:
        if what == "stage":
            self.printed = time.monotonic()
            # A stage that an earlier run finished is only named.
            echo(self.name if self.name.endswith("(done before)") else f"{self.name} ...", err=True)
        elif what == "step":
            self._print(PLAIN_STEP_SECONDS if self.steps is not None and self.steps[2] is None else PLAIN_SECONDS)
        elif what == "tick" and self.counting:
            self._print(PLAIN_SECONDS)

    def say(self, text: str) -> None:
        echo(f"kerncast: {text}", err=True)


class SparseShow(LineShow):
    """For scripts whose output is a file or a pipe: how far the work is, every ten seconds, and nothing of shorter work.

    Calls that follow each other are one work: four of six seconds each are not silent.
    """

    _work: ClassVar[tuple[float, float]] = (time.monotonic(),) * 2
    """When the latest work of this process ended, and when it last printed; the first call imports for a second or two."""

    def __init__(self, what: str = "") -> None:
        super().__init__(what)
        ended, printed = self._work
        if 0 <= self.began - ended <= PAUSE_SECONDS:
            self.printed = printed

    def end(self, whole: bool) -> None:
        super().end(whole)
        SparseShow._work = time.monotonic(), self.printed

    def changed(self, what: str) -> None:
        return

    def say(self, text: str) -> None:
        return


class TerminalShow(Account):
    """One live display on stderr, removed at the end: a bar for stages, a panel for results."""

    def __init__(self, what: str = "") -> None:
        super().__init__(what)
        self.live: Any = None
        self.spinner: Any = None

    def begin(self) -> None:
        if self.name:
            self._start()

    def _start(self) -> None:
        if self.live is not None:
            return
        from rich.console import Console
        from rich.live import Live
        from rich.spinner import Spinner

        self.spinner = Spinner("dots", style="status.spinner")
        self.live = Live(
            console=Console(stderr=True),
            get_renderable=self.drawn,
            refresh_per_second=1 / LIVE_SECONDS,
            transient=True,
        )
        self.live.start(refresh=True)

    def end(self, whole: bool) -> None:
        if self.live is not None:
            self.live.stop()

    def changed(self, what: str) -> None:
        if what in ("stage", "expect") or (what == "step" and time.monotonic() - self.began > FLICKER_SECONDS):
            self._start()

    def say(self, text: str) -> None:
        if self.live is None:
            echo(f"kerncast: {text}", err=True)
            return
        self.live.console.print(line(f"kerncast: {text}"), markup=False, highlight=False, soft_wrap=True)

    # -- how it looks --------------------------------------------------------------------------------------

    def drawn(self) -> Any:
        """What the terminal shows now."""
        from rich.text import Text

        with self.lock:
            if self.counting:
                return self.panel()
            if self.of > 1 or (self.steps is not None and self.steps[2]):
                return self.bar()
            self.spinner.update(text=Text(line(self.line())))
            return self.spinner

    def bar(self) -> Any:
        """The stage, how far all of them are, the time spent and left."""
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        grid = Table.grid(padding=(0, 1))
        left = self.remaining()
        grid.add_row(
            Text(f"{line(self.title()):<44}"),
            ProgressBar(total=1.0, completed=self.share, width=40),
            Text(f"{self.share:>4.0%}"),
            Text(clock(time.monotonic() - self.began), style="progress.elapsed"),
            Text("left"),
            Text("-:--:--" if left == "unknown" else left, style="progress.remaining"),
        )
        return grid

    def panel(self) -> Any:
        """How many results there are and how they ended, the time left, and what is being measured."""
        from rich.console import Group
        from rich.padding import Padding
        from rich.progress_bar import ProgressBar
        from rich.text import Text

        done = self.statuses.total()
        lanes = "  ".join(f"device {name}: {count:,}" for name, count in sorted(self.devices.items()))
        best = f"best {duration(self.best_ns)}" if self.best_ns is not None else ""
        counts = Text("  ").join(
            Text(line(f"{name} {count:,}"), style="green" if name == "ok" else "yellow")
            for name, count in self.statuses.most_common()
        )
        head = f"{done:,}" + (f" of {self.total:,}" if self.total is not None else "")
        speed = f"{self.pace.rate():.0f}/s   left {self.remaining()}   disturbed {self.disturbed():.1%}"
        return Group(
            Text(line(f"{head} {self.what}   {speed}"), style="bold"),
            # Without padding a bar ends without a new line, and what follows is cropped.
            Padding(ProgressBar(total=float(self.total or max(done, 1)), completed=float(done), pulse=self.total is None), 0),
            counts,
            Text(line(lanes), style="dim"),
            Text(line(f"{assignments(self.problem)}   {best}"), style="dim", no_wrap=True, overflow="ellipsis"),
        )


class NotebookShow(Account):
    """One line below the cell, updated in place; at the end it shows the time spent."""

    def __init__(self, what: str = "") -> None:
        super().__init__(what)
        self.handle: Any = None
        self.updated = 0.0

    def begin(self) -> None:
        if self.name:
            self._write(self.line())

    def end(self, whole: bool) -> None:
        if self.handle is not None:
            spent = clock(time.monotonic() - self.began)
            self._write(f"done in {spent}" if whole else f"{self.name or 'work'}: stopped after {spent}")

    def _write(self, text: str) -> None:
        from IPython.display import display

        # A notebook shows the representation of what it is given, and that of a text has quotes.
        self.updated, shown = time.monotonic(), type("Line", (), {"__repr__": lambda _: line(text)})()
        if self.handle is None:
            self.handle = display(shown, display_id=True)
        else:
            self.handle.update(shown)

    def changed(self, what: str) -> None:
        if what == "stage" or (what in ("step", "tick") and time.monotonic() - self.updated >= NOTEBOOK_SECONDS):
            self._write(self.line())

    def say(self, text: str) -> None:
        echo(f"kerncast: {text}", err=True)
