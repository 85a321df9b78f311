"""Choosing among Triton templates and cuBLAS for 2,641 matmuls on an A100: `KERNCAST_DATA=… python benchmarks/a100_mm.py`.

Data: PyTorch's AutoHeuristic collection, a100_mm.zip, as published with torchgen/_autoheuristic in
https://github.com/pytorch/pytorch. Peers on the same rows, mean / P10: PyTorch's shipped trees 98.03 / 94.4 (trained
on these rows), LightGBM on log1p(TFLOPS) 97.5 / 92.2, plain LightGBM on log time 98.38 / 95.1, always cuBLAS 97.6 (mean).
"""

from __future__ import annotations

import sys

from choosing import IN_VIEW, data_file, report, table_of
from reporting import Benchmark, Target, finish, script_parser

SOURCE = "PyTorch's AutoHeuristic data sets (https://github.com/pytorch/pytorch, torchgen/_autoheuristic), a100_mm.zip"
BENCHMARK = Benchmark(
    __file__, "Choosing kernels, on public data", "Triton templates and cuBLAS for A100 matmuls", SOURCE, "none stated", IN_VIEW
)
TARGETS = {"efficiency_mean": Target(99.3), "efficiency_p10": Target(98.2), "efficiency_p1": Target(87)}
PEERS = {
    "efficiency_mean": "PyTorch's shipped trees, trained on these rows, 98.03; plain LightGBM on log time 98.38; "
    "LightGBM on log1p(TFLOPS) 97.5",
    "efficiency_p10": "PyTorch's shipped trees 94.4; plain LightGBM on log time 95.1; LightGBM on log1p(TFLOPS) 92.2",
}

if __name__ == "__main__":
    given = script_parser(__doc__).parse_args()
    path = data_file("autoheuristic", "a100_mm.zip", source="pytorch/pytorch, AutoHeuristic data sets")
    rows = report("A100 mm", table_of("autoheuristic", path, "a100"), TARGETS, "five folds, problems unseen", PEERS)
    sys.exit(finish(BENCHMARK, rows, given.json))
