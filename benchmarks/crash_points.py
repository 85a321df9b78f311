"""Kill each command before each of its file calls: what readers see then, how the next run ends and what it leaves.

    python benchmarks/crash_points.py [--regenerate-every N]

Needs no data. A regeneration is sweeping, collecting, training and storing one after the other, and takes seconds per death:
`--regenerate-every 10` tries every tenth of its points.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from reporting import Benchmark, Row, Target, finish, script_parser
from tests.support.crash_cases import CASES, faults_at, prepare, undisturbed

BENCHMARK = Benchmark(__file__, "Reliability", "Commands that die at a file call")


def main() -> int:
    parser = script_parser(__doc__)
    parser.add_argument("--regenerate-every", type=int, default=1)
    given = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        home, folder = Path(scratch, "home"), Path(scratch, "run")
        home.mkdir()
        prepare(home)
        for name, case in CASES.items():
            whole = undisturbed(case, home, folder)
            tried = range(1, whole.points + 1, given.regenerate_every if name == "regenerate" else 1)
            faults = {at: found for at in tried if (found := faults_at(case, home, folder, at, whole))}
            for at, found in faults.items():
                print(f"  {name} at {at}: {'; '.join(found)}", flush=True)
            print(f"{name}: {len(tried)} of {whole.points} points, {len(faults)} with a fault", flush=True)
            counted = f"{len(tried):,} of {whole.points:,} file calls"
            what = f"`{name}`: deaths with a half artefact, another result or a rest"
            rows.append(Row(what, len(faults), "", Target(high=0), n=counted))
    return finish(BENCHMARK, rows, given.json)


if __name__ == "__main__":
    sys.exit(main())
