"""One collection on a backend full of faults, while everything happens to its processes and its machine: what is wrong then.

    python benchmarks/chaos.py [--vectors 20000] [--kills 20] [--others 10] [--seed 1]

Shares of the vectors crash, hang, exhaust memory, compute wrong results, spoil their process or crash in compiling and
closing. Meanwhile `kerncast collect` is killed, stopped and continued, its workers are killed and stopped, its disk fills up
and its clock jumps. `make test` runs the same battery with fewer vectors (tests/measuring/test_chaos.py).
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from reporting import Benchmark, Row, Target, finish, script_parser
from tests.support import chaos

BENCHMARK = Benchmark(__file__, "Reliability", "Everything goes wrong: what a collection makes of it")
NONE = Target(0, 0)
FAULTS = {
    "segfault": "kernels that crash",
    "hang": "kernels that hang",
    "leak": "kernels that allocate without end",
    "hoard": "kernels that take memory without end, unnoticed by allocation",
    "garbage": "kernels with a wrong result",
    "poison": "kernels that fail and spoil their process",
    "spoil": "kernels that are right and spoil the results of others",
    "break": "kernels that are right and make others fail",
    "compile_segfault": "kernels that crash the compilation",
    "close_segfault": "kernels that crash when they are closed",
    "slow": "slow kernels",
}
EPISODES = {
    "kill": "kill -9 and resume",
    "terminate": "SIGTERM and resume",
    "stop": "the collection stopped and continued",
    "stop_worker": "a worker stopped and continued",
    "kill_worker": "a worker killed from outside",
    "full_disk": "a full disk, then resume",
    "clock": "jumps of the wall clock",
}


def chaos_rows(
    benchmark: Benchmark, run: Callable[..., chaos.Report], episodes: dict[str, str], note: str, given: argparse.Namespace
) -> tuple[Benchmark, list[Row]]:
    """What a battery found, as rows."""
    with tempfile.TemporaryDirectory() as folder:
        report = run(Path(folder) / "battery", vectors=given.vectors, kills=given.kills, others=given.others, seed=given.seed)
    print(report, file=sys.stderr)
    told = f"{report.vectors:,} vectors"
    rows = [Row(kind, len(found), "", NONE, n=told) for kind, found in report.wrong.items()]
    rows += [Row(f"injected: {words}", report.injected[fault], n=told) for fault, words in FAULTS.items()]
    rows += [Row(f"happened: {words}", report.episodes[kind], n=told) for kind, words in episodes.items()]
    return replace(benchmark, note=f"One collection in {report.starts} runs of the command, {note}"), rows


def main() -> int:
    parser = script_parser(__doc__)
    parser.add_argument("--vectors", type=int, default=20_000)
    parser.add_argument("--kills", type=int, default=20, help="how often the collection is killed")
    parser.add_argument("--others", type=int, default=10, help="how often each other thing happens")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    benchmark, rows = chaos_rows(BENCHMARK, chaos.run, EPISODES, f"{len(chaos.DEVICES)} workers at a time", given)
    return finish(benchmark, rows, given.json)


if __name__ == "__main__":
    sys.exit(main())
