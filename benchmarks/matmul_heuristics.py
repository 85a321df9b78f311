"""kerncast beside NVIDIA's own kernel heuristics on A100 matmuls: `KERNCAST_DATA=… python benchmarks/matmul_heuristics.py`.

nvidia-matmul-heuristics (PyPI, closed source, runs without a GPU) lists tiles for a product, best first. Its choice is the
first listed tile that was measured for the product. Both choose among Triton's kernels alone, on the same fp16 and bf16
products; kerncast's model has not seen them (five folds). It needs `pip install nvidia-matmul-heuristics`.

Data: PyTorch's AutoHeuristic collection, a100_mm.zip, as published with torchgen/_autoheuristic in
https://github.com/pytorch/pytorch.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

import numpy as np
import polars as pl
from choosing import data_file, table_of
from reporting import Benchmark, Row, Target, bootstrap, finish, script_parser

from kerncast.app.api.showing import shown
from kerncast.evaluating.evaluation import folds_of
from kerncast.learning.table import Table
from kerncast.training.folds import cross_validate
from kerncast.training.procedure import Procedure
from kerncast.training.train import Recipe

SOURCE = "PyTorch's AutoHeuristic data sets (https://github.com/pytorch/pytorch, torchgen/_autoheuristic), a100_mm.zip"
BENCHMARK = Benchmark(
    __file__, "Choosing kernels, on public data", "Beside nvidia-matmul-heuristics", SOURCE, "none stated",
    "Its licence allows use, not redistribution: nothing of it is part of kerncast.",
)  # fmt: skip
PRECISIONS = {"fp16": "HSH", "bf16": "TST"}
LAYOUTS = {"rrr": "NN_ROW_MAJOR", "rcr": "NT_ROW_MAJOR", "crr": "TN_ROW_MAJOR", "ccr": "TT_ROW_MAJOR"}
LISTED = 64
TILE = ["config.BLOCK_M", "config.BLOCK_N", "config.BLOCK_K"]


class Peer:
    """The package's ordered list of tiles for an A100."""

    def __init__(self) -> None:
        try:
            package = import_module("nvMatmulHeuristics")
        except ImportError:
            sys.exit("nvidia-matmul-heuristics is not installed: pip install nvidia-matmul-heuristics")
        self.package = package
        self.interface = package.NvMatmulHeuristicsInterfaceEx(
            backend=package.NvMatmulHeuristicsTarget.TRITON,
            flags=package.NvMatmulHeuristicsFlags.PERF_MODEL_BASED_AUTO_TUNING,
            gpu=package.NvMatmulHeuristicsNvidiaGpu.A100_SXM_80GB,
        )

    def choice(self, problem: dict[str, Any], measured: pl.DataFrame) -> float | None:
        """The time of its first tile that was measured; with the nearest stages and warps, if these were not."""
        layout = getattr(self.package.NvMatmulHeuristicsMatmulLayout, LAYOUTS[problem["problem.layout"]])
        sizes = (problem[f"problem.{name}"] for name in "MNK")
        asked = self.interface.makeNvMatmulHeuristicsProblem(*sizes, layout, 1)
        for item in self.interface.get(asked, LISTED, PRECISIONS[problem["problem.dtype"]]):
            kernel = item["kernel"]
            tile = dict(zip(TILE, (kernel.cta_tile_m, kernel.cta_tile_n, kernel.cta_tile_k), strict=True))
            same = measured.filter(pl.col(name) == value for name, value in tile.items())
            if same.height:
                warps = max(1, kernel.cta_tile_m // kernel.warp_tile_m) * max(1, kernel.cta_tile_n // kernel.warp_tile_n)
                stages_off = (pl.col("config.num_stages") - kernel.stages).abs()
                warps_off = (pl.col("config.num_warps") - warps).abs()
                return float(same.sort(stages_off, warps_off, "time_ns")["time_ns"][0])
        return None


def held_out_scores(table: Table) -> np.ndarray[Any, Any]:
    recipe = Recipe().resolved(table, None)
    with shown(plain=True) as progress:
        _, found, _ = cross_validate(table, Procedure(recipe, progress), folds_of(table, "problem", recipe))
    return found.score


def efficiencies(table: Table, count: int, peer: Peer) -> tuple[list[float], list[float], int]:
    """Best measured time over the chosen one's, of kerncast and of the peer; how many products it has no measured tile for."""
    scores = pl.Series(held_out_scores(table))
    rows = table.rows.frame.with_columns(time_ns=pl.Series(table.time_ns), score=scores, number=pl.Series(table.problem))
    usable = (pl.col("config.kind") == "triton") & pl.col("time_ns").is_finite()
    scored = rows.filter(usable & pl.col("problem.dtype").is_in(list(PRECISIONS)))
    numbers = scored["number"].unique().sort()
    drawn = np.random.default_rng(0).permutation(len(numbers))[:count]
    ours, theirs, without = [], [], 0
    for number in numbers.gather(np.sort(drawn)):
        measured = scored.filter(pl.col("number") == number)
        chosen = peer.choice(measured.row(0, named=True), measured)
        if chosen is None:
            without += 1
            continue
        best = float(measured["time_ns"].min())  # type: ignore[arg-type]
        ours.append(best / float(measured.sort("score")["time_ns"][0]))
        theirs.append(best / chosen)
    return ours, theirs, without


def main() -> int:
    parser = script_parser(__doc__)
    parser.add_argument("--problems", type=int, default=360, help="how many products are compared")
    given = parser.parse_args()
    path = data_file("autoheuristic", "a100_mm.zip", source="pytorch/pytorch, AutoHeuristic data sets")
    ours, theirs, without = efficiencies(table_of("autoheuristic", path, "a100"), given.problems, Peer())
    n = f"{len(ours):,} products, fp16 and bf16; {without} more have no listed tile that was measured"
    rows = []
    for what, figure in (("mean", np.mean), ("P10", lambda values: np.quantile(values, 0.1)), ("worst", np.min)):
        value, other = 100 * float(figure(ours)), 100 * float(figure(theirs))
        rows.append(Row(f"A100 mm, Triton's kernels: speed of the choice ÷ best measured speed, {what}", value, "%",
                        Target(low=other), f"nvidia-matmul-heuristics {other:.2f} %", n, "five folds, problems unseen",
                        bootstrap(100 * np.array(ours), figure)))  # fmt: skip
    return finish(BENCHMARK, rows, given.json)


if __name__ == "__main__":
    sys.exit(main())
