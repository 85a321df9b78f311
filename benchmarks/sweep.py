"""Streaming ten million vectors: gemm/triton on an A100 in fp16, every valid config of as many problems as needed.

    python benchmarks/sweep.py

Each printed line runs in its own process. `generate` only generates the blocks, `write` also writes them as parquet.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from reporting import Benchmark, Row, Target, finish, script_parser

from kerncast.library import devices
from kerncast.library.declared.family_file import family_named

BENCHMARK = Benchmark(__file__, "Spaces, sweeps and imports", "Sweeping gemm/triton")
VECTORS = 10_000_000
GROWTH_MB = Target(high=1_000)


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(what: str) -> dict[str, float]:
    from kerncast.library.problems import problem_set
    from kerncast.measuring.sweeping import Sweep, write_vectors

    family, device = family_named("gemm/triton"), devices.get("a100")
    per_problem = family.config.count(family.bindings({"dtype": "fp16"}, device))
    problems = problem_set(family, [f"lognormal:{VECTORS // per_problem + 1}"], {"dtype": ["fp16"], "layout": ["rcr"]})
    sweep = Sweep(family, device, problems)
    before, start = peak_mb(), time.perf_counter()
    if what == "generate":
        vectors = sum(block.height for block in sweep.iter_blocks())
    else:
        with tempfile.TemporaryDirectory() as scratch:
            vectors = write_vectors(sweep, Path(scratch) / "vectors").vectors
    return {"vectors": vectors, "seconds": time.perf_counter() - start, "before_mb": before, "peak_mb": peak_mb()}


def main() -> int:
    parser = script_parser(__doc__)
    parser.add_argument("--worker", choices=("generate", "write"), help="run one line in this process and print it as JSON")
    given = parser.parse_args()
    if given.worker:
        print(json.dumps(measure(given.worker)))
        return 0
    print(f"{'what':10} {'vectors':>12} {'vectors/s':>12} {'peak RSS MB':>12} {'growth MB':>10}")
    rows = []
    for what, done in (("generate", "generated"), ("write", "generated and written as parquet")):
        answer = subprocess.run([sys.executable, __file__, "--worker", what], capture_output=True, text=True, check=True)
        found = json.loads(answer.stdout)
        growth = found["peak_mb"] - found["before_mb"]
        rate = found["vectors"] / found["seconds"]
        print(f"{what:10} {found['vectors']:12,.0f} {rate:12,.0f} {found['peak_mb']:12,.0f} {growth:10,.0f}")
        n = f"{found['vectors']:,} vectors"
        rows.append(Row(f"vectors {done}", rate, "per s", n=n))
        rows.append(Row(f"memory growth, vectors {done}", growth, "MB", GROWTH_MB, n=n))
    return finish(BENCHMARK, rows, given.json)


if __name__ == "__main__":
    sys.exit(main())
