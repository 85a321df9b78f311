"""Finding shifted labels in public tables, without false alarms in tables that have none.

    KERNCAST_DATA=/path/to/data python benchmarks/label_shift.py

Reads `ttnn/big_exp_dataset.csv`, `ttnn/final_exp_dataset.csv` and `ttnn/matmul_height_sharded.csv` under
KERNCAST_DATA: training tables of https://github.com/tenstorrent/ttnn-op-runtime-predictor. Without the data it says so and
exits zero.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

from reporting import Benchmark, Row, Target, finish, script_parser

from kerncast.data.importers import Options, import_files
from kerncast.data.quality import label_shift

# File, parameters that are not in it, first shifted row (counted from 0), number of shifted rows.
TABLES = [
    ("final_exp_dataset.csv", {"func": "exp"}, 2_672, 2_853),
    ("big_exp_dataset.csv", {"func": "exp"}, None, 0),
    ("matmul_height_sharded.csv", {}, None, 0),
]

BENCHMARK = Benchmark(
    __file__,
    "Finding wrong labels in public tables",
    "Labels that belong to other rows",
    "training tables of https://github.com/tenstorrent/ttnn-op-runtime-predictor",
    "Apache-2.0",
)


def main() -> int:
    given = script_parser(__doc__).parse_args()
    root = os.environ.get("KERNCAST_DATA")
    if root is None or not Path(root, "ttnn").is_dir():
        print("label_shift: left out, KERNCAST_DATA does not name a folder with ttnn/*.csv")
        return 0
    stated = []
    print(f"{'table':28} {'rows':>7} {'suspect':>8} {'expected':>9} {'first':>6} {'shift':>6} {'s':>6}")
    for name, values, first, expected in TABLES:
        with tempfile.TemporaryDirectory() as folder:
            options = Options(device="wormhole_b0", values=values)
            dataset = import_files("ttnn-csv", [Path(root, "ttnn", name)], Path(folder, "d"), options)
            rows = dataset.read()
            start = time.perf_counter()
            found = label_shift(dataset.families[0], rows)
            spent = time.perf_counter() - start
        stretch = found["stretches"][0] if found["stretches"] else {"first_row": None, "shift": ""}
        n = f"{rows.height:,} rows"
        stated.append(
            Row(f"{name}: rows whose labels belong to other rows", found["suspect_rows"], "", Target(expected, expected), n=n)
        )
        if first is not None:
            at = -1 if stretch["first_row"] is None else stretch["first_row"]
            stated.append(Row(f"{name}: first such row, counted from 0", at, "", Target(first, first), n=n))
        print(
            f"{name:28} {rows.height:7,} {found['suspect_rows']:8,} {expected:9,} {stretch['first_row'] or '':>6} "
            f"{stretch['shift']:>6} {spent:6.1f}"
        )
    return finish(BENCHMARK, stated, given.json)


if __name__ == "__main__":
    sys.exit(main())
