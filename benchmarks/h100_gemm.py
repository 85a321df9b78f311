"""Predicting 35,700 bf16 GEMM times on an H100 for unseen pairs (N, K).

Data: PyPI aiconfigurator-core 0.12.0 (Apache-2.0), systems/data/h100_sxm/gemm/trtllm/*/gemm_perf.parquet; put the
wheel under KERNCAST_DATA/aiconfigurator (`pip download --no-deps aiconfigurator-core==0.12.0`). Peer on the same rows: plain
LightGBM. As others report it, MAPE / P95 in %: LightGBM with wave features 2.55 / 8.0, interpolation in M 4.5 / 16.8.
"""

from __future__ import annotations

import sys
import tempfile
import zipfile
from pathlib import Path

from choosing import IN_VIEW, data_file, report, table_of
from plain_lightgbm import on_log_time
from reporting import Benchmark, Target, finish, script_parser

WHEEL = "aiconfigurator_core-0.12.0-cp311-abi3-manylinux_2_28_x86_64.whl"
SOURCE = "NVIDIA's AIConfigurator, PyPI aiconfigurator-core 0.12.0, systems/data/h100_sxm/gemm/trtllm"
BENCHMARK = Benchmark(__file__, "Predicting times, on public data", "bf16 GEMM on an H100", SOURCE, "Apache-2.0", IN_VIEW)
TARGETS = {"mape": Target(high=2.0), "ape_p95": Target(high=6.5)}
REPORTED = {
    "mape": "LightGBM with wave features 2.55; interpolation in M 4.5",
    "ape_p95": "LightGBM with wave features 8.0; interpolation in M 16.8",
}

if __name__ == "__main__":
    given = script_parser(__doc__).parse_args()
    wheel = data_file("aiconfigurator", WHEEL, source="PyPI aiconfigurator-core==0.12.0")
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(wheel) as files:
        (member,) = [n for n in files.namelist() if "/h100_sxm/gemm/trtllm/" in n and n.endswith("gemm_perf.parquet")]
        table = table_of("aiconfigurator", Path(files.extract(member, folder)), None, ("problem.dtype=bf16",))
    split = "five folds, pairs (N, K) unseen"
    rows = report("H100 bf16 GEMM", table, TARGETS, split, REPORTED, group="nk", rerun=on_log_time)
    sys.exit(finish(BENCHMARK, rows, given.json))
