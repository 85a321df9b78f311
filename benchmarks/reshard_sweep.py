"""The published reshard sweep: its number of vectors, and the time to generate and write them all.

    python benchmarks/reshard_sweep.py

Each printed line runs in its own process with one Python thread. The tt-metal format needs 2 GB of disk space temporarily.
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

BENCHMARK = Benchmark(__file__, "Spaces, sweeps and imports", "The published reshard sweep, generated and written")
SECONDS = Target(high=180)
# The published counts; NAMES describes them.
PUBLISHED = {"valid": 4_044_040, "vectors": 2_885_010, "files": 4_032, "thinned": 700, "groups": 27_808}
NAMES = {"valid": "valid vectors", "vectors": "vectors left after thinning out", "files": "files",
         "thinned": "files thinned out", "groups": "groups of grids and strategies"}  # fmt: skip
KINDS = ("published", "fitting", "parquet", "tt-sweep")


def generate(name: str) -> dict[str, int]:
    from kerncast.library.ops.reshard import reshard

    found = dict.fromkeys(PUBLISHED, 0)
    for suite in reshard.sweep(name, {}):
        found["valid"] += suite.valid
        found["vectors"] += suite.problems.height
        found["files"] += 1
        found["thinned"] += suite.problems.height < suite.valid
        found["groups"] += suite.problems.select("in_strategy", "out_strategy").n_unique()
    return found


def write(file_format: str) -> dict[str, int]:
    from kerncast.measuring.sweeping import open_sweep, write_vectors

    sweep = open_sweep(family_named("reshard/single"), devices.get("wormhole_b0"), ["published"])
    with tempfile.TemporaryDirectory() as scratch:
        summary = write_vectors(sweep, Path(scratch) / "vectors", file_format=file_format)
    return {"vectors": summary.vectors, "files": summary.parts}


def measure(kind: str) -> dict[str, float]:
    start = time.perf_counter()
    found = generate(kind) if kind in ("published", "fitting") else write(kind)
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {**found, "seconds": time.perf_counter() - start, "peak_mb": peak_mb}


def stated(kind: str, found: dict[str, float]) -> list[Row]:
    """Rows for the counts, which must equal the published ones, and for the time."""
    counts = {"published": PUBLISHED, "fitting": {}}.get(kind, {"vectors": PUBLISHED["vectors"]})
    rows = [Row(f"{kind}: {NAMES[name]}", found[name], "", Target(value, value)) for name, value in counts.items()]
    done = f"{kind} problems generated" if kind in ("published", "fitting") else f"published vectors written as {kind}"
    target = None if kind in ("published", "fitting") else SECONDS
    note = f"peak memory {found['peak_mb']:,.0f} MB"
    return [*rows, Row(done, found["seconds"], "s", target, n=f"{found['vectors']:,} vectors", note=note)]


def main() -> int:
    parser = script_parser(__doc__)
    parser.add_argument("--worker", choices=KINDS, help="run one line in this process and print it as JSON")
    given = parser.parse_args()
    if given.worker:
        print(json.dumps(measure(given.worker)))
        return 0
    print(f"{'what':10} " + " ".join(f"{name:>10}" for name in (*PUBLISHED, "seconds", "peak MB")))
    rows = []
    for kind in KINDS:
        answer = subprocess.run([sys.executable, __file__, "--worker", kind], stdout=subprocess.PIPE, text=True, check=True)
        found = json.loads(answer.stdout)
        cells = [f"{found[name]:10,}" if name in found else " " * 10 for name in PUBLISHED]
        print(f"{kind:10} {' '.join(cells)} {found['seconds']:10.1f} {found['peak_mb']:10,.0f}", flush=True)
        rows += stated(kind, found)
    return finish(BENCHMARK, rows, given.json)


if __name__ == "__main__":
    sys.exit(main())
