"""Choosing among Triton templates for 4,299 mixed-dtype matmuls on an A100.

Data: PyTorch's AutoHeuristic collection, mixedmm_a100_data.zip, as published with torchgen/_autoheuristic in
https://github.com/pytorch/pytorch. Peers on the same problems: PyTorch's shipped trees, which need torch, and plain LightGBM
on log time.
"""

from __future__ import annotations

import sys

from choosing import IN_VIEW, Peer, data_file, report, table_of
from plain_lightgbm import on_log_time
from reporting import Benchmark, Target, finish, script_parser
from shipped_trees import MIXED_MM, TREES_NOTE, shipped

from kerncast.core.arrays import Ints
from kerncast.learning.table import Table

SOURCE = (
    "PyTorch's AutoHeuristic data sets (https://github.com/pytorch/pytorch, torchgen/_autoheuristic), mixedmm_a100_data.zip"
)
BENCHMARK = Benchmark(
    __file__,
    "Choosing kernels, on public data",
    "Triton templates for A100 mixed-dtype matmuls",
    SOURCE,
    "none stated",
    f"{IN_VIEW} {TREES_NOTE}",
)
TARGETS = {"efficiency_mean": Target(99.85), "efficiency_p10": Target(99.9)}


def peers(table: Table, fold: Ints) -> list[Peer]:
    return [*shipped(MIXED_MM, table), *on_log_time(table, fold)]


if __name__ == "__main__":
    given = script_parser(__doc__).parse_args()
    path = data_file("autoheuristic", "mixedmm_a100_data.zip", source="pytorch/pytorch, AutoHeuristic data sets")
    rows = report("A100 mixed_mm", table_of("autoheuristic", path, "a100"), TARGETS, "five folds, problems unseen", rerun=peers)
    sys.exit(finish(BENCHMARK, rows, given.json))
