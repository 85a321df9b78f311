"""Choosing among Triton templates and cuBLAS for 2,641 matmuls on an A100: `KERNCAST_DATA=… python benchmarks/a100_mm.py`.

Data: PyTorch's AutoHeuristic collection, a100_mm.zip, as published with torchgen/_autoheuristic in
https://github.com/pytorch/pytorch. Peers on the same problems: PyTorch's shipped trees, which need torch, and plain LightGBM
on log time and on log1p(TFLOPS).
"""

from __future__ import annotations

import sys

from choosing import IN_VIEW, Peer, data_file, report, table_of
from plain_lightgbm import on_log_time, on_tflops
from reporting import Benchmark, Target, finish, script_parser
from shipped_trees import MM, TREES_NOTE, shipped

from kerncast.core.arrays import Ints
from kerncast.learning.table import Table

SOURCE = "PyTorch's AutoHeuristic data sets (https://github.com/pytorch/pytorch, torchgen/_autoheuristic), a100_mm.zip"
BENCHMARK = Benchmark(
    __file__,
    "Choosing kernels, on public data",
    "Triton templates and cuBLAS for A100 matmuls",
    SOURCE,
    "none stated",
    f"{IN_VIEW} {TREES_NOTE}",
)
TARGETS = {"efficiency_mean": Target(99.3), "efficiency_p10": Target(98.2), "efficiency_p1": Target(87)}


def peers(table: Table, fold: Ints) -> list[Peer]:
    return [*shipped(MM, table), *on_log_time(table, fold), *on_tflops(table, fold)]


if __name__ == "__main__":
    given = script_parser(__doc__).parse_args()
    path = data_file("autoheuristic", "a100_mm.zip", source="pytorch/pytorch, AutoHeuristic data sets")
    rows = report("A100 mm", table_of("autoheuristic", path, "a100"), TARGETS, "five folds, problems unseen", rerun=peers)
    sys.exit(finish(BENCHMARK, rows, given.json))
