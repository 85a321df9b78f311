"""Importing every table of AIConfigurator's wheel that has an op here, 10 million rows: time and peak memory of the verb.

    KERNCAST_DATA=… python benchmarks/import_tables.py

Data: PyPI aiconfigurator-core 0.12.0 (Apache-2.0); put the wheel under KERNCAST_DATA/aiconfigurator
(`pip download --no-deps aiconfigurator-core==0.12.0`).
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from choosing import data_file
from h100_gemm import WHEEL
from limits import peak
from reporting import Benchmark, Row, Target, finish, script_parser

from kerncast.data.dataset import Dataset

BENCHMARK = Benchmark(
    __file__,
    "Spaces, sweeps and imports",
    "Importing all of AIConfigurator's tables",
    "NVIDIA's AIConfigurator, PyPI aiconfigurator-core 0.12.0",
    "Apache-2.0",
)
SECONDS = Target(high=120)
GIBIBYTES = Target(high=4)
ROWS = Target(low=9.5)


def main() -> int:
    given = script_parser(__doc__).parse_args()
    wheel = data_file("aiconfigurator", WHEEL, source="PyPI aiconfigurator-core==0.12.0")
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "tables")
        start = time.perf_counter()
        used = peak("import", "aiconfigurator", wheel, "--out", out, codes=(0, 3))
        seconds = time.perf_counter() - start
        dataset = Dataset.open(out)
    families, n = len(dataset.families), f"{dataset.rows:,} rows of {len(dataset.families)} families"
    rows = [
        Row("rows read", dataset.rows / 1e6, "million", ROWS, n=f"{families} families, {dataset.skipped.rows:,} rows skipped"),
        Row("all tables of the wheel imported", seconds, "s", SECONDS, n=n),
        Row("peak memory", used / 1024, "GiB", GIBIBYTES, n=n),
    ]
    return finish(BENCHMARK, rows, given.json)


if __name__ == "__main__":
    sys.exit(main())
