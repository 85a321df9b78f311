"""What no kernel can beat: the roofline of the cores in use, and the rows that claim to be faster."""

import numpy as np
import polars as pl
import pytest

from kerncast.core.device import Device
from kerncast.core.op import limits
from kerncast.data import quality, schema
from kerncast.evaluating.report.charts import roofline_chart
from kerncast.learning.table import build_table
from kerncast.library import devices
from kerncast.library.declared.family_file import family_named

CPU = Device(
    "two_cores", "two cores", "cpu",
    {"num_cus": 2, "memory_bandwidth_gb_s": 10, "l2_cache_kb": 512, "l3_cache_kb": 1024}, {"fp32": 0.1, "fp64": 0.05},
)  # fmt: skip


def bounds(family, device, **problem):
    """The outputs for one problem, `problem.*` without its prefix."""
    program = limits.limit_program(family, device, [problem["dtype"]])
    return program.scalar(family.problem.qualified(family.problem.check(problem)))


def test_the_roofline_is_that_of_the_threads_in_use():
    """One thread of two cores has half the peak; more threads than cores have no more than all of it."""
    gemm = family_named("gemm/cpu")
    shape = {"M": 1000, "N": 1000, "K": 1000, "dtype": "fp32", "layout": "rrr"}
    one, two, many = (bounds(gemm, CPU, **shape, threads=n) for n in (1, 2, 64))
    assert one["limit_ns"] == pytest.approx(2e9 / 0.05e12 * 1e9) == 2 * two["limit_ns"]
    assert (one["peak_share"], two["peak_share"], many) == (0.5, 1.0, two)


def test_a_cache_lifts_the_memory_side_but_not_the_arithmetic():
    """A product that fits in the caches needs no memory traffic; of a large one, all that does not fit must come."""
    gemm = family_named("gemm/cpu")
    small = bounds(gemm, CPU, M=1, N=256, K=256, dtype="fp32", layout="rrr", threads=2)
    assert small["floor_ns"] == pytest.approx(2 * 256 * 256 / 0.1e12 * 1e9)
    assert small["limit_ns"] > 10 * small["floor_ns"]
    large = bounds(gemm, CPU, M=1, N=4096, K=4096, dtype="fp32", layout="rrr", threads=2)
    assert large["floor_ns"] == pytest.approx(large["limit_ns"] - 2 * 1024 * 1024 / 10)
    triton, a100 = family_named("gemm/triton"), devices.get("a100")
    shape = {"M": 1024, "N": 1024, "K": 1024, "dtype": "fp32", "layout": "rcr"}
    exact, rounded = (bounds(triton, a100, **shape, tf32=tf32) for tf32 in (False, True))
    assert exact["floor_ns"] > 0 >= rounded["floor_ns"]  # tensor cores are faster than the peak of fp32
    assert "limit_ns" not in limits.limit_program(triton, Device("bare", "bare", "gpu"), ["fp32"]).outputs


def test_rows_faster_than_the_device_allows_are_counted_with_the_worst():
    """As with a mask that skips half of the work: the work is overcounted, or the label is wrong."""
    family = family_named("gemm/triton")
    sizes = np.array([512, 1024, 2048, 4096, 8192])
    least = 2.0 * sizes**3 / 312e12 * 1e9
    frame = pl.DataFrame({"problem.M": sizes, "time_ns": least * [1.2, 1.0, 0.97, 0.5, 0.8]}).with_columns(
        pl.col("problem.M").alias("problem.N"), pl.col("problem.M").alias("problem.K"), device=pl.lit("a100"),
        status=pl.lit("ok"), **{name: pl.lit(value) for name, value in
                                {"problem.dtype": "fp16", "problem.layout": "rcr", "config.kind": "library"}.items()},
    )  # fmt: skip
    rows = schema.conform(family, frame)
    found = quality.inspect_family(family, rows)["faster_than_possible"]
    assert (found["checked_rows"], found["rows"], found["worst"]["problem"]["M"]) == (5, 2, 4096)
    assert limits.sentence(found).startswith("2 of 5 rows are faster than the device allows (worst: M=4096 N=4096 K=4096")
    table = build_table(family, rows, {"a100": devices.get("a100")}, "x")
    assert limits.faster_than_possible(table.rows.frame, table.time_ns, table.rows.floor_ns) == found
    unknown = quality.inspect_family(family, rows.with_columns(device=pl.lit("mystery")))["faster_than_possible"]
    assert unknown == {"checked_rows": 0, "rows": 0, "worst": None}


def test_the_report_draws_the_roof_of_the_cores_in_use():
    """One-thread problems lie under half of the peak of two cores, and the roof says so."""
    problems = pl.DataFrame(
        {"problem.M": [64, 1024], "flops": [5e5, 2e9], "bytes": [5e4, 1.2e7], "best_ns": [1e5, 5e7], "chosen_ns": [1e5, 5e7],
         "efficiency": [1.0, 1.0], "peak_share": [0.5, 0.5]}
    )  # fmt: skip
    roofs = {trace["name"]: trace["y"] for trace in roofline_chart(problems, CPU, ["fp32"], True).figure["data"]}
    assert max(roofs["roof, fp32, 1 of 2 cores"]) == pytest.approx(50.0)  # GFLOP/s: half of 0.1 TFLOP/s
    both = problems.with_columns(peak_share=pl.Series([0.5, 1.0]))
    names = {trace["name"] for trace in roofline_chart(both, CPU, ["fp32"], True).figure["data"]}
    assert {"roof, fp32", "roof, fp32, 1 of 2 cores"} <= names
