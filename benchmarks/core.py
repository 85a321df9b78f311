"""Core numbers: features of gemm/ck_tile for a million rows, and listing its config space.

    python benchmarks/core.py

Exits non-zero when a bar is missed. Needs no data: problems and configs are drawn from the declared spaces.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import numpy as np
import polars as pl

import kerncast

ROWS = 1_000_000
REPEATS = 5


def seconds(run: Callable[[], object]) -> tuple[float, float]:
    """Median and worst of a few runs."""
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return statistics.median(times), max(times)


def rows_to_measure(family: kerncast.Family, device: kerncast.Device) -> pl.DataFrame:
    configs = family.config.sample(100_000, 0, family.bindings({"dtype": "fp8"}, device))
    rng = np.random.default_rng(0)
    sizes = {name: rng.integers(1, 16_384, ROWS) for name in "MNK"}
    problems = pl.DataFrame(sizes).with_columns(split_k=1, batch=1, dtype=pl.lit("fp8"), layout=pl.lit("rcr"))
    picked = configs[rng.integers(0, configs.height, ROWS)]
    return pl.concat([problems.rename(lambda name: f"p.{name}"), picked.rename(lambda name: f"c.{name}")], how="horizontal")


def main() -> int:
    family, device = kerncast.get_family("gemm/ck_tile"), kerncast.get_device("gfx950")
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
    results = [
        (f"{len(features.outputs)} features of gemm/ck_tile, {ROWS:,} rows", *seconds(lambda: features.frame(rows)), 2.0),
        ("first 1,000 valid configs, gfx950 fp8", *seconds(first_thousand), 0.050),
        (
            f"count of valid configs ({family.config.count(bindings):,} of {raw:,} raw)",
            *seconds(lambda: family.config.count(bindings)),
            10.0,
        ),
    ]
    print(f"{'what':70} {'median s':>9} {'worst s':>9} {'bar s':>7}")
    for what, median, worst, bar in results:
        print(f"{what:70} {median:9.3f} {worst:9.3f} {bar:7.3f} {'' if median <= bar else 'MISSED'}")
    return int(any(median > bar for _, median, _, bar in results))


if __name__ == "__main__":
    sys.exit(main())
