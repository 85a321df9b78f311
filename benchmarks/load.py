"""What very many vectors and rows cost: memory of a long sweep, a journal of a million vectors, datasets of 10^7 and 10^8 rows.

    python benchmarks/load.py [sweep] [journal] [inspect] [dataset] [--whole] [--folder DIR]

`--whole` sweeps for ten minutes and makes a dataset of 10^8 rows (some gigabytes in DIR, the temporary folder unless given,
which are removed afterwards); without it, one minute and 10^7 rows. Rows and vectors are made by rule. The sweep measures
kernels that do nothing, so it is as fast as the collector. Every number is of one process.
"""

from __future__ import annotations

import itertools
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import polars as pl
from reporting import Benchmark, Row, Target, finish, script_parser

import kerncast
from kerncast.core.io.artefact import file_checksum
from kerncast.core.progress import Progress
from kerncast.data import Dataset, schema
from kerncast.data.journal import NAME
from kerncast.data.manifest import Part
from kerncast.library import devices
from kerncast.library.declared.family_file import family_named
from kerncast.measuring.collection import Request
from kerncast.measuring.messages import Policy
from kerncast.measuring.run import collect

BENCHMARK = Benchmark(__file__, "Reliability", "Load: long sweeps, large journals, large datasets")
TRITON = family_named("gemm/triton")
INSTANT = "kerncast.testing.backends:Instant"
FAST = Policy(samples=2, fewest_samples=2)
CONFIGS, PART_ROWS, ROW_GROUP = 200, 1_000_000, 125_000
JOURNALED = 1_000_000
FULL_RATE = 8_000  # vectors a second that no machine reaches: the time ends the sweep
FIXED = {"split_k": 1, "batch": 1, "dtype": "fp16", "layout": "rcr", "tf32": False}


# -- made by rule ----------------------------------------------------------------------------------------


def configs() -> pl.DataFrame:
    found = TRITON.config.sample(CONFIGS, 0, TRITON.bindings({"dtype": "fp16"}, devices.get("a100")))
    return found.rename({name: f"config.{name}" for name in found.columns})


def vectors(problems: int) -> Iterator[pl.DataFrame]:
    """A block of all configs for each problem, made when it is asked for."""
    found = configs()
    for number in range(problems):
        values = {"M": 1 + number % 1000, "N": 1 + number // 1000, "K": 64, **FIXED}
        yield found.with_columns(pl.lit(value).alias(f"problem.{name}") for name, value in values.items())


def part_rows(number: int, imported: bool) -> pl.DataFrame:
    """The rows of one part: all configs of some problems, 2 % of which failed and 2 % of which were measured twice."""
    rng, own = np.random.default_rng(number), configs()
    sizes = rng.integers(16, 8192, (PART_ROWS * 49 // 50 // own.height, 3))
    problems = pl.DataFrame({f"problem.{name}": sizes[:, place] for place, name in enumerate("MNK")})
    rows = problems.join(own, how="cross")
    rows = pl.concat([rows, rows[rng.integers(0, rows.height, PART_ROWS - rows.height)]])
    work = np.prod([rows[f"problem.{name}"].to_numpy().astype(np.float64) for name in "MNK"], axis=0)
    place, failed = pl.int_range(pl.len()) + number * PART_ROWS, pl.Series(rng.random(rows.height) < 0.02)
    rows = rows.with_columns(
        *(pl.lit(value).alias(f"problem.{name}") for name, value in FIXED.items()),
        device=pl.lit(("a100", "h100")[number % 2]), backend=pl.lit("triton"), cache=pl.lit("warm"),
        software=pl.lit('{"cuda":"12.4","triton":"3.1.0"}'), run_id=pl.lit("20260101T000000-1"),
        status=pl.when(failed).then(pl.lit("timeout")).otherwise(pl.lit("ok")),
        time_ns=pl.when(~failed).then(pl.Series(3000 + work / 1e5 * rng.lognormal(0.5, 0.3, rows.height))),
        **({"source": pl.lit("00" * 32), "source_line": place + 2} if imported else {"order": place, "block": place // 64}),
    )  # fmt: skip
    rows = rows.with_columns(time_ns_mad=pl.col("time_ns") * 0.01, samples=pl.when(~failed).then(pl.lit(4)))
    return schema.conform(TRITON, rows)


def write_part(folder: Path, number: int, imported: bool) -> Part:
    file = folder / "rows" / "gemm" / "triton" / f"part-{number:05d}.parquet"
    rows = schema.without_unused(TRITON, schema.without_empty_labels(part_rows(number, imported)))
    rows.write_parquet(file, compression="lz4", row_group_size=ROW_GROUP)
    # The digest of a rule: that of the cells of 10^8 rows would take longer than everything that is measured here.
    return Part(TRITON.id, file.relative_to(folder).as_posix(), rows.height, f"rule {number} {imported}", file_checksum(file))


def write_dataset(path: Path, rows: int, imported: bool = False) -> Path:
    """A dataset of so many rows, written a part at a time by two processes."""
    dataset = Dataset.create(path)
    (path / "rows" / "gemm" / "triton").mkdir(parents=True)
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        numbers = range(rows // PART_ROWS)
        parts = tuple(pool.map(write_part, itertools.repeat(path), numbers, itertools.repeat(imported)))
    dataset._write_file(msgspec.structs.replace(dataset.contents, parts=parts))
    return path


# -- processes of their own ------------------------------------------------------------------------------


def status_of(pid: int | str, name: str) -> float:
    """A size in the kernel's record of a process, in MB; 0: there is none."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{name}:")), 0.0)


def apart(task: Callable[..., Any], *arguments: Any, watch: Callable[[int], None] | None = None) -> dict[str, Any]:
    """What a task returns, its seconds and its peak memory, in a process of its own."""
    context = get_context("spawn")
    mine, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_apart, args=(theirs, task, arguments))
    process.start()
    theirs.close()
    while not mine.poll(1.0) and process.is_alive():
        if watch is not None and process.pid is not None:
            watch(process.pid)
    if not mine.poll():
        raise SystemExit(f"{task.__name__} ended without a result")
    found: dict[str, Any] = mine.recv()
    process.join()
    print(f"{task.__name__}: {found['seconds']:.1f} s, {found['peak']:.0f} MB", file=sys.stderr, flush=True)
    return found


def _apart(pipe: Any, task: Callable[..., Any], arguments: Sequence[Any]) -> None:
    began = time.perf_counter()
    found = task(*arguments)
    used = resource.getrusage(resource.RUSAGE_SELF)
    pipe.send(
        {
            "found": found, "seconds": time.perf_counter() - began, "cpu": used.ru_utime + used.ru_stime,
            "peak": status_of("self", "VmHWM"),
        }
    )  # fmt: skip


# -- a sweep at full rate --------------------------------------------------------------------------------


def swept(out: Path, seconds: float) -> int:
    problems = int(seconds * FULL_RATE / CONFIGS)
    request = Request(TRITON, INSTANT, ("0",), out, FAST, budget_seconds=seconds)
    return collect(request, vectors(problems), total=problems * CONFIGS).measured


def sweep(folder: Path, whole: bool) -> list[Row]:
    seconds = 600 if whole else 60
    memory: dict[str, list[float]] = {"driver": [], "worker": []}

    def watch(pid: int) -> None:
        memory["driver"].append(status_of(pid, "VmRSS"))
        children = Path(f"/proc/{pid}/task/{pid}/children")
        own = children.read_text().split() if children.exists() else []
        memory["worker"].append(max((status_of(child, "VmRSS") for child in own), default=0.0))

    found = apart(swept, folder / "swept", seconds, watch=watch)
    n = f"{found['found']:,} vectors in {seconds:,} s"
    rows = [Row("vectors of a sweep at full rate", found["found"] / seconds, "per s", n=n)]
    for name, samples in memory.items():
        kept = np.array(samples[len(samples) // 10 : -1])
        level = float(np.median(kept))
        furthest = 100 * float(np.abs(kept - level).max()) / level
        what = f"memory of the {name} after the first tenth of a sweep, furthest from its median"
        rows.append(
            Row(
                what, furthest, "%", Target(high=5), n=n, note=f"median {level:.0f} MB, from {kept[0]:.0f} to {kept[-1]:.0f} MB"
            )
        )
    return rows


# -- a journal of a million vectors ----------------------------------------------------------------------


class Watching(Progress):
    """Counts results, and notes when the first one came."""

    def __init__(self) -> None:
        self.count, self.first, self.began = 0, 0.0, time.perf_counter()

    def result(self, status: str, **facts: Any) -> None:
        self.count += 1
        self.first = self.first or time.perf_counter() - self.began


def journaled(out: Path, count: int) -> int:
    """Vectors measured until so many of them are in the journal, which stays."""
    watching, problems = Watching(), count // CONFIGS + 100
    request = Request(TRITON, INSTANT, ("0",), out, FAST)
    collect(request, vectors(problems), total=problems * CONFIGS, progress=watching, stop=lambda: watching.count >= count)
    return watching.count


def resumed(out: Path, count: int) -> float:
    """Seconds from the call to the first new result of a collection that has a journal; then it is finished."""
    watching, problems = Watching(), count // CONFIGS + 100
    request = Request(TRITON, INSTANT, ("0",), out, FAST, extend=True, second_visit_seconds=0.0)
    collect(request, vectors(problems), total=problems * CONFIGS, progress=watching)
    return watching.first


def journal(folder: Path, _: bool) -> list[Row]:
    out = folder / "journaled"
    first = apart(journaled, out, JOURNALED)
    size = (out / NAME).stat().st_size / 1e6
    n = f"{first['found']:,} vectors"
    again = apart(resumed, out, JOURNALED)
    assert Dataset.open(out).rows >= JOURNALED
    return [
        Row("peak memory of the driver, a million vectors", first["peak"], "MB", Target(high=300), n=n),
        Row("a million vectors a second", first["found"] / first["seconds"], "per s", n=n, note=f"a journal of {size:.0f} MB"),
        Row("from resuming a journal of a million vectors to the first new result", again["found"], "s", Target(high=10), n=n),
        Row("peak memory of the driver that resumes and finishes it", again["peak"], "MB", Target(high=300), n=n),
    ]  # fmt: skip


# -- large datasets --------------------------------------------------------------------------------------


def inspected(path: Path) -> int:
    return int(Dataset.open(path).inspect()["rows"])


def inspect(folder: Path, _: bool) -> list[Row]:
    rows = []
    for name, imported in (("collected", False), ("imported", True)):
        path = write_dataset(folder / f"inspect-{name}", 10_000_000, imported)
        found = apart(inspected, path)
        n = f"{found['found']:,} {name} rows"
        note = f"{found['cpu']:.0f} s of CPU"
        rows += [
            Row(f"inspect of 10^7 {name} rows", found["seconds"], "s", Target(high=60), n=n, note=note),
            Row(f"peak memory of inspect, 10^7 {name} rows", found["peak"] / 1024, "GiB", Target(high=4), n=n),
        ]  # fmt: skip
    return rows


def opened(path: Path) -> str:
    return repr(Dataset.open(path))


def filtered(path: Path) -> int:
    where = ["device=h100", "problem.M<100", "config.num_stages=3"]
    return Dataset.open(path).read(where=where, columns=["key", "time_ns"]).height


def trained(path: Path, out: Path) -> int:
    model = kerncast.train(path, out=out, rows=50_000, folds=3, trees=100, pool=True, progress=False)
    return int(model.manifest.data.rows)


def dataset(folder: Path, whole: bool) -> list[Row]:
    total = 100_000_000 if whole else 10_000_000
    began = time.perf_counter()
    path = write_dataset(folder / "large", total)
    size = sum(file.stat().st_size for file in path.rglob("*.parquet"))
    print(f"written: {size / 1e9:.2f} GB in {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
    rows, n = [], f"{total:,} rows, {size / 1e9:.1f} GB"
    tasks: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
        "opening and showing it": (opened, (path,)),
        "reading two columns of the rows that satisfy three conditions": (filtered, (path,)),
        "training on a sample of 50,000 rows": (trained, (path, folder / "model")),
        "inspecting it": (inspected, (path,)),
    }
    for what, (task, arguments) in tasks.items():
        found = apart(task, *arguments)
        note = f"{found['seconds']:.1f} s, {found['cpu']:.0f} s of CPU"
        rows.append(Row(f"peak memory of {what}", found["peak"] / 1024, "GiB", Target(high=4), n=n, note=note))
    return rows


def main() -> int:
    parser = script_parser(__doc__)
    parts = {"sweep": sweep, "journal": journal, "inspect": inspect, "dataset": dataset}
    parser.add_argument("parts", nargs="*", help=f"only these: {', '.join(parts)}")
    parser.add_argument("--whole", action="store_true", help="ten minutes of sweeping, 10^8 rows")
    parser.add_argument("--folder", type=Path, metavar="DIR", help="where the data are made, and removed afterwards")
    given = parser.parse_args()
    if unknown := set(given.parts) - set(parts):
        parser.error(f"the parts are {', '.join(parts)}, got {', '.join(sorted(unknown))}")
    rows: list[Row] = []
    for name, part in parts.items():
        if not given.parts or name in given.parts:
            with tempfile.TemporaryDirectory(dir=given.folder) as folder:
                rows += part(Path(folder), given.whole)
    return finish(BENCHMARK, rows, given.json, partial=bool(given.parts))


if __name__ == "__main__":
    sys.exit(main())
