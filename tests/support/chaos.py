"""A battery: one collection on a backend full of faults, while everything happens to its processes and its machine.

`run` starts `kerncast collect` again and again. It kills it, stops and continues it, kills its workers, fills its disk and
turns its clock. In the end every vector must have one row, with the status of its fault and its own time, and nothing else
may be left.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl
from tests.support.machine import Machine

import kerncast
from kerncast.data import Dataset, schema
from kerncast.data.journal import NAME
from kerncast.library.registry import FAMILIES
from kerncast.testing.backends import vector_texts
from kerncast.testing.faults import FAULTY, OUTCOMES, Faults, plan, telling_ns

SHARES = {
    "segfault": 0.01,
    "hang": 0.005,
    "leak": 0.0025,
    "hoard": 0.0025,
    "garbage": 0.01,
    "poison": 0.005,
    "spoil": 0.0025,
    "break": 0.0025,
    "compile_segfault": 0.002,
    "close_segfault": 0.002,
    "slow": 0.01,
}
TELLING = "kerncast.testing.faults:Telling"
FAMILY = "gemm/triton"
CONFIGS = 50
# One of them per worker process.
DEVICES = ("0", "1")
# Good kernels are instantaneous, so only a machine that stalls for so long, and twice at the same vector, would be unfair.
TIMEOUT_SECONDS = 2.0
POLL_SECONDS = 0.02
# The last thing happens when this share of the vectors has a row.
LAST = 0.9
ENDINGS = ("kill", "terminate", "full_disk")
MOST_UNEXPECTED = 3
NO_SPACE = os.strerror(28)


@dataclass(frozen=True)
class Episode:
    """Something that happens once so many vectors have a row, at the earliest so long after the collection was started."""

    kind: str
    rows: int
    delay: float = 0.0


@dataclass
class Report:
    """What was injected, what happened, and what is wrong in the end."""

    vectors: int
    injected: Counter[str] = field(default_factory=Counter)
    """Vectors by fault."""
    episodes: Counter[str] = field(default_factory=Counter)
    starts: int = 0
    """How often the command was started."""
    seconds: float = 0.0
    wrong: dict[str, list[str]] = field(default_factory=dict)
    """By kind of mistake, one line for each."""

    def note(self, kind: str, found: list[str]) -> None:
        """Remember mistakes of a kind; also that there were none."""
        self.wrong.setdefault(kind, []).extend(found)

    def __str__(self) -> str:
        lines = [f"{kind}: {len(found)}" + "".join(f"\n    {line}" for line in found[:5]) for kind, found in self.wrong.items()]
        return "\n".join(
            [f"{self.vectors} vectors, {self.starts} starts, {self.seconds:.0f} s", f"{dict(self.episodes)}", *lines]
        )


def schedule(vectors: int, kills: int, others: int, seed: int) -> list[Episode]:
    """When everything happens. A third of the kills come while the collection is starting."""
    rng = random.Random(seed)
    kinds = ["kill"] * kills + ["stop", "stop_worker", "kill_worker", "clock"] * others + ["full_disk"]
    rng.shuffle(kinds)
    kinds.append("terminate")
    episodes, rows = [], 0
    for number, kind in enumerate(kinds, 1):
        early = kind == "kill" and rng.random() < 1 / 3
        if not early:
            rows = int(LAST * vectors * (number - rng.random()) / len(kinds))
        episodes.append(Episode(kind, rows, rng.uniform(0.05, 1.5) if early else 0.0))
    return episodes


def run(folder: Path, *, vectors: int = 1000, kills: int = 20, others: int = 3, seed: int = 0) -> Report:
    """Make so many vectors, measure them in spite of everything, and look at what became of them."""
    return Battery(folder, vectors, seed).run(schedule(vectors, kills, others, seed))


class Battery:
    """One collection, what happens to it, and what became of it."""

    stalled_seconds = 180.0
    """When a collection that measures nothing has failed."""

    def __init__(self, folder: Path, vectors: int, seed: int) -> None:
        self.folder, self.out, self.rng = folder, folder / "dataset", random.Random(seed)
        self.machine = Machine(folder / "machine")
        sizes = ",".join(str(64 + number) for number in range(-(-vectors // CONFIGS)))
        swept = kerncast.sweep(
            FAMILY, problems=f"grid:M={sizes};N=64;K=64", vary={"dtype": "fp16", "layout": "rcr"}, configs=f"sample:{CONFIGS}",
            device="a100", max_vectors=vectors, out=folder / "vectors", progress=None,
        )  # fmt: skip
        self.vectors = pl.concat(list(swept.iter_blocks()))
        self.texts = vector_texts(FAMILIES.get(FAMILY), self.vectors)
        faults = Faults({}, SHARES, seed)
        self.faults = [faults.of(text) for text in self.texts]
        self.plan = plan(TELLING, {}, SHARES, seed)
        self.report = Report(len(self.texts), Counter(fault for fault in self.faults if fault))
        self.journal = _Rows(self.out / NAME)
        self.process: subprocess.Popen[bytes] | None = None
        self.started = 0.0

    def run(self, episodes: list[Episode]) -> Report:
        """Let everything happen, measure what is left, and look."""
        began, waiting = time.monotonic(), list(episodes)
        try:
            while waiting:
                self._start(str(self.out))
                while waiting and self._until(waiting[0]):
                    if self.happens(waiting.pop(0)):
                        break
                else:
                    self._ended({0, 3}, "")
            self._no_room_for_parts()
            self._start(str(self.out))
            self._ended({0}, "")
        finally:
            self._end()
            self.close()
        self._look()
        self.report.seconds = time.monotonic() - began
        return self.report

    # -- the command -----------------------------------------------------------------------------------

    def where(self) -> list[str]:
        """The options that say which devices measure."""
        return ["--devices", ",".join(DEVICES)]

    def _start(self, disk: str) -> None:
        command = [
            sys.executable, "-P", "-m", "kerncast.app.cli", "collect", str(self.folder / "vectors"),
            "--backend", FAULTY, *self.where(), "--chunk-size", "16", "--samples", "3",
            "--timeout", f"{TIMEOUT_SECONDS}s", "--memory", "0.25", "--resume", "--out", str(self.out), "--json",
        ]  # fmt: skip
        self.report.starts += 1
        with self._said.open("wb") as said:
            self.process = subprocess.Popen(
                command, env=self.machine.environment(disk) | self.plan, stdout=said, stderr=said, stdin=subprocess.DEVNULL
            )
        self.started = time.monotonic()

    def close(self) -> None:
        """End what outlives the command on purpose."""

    @property
    def _said(self) -> Path:
        return self.folder / f"said-{self.report.starts}"

    def _ended(self, codes: set[int], words: str) -> None:
        """Wait for the command to end; it must have said so, and nothing that looks like an accident."""
        assert self.process is not None
        while self.process.poll() is None:
            self._stalled()
            time.sleep(POLL_SECONDS)
        said = self._said.read_text(errors="replace")
        fine = self.process.returncode in codes and words in said and "Traceback" not in said
        self.report.note("unexpected ends", [] if fine else [f"exit code {self.process.returncode}: {said[-1500:]}"])
        if len(self.report.wrong["unexpected ends"]) > MOST_UNEXPECTED:
            raise AssertionError(f"it ends again and again:\n{self.report}")

    def _end(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
            self.process.wait()

    def _stalled(self) -> None:
        if time.monotonic() - max(self.journal.grew, self.started) > self.stalled_seconds:
            self.journal.count()
            if time.monotonic() - max(self.journal.grew, self.started) > self.stalled_seconds:
                said = self._said.read_text(errors="replace")[-500:]
                raise AssertionError(f"nothing was measured for {self.stalled_seconds:g} s; {self.report}\n{said}")

    # -- what happens to it ----------------------------------------------------------------------------

    def _until(self, episode: Episode) -> bool:
        """Wait for its time; False if the command ends before."""
        assert self.process is not None
        while self.process.poll() is None:
            if self.journal.count() >= episode.rows and time.monotonic() - self.started >= episode.delay:
                return True
            self._stalled()
            time.sleep(POLL_SECONDS)
        return False

    def happens(self, episode: Episode) -> bool:
        """Let it happen; True if that ended the command."""
        assert self.process is not None
        self.report.episodes[episode.kind] += 1
        match episode.kind:
            case "kill":
                self.process.kill()
                self._ended({-signal.SIGKILL}, "")
            case "terminate":
                self.process.terminate()
                # Before Python has its own handler, the signal itself ends it.
                self._ended({3, 128 + signal.SIGTERM, -signal.SIGTERM}, "")
            case "full_disk":
                self.machine.set_disk(self.rng.randrange(3000))
                self._ended({2, 3}, NO_SPACE)
                self.machine.set_disk(None)
            case "stop":
                self._pause(self.process.pid)
            case "stop_worker":
                self._pause(self._worker())
            case "kill_worker":
                self.signal(self._worker(), signal.SIGKILL)
            case "clock":
                self.machine.set_clock(self.rng.choice((-1, 1)) * self.rng.choice((1, 60, 3600, 86400 * 400)))
        return episode.kind in ENDINGS

    def _no_room_for_parts(self) -> None:
        """Measure what is left; then there is no room for the rows."""
        self.report.episodes["full_disk"] += 1
        self.machine.set_disk(0)
        self._start(".parquet")
        self._ended({2, 3}, NO_SPACE)
        self.machine.set_disk(None)

    def _worker(self) -> int | None:
        workers = self.machine.processes(b"kerncast.measuring.worker")
        return self.rng.choice(workers) if workers else None

    def signal(self, pid: int | None, number: int) -> None:
        """Send a signal to a process, if there is one."""
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def _pause(self, pid: int | None) -> None:
        self.signal(pid, signal.SIGSTOP)
        time.sleep(self.rng.uniform(0.05, 0.5))
        self.signal(pid, signal.SIGCONT)

    # -- what became of it -----------------------------------------------------------------------------

    def _look(self) -> None:
        rows = Dataset.open(self.out).read()
        keys = list(schema.row_keys(FAMILIES.get(FAMILY), self.vectors.with_columns(device=pl.lit(rows["device"][0]))))
        found = {row["key"]: row for row in rows.select("key", "status", "time_ns", "error").iter_rows(named=True)}
        note = self.report.note
        note("vectors without a row", [key for key in keys if key not in found])
        note("rows too many", [str(key) for key, count in Counter(rows["key"]).items() if count > 1 or key not in set(keys)])
        statuses, times = [], []
        for key, text, fault in zip(keys, self.texts, self.faults, strict=True):
            row = found.get(key, {"status": None, "time_ns": None, "error": None})
            if row["status"] != OUTCOMES[fault]:
                statuses.append(f"{fault or 'good'} is {row['status']} ({row['error']}): {text}")
            if row["time_ns"] != (telling_ns(text) if row["status"] == "ok" else None):
                times.append(f"{fault or 'good'} has {row['time_ns']} ns: {text}")
        note("rows with another status than the injected one", statuses)
        note("times of another vector", times)
        note("processes left", self._left())
        note("shared memory left", self.machine.shared_memory())
        owned = {"dataset.json", "rows", ".lock"}
        strange = [path for path in self.out.iterdir() if path.name not in owned]
        strange += [path for path in (self.out / "rows").rglob("*") if path.is_file() and not path.name.startswith("part-")]
        note("files left", [str(path) for path in (*strange, *self.machine.files())])

    def _left(self) -> list[str]:
        """Processes that are still there a while after the last command has ended."""
        until = time.monotonic() + 10
        while (left := self.machine.processes()) and time.monotonic() < until:
            time.sleep(POLL_SECONDS)
        return [str(pid) for pid in left]


class _Rows:
    """Counts the lines of a journal while it is written."""

    def __init__(self, path: Path) -> None:
        self.path, self.read, self.lines = path, 0, 0
        self.grew = time.monotonic()

    def count(self) -> int:
        """How many results it has by now."""
        with contextlib.suppress(FileNotFoundError), self.path.open("rb") as file:
            if os.fstat(file.fileno()).st_size < self.read:  # a torn line was cut off
                self.read = self.lines = 0
            file.seek(self.read)
            new = file.read()
            if new:
                self.grew = time.monotonic()
            self.read += len(new)
            self.lines += new.count(b"\n")
        return max(0, self.lines - 1)
