"""Measured reshards as tt-metal's sweep framework writes them: the two folders that its scripts fit lines to.

    vectors_export/2x4/reshard-2x4-8x8.json         {"2x4-8x8-DataType.BFLOAT16": {"<hash>": {"shape": "[1, 1, 64, 32]", …}}}
    results_export_batch/2x4/reshard-2x4-8x8.json   [{"vector_id": "<hash>", "status": "TestStatus.PASS", "device_perf": …}]

`kerncast import tt-sweep` reads the same rows back.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from kerncast.core.io.atomic import drafted, refuse_existing
from kerncast.core.progress import QUIET, Progress
from kerncast.data.dataset import Dataset
from kerncast.data.importers.tt_sweep import KERNEL_NS, KERNEL_STD, RUNS
from kerncast.errors import InvalidValue
from kerncast.library.families.reshard import reshard_single
from kerncast.measuring.sweeping.tt_sweep import FOLDER as VECTORS
from kerncast.measuring.sweeping.tt_sweep import GRIDS, MODULE, TtSweep, file_name, input_hashes, suite_name

RESULTS = "results_export_batch"
# The framework's status for each of ours; it has no word of its own for the last three.
STATUSES = {
    "ok": "PASS", "launch_error": "FAIL_ASSERT_EXCEPTION", "timeout": "FAIL_CRASH_HANG", "out_of_memory": "FAIL_L1_OUT_OF_MEM",
    "unsupported": "FAIL_UNSUPPORTED_DEVICE_PERF", "crash": "FAIL_CRASH_HANG", "compile_error": "FAIL_ASSERT_EXCEPTION",
    "wrong_result": "FAIL_ASSERT_EXCEPTION",
}  # fmt: skip
RENAMED = ("crash", "compile_error", "wrong_result")
_COLUMNS = ("device", "status", "time_ns", "time_ns_std", "samples", "started_at", "software", "error")


@dataclass(frozen=True)
class WrittenSweep:
    """What was written: the number of files in each folder, of vectors and of results, and what is not as it was."""

    files: int
    vectors: int
    results: int
    notes: tuple[str, ...]


def write_tt_sweep(dataset: Dataset, out: Path, *, where: Sequence[str] = (), progress: Progress = QUIET) -> WrittenSweep:
    """Write the reshards of a dataset into a new folder, whole or not at all: a file of vectors and one of results a grid pair.

    The kernel duration is the label, with the standard deviation and the number of samples beside it where they are known.
    """
    if reshard_single.id not in {family.id for family in dataset.families}:
        held = ", ".join(family.id for family in dataset.families) or "no rows"
        raise InvalidValue(f"tt-sweep is a format of {reshard_single.id}, but {dataset.path} holds {held}: use another format")
    problem = [f"problem.{name}" for name in reshard_single.problem.parameters]
    rows = dataset.read(reshard_single, where, [*problem, *_COLUMNS])
    machines = rows["device"].unique().sort().to_list()
    if len(machines) != 1:
        held = f"rows of {', '.join(machines)}" if machines else "no such rows"
        raise InvalidValue(f"a sweep is of one device, and {dataset.path} holds {held}: choose one with `where`")
    counts: Counter[str] = Counter(rows["status"].cast(pl.String).to_list())
    rows = rows.filter(pl.col("status") != "invalid")
    refuse_existing(out)
    vectors = results = 0
    parts = rows.sort(GRIDS, maintain_order=True).partition_by(GRIDS, maintain_order=True)
    with drafted(out) as folder:
        for number, part in enumerate(parts):
            progress.step("pairs of grids", number, len(parts))
            name = file_name(part.row(0, named=True))
            distinct = part.select(problem).unique(maintain_order=True)
            vectors += distinct.height
            results += _write(folder, name, distinct, part)
    return WrittenSweep(len(parts), vectors, results, tuple(_notes(counts)))


def write_rows(dataset: Dataset, out: Path, family: str | None, where: Sequence[str]) -> list[Path]:
    """The writer behind `Dataset.export(to="tt-sweep")`."""
    if family not in (None, reshard_single.id):
        raise InvalidValue(f"tt-sweep is a format of {reshard_single.id}, got '{family}': use another format")
    dataset.notes = (*dataset.notes, *write_tt_sweep(dataset, out, where=where).notes)
    return sorted(path for path in out.rglob("*") if path.is_file())


def _write(folder: Path, name: str, distinct: pl.DataFrame, rows: pl.DataFrame) -> int:
    """The two files of a pair of grids; how many results they hold."""
    for home in (VECTORS, RESULTS):
        (folder / home / name).parent.mkdir(parents=True, exist_ok=True)
    TtSweep().write(distinct, folder / VECTORS / name)
    # A vector that was not run has no result: that is how the framework's files say it.
    run = rows.filter(pl.col("status") != "not_run")
    entries = [_result(row, key) for row, key in zip(run.iter_rows(named=True), input_hashes(run), strict=True)]
    lines = ",\n".join(json.dumps(entry) for entry in entries)
    (folder / RESULTS / name).write_text(f"[\n{lines}\n]\n" if lines else "[]\n")
    return len(entries)


def _result(row: Mapping[str, Any], key: str) -> dict[str, Any]:
    status = str(row["status"])
    perf: dict[str, float] | None = None
    if status == "ok":
        perf = {KERNEL_NS: row["time_ns"]}
        perf |= {} if row["time_ns_std"] is None else {KERNEL_STD: row["time_ns_std"]}
        perf |= {} if row["samples"] is None else {RUNS: row["samples"]}
    error = row["error"] if status not in RENAMED or not row["error"] else f"{status}: {row['error']}"
    return {
        "sweep_name": MODULE, "suite_name": suite_name(row), "vector_id": key, "input_hash": key,
        "status": f"TestStatus.{STATUSES[status]}", "exception": error or (status if status in RENAMED else None),
        "device_perf": perf, "timestamp": row["started_at"], "git_hash": _commit(row["software"]),
    }  # fmt: skip


def _commit(software: str | None) -> str | None:
    """The commit that a row was measured with, if it says so."""
    try:
        found = json.loads(software or "{}")
    except (ValueError, RecursionError):
        return None
    commit = found.get("commit") if isinstance(found, dict) else None
    return commit if isinstance(commit, str) else None


def _notes(counts: Mapping[str, int]) -> list[str]:
    found = []
    if counts["invalid"]:
        found.append(f"{counts['invalid']:,} invalid vectors were left out, as the framework does")
    for status in RENAMED:
        if counts[status]:
            found.append(f"{counts[status]:,} rows with the status {status} are written as {STATUSES[status]}")
    if not counts["ok"]:
        found.append("no row has a time: there is nothing to fit")
    return found
