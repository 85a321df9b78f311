"""Time to compute the features of gemm/ck_tile for a million rows, and to list and count its config space.

    python benchmarks/core.py

Needs no data: problems and configs are drawn from the declared spaces.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import numpy as np
import polars as pl
from reporting import Benchmark, Row, Target, finish, script_parser, spread

from kerncast.core.device import Device
from kerncast.core.op import Family
from kerncast.library import devices
from kerncast.library.declared.family_file import family_named

BENCHMARK = Benchmark(__file__, "Spaces, sweeps and imports", "Features and config space of gemm/ck_tile")

ROWS = 1_000_000
REPEATS = 5


def timed(what: str, run: Callable[[], object], target: float, n: str) -> Row:
    """The median of a few runs."""
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return Row(what, statistics.median(times), "s", Target(high=target), n=n, interval=spread(times))


def rows_to_measure(family: Family, device: Device) -> pl.DataFrame:
    configs = family.config.sample(100_000, 0, family.bindings({"dtype": "fp8"}, device))
    rng = np.random.default_rng(0)
    sizes = {name: rng.integers(1, 16_384, ROWS) for name in "MNK"}
    problems = pl.DataFrame(sizes).with_columns(split_k=1, batch=1, dtype=pl.lit("fp8"), layout=pl.lit("rcr"))
    picked = configs[rng.integers(0, configs.height, ROWS)]
    return pl.concat([problems.rename(lambda name: f"p.{name}"), picked.rename(lambda name: f"c.{name}")], how="horizontal")


def main() -> int:
    given = script_parser(__doc__).parse_args()
    family, device = family_named("gemm/ck_tile"), devices.get("gfx950")
    bindings = family.bindings({"dtype": "fp8"}, device)
    features = family.features_on(device, ["fp8"]).program
    rows = rows_to_measure(family, device)

    def first_thousand() -> None:
        found = 0
        for frame in family.config.frames(bindings):
            found += frame.height
            if found >= 1_000:
                return

    raw = 1
    for parameter in family.config.parameters.values():
        raw *= parameter.size
    valid = f"{family.config.count(bindings):,} valid of {raw:,} raw"
    listed = "first 1,000 valid configs of gemm/ck_tile, gfx950, fp8"
    stated = [
        timed(f"{len(features.outputs)} features of gemm/ck_tile", lambda: features.frame(rows), 2.0, f"{ROWS:,} rows"),
        timed(listed, first_thousand, 0.050, valid),
        timed("all valid configs of gemm/ck_tile counted", lambda: family.config.count(bindings), 10.0, valid),
    ]
    return finish(BENCHMARK, stated, given.json)


if __name__ == "__main__":
    sys.exit(main())
