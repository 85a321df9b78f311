"""Choosing among convolution kernels on this CPU, all three directions: `python benchmarks/conv_cpu.py`.

Nothing is downloaded. The kernels are measured on this machine, twice, which takes about half an hour per direction. If it is
stopped, the same command continues. Rows of both collections are repeats: a shared machine is slow for minutes at a time, so
one collection alone is partly wrong. Each problem is scored by a model that was not trained on it. Peer: CK Tile's heuristics
for grouped convolution on gfx950 report, mean / P10, 93.05 / 79.9 (forward), 93.8 / 82.9 (bwd data), 96.1 / 89.4 (bwd weight);
other kernels, same task (composable_kernel, dispatcher/heuristics).
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from choosing import report
from reporting import Benchmark, Row, Target, finish, script_parser

from kerncast.data import Dataset
from kerncast.learning.table import load_table

DIRECTIONS = ("forward", "bwd_data", "bwd_weight")
TARGETS = {"efficiency_mean": Target(96), "efficiency_p10": Target(90)}
BENCHMARK = Benchmark(__file__, "Choosing kernels measured on a CPU", "Convolution kernels, three directions")
PEER = "CK Tile's heuristics on gfx950, other kernels, same task: {}"
PEERS = {
    "forward": {"efficiency_mean": PEER.format("93.05"), "efficiency_p10": PEER.format("79.9")},
    "bwd_data": {"efficiency_mean": PEER.format("93.8"), "efficiency_p10": PEER.format("82.9")},
    "bwd_weight": {"efficiency_mean": PEER.format("96.1"), "efficiency_p10": PEER.format("89.4")},
}
FEWEST_PROBLEMS, FEWEST_CONFIGS = 250, 60


def collected(direction: str, path: Path) -> Path:
    command = [
        sys.executable, "-m", "kerncast.app.cli", "collect", f"grouped_conv_{direction}/cpu", "--problems", "wide",
        "--vary", "dtype=fp32", "--max-flops", "3e8", "--configs", f"sample:{FEWEST_CONFIGS}", "--out", str(path),
        *(["--resume"] if path.exists() else []),
    ]  # fmt: skip
    # 3: some vectors have no final row. Rows below check that there are enough.
    if subprocess.run(command).returncode not in (0, 3):
        sys.exit(f"collecting {direction} failed")
    return path


def main() -> int:
    options = script_parser(__doc__)
    options.add_argument("--direction", choices=DIRECTIONS, help="only this one")
    options.add_argument("--out", type=Path, default=Path("conv_cpu"), help="the folder for the measurements")
    options.add_argument("--collections", type=int, default=2, help="how many times everything is measured")
    given = options.parse_args()
    rows: list[Row] = []
    for direction in [given.direction] if given.direction else DIRECTIONS:
        names = [direction, *(f"{direction}-{number}" for number in range(2, given.collections + 1))]
        table = load_table([Dataset.open(collected(direction, given.out / name)) for name in names])
        problems = len(set(table.problem.tolist()))
        vectors = len(table.time_ns) / problems
        name = f"grouped_conv_{direction}/cpu"
        rows.append(Row(f"{name}: problems measured", problems, "", Target(FEWEST_PROBLEMS)))
        rows.append(Row(f"{name}: configs measured per problem", vectors, "", Target(FEWEST_CONFIGS * 0.9)))
        rows += report(name, table, TARGETS, "five folds, problems unseen", PEERS[direction])
    return finish(BENCHMARK, rows, given.json)


if __name__ == "__main__":
    sys.exit(main())
