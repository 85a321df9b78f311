"""Choosing among convolution kernels on this CPU, all three directions: `python benchmarks/conv_cpu.py`.

Nothing is downloaded: the kernels are measured here, twice, about half an hour a direction, and the same command goes on
where it was stopped. Rows of both collections are repeats: on a shared machine one alone is partly measured in slow
spells of minutes. Judged on problems that no fold was trained on. Peer: CK Tile's heuristics for grouped convolution on
gfx950 report 93.05 / P10 79.9 (forward), 93.8 / 82.9 (bwd data), 96.1 / 89.4 (bwd weight), other kernels, same task
(composable_kernel, dispatcher/heuristics).
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from choosing import report

from kerncast.data import Dataset
from kerncast.tables.table import load_table

DIRECTIONS = ("forward", "bwd_data", "bwd_weight")
BARS = {"efficiency_mean": (">=", 0.96), "efficiency_p10": (">=", 0.90)}
FEWEST_PROBLEMS, FEWEST_CONFIGS = 250, 60


def collected(direction: str, path: Path) -> Path:
    command = [
        sys.executable, "-m", "kerncast.cli", "collect", f"grouped_conv_{direction}/cpu", "--problems", "wide",
        "--vary", "dtype=fp32", "--max-flops", "3e8", "--configs", f"sample:{FEWEST_CONFIGS}", "--out", str(path),
        *(["--resume"] if path.exists() else []),
    ]  # fmt: skip
    # 3: some vectors have no final row; whether enough have is counted below.
    if subprocess.run(command).returncode not in (0, 3):
        sys.exit(f"collecting {direction} failed")
    return path


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--direction", choices=DIRECTIONS, help="only this one")
    options.add_argument("--out", type=Path, default=Path("conv_cpu"), help="where measurements are kept")
    options.add_argument("--collections", type=int, default=2, help="how often everything is measured")
    given = options.parse_args()
    good = True
    for direction in [given.direction] if given.direction else DIRECTIONS:
        names = [direction, *(f"{direction}-{number}" for number in range(2, given.collections + 1))]
        table = load_table([Dataset.open(collected(direction, given.out / name)) for name in names])
        problems = len(set(table.problem.tolist()))
        vectors = len(table.time_ns) / problems
        enough = problems >= FEWEST_PROBLEMS and vectors >= FEWEST_CONFIGS * 0.9
        print(f"{'reached' if enough else 'MISSED '} {problems} problems with {vectors:.0f} configs each (bar 250 with 60)")
        good &= report(f"grouped_conv_{direction}/cpu", table, BARS) and enough
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
