"""Run the quickstart and score its result: `python benchmarks/quickstart.py [--full] [--out DIR]`.

The default takes five minutes; `--full` measures 300 shapes in fp32 and bf16 and takes about an hour. Kernels are built and
measured on this machine, a model is trained on them, and the best kernels are timed against numpy's BLAS. Each shape is scored
by a model that was not trained on it. If it is stopped, the same command continues. The time counts only if the folder did not
exist before.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from reporting import Benchmark, Row, Target, bootstrap, finish, format_figure, script_parser

BENCHMARK = Benchmark(__file__, "Choosing kernels measured on a CPU", "The quickstart: GEMM kernels")
# By `--full`: minimum percent of the best measured speed, mean and P10, and maximum seconds.
TARGETS = {False: (90, None, 300.0), True: (96, 88, None)}


def main() -> int:
    options = script_parser(__doc__)
    options.add_argument("--full", action="store_true", help="300 shapes, fp32 and bf16")
    options.add_argument("--out", type=Path, help="keep all files in this folder; default: a temporary one")
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        out = given.out or Path(scratch) / "quickstart"
        fresh, start = not out.exists(), time.perf_counter()
        command = [sys.executable, "-m", "kerncast.app.cli", "regenerate", "quickstart", "--json", "--out", str(out)]
        answer = subprocess.run([*command, *(["--full"] if given.full else [])], stdout=subprocess.PIPE, text=True, check=False)
        if answer.returncode:
            return answer.returncode
        spent = time.perf_counter() - start
    found = json.loads(answer.stdout)
    ceiling = "unknown" if found["noise_ceiling"] is None else format(found["noise_ceiling"], ".2%")
    print(
        f"{found['problems']} shapes, {found['rows']:,} measurements; worst choice {found['model_share_min']:.2%}, P10 "
        f"{found['model_share_p10']:.2%}; noise ceiling {ceiling}; best fixed kernel "
        f"{found['fixed_share_mean']:.2%}; best measured kernel {found['best_against_blas']:.2f} x numpy's BLAS"
    )
    benchmark = replace(BENCHMARK, title=f"{BENCHMARK.title}, in full") if given.full else BENCHMARK
    return finish(benchmark, stated(found, given.full, spent if fresh else None), given.json)


def stated(found: dict[str, Any], full: bool, spent: float | None) -> list[Row]:
    """Rows for the model's choices on unseen shapes, against the best fixed kernel and numpy's BLAS."""
    mean, p10, seconds = TARGETS[full]
    form = "quickstart --full" if full else "quickstart"
    n, split = f"{found['problems']} shapes, {found['rows']:,} measurements", "folds, shapes unseen"
    shares = [100 * item["model_share"] for item in found["shapes"]]
    raced = [item for item in found["shapes"] if item["best_against_blas"] is not None]
    ratios = [item["best_against_blas"] * max(item["model_share"], 1e-3) for item in raced]
    what = f"{form}: speed of the choice ÷ best measured speed"
    ceiling = ""
    if found["noise_ceiling"] is not None:
        twice = f"{found['problems_measured_twice']} shapes measured at two times"
        ceiling = f"noise ceiling {format_figure(100 * found['noise_ceiling'], '%')} ({twice})"
    fixed = f"best fixed kernel, picked with hindsight, {format_figure(100 * found['fixed_share_mean'], '%')}"
    low = f"best fixed kernel {format_figure(100 * found['fixed_share_min'], '%')}"
    blas = f"best measured kernel {found['best_against_blas']:.2f}"
    tenth = bootstrap(shares, lambda values: np.quantile(values, 0.1))
    times = bootstrap(ratios, statistics.geometric_mean)
    rows = [
        Row(f"{what}, mean", 100 * found["model_share_mean"], "%", Target(mean), fixed, n, split, bootstrap(shares), ceiling),
        Row(f"{what}, P10", 100 * found["model_share_p10"], "%", Target(p10) if p10 else None, "", n, split, tenth),
        Row(f"{what}, worst", 100 * found["model_share_min"], "%", None, low, n, split),
        Row(
            f"{form}: numpy's BLAS time ÷ the choice's, geometric mean",
            found["model_against_blas"],
            "×",
            Target(1),
            blas,
            n,
            split,
            times,
        ),
    ]
    if seconds is not None and spent is not None:
        rows.append(Row(f"{form}: everything except installing", spent, "s", Target(high=seconds), n=n))
    return rows


if __name__ == "__main__":
    sys.exit(main())
