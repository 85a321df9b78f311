"""The chaos battery on a Ray cluster of two nodes: what is wrong when nodes, keepers, workers and the command are killed.

    python benchmarks/ray_chaos.py [--vectors 20000] [--kills 5] [--others 5] [--seed 1]

The faults of the kernels are those of chaos.py. In the middle one node is killed, as by a power cut, and another one comes.
"""

from __future__ import annotations

import sys

from chaos import EPISODES, chaos_rows
from reporting import Benchmark, finish, script_parser
from tests.support import fleet_chaos

BENCHMARK = Benchmark(__file__, "Reliability", "Everything goes wrong on a Ray cluster: what a collection makes of it")
ON_CLUSTER = {
    **{kind: words for kind, words in EPISODES.items() if kind != "clock"},
    "kill_keeper": "the keeper of a device killed",
    "kill_node": "a node killed, and another one added",
}


def main() -> int:
    parser = script_parser(__doc__)
    parser.add_argument("--vectors", type=int, default=20_000)
    parser.add_argument("--kills", type=int, default=5, help="how often the command is killed")
    parser.add_argument("--others", type=int, default=5, help="how often each other thing happens; a node is killed once")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    note = f"{fleet_chaos.NODES} nodes with one device each"
    benchmark, rows = chaos_rows(BENCHMARK, fleet_chaos.run, ON_CLUSTER, note, given)
    return finish(benchmark, rows, given.json)


if __name__ == "__main__":
    sys.exit(main())
