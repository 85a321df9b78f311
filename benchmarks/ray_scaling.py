"""Collecting on a Ray cluster: the rate of four devices against one, and what each vector costs the driver.

    python benchmarks/ray_scaling.py [--vectors 2000] [--devices 4]

The devices sleep for the time of their kernels (1 to 2 ms a launch), so many of them fit on one machine. The cluster's nodes
are processes of this machine, one device each. A rate counts from the first result to the last, without the start.
"""

from __future__ import annotations

import resource
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

from reporting import Benchmark, Row, Target, finish, script_parser, spread
from tests.support.clusters import CARD, small_cluster

import kerncast
from kerncast.core.progress import Facts, Progress

BENCHMARK = Benchmark(
    __file__, "Measuring", "Collecting on a Ray cluster: four devices against one",
    note="Devices that sleep for the time of their kernels; nodes are processes of one machine",
)  # fmt: skip
SLEEPING = "kerncast.testing.faults:Sleeping"
FAMILY = "gemm/triton"
CONFIGS = 50
RUNS = 3


class Times(Progress):
    """When the first vectors and the last ones had their status, and what the driver had used by then."""

    def __init__(self) -> None:
        self.at: list[tuple[float, float]] = []
        self.counting = True

    def expect(self, what: str, total: int | None) -> None:
        self.counting = what == "vectors"

    def result(self, status: str, **facts: Unpack[Facts]) -> None:
        if self.counting:
            used = resource.getrusage(resource.RUSAGE_SELF)
            self.at.append((time.monotonic(), used.ru_utime + used.ru_stime))


@dataclass(frozen=True)
class Sweep:
    """How fast a sweep went."""

    rate: float
    driver_us: float
    """CPU time of the driver for each vector, writing included."""


def swept(vectors: int, **how: Any) -> Sweep:
    times = Times()
    sizes = ",".join(str(64 + number) for number in range(-(-vectors // CONFIGS)))
    with tempfile.TemporaryDirectory() as folder:
        kerncast.collect(
            FAMILY,
            problems=f"grid:M={sizes};N=64;K=64",
            vary={"dtype": "fp16", "layout": "rcr"},
            configs=f"sample:{CONFIGS}",
            extent=kerncast.Extent(max_vectors=vectors),
            measuring=kerncast.Measuring(backend=SLEEPING),
            out=Path(folder, "d"),
            progress=times,
            **how,
        )
    (start, used), (end, spent) = times.at[0], times.at[-1]
    count = len(times.at) - 1
    return Sweep(count / (end - start), 1e6 * (spent - used) / count)


def on_cluster(vectors: int, devices: int) -> Sweep:
    with small_cluster(*[1] * devices) as cluster:
        return swept(vectors, on="ray", address=cluster.address, resource=CARD)


def main() -> int:
    parser = script_parser(__doc__)
    parser.add_argument("--vectors", type=int, default=2000, help="vectors for each device")
    parser.add_argument("--devices", type=int, default=4)
    given = parser.parse_args()
    local, one, many = [], [], []
    for _ in range(RUNS):  # interleaved, so that a slow moment affects all of them
        local.append(swept(given.vectors))
        one.append(on_cluster(given.vectors, 1))
        many.append(on_cluster(given.vectors * given.devices, given.devices))
    ratios = [after.rate / before.rate for before, after in zip(one, many, strict=True)]
    n = f"{given.vectors:,} vectors a device, {RUNS} runs"
    rates = [sweep.rate for sweep in many]
    each = [sweep.driver_us for sweep in many]
    shares = [100 * there.rate / here.rate for here, there in zip(local, one, strict=True)]
    rows = [
        Row(
            f"rate of {given.devices} devices against one, on a cluster", statistics.median(ratios), "x", Target(3.6),
            n=n, interval=spread(ratios),
        ),
        Row(f"vectors measured by {given.devices} devices", statistics.median(rates), "per s", n=n, interval=spread(rates)),
        Row("rate of one device on a cluster, of that without", statistics.median(shares), "%", n=n, interval=spread(shares)),
        Row("CPU time of the driver for each vector", statistics.median(each), "µs", n=n, interval=spread(each)),
    ]  # fmt: skip
    return finish(BENCHMARK, rows, given.json)


if __name__ == "__main__":
    sys.exit(main())
