"""What a verb may cost: peak memory on a million rows, seconds to end after SIGTERM, and how good `--dry-run`'s estimate is;
what a collection of millions of vectors may cost.

    python benchmarks/limits.py [memory] [signals] [estimate] [active] [supervisor] [compaction]

The table of a million rows is made here: gemm/triton times by a formula, with noise. Everything else is measured with the
command line in processes of their own.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import polars as pl
from reporting import Benchmark, Row, Target, finish, script_parser

import kerncast
from kerncast.data import Dataset, schema
from kerncast.data import journal as journals
from kerncast.library import devices
from kerncast.library.declared.family_file import family_named
from kerncast.measuring.journal import Journal
from kerncast.measuring.known import DONE, DOUBTFUL, KnownVectors, digest

BENCHMARK = Benchmark(__file__, "Measuring", "Limits: memory, stopping, and the estimate of a dry run")
ROWS = 1_000_000
VECTORS = 1_000_000
JOURNAL_ROWS = 3_000_000
HALVES = ("problem", "config")
COMPACT = """
import sys
from kerncast.measuring.journal import compact
from kerncast.measuring.messages import Ready
from kerncast.data import Dataset
from kerncast.library.declared.family_file import family_named
ready = Ready({"name": "a100", "title": "A100", "kind": "gpu"}, {})
compact(Dataset.open(sys.argv[1], journal=False), family_named("gemm/triton"), ready)
"""
MEGABYTES = Target(high=1000)
SECONDS = Target(high=1)
TRITON = family_named("gemm/triton")
VERB = [sys.executable, "-m", "kerncast.app.cli"]
COLLECT = ("collect", "gemm/cpu", "--problems", "llm", "--vary", "dtype=fp32", "--vary", "layout=rrr", "--max-flops", "1e8")


def million(folder: Path, rows: int = ROWS) -> tuple[Path, Path]:
    """A dataset of gemm/triton and the same table as CSV."""
    configs = TRITON.config.sample(200, 0, TRITON.bindings({"dtype": "fp16"}, devices.get("a100")))
    rng = np.random.default_rng(0)
    count = rows // configs.height
    sizes = np.unique(rng.integers(16, 4096, (2 * count, 3)), axis=0)
    sizes = sizes[rng.permutation(len(sizes))[:count]]
    problems = pl.DataFrame({"problem.M": sizes[:, 0], "problem.N": sizes[:, 1], "problem.K": sizes[:, 2]})
    table = problems.join(configs.rename(lambda name: f"config.{name}"), how="cross")
    work = table["problem.M"].to_numpy() * table["problem.N"].to_numpy() * table["problem.K"].to_numpy().astype(np.float64)
    table = table.with_columns(
        pl.lit("a100").alias("device"), pl.lit("fp16").alias("problem.dtype"), pl.lit("rcr").alias("problem.layout"),
        pl.lit("ok").alias("status"), pl.Series("time_ns", 3000 + work / 1e5 * rng.lognormal(0.5, 0.3, table.height)),
    )  # fmt: skip
    Dataset.create(folder / "million").append(TRITON, as_collected(table))
    table.rename(lambda name: name.split(".")[-1]).write_csv(folder / "million.csv")
    lines = ['family = "gemm/triton"', 'device = "a100"', 'ignore = ["device", "status"]']
    for half in ("problem", "config"):
        names = [name.removeprefix(f"{half}.") for name in table.columns if name.startswith(f"{half}.")]
        lines += [f"[{half}]", *(f'{name} = "{name}"' for name in names)]
    lines += ["[time]", 'column = "time_ns"', 'unit = "ns"']
    (folder / "map.toml").write_text("\n".join(lines) + "\n")
    return folder / "million", folder / "million.csv"


def apart(rows: int, folder: Path) -> tuple[Path, Path]:
    """`million` in a process of its own: the peak of a process that is started later would count this one's memory, too."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(million, folder, rows).result()


def as_collected(table: pl.DataFrame) -> pl.DataFrame:
    """The rows with everything that a collection writes down: most of the memory is in these columns."""
    rng, time_ns = np.random.default_rng(1), pl.col("time_ns")
    number = pl.int_range(pl.len())
    return table.with_columns(
        backend=pl.lit("triton"), time_ns_min=time_ns * 0.98, time_ns_mean=time_ns * 1.01,
        time_ns_std=time_ns * pl.Series(rng.uniform(0.005, 0.05, table.height)), time_ns_mad=time_ns * 0.004,
        samples=pl.Series(rng.integers(5, 40, table.height)), inner_loops=pl.Series(rng.integers(1, 999, table.height)),
        warmup_ns=time_ns * 9, cache=pl.lit("warm"), compile_ns=pl.Series(rng.uniform(1e8, 1e9, table.height)),
        max_abs_err=pl.Series(rng.uniform(0, 1e-3, table.height)), order=number, block=number // 200,
        sentinel_ns=pl.Series(rng.uniform(9e3, 1e4, table.height)), worker=pl.lit("a100:0"),
        run_id=pl.lit("20260101-000000-abcdef"),
        started_at=(pl.datetime(2026, 1, 1) + pl.duration(milliseconds=number)).dt.to_string("iso:strict"),
        software=pl.lit('{"cuda":"12.4","triton":"3.1.0"}'),
    )  # fmt: skip


def peak(*arguments: object, codes: tuple[int, ...] = (0,)) -> float:
    """The peak memory of a verb in MB; it must end with one of these exit codes."""
    return run([*VERB, *map(str, arguments)], str(arguments[0]), codes)


def run(command: list[str], name: str, codes: tuple[int, ...] = (0,)) -> float:
    """The peak memory of a command in MB; it must end with one of these exit codes."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert process.stderr is not None
    said = process.stderr.read()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in codes:
        raise SystemExit(f"{shlex.join(command)} failed: {said.decode()[-500:]}")
    print(f"{name}: {used.ru_maxrss / 1024:.0f} MB", file=sys.stderr, flush=True)
    return used.ru_maxrss / 1024


def memory(folder: Path) -> list[Row]:
    dataset, table = apart(ROWS, folder)
    small, _ = million(Path(tempfile.mkdtemp(dir=folder)), 40_000)
    kerncast.train(small, out=folder / "model", folds=3, trees=60)
    runs: dict[str, tuple[object, ...]] = {
        "import": ("import", "csv", table, "--mapping", folder / "map.toml", "--out", folder / "imported"),
        "inspect": ("inspect", dataset),
        "merge": ("merge", dataset, small, "--out", folder / "merged"),
        "evaluate": ("evaluate", folder / "model", dataset),
        "export --to portfolio": ("export", dataset, "--to", "portfolio"),
        "sweep": (
            "sweep", "gemm/triton", "--problems", "lognormal:5000", "--vary", "dtype=fp16", "--vary", "layout=rcr", "--configs",
            "sample:200", "--device", "a100", "--out", folder / "swept",
        ),
    }  # fmt: skip
    return [
        Row(f"peak memory of {name} on a million rows", peak(*arguments), "MB", MEGABYTES, n=f"{ROWS:,} rows")
        for name, arguments in runs.items()
    ]


def catches(pid: int, number: int) -> bool:
    """Whether a process handles a signal by now: before that, it ends at once by itself, and nothing would be measured."""
    try:
        caught = Path(f"/proc/{pid}/status").read_text().split("SigCgt:")[1].split()[0]
    except (OSError, IndexError):
        return False
    return bool(int(caught, 16) >> (number - 1) & 1)


def ended(arguments: tuple[object, ...], seconds: float, left: Callable[[], bool]) -> float:
    """Seconds from SIGTERM to the end of a verb that was at work; nothing unfinished may be left."""
    process = subprocess.Popen([*VERB, *map(str, arguments)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while process.poll() is None and not catches(process.pid, signal.SIGTERM):
        time.sleep(0.01)
    time.sleep(seconds)
    if process.poll() is not None:
        raise SystemExit(f"{' '.join(map(str, arguments))} ended before it could be stopped: make its input larger")
    start = time.perf_counter()
    process.send_signal(signal.SIGTERM)
    process.wait()
    spent = time.perf_counter() - start
    print(f"{arguments[0]}: {spent:.2f} s", file=sys.stderr, flush=True)
    if not left():
        raise SystemExit(f"{' '.join(map(str, arguments))} left something unfinished behind: {sorted(Path.cwd().iterdir())}")
    return spent


def signals(folder: Path) -> list[Row]:
    dataset, table = million(folder)
    small, _ = million(Path(tempfile.mkdtemp(dir=folder)), 100_000)
    kerncast.train(small, out=folder / "model", folds=0, trees=60)

    def clean() -> bool:
        return not any(path.name.startswith(".") for path in folder.iterdir())

    out, rows = folder / "out", []
    verbs: dict[str, tuple[object, ...]] = {
        "train": ("train", small, "--out", out),
        "import": ("import", "csv", table, "--mapping", folder / "map.toml", "--out", out),
        "inspect": ("inspect", dataset),
        "merge": ("merge", dataset, dataset, "--out", out),
        "evaluate": ("evaluate", folder / "model", dataset),
        "export --to portfolio": ("export", dataset, "--to", "portfolio"),
        "sweep": ("sweep", *COLLECT[1:], "--out", folder / "swept"),
        "export": ("export", folder / "model", "--out", out, "--to", "c"),
        "collect": (*COLLECT, "--configs", "sample:50", "--out", folder / "mine"),
        "collect --active over all configs": (*COLLECT, "--active", "--budget", "60s", "--out", folder / "chosen"),
        "collect --dry-run over all configs": (*COLLECT, "--out", folder / "none", "--dry-run"),
        "regenerate quickstart": ("regenerate", "quickstart", "--out", folder / "quick"),
        "regenerate": ("regenerate", "gemm-cpu", "--out", folder / "again"),
    }
    for name, arguments in verbs.items():
        moments = [ended(arguments, seconds, clean) for seconds in (1.5, 2.5)]
        rows.append(Row(f"{name} ends after SIGTERM", max(moments), "s", SECONDS, n=f"worst of {len(moments)} moments"))
    return rows


def estimate(folder: Path) -> list[Row]:
    """The estimate of a dry run over the time that the same collection takes then."""
    rows = []
    for name, arguments in {
        "gemm/cpu": (*COLLECT, "--configs", "sample:12"),
        "grouped_conv_forward/cpu": (
            "collect", "grouped_conv_forward/cpu", "--problems", "wide", "--vary", "dtype=fp32", "--max-flops", "1e8",
            "--configs", "sample:4", "--max-vectors", "600",
        ),
    }.items():  # fmt: skip
        out = folder / name.replace("/", "-")
        command = [*VERB, *arguments, "--out", str(out), "--json"]
        start = time.perf_counter()
        said = json.loads(subprocess.run([*command, "--dry-run"], check=True, capture_output=True).stdout)
        answered = time.perf_counter() - start
        start = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        spent = time.perf_counter() - start
        ratio = said["seconds"] / spent
        note = f"estimated {said['seconds']:.0f} s, took {spent:.0f} s; the estimate took {answered:.0f} s"
        rows.append(
            Row(f"estimated over real time, {name}", ratio, "", Target(0.5, 2), n=f"{said['vectors']:,} vectors", note=note)
        )
    return rows


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def bytes_per_vector(vectors: int, configs: int) -> float:
    """How much the memory of a supervisor grows with each vector that it has measured, all of them unsure."""
    labels, before = KnownVectors(), 0
    for number in range(vectors):
        if number == vectors // 5:  # what does not grow with the vectors is there by now
            before = resident()
        key, problem = (
            digest(str(number)).hex(),
            {"M": number // configs, "N": 1024, "K": 1024, "dtype": "fp16", "layout": "rcr"},
        )
        labels.mark(key, DONE)
        labels.mark(key, DOUBTFUL)
        labels.add(key, problem, 100.0 + number, 1.0, number, unsure=True)
    return (resident() - before) / (vectors - vectors // 5)


def active(folder: Path) -> list[Row]:
    """A collection that chooses its vectors from all configs."""
    budget = 20.0
    start = time.perf_counter()
    used = peak(*COLLECT, "--active", "--budget", f"{budget:.0f}s", "--out", folder / "chosen")
    beyond = time.perf_counter() - start - budget
    name, n = "collect --active over all configs", f"budget {budget:.0f} s"
    return [
        Row(f"{name}: seconds beyond its budget", beyond, "s", Target(high=5), n=n),
        Row(f"peak memory of {name}", used, "MB", MEGABYTES, n=n),
    ]


def supervisor(_: Path) -> list[Row]:
    """What a supervisor knows of very many vectors."""
    grown = bytes_per_vector(VECTORS, 200)
    n = f"{VECTORS:,} vectors, 200 per problem"
    return [Row("memory of a supervisor per vector", grown, "bytes", Target(high=64), n=n)]


def compaction(folder: Path) -> list[Row]:
    """From a journal to a dataset, in a process of its own."""
    table, _ = apart(JOURNAL_ROWS // 3, folder)
    dataset = Dataset.create(folder / "d", journal=False)
    journal = Journal.begin(dataset.path / journals.NAME, journals.Header(TRITON.id, "triton", "a100", {}, "r"))
    order = 0
    for turn in range(3):
        for piece in Dataset.open(table).pieces(TRITON):
            # Other problems in each turn: the batch is part of a problem.
            rows = piece.with_columns(pl.lit(turn + 1).alias("problem.batch"))
            for key, row in zip(schema.row_keys(TRITON, rows), rows.iter_rows(named=True), strict=True):
                parts = {half: {name: row[f"{half}.{name}"] for name in getattr(TRITON, half).parameters} for half in HALVES}
                measured = {name: row[name] for name in ("status", "time_ns", "time_ns_mad", "samples", "max_abs_err")}
                journal.add({"key": key, **measured, **parts, "order": order, "block": order // 200, "worker": "0"})
                order += 1
            journal.flush()
    journal.close()
    used = run([sys.executable, "-c", COMPACT, str(dataset.path)], "compaction")
    return [Row("peak memory of compaction", used, "MB", MEGABYTES, n=f"{order:,} rows")]


def main() -> int:
    parser = script_parser(__doc__)
    all_parts = (memory, signals, estimate, active, supervisor, compaction)
    parser.add_argument("parts", nargs="*", choices=[[], *(part.__name__ for part in all_parts)])
    given = parser.parse_args()
    rows: list[Row] = []
    for part in all_parts:
        if not given.parts or part.__name__ in given.parts:
            with tempfile.TemporaryDirectory() as folder:
                rows += part(Path(folder))
    return finish(BENCHMARK, rows, given.json)


if __name__ == "__main__":
    sys.exit(main())
