"""Choosing among Triton templates and cuBLAS for 2,641 matmuls on an A100: `KERNCAST_DATA=… python benchmarks/a100_mm.py`.

Data: PyTorch's AutoHeuristic collection, a100_mm.zip, as published with torchgen/_autoheuristic in
https://github.com/pytorch/pytorch. Peers on the same rows: PyTorch's shipped trees 98.03 / P10 94.4 (trained on
them), LightGBM on log1p(TFLOPS) 97.5 / 92.2, plain LightGBM on log time 98.38 / 95.1, always cuBLAS 97.6.
"""

from __future__ import annotations

import sys

from choosing import data_file, report, table_of

BARS = {"efficiency_mean": (">=", 0.993), "efficiency_p10": (">=", 0.982), "efficiency_p1": (">=", 0.87)}

if __name__ == "__main__":
    path = data_file("autoheuristic", "a100_mm.zip", source="pytorch/pytorch, AutoHeuristic data sets")
    sys.exit(0 if report("A100 mm", table_of("autoheuristic", path, "a100"), BARS) else 1)
