"""The rows of a benchmark: printed, checked against their targets and written as JSON.

A script builds rows and ends with `finish`. With `--json FILE` it also writes them. `make bench` does this for all scripts,
and `make results` renders the files as docs/results.md.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

import kerncast

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
FORMAT = 1
# In the order of the page.
TOPICS = (
    "Choosing kernels, on public data",
    "Choosing kernels, on made-up measurements",
    "Predicting times, on public data",
    "Finding wrong labels in public tables",
    "Choosing kernels measured on a CPU",
    "Choosing kernels inside torch.compile",
    "CPU kernels against libraries",
    "Measuring",
    "Reliability",
    "How long choosing and predicting take",
    "How long training takes",
    "Spaces, sweeps and imports",
    "What users of other systems expect",
)
# Fault injection, clusters and damage are shared with the tests.
sys.path.insert(0, str(ROOT))
STARTED = time.perf_counter()
RESAMPLES = 1000
Values = Sequence[float] | np.ndarray[Any, Any]


@dataclass(frozen=True)
class Interval:
    """The interval of a figure and its kind: `95 %` of bootstrap samples, or the `range` of repeated runs."""

    low: float
    high: float
    kind: str = "95 %"


@dataclass(frozen=True)
class Target:
    """At least `low`, at most `high`, or both; equal ends mean exactly."""

    low: float | None = None
    high: float | None = None

    def holds(self, value: float) -> bool:
        return (self.low is None or value >= self.low) and (self.high is None or value <= self.high)


@dataclass(frozen=True)
class Row:
    """One measured number, with its target, the figures it is compared with, and its interval."""

    what: str
    measured: float
    unit: str = ""
    target: Target | None = None
    against: str = ""
    n: str = ""
    split: str = ""
    interval: Interval | None = None
    note: str = ""

    @property
    def reached(self) -> bool | None:
        return None if self.target is None else self.target.holds(self.measured)


@dataclass(frozen=True)
class Benchmark:
    """A script: its title, the heading it is listed under, and the source of its data (empty if it makes its own)."""

    script: str
    topic: str
    title: str
    data: str = ""
    licence: str = ""
    note: str = ""

    def __post_init__(self) -> None:
        if self.topic not in TOPICS:
            raise ValueError(f"{self.topic!r} is not one of the topics: add it to TOPICS in benchmarks/reporting.py")


@dataclass(frozen=True)
class Result:
    """One file under benchmarks/results: the rows of one command, and the machine and version they were measured with.

    `printed` is the commit of a README that has these numbers, if no run has written them since.
    """

    benchmark: Benchmark
    command: str
    rows: tuple[Row, ...]
    date: str = ""
    machine: str = ""
    version: str = ""
    commit: str = ""
    load: float | None = None
    seconds: float | None = None
    printed: str = ""


def format_figure(value: float, unit: str, more: int = 0) -> str:
    """A figure as text: percentages with two decimals, others with three digits; `more` adds digits."""
    if unit == "%":
        shown = f"{value:.{2 + more}f}" if round(value, 1) != value else f"{value:g}"
    elif abs(value) >= 1000 or float(value).is_integer():
        shown = f"{value:,.{more}f}" if more else f"{value:,.0f}"
    else:
        shown = f"{value:#.{3 + more}g}".rstrip(".") if float(f"{value:.2g}") != value else f"{value:g}"
    return f"{shown} {unit}".strip()


def measured(row: Row) -> str:
    """The figure of a row, with enough digits to differ from a target that it does not reach."""
    ends = (row.target.low, row.target.high) if row.target and not row.reached else ()
    for more in range(4):
        shown = format_figure(row.measured, row.unit, more)
        if all(end is None or float(shown.removesuffix(row.unit).replace(",", "")) != end for end in ends):
            break
    return shown


def span(interval: Interval, unit: str) -> str:
    return f"{_bare(interval.low, unit)} to {_bare(interval.high, unit)}, {interval.kind}"


def _bare(value: float, unit: str) -> str:
    return format_figure(value, unit).removesuffix(unit).strip()


def aim(target: Target, unit: str) -> str:
    if target.low is not None and target.low == target.high:
        return format_figure(target.low, unit)
    if target.low is not None and target.high is not None:
        return f"{_bare(target.low, unit)} to {format_figure(target.high, unit)}"
    return f"≥ {format_figure(target.low, unit)}" if target.low is not None else f"≤ {format_figure(target.high or 0.0, unit)}"


def verdict(row: Row) -> str:
    return {None: "", True: "reached", False: "short of target"}[row.reached]


def bootstrap(values: Values, statistic: Callable[[Any], Any] = np.mean) -> Interval | None:
    """The 95 % bootstrap interval of a statistic; values are drawn with replacement along the first axis."""
    drawn_from = np.asarray(values)
    if len(drawn_from) < 2:
        return None
    rng = np.random.default_rng(0)
    found = [statistic(drawn_from[rng.integers(0, len(drawn_from), len(drawn_from))]) for _ in range(RESAMPLES)]
    low, high = np.percentile(found, (2.5, 97.5))
    return Interval(float(low), float(high))


def ratio_rows(what: str, ratio: Values, bounds: tuple[float, float], inside: str, n: str) -> list[Row]:
    """The median, P5 and P95 of a ratio, and the share of it that lies between two factors."""
    found = np.asarray(ratio)
    within = 100.0 * ((found >= bounds[0]) & (found <= bounds[1]))
    return [
        Row(f"{what}, median", float(np.median(found)), n=n, interval=bootstrap(found, np.median)),
        Row(f"{what}, P5", float(np.quantile(found, 0.05)), n=n),
        Row(f"{what}, P95", float(np.quantile(found, 0.95)), n=n),
        Row(inside, float(within.mean()), "%", n=n, interval=bootstrap(within)),
    ]


def spread(values: Values, runs: str = "runs") -> Interval:
    """The interval from the smallest to the largest of repeated runs."""
    found = np.asarray(values)
    return Interval(float(found.min()), float(found.max()), f"range of {len(found)} {runs}")


def percent(figure: dict[str, float | None]) -> tuple[float, Interval | None]:
    """A figure of kerncast's scorecards (value, lower, upper, all shares) in percent."""
    value, low, high = figure["value"], figure.get("lower"), figure.get("upper")
    interval = Interval(100 * low, 100 * high) if low is not None and high is not None else None
    return 100 * (value or 0.0), interval


def script_parser(doc: str | None) -> argparse.ArgumentParser:
    """The argument parser that all scripts extend."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows to this file")
    return parser


def finish(benchmark: Benchmark, rows: Sequence[Row], file: Path | None, *, partial: bool = False) -> int:
    """Print each row with its target, write all rows to `file`, and return 1 if a row is short of its target, else 0.

    `partial`: the run measured some of the script's rows; the others stay in the file as they are, and say of which run.
    """
    code = show(rows)
    if file is not None:
        found = measured_here(benchmark, rows)
        write(merged(read(file), found) if partial and file.exists() else found, file)
    return code


def show(rows: Sequence[Row]) -> int:
    """Print each row with its target; 1 if a row is short of its target, else 0."""
    for row in rows:
        interval = f" ({span(row.interval, row.unit)})" if row.interval else ""
        target = f", target {aim(row.target, row.unit)}" if row.target else ""
        print(f"  {verdict(row):<15} {row.what}: {measured(row)}{interval}{target}")
    return int(any(row.reached is False for row in rows))


def merged(older: Result, newer: Result) -> Result:
    """The newer run, with the rows that only the older one has in the places that they had there."""
    own = {row.what: row for row in newer.rows}
    told = f"run of {older.date}, commit {older.commit}"
    kept = [own.pop(row.what) if row.what in own else _of_run(row, told) for row in older.rows]
    return replace(newer, rows=(*kept, *own.values()))


def _of_run(row: Row, told: str) -> Row:
    return row if "run of 20" in row.note else replace(row, note="; ".join(filter(None, (row.note, told))))


def measured_here(benchmark: Benchmark, rows: Sequence[Row]) -> Result:
    return Result(
        replace(benchmark, script=Path(benchmark.script).name),
        command(benchmark),
        tuple(rows),
        date=datetime.now(UTC).date().isoformat(),
        machine=machine(),
        version=kerncast.__version__,
        commit=commit(),
        load=round(LOAD_BEFORE, 1),
        seconds=round(time.perf_counter() - STARTED, 1),
    )


def command(benchmark: Benchmark) -> str:
    """The command line as it was called, without `--json`."""
    given = list(_without_json(sys.argv[1:]))
    data = "KERNCAST_DATA=… " if benchmark.data else ""
    return f"{data}{shlex.join(['python', f'benchmarks/{Path(benchmark.script).name}', *given])}"


def _without_json(given: list[str]) -> Iterator[str]:
    words = iter(given)
    for word in words:
        if word == "--json":
            next(words, None)
        elif not word.startswith("--json="):
            yield word


def machine() -> str:
    """The CPU, its number of cores, and whether this is a virtual machine."""
    try:
        told = Path("/proc/cpuinfo").read_text()
    except OSError:
        told = ""
    lines = [line.partition(":")[2].strip() for line in told.splitlines() if line.startswith("model name")]
    model = lines[0] if lines else platform.processor() or platform.machine()
    virtual = ", virtual machine" if " hypervisor" in told else ""
    return f"{model}, {os.cpu_count()} cores{virtual}"


def commit() -> str:
    """The last commit that changed `src/`, with a `+` if `src/` has uncommitted changes. Empty without git."""

    def git(*words: str) -> str:
        done = subprocess.run(["git", "-C", str(ROOT), *words, "--", "src"], capture_output=True, text=True, check=False)
        return done.stdout.strip()

    return git("log", "-1", "--format=%h") + ("+" if git("status", "--porcelain") else "")


def _load() -> float:
    try:
        return os.getloadavg()[0]
    except OSError:
        return 0.0


LOAD_BEFORE = _load()


def write(result: Result, file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"format": FORMAT, **_plain(asdict(result))}, indent=2, ensure_ascii=False)
    part = file.with_name(f"{file.name}.part")
    part.write_text(text + "\n", encoding="utf-8")
    part.replace(file)


def _plain(value: Any) -> Any:
    """The value for JSON: no numpy scalars, no empty fields, and six digits, because more would be noise in diffs."""
    if isinstance(value, dict):
        kept = {name: _plain(item) for name, item in value.items()}
        return {name: item for name, item in kept.items() if item is not None and item != ""}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    return float(f"{value:.6g}") if isinstance(value, float) else value


def read(file: Path) -> Result:
    found = json.loads(file.read_text(encoding="utf-8"))
    if found.pop("format", None) != FORMAT:
        raise ValueError(f"{file} is not a result file of format {FORMAT}: write it again with `make bench`")
    rows = tuple(_row(row) for row in found.pop("rows"))
    return Result(Benchmark(**found.pop("benchmark")), rows=rows, **found)


def _row(found: dict[str, Any]) -> Row:
    parts = {"target": Target, "interval": Interval}
    return Row(**{name: parts[name](**value) if name in parts else value for name, value in found.items()})
