"""Every kind of file that kerncast writes, cut short at each of its last 200 bytes and with 300 single bits flipped: what is
made of it.

    python benchmarks/damage.py [--cuts 200] [--flips 300] [--seed 0]

Each damaged file is used as people use it: read, inspected, verified, merged, trained and evaluated on, selected with,
exported, resumed. `make test` does the same with a few cuts and flips (tests/verifying/test_damage.py).
"""

from __future__ import annotations

import os
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from reporting import Benchmark, Row, Target, finish, script_parser
from tests.support.artefacts import every_artefact
from tests.support.damage import subjects
from tests.support.damaging import damaged

BENCHMARK = Benchmark(__file__, "Reliability", "Damaged files: cut short, and with bits flipped")
NONE = Target(0, 0)


def main() -> int:
    parser = script_parser(__doc__)
    parser.add_argument("--cuts", type=int, default=200)
    parser.add_argument("--flips", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    counts = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["KERNCAST_CACHE"] = str(folder / "cache")
        os.environ["KERNCAST_TRUSTED"] = str(folder / "trusted")
        for place in ("made", "besides", "work"):
            (folder / place).mkdir()
        for subject in subjects(every_artefact(folder / "made"), folder / "besides"):
            found = damaged(subject, folder / "work", cuts=given.cuts, flips=given.flips, seed=given.seed)
            counts.append(found)
            print(found, *found.tracebacks, *found.differences, sep="\n  ", file=sys.stderr, flush=True)
    told = f"{sum(item.damages for item in counts):,} damaged files"

    def total(what: str) -> int:
        return sum(getattr(item, what) for item in counts)

    rows = [
        Row("tracebacks", sum(len(item.tracebacks) for item in counts), "", NONE, n=told),
        Row("silent differences", sum(len(item.differences) for item in counts), "", NONE, n=told),
        Row("uses that named the damage", total("named"), n=told),
        Row("uses that repaired it", total("repaired"), n=told),
        Row("uses that the damage did not change", total("same"), n=told),
        Row("uses of a file that people write, which did what it says then", total("as_written"), n=told),
    ]
    note = f"{len(counts)} kinds of files; what takes a second or more is tried on one damaged file in 25"
    return finish(replace(BENCHMARK, note=note), rows, given.json)


if __name__ == "__main__":
    sys.exit(main())
