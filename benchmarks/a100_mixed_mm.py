"""Choosing among Triton templates for 4,299 mixed-dtype matmuls on an A100.

Data: PyTorch's AutoHeuristic collection, mixedmm_a100_data.zip, as published with torchgen/_autoheuristic in
https://github.com/pytorch/pytorch. Peers on the same rows, mean / P10: PyTorch's shipped
trees 98.65 / 95.4 (unsure on 401 problems), plain LightGBM 99.37 / 97.8.
"""

from __future__ import annotations

import sys

from choosing import IN_VIEW, data_file, report, table_of
from reporting import Benchmark, Target, finish, script_parser

SOURCE = (
    "PyTorch's AutoHeuristic data sets (https://github.com/pytorch/pytorch, torchgen/_autoheuristic), mixedmm_a100_data.zip"
)
BENCHMARK = Benchmark(
    __file__,
    "Choosing kernels, on public data",
    "Triton templates for A100 mixed-dtype matmuls",
    SOURCE,
    "none stated",
    IN_VIEW,
)
TARGETS = {"efficiency_mean": Target(99.85), "efficiency_p10": Target(99.9)}
PEERS = {
    "efficiency_mean": "PyTorch's shipped trees, unsure on 401 problems, 98.65; plain LightGBM 99.37",
    "efficiency_p10": "PyTorch's shipped trees 95.4; plain LightGBM 97.8",
}

if __name__ == "__main__":
    given = script_parser(__doc__).parse_args()
    path = data_file("autoheuristic", "mixedmm_a100_data.zip", source="pytorch/pytorch, AutoHeuristic data sets")
    rows = report("A100 mixed_mm", table_of("autoheuristic", path, "a100"), TARGETS, "five folds, problems unseen", PEERS)
    sys.exit(finish(BENCHMARK, rows, given.json))
