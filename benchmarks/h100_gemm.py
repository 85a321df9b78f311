"""Predicting 35,700 bf16 GEMM times on an H100 for pairs (N, K) that were never seen.

Data: PyPI aiconfigurator-core 0.12.0 (Apache-2.0), systems/data/h100_sxm/gemm/trtllm/*/gemm_perf.parquet; put the
wheel under KERNCAST_DATA/aiconfigurator (`pip download --no-deps aiconfigurator-core==0.12.0`). Peers on the same
rows: plain LightGBM 3.4 % / P95 10.3 %, with wave features 2.55 / 8.0, interpolation in M 4.5 / 16.8, roofline 46.
"""

from __future__ import annotations

import sys
import tempfile
import zipfile
from pathlib import Path

from choosing import data_file, report, table_of

BARS = {"mape": ("<=", 0.02), "ape_p95": ("<=", 0.065)}
WHEEL = "aiconfigurator_core-0.12.0-cp311-abi3-manylinux_2_28_x86_64.whl"

if __name__ == "__main__":
    wheel = data_file("aiconfigurator", WHEEL, source="PyPI aiconfigurator-core==0.12.0")
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(wheel) as files:
        (member,) = [n for n in files.namelist() if "/h100_sxm/gemm/trtllm/" in n and n.endswith("gemm_perf.parquet")]
        table = table_of("aiconfigurator", Path(files.extract(member, folder)), None, ("problem.dtype=bf16",))
    sys.exit(0 if report("H100 bf16 GEMM, (N, K) unseen", table, BARS, group="nk") else 1)
