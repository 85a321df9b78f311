"""Everything that four reference systems promise their users, done with kerncast on small made-up files.

    python benchmarks/coverage.py [--only 49,60-70] [--keep FOLDER]

A row is kept if its commands end as they should and their results are right. What needs hardware that this machine does not
have is done up to that point, and the row names it. `make results` renders docs/coverage.md from the result.
"""

from __future__ import annotations

import sys
import tempfile
import traceback
from pathlib import Path

import promises_ck
import promises_diode
import promises_own_op
import promises_reshard
import promises_ttnn
from promises import PROMISES, Promise, Work
from reporting import Benchmark, Row, Target, finish, script_parser

BENCHMARK = Benchmark(__file__, "What users of other systems expect", "Promises of four reference systems")
PARTS = (promises_reshard, promises_ck, promises_own_op, promises_ttnn, promises_diode)
# Promises of other systems by number.
ROWS = list(range(1, 132))


def kept(promise: Promise, folder: Path) -> Row:
    """Run one of them; a failure is a row that is short of its target."""
    work = Work(folder / (promise.after or promise.keep.__name__))
    work.folder.mkdir(parents=True, exist_ok=True)
    right = True
    try:
        promise.keep(work)
    except Exception:
        right = False
        print(f"{promise.number}: {promise.words}\n{traceback.format_exc()}", file=sys.stderr)
    kept = float(right and work.possible)
    return Row(promise.words, kept, "", Target(low=1.0), work.lacking, promise.number, promise.system, note=promise.how)


def chosen(only: str) -> list[Promise]:
    """The promises that have one of these rows, with those that they go on from."""
    if not only:
        return PROMISES
    numbers: set[int] = set()
    for part in only.split(","):
        first, _, last = part.partition("-")
        numbers |= set(range(int(first), int(last or first) + 1))
    wanted = {item.keep.__name__ for item in PROMISES if numbers & set(item.rows)}
    for item in reversed(PROMISES):
        if item.keep.__name__ in wanted and item.after:
            wanted.add(item.after)
    return [item for item in PROMISES if item.keep.__name__ in wanted]


def main() -> int:
    parser = script_parser(__doc__)
    parser.add_argument("--only", default="", help="rows, such as 49 or 60-70, with commas between them")
    parser.add_argument("--keep", type=Path, help="a folder for what is made")
    given = parser.parse_args()
    listed = sorted(number for item in PROMISES for number in item.rows)
    assert listed == ROWS, f"each row once: {sorted(set(ROWS) ^ set(listed))}"
    with tempfile.TemporaryDirectory() as folder:
        rows = []
        for item in chosen(given.only):
            rows.append(kept(item, given.keep or Path(folder)))
            print(f"{item.number:>8} {'kept' if rows[-1].measured else 'BROKEN'}  {item.words}", flush=True)
        return finish(BENCHMARK, rows, given.json)


if __name__ == "__main__":
    sys.exit(main())
