"""Problems that are larger than any that was measured: kerncast adds the times of their parts.

A model has seen N up to 65,536 and M up to 32,768; the output layer of a large vocabulary is wider, and a batch of long prompts
has more rows. The tables have the largest sizes and half of them: how long is the whole, compared with twice a half? Data: PyPI
aiconfigurator-core 0.12.0 (Apache-2.0), systems/data/*/*/*/*/{gemm,moe}_perf.parquet; put the wheel under
KERNCAST_DATA/aiconfigurator (`pip download --no-deps aiconfigurator-core==0.12.0`).
"""

from __future__ import annotations

import io
import sys
import zipfile

import numpy as np
import polars as pl
from choosing import data_file
from h100_gemm import WHEEL
from reporting import Benchmark, finish, ratio_rows, script_parser

from kerncast.models.store.find import SHALLOWEST, SIDES, DividedSize

SOURCE = "NVIDIA's AIConfigurator, PyPI aiconfigurator-core 0.12.0, systems/data, gemm and moe"
BENCHMARK = Benchmark(__file__, "Predicting times, on public data", "Large problems in parts", SOURCE, "Apache-2.0")
COLUMNS = {"N": "n", "M": "m", "tokens": "num_tokens"}
# What rows differ in besides their problem.
MEASURED = ("latency", "power")


def ratios(wheel: zipfile.ZipFile, op: str, side: DividedSize) -> tuple[set[str], np.ndarray]:
    """The GPUs, and the time of each whole over that of its two halves."""
    gpus, found, column = set(), [], COLUMNS[side.name]
    for member in wheel.namelist():
        if not member.endswith(f"/{op}_perf.parquet"):
            continue
        table = pl.read_parquet(io.BytesIO(wheel.read(member)))
        if "k" in table.columns:
            table = table.filter(pl.col("k") >= SHALLOWEST)
        keys = [name for name in table.columns if name not in (column, *MEASURED)]
        table = table.group_by(*keys, column).agg(pl.col("latency").median())
        whole, half = (table.filter(pl.col(column) == size).drop(column) for size in (2 * side.least, side.least))
        both = whole.join(half, on=keys, suffix="_half", nulls_equal=True).sort(keys)
        if both.height:
            gpus.add(member.split("/data/")[1].split("/")[0])
            found.append((both["latency"] / (2 * both["latency_half"])).to_numpy())
    return gpus, np.concatenate(found)


if __name__ == "__main__":
    given = script_parser(__doc__).parse_args()
    rows = []
    with zipfile.ZipFile(data_file("aiconfigurator", WHEEL, source="PyPI aiconfigurator-core==0.12.0")) as opened:
        for op, side in ((op, side) for op, sides in SIDES.items() for side in sides):
            devices, ratio = ratios(opened, op, side)
            size = f"{len(ratio):,} pairs of {len(devices)} GPUs" + f", K of at least {SHALLOWEST:,}" * (op == "gemm")
            what = f"{op}, {side.name}={2 * side.least:,} over two halves"
            rows += ratio_rows(what, ratio, side.whole, f"{what}, inside the factors that widen the interval", size)
    sys.exit(finish(BENCHMARK, rows, given.json))
