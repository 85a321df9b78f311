"""Choosing among Triton templates for 4,299 mixed-dtype matmuls on an A100.

Data: PyTorch's AutoHeuristic collection, mixedmm_a100_data.zip, as published with torchgen/_autoheuristic in
https://github.com/pytorch/pytorch. Peers on the same rows: PyTorch's shipped trees 98.65 / P10 95.4 and unsure
on 401, plain LightGBM 99.37 / 97.8.
"""

from __future__ import annotations

import sys

from choosing import data_file, report, table_of

BARS = {"efficiency_mean": (">=", 0.9985), "efficiency_p10": (">=", 0.999)}

if __name__ == "__main__":
    path = data_file("autoheuristic", "mixedmm_a100_data.zip", source="pytorch/pytorch, AutoHeuristic data sets")
    sys.exit(0 if report("A100 mixed_mm", table_of("autoheuristic", path, "a100"), BARS) else 1)
