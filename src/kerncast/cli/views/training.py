"""What training shows while it works: a bar with folds, trees and time left; plain lines when not a terminal."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any, Self

import click


class TrainingView:
    """Told of stages (folds, the final fit) and of steps within them."""

    def __init__(self) -> None:
        self._bar: Any = None
        self._stage, self._of = 0, 1

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

            self._bar = Progress(
                TextColumn("{task.description:<44}"),
                BarColumn(),
                TextColumn("{task.percentage:>3.0f}%"),
                TimeElapsedColumn(),
                TextColumn("left"),
                TimeRemainingColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            self._bar.start()
            self._task = self._bar.add_task("reading the measurements", total=1.0)
        return self

    def stage(self, name: str, number: int, of: int) -> None:
        """A fold or the final fit begins."""
        self._stage, self._of, self._name = number - 1, of, name
        if self._bar is None:
            click.echo(f"{name} ...", err=True)
        else:
            self._bar.update(self._task, description=name, completed=self._stage / of)

    def step(self, what: str, done: int, of: int) -> None:
        """Some trees or epochs of it are done."""
        if self._bar is not None and (done == of or done % 5 == 0):
            share = (self._stage + min(1.0, done / of)) / self._of
            done_before = self._bar.tasks[self._task].completed
            self._bar.update(
                self._task, description=f"{self._name}: {what} {done}/{of}", completed=max(done_before, min(share, 0.999))
            )

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.stop()
