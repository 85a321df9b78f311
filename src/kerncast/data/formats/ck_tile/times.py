"""The time of a row from two readings of it: the latency and the rate, each rounded when it was printed."""

from __future__ import annotations

import polars as pl

from kerncast.data import schema
from kerncast.data.skipping import Skips

# Decimals that a number may have been printed with. Fewer than two cannot be told from two: 0.10 is 0.1 in JSON.
DECIMALS = (2, 3, 4, 5, 6)
# The two readings may differ by this much besides rounding: the rate may come from another count of operations.
AGREEMENT = 0.02
# Words in a message → status; a failure without any of them is a launch error.
REASONS = {"not supported": "unsupported", "out of memory": "out_of_memory", "timeout": "timeout", "timed out": "timeout",
           "verif": "wrong_result", "mismatch": "wrong_result"}  # fmt: skip
NO_TIME = "neither a latency nor a rate above 0"


def timed(table: pl.DataFrame, flops: pl.Series, skips: Skips) -> pl.DataFrame:
    """Adds `time_ns`, `status` and `error`.

    0.01 ms stands for anything from 5 to 15 µs, and a rate of 35.21 TFLOPS for a range of times too. The time is in both
    ranges: it is that of the finer reading, moved into the other range if it is outside.
    """
    told = [pl.when(pl.col(name).is_finite()).then(pl.col(name)).alias(name) for name in ("latency_ms", "tflops")]
    table = table.with_columns(flops.alias("flops"), *told, pl.col("is_valid").fill_null(True))
    latency, rate, work = pl.col("latency_ms"), pl.col("tflops"), pl.col("flops")
    around, near = _half_width("latency_ms"), _half_width("tflops")
    by_latency, by_rate = pl.when(latency > 0).then(latency * 1e6), pl.when(rate > 0).then(work / (rate * 1e3))
    table = table.with_columns(
        by_latency=by_latency,
        by_rate=by_rate,
        low=pl.max_horizontal(
            pl.when(latency > 0).then((latency - around) * 1e6), pl.when(rate > 0).then(work / ((rate + near) * 1e3))
        ),
        high=pl.min_horizontal(
            pl.when(latency > 0).then((latency + around) * 1e6),
            pl.when(rate > near).then(work / ((rate - near) * 1e3)),
        ),
        finer_rate=by_rate.is_not_null() & (by_latency.is_null() | (near / rate < around / latency)),
    )
    low, high = pl.col("low"), pl.col("high")
    apart = pl.col("is_valid") & (low > high * (1 + AGREEMENT))
    table = skips.drop(table, apart, "latency and rate must give the same time", "latency_ms")
    time = pl.when(pl.col("finer_rate")).then(pl.col("by_rate")).otherwise(pl.col("by_latency"))
    # Where the ranges touch within the agreement only, the finer reading stands as it is.
    time = pl.when(low <= high).then(time.clip(low, high)).otherwise(time)
    table = table.with_columns(time_ns=pl.when(pl.col("is_valid")).then(time))
    possible = pl.col("time_ns").is_between(*schema.POSSIBLE_NS)
    table = skips.drop(table, ~possible, "the time must be possible", "latency_ms")
    said = pl.coalesce(pl.col("error"), pl.when(pl.col("is_valid")).then(pl.lit(NO_TIME)))
    failure = pl.lit("launch_error")
    for words, status in reversed(REASONS.items()):
        failure = pl.when(said.str.to_lowercase().str.contains(words, literal=True)).then(pl.lit(status)).otherwise(failure)
    ok = pl.col("time_ns").is_not_null()
    return table.with_columns(
        status=pl.when(ok).then(pl.lit("ok")).otherwise(failure), error=pl.when(~ok).then(said)
    ).drop("flops", "is_valid", "latency_ms", "tflops", "by_latency", "by_rate", "low", "high", "finer_rate")  # fmt: skip


def _half_width(column: str) -> pl.Expr:
    """How far the value may be from the printed number: half of its last decimal."""
    width = pl.lit(0.0)
    for decimals in reversed(DECIMALS):
        scaled = pl.col(column) * 10**decimals
        # The number in the text is decimal, the one here is binary: they differ in the last bits.
        whole = (scaled - scaled.round()).abs() <= 1e-9 * pl.max_horizontal(scaled.abs(), pl.lit(1e3))
        width = pl.when(whole).then(0.5 / 10**decimals).otherwise(width)
    return width
