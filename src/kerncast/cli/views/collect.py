"""What `kerncast collect` shows while it works: a live panel on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections import Counter
from types import TracebackType
from typing import Any

import click

from kerncast.cli.views.output import assignments, duration
from kerncast.collecting.messages import Item, Result

PLAIN_SECONDS = 10.0
LIVE_SECONDS = 0.25
# The rate is taken over the last few seconds, so that the ETA follows a change of problem size.
RATE_SECONDS = 10.0


class CollectView:
    """Counts results and draws them; used as a context manager around the collection."""

    def __init__(self, total: int | None) -> None:
        self.total, self.what = total, "vectors"
        self.statuses: Counter[str] = Counter()
        self.devices: Counter[str] = Counter()
        self.disturbed_samples = self.samples = 0
        self.problem: dict[str, Any] = {}
        self.best_ns: float | None = None
        self.began = self.drawn = time.monotonic()
        self.history: list[tuple[float, int]] = [(self.began, 0)]
        self.live: Any = None

    def __enter__(self) -> CollectView:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.live import Live

            self.live = Live(console=Console(stderr=True), refresh_per_second=4, transient=True)
            self.live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.live is not None:
            self.live.stop()

    # -- what the supervisor calls ---------------------------------------------------------------------

    def result(self, item: Item, result: Result, device: str) -> None:
        """A vector has its final status."""
        self.statuses[result.status] += 1
        self.devices[device] += 1
        self.disturbed_samples += result.disturbed_samples
        self.samples += result.samples or 0
        if item.problem != self.problem:
            self.problem, self.best_ns = item.problem, None
        if result.time_ns is not None:
            self.best_ns = min(self.best_ns or result.time_ns, result.time_ns)

    def phase(self, what: str, total: int | None) -> None:
        """Count from the beginning again, under another name."""
        self.what, self.total = what, total
        self.statuses.clear()
        self.history = [(time.monotonic(), 0)]

    def tick(self) -> None:
        """Draw, at most a few times a second."""
        now = time.monotonic()
        if now - self.drawn < (LIVE_SECONDS if self.live is not None else PLAIN_SECONDS):
            return
        self.drawn = now
        self.history.append((now, self.statuses.total()))
        while len(self.history) > 2 and now - self.history[0][0] > RATE_SECONDS:
            self.history.pop(0)
        if self.live is not None:
            self.live.update(self._panel())
        else:
            click.echo(self.line(), err=True)

    def say(self, text: str) -> None:
        """A sentence that stays, above the panel."""
        if self.live is not None:
            self.live.console.print(f"kerncast: {text}", markup=False, highlight=False, soft_wrap=True)
        else:
            click.echo(f"kerncast: {text}", err=True)

    # -- how it looks ------------------------------------------------------------------------------------

    def rate(self) -> float:
        """Vectors per second, lately."""
        (then, before), (now, after) = self.history[0], self.history[-1]
        return (after - before) / (now - then) if now > then else 0.0

    def remaining(self) -> str:
        """The time that is left, if the total is known."""
        rate = self.rate()
        if self.total is None or not rate:
            return "unknown"
        seconds = max(0, round((self.total - self.statuses.total()) / rate))
        return f"{seconds // 3600}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"

    def disturbed(self) -> float:
        """The share of samples that were taken while the machine was disturbed."""
        return self.disturbed_samples / max(1, self.samples)

    def line(self) -> str:
        """Everything in one line of text."""
        done = self.statuses.total()
        of = f" of {self.total:,}" if self.total is not None else ""
        counts = " ".join(f"{name} {count:,}" for name, count in self.statuses.most_common())
        speed = f"{self.rate():.0f}/s, left {self.remaining()}"
        return f"{done:,}{of} {self.what}, {speed}, disturbed {self.disturbed():.1%}, {counts}"

    def _panel(self) -> Any:
        from rich.console import Group
        from rich.padding import Padding
        from rich.progress_bar import ProgressBar
        from rich.text import Text

        done = self.statuses.total()
        lanes = "  ".join(f"device {name}: {count:,}" for name, count in sorted(self.devices.items()))
        best = f"best {duration(self.best_ns)}" if self.best_ns is not None else ""
        counts = Text("  ").join(
            Text(f"{name} {count:,}", style="green" if name == "ok" else "yellow")
            for name, count in self.statuses.most_common()
        )
        head = f"{done:,}" + (f" of {self.total:,}" if self.total is not None else "")
        return Group(
            Text(
                f"{head} {self.what}   {self.rate():.0f}/s   left {self.remaining()}   disturbed {self.disturbed():.1%}",
                style="bold",
            ),
            # A bar by itself ends without a new line, and what follows is cropped with it.
            Padding(ProgressBar(total=float(self.total or max(done, 1)), completed=float(done), pulse=self.total is None), 0),
            counts,
            Text(lanes, style="dim"),
            Text(f"{assignments(self.problem)}   {best}", style="dim", no_wrap=True, overflow="ellipsis"),
        )
