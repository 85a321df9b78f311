"""Kernels that only read and write a matrix, against the rule by which `kerncast estimate` takes those that no model covers.

The rule is 2 us and the bytes at 80 % of the memory's bandwidth. Norms, activations and rotary embeddings are in no public
table; the kernels of vLLM and TensorRT-LLM that write a bf16 matrix as fp8 are of the same kind. Data: PyPI aiconfigurator-core
0.12.0 (Apache-2.0), systems/data/*/*/*/*/scale_matrix_perf.parquet; put the wheel under KERNCAST_DATA/aiconfigurator
(`pip download --no-deps aiconfigurator-core==0.12.0`).
"""

from __future__ import annotations

import io
import sys
import zipfile

import numpy as np
import polars as pl
from choosing import data_file
from h100_gemm import WHEEL
from reporting import Benchmark, finish, ratio_rows, script_parser

from kerncast.estimating.calls import PASSING, passing, roofline_of
from kerncast.library import devices

SOURCE = "NVIDIA's AIConfigurator, PyPI aiconfigurator-core 0.12.0, systems/data, scale_matrix"
BENCHMARK = Benchmark(__file__, "Predicting times, on public data", "Kernels that only move data", SOURCE, "Apache-2.0")
SERVERS = ("vllm", "trtllm")
READ_AND_WRITTEN = 3
"""Bytes of an element: bf16 in, fp8 out."""


def ratios(wheel: zipfile.ZipFile) -> tuple[list[str], np.ndarray]:
    """The tables that were read, and measured over estimated time of each row."""
    members = [
        name for name in wheel.namelist() if name.endswith("/scale_matrix_perf.parquet") and name.split("/")[-3] in SERVERS
    ]
    found = []
    for member in members:
        device = devices.get(member.split("/data/")[1].split("/")[0])
        table = pl.read_parquet(io.BytesIO(wheel.read(member)))
        moved = (table["m"] * table["k"] * READ_AND_WRITTEN).to_list()
        rule = [roofline_of(passing("scale", 1, float(each), "bf16", {}), device).time_ns for each in moved]
        found.append(table["latency"].to_numpy() * 1e6 / np.array(rule))
    return members, np.concatenate(found)


if __name__ == "__main__":
    given = script_parser(__doc__).parse_args()
    with zipfile.ZipFile(data_file("aiconfigurator", WHEEL, source="PyPI aiconfigurator-core==0.12.0")) as opened:
        tables, ratio = ratios(opened)
    size = f"{len(ratio):,} rows of {len({name.split('/data/')[1].split('/')[0] for name in tables})} GPUs"
    rows = ratio_rows("measured over estimated time", ratio, PASSING, "inside the interval", size)
    sys.exit(finish(BENCHMARK, rows, given.json))
