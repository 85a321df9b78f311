"""Finding shifted labels in public tables, without false alarms in tables that have none.

    KERNCAST_DATA=/path/to/data python benchmarks/label_shift.py

Every table is checked twice: as it is, and with its problems in random order and some stretches shifted (planted). A planted
stretch of 200 to 600 rows, whose labels belong 1 to 32 rows further on or back, is found if at least half of it is suspect;
a stretch that touches no planted one is a false alarm. Of the long tables, the second check takes a sample of the problems.

Data, under KERNCAST_DATA: `ttnn/*.csv`, training tables of https://github.com/tenstorrent/ttnn-op-runtime-predictor
(Apache-2.0; part of `final_exp_dataset.csv` is known to be shifted); `autoheuristic/*.zip`, PyTorch's AutoHeuristic
collection (https://github.com/pytorch/pytorch, torchgen/_autoheuristic; no licence stated). A missing table is left out.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from reporting import Benchmark, Row, Target, finish, script_parser

from kerncast.core.op import Family
from kerncast.data.formats import ImportOptions
from kerncast.data.importing import import_files
from kerncast.data.label_shift import FURTHEST_SHIFT, LabelShift, find_label_shift

MOST_PLANTED = 12
# A planted shift for this many rows: most labels must stay right, or there is nothing to compare with.
ROWS_PER_PLANTED = 1_000
LENGTHS = (200, 600)
# Problems that the second check takes of a long table.
SAMPLED_PROBLEMS = 500
SEED = 0


@dataclass(frozen=True)
class Table:
    """A public table, and the shift that it is known to have."""

    file: str
    format: str
    device: str
    values: dict[str, Any] = field(default_factory=dict)
    first: int | None = None
    rows: int = 0


TABLES = (
    Table("ttnn/final_exp_dataset.csv", "ttnn-csv", "wormhole_b0", {"func": "exp"}, 2_672, 2_853),
    Table("ttnn/big_exp_dataset.csv", "ttnn-csv", "wormhole_b0", {"func": "exp"}),
    Table("ttnn/matmul_height_sharded.csv", "ttnn-csv", "wormhole_b0"),
    Table("autoheuristic/a100_mm.zip", "autoheuristic", "a100"),
    Table("autoheuristic/mixedmm_a100_data.zip", "autoheuristic", "a100"),
)

BENCHMARK = Benchmark(
    __file__,
    "Finding wrong labels in public tables",
    "Labels that belong to other rows",
    "training tables of https://github.com/tenstorrent/ttnn-op-runtime-predictor; PyTorch's AutoHeuristic data sets "
    "(https://github.com/pytorch/pytorch, torchgen/_autoheuristic)",
    "Apache-2.0; none stated",
)


def main() -> int:
    options = script_parser(__doc__)
    options.add_argument("--only", metavar="TEXT", default="", help="only the tables whose file name contains this")
    given = options.parse_args()
    root = Path(os.environ.get("KERNCAST_DATA", ""))
    tables = [table for table in TABLES if (root / table.file).is_file() and given.only in table.file]
    if not tables:
        print("label_shift: left out, KERNCAST_DATA does not name a folder with ttnn/*.csv or autoheuristic/*.zip")
        return 0
    stated: list[Row] = []
    found = planted = alarms = checked = 0
    print(f"{'table':28} {'rows':>8} {'suspect':>8} {'expected':>8} {'planted':>8} {'found':>6} {'false alarms':>13} {'s':>6}")
    for table in tables:
        name, start = Path(table.file).name, time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            options_of = ImportOptions(device=table.device, values=table.values)
            dataset = import_files(table.format, [root / table.file], Path(folder, "d"), options_of)
            family, rows = dataset.families[0], dataset.read()
        as_is = find_label_shift(family, rows)
        stated += as_it_is(name, table, rows.height, as_is)
        tried = hits = false = 0
        if table.first is None:
            alarms += len(as_is.stretches)
            tried, hits, false = with_planted(family, rows)
            found, planted, alarms, checked = found + hits, planted + tried, alarms + false, checked + 1
        spent = time.perf_counter() - start
        counts = f"{rows.height:8,} {int(as_is.suspect.sum()):8,} {table.rows:8,} {tried:8} {hits:6} {false:13}"
        print(f"{name:28} {counts} {spent:6.1f}", flush=True)
    n = f"{planted} planted in {checked} tables"
    if planted:
        stated.append(Row("planted shifts of 200 to 600 rows that are found", 100 * found / planted, "%", Target(95), n=n))
        stated.append(
            Row("false alarms in tables without a shift, as they are and in random order", alarms, "", Target(0, 0), n=n)
        )
    return finish(BENCHMARK, stated, given.json)


def as_it_is(name: str, table: Table, height: int, result: LabelShift) -> list[Row]:
    """What is found in the table itself, against what is known of it."""
    n = f"{height:,} rows"
    suspect = int(result.suspect.sum())
    told = [Row(f"{name}: rows whose labels belong to other rows", suspect, "", Target(table.rows, table.rows), n=n)]
    if table.first is not None:
        at = result.stretches[0].first if result.stretches else -1
        told.append(Row(f"{name}: first such row, counted from 0", at, "", Target(table.first, table.first), n=n))
    return told


def with_planted(family: Family, rows: pl.DataFrame) -> tuple[int, int, int]:
    """Shuffle the problems, plant shifts: how many, how many are found, and how many stretches touch none of them."""
    rng = np.random.default_rng(SEED)
    problem = pl.struct(f"problem.{name}" for name in family.problem.parameters)
    ordered = rows.filter(pl.col("status") == "ok").sort("source", "source_line", maintain_order=True)
    visit = ordered.select(problem.rle_id()).to_series().to_numpy()
    visits = rng.permutation(int(visit.max()) + 1)
    if len(visits) > SAMPLED_PROBLEMS and rows.height > 20_000:
        visits = visits[:SAMPLED_PROBLEMS]
    place = np.full(int(visit.max()) + 1, -1)
    place[visits] = np.arange(len(visits))
    kept = np.flatnonzero(place[visit] >= 0)
    shuffled = ordered[kept[np.argsort(place[visit[kept]], kind="stable")]]
    times = shuffled["time_ns"].to_numpy()
    moved, stretches = times.copy(), []
    count = min(MOST_PLANTED, len(times) // ROWS_PER_PLANTED)
    room = len(times) // count
    for number in range(count):
        length = int(rng.integers(LENGTHS[0], min(LENGTHS[1], room // 2) + 1))
        first = number * room + int(rng.integers(FURTHEST_SHIFT, room - length - FURTHEST_SHIFT + 1))
        shift = int(rng.integers(1, FURTHEST_SHIFT + 1)) * int(rng.choice([-1, 1]))
        moved[first : first + length] = times[first + shift : first + length + shift]
        stretches.append((first, first + length))
    planted = shuffled.with_columns(
        source=pl.lit("planted"), source_line=pl.int_range(shuffled.height, dtype=pl.Int64), time_ns=pl.Series(moved)
    )
    result = find_label_shift(family, planted)
    hits = sum(bool(result.suspect[first:end].mean() >= 0.5) for first, end in stretches)
    margin = 2 * FURTHEST_SHIFT
    false = sum(
        all(item.last < first - margin or item.first > end + margin for first, end in stretches) for item in result.stretches
    )
    return count, hits, false


if __name__ == "__main__":
    sys.exit(main())
