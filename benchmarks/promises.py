"""What the users of four reference systems expect, each as a function that does it with small made-up files.

A function is marked with `@promise(rows, system, words, how)`. It gets a `Work`, whose commands are real processes in a folder
of their own. It fails like a test does; it may end with `work.needs("an AMD GPU")`, which says what would have to be there to
go further. `benchmarks/coverage.py` runs them all.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# A command that takes longer hangs: all of them are small.
SECONDS = 900


@dataclass
class Work:
    """A folder in which commands are run, and what hardware was missing."""

    folder: Path
    lacking: str = ""
    possible: bool = True

    def __call__(self, command: str, *, exits: int = 0, says: str = "") -> str:
        """What a command prints, both streams; it must end with this exit code and say this."""
        environment = {**os.environ, "KERNCAST_STORE": str(self.folder / "store"), "COLUMNS": "200"}
        environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
        words = shlex.split(command)
        done = subprocess.run(
            words, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
        )
        told = done.stdout + done.stderr
        assert done.returncode == exits, f"`{command}` ended with {done.returncode}, expected {exits}:\n{told[-3000:]}"
        assert says in told, f"`{command}` does not say '{says}':\n{told[-3000:]}"
        return done.stdout or done.stderr

    def json(self, command: str, *, exits: int = 0) -> Any:
        """What a command prints with `--json`."""
        return json.loads(self(f"{command} --json", exits=exits))

    def python(self, source: str, says: str = "") -> str:
        """What a Python program prints."""
        return self(shlex.join([sys.executable, "-c", source]), says=says)

    def write(self, name: str, content: Any) -> Path:
        """A file: text as it is, everything else as JSON."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content, indent=1), encoding="utf-8")
        return path

    def read(self, name: str) -> Any:
        """A JSON file."""
        return json.loads((self.folder / name).read_text(encoding="utf-8"))

    def needs(self, hardware: str) -> None:
        """What would be needed to go further."""
        self.lacking = hardware

    def cannot(self, hardware: str) -> None:
        """What would be needed to do it at all."""
        self.lacking, self.possible = hardware, False


@dataclass(frozen=True)
class Promise:
    """Rows of the list, the system that promises it, what it promises, and the function that does it."""

    rows: tuple[int, ...]
    system: str
    words: str
    """What a user wants to do."""
    how: str
    """Markdown: the command or the page that does it; empty if nothing does."""
    keep: Callable[[Work], None]
    after: str
    """The name of the function whose folder is used; empty: a folder of its own."""

    @property
    def number(self) -> str:
        """`49`, or `11-17`."""
        return str(self.rows[0]) if len(self.rows) == 1 else f"{self.rows[0]}-{self.rows[-1]}"


PROMISES: list[Promise] = []


def promise(rows: str, system: str, words: str, how: str, after: Callable[[Work], None] | None = None) -> Any:
    """Mark a function; `rows` is `49` or `11-17`; `after` is the function whose folder it goes on with."""
    first, _, last = rows.partition("-")

    def mark(function: Callable[[Work], None]) -> Callable[[Work], None]:
        numbers = tuple(range(int(first), int(last or first) + 1))
        PROMISES.append(Promise(numbers, system, words, how, function, after.__name__ if after else ""))
        return function

    return mark
