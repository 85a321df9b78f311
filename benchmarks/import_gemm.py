"""Importing every GEMM table of AIConfigurator's wheel, 3.0 million rows: `KERNCAST_DATA=… python benchmarks/import_gemm.py`.

Data: PyPI aiconfigurator-core 0.12.0 (Apache-2.0); put the wheel under KERNCAST_DATA/aiconfigurator
(`pip download --no-deps aiconfigurator-core==0.12.0`).
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path

from choosing import data_file
from h100_gemm import WHEEL
from reporting import Benchmark, Row, Target, finish, script_parser, spread

from kerncast.data.formats import ImportOptions
from kerncast.data.importing import import_files

BENCHMARK = Benchmark(
    __file__,
    "Spaces, sweeps and imports",
    "Importing AIConfigurator's GEMM tables",
    "NVIDIA's AIConfigurator, PyPI aiconfigurator-core 0.12.0",
    "Apache-2.0",
)
SECONDS = Target(high=15)
REPEATS = 3


def main() -> int:
    given = script_parser(__doc__).parse_args()
    wheel = data_file("aiconfigurator", WHEEL, source="PyPI aiconfigurator-core==0.12.0")
    spent, rows = [], 0
    for _ in range(REPEATS):
        with tempfile.TemporaryDirectory() as folder:
            start = time.perf_counter()
            dataset = import_files("aiconfigurator", [wheel], Path(folder, "data"), ImportOptions(only=("gemm", "mixed_mm")))
            spent.append(time.perf_counter() - start)
            rows = dataset.rows
    n = f"{rows:,} rows, {REPEATS} runs"
    row = Row("GEMM tables of the wheel imported", statistics.median(spent), "s", SECONDS, n=n, interval=spread(spent))
    return finish(BENCHMARK, [row], given.json)


if __name__ == "__main__":
    sys.exit(main())
