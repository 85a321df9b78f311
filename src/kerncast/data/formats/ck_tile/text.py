"""What CK Tile's benchmarks print and save as JSON, and the time of a row; malformed parts are skipped, not fatal.

Shape 3: M=16 N=1536 K=7168 dtype=fp8 layout=rcr
{
  "name": "gemm_universal_fp8_rcr_…",
  "problem": {"split_k": 1, "m": 16, "n": 1536, "k": 7168, "dtype_a": "fp8", "layout_a": "RowMajor", …},
  "perf_result": {"latency(ms)": 0.01, "tflops(TFlops)": 35.21, "bandwidth(GB/s)": 1105.30}
}
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

import msgspec
import polars as pl

from kerncast.core.io.foreign import decode_json
from kerncast.data import schema
from kerncast.data.skipping import LINE, Skips, bad_row

_SHAPE = re.compile(r"Shape\s+\d+:\s+M=(\d{1,9})\s+N=(\d{1,9})\s+K=(\d{1,9})(?:\s+dtype=(\w+))?(?:\s+layout=(\w+))?")
LARGEST = 2**31 - 1
LATENCY, RATE = "latency(ms)", "tflops(TFlops)"
# Rules that parts of a file may break, as shown to the user.
MALFORMED = "a benchmark block must be a whole JSON object with name, problem and perf_result"
CONTRADICTION = "a benchmark block must not contradict the `Shape` line above it"
UNNAMED = "a benchmark must have a kernel's name and sizes"


@dataclass(frozen=True)
class TimedKernel:
    """One kernel on one product, from any of the formats."""

    source_line: int
    kernel: str
    m: int
    n: int
    k: int
    split_k: int = 1
    dtype: str | None = None
    layout: str | None = None
    latency_ms: float | None = None
    tflops: float | None = None
    is_valid: bool = True
    error: str | None = None
    run_id: str | None = None


COLUMNS: dict[str, type[pl.DataType]] = {
    **{field.name: pl.String for field in fields(TimedKernel)},
    **dict.fromkeys((LINE, "m", "n", "k", "split_k"), pl.Int64),
    **dict.fromkeys(("latency_ms", "tflops"), pl.Float64),
    "is_valid": pl.Boolean,
}


def frame_of(attempts: list[TimedKernel]) -> pl.DataFrame:
    """Attempts as a table."""
    return pl.DataFrame({name: [getattr(attempt, name) for attempt in attempts] for name in COLUMNS}, schema=COLUMNS)


@dataclass(frozen=True)
class Document:
    """The contents of one text."""

    attempts: list[TimedKernel]
    arch: str | None = None


def read_text(text: str, skips: Skips) -> Document:
    """A benchmark's JSON, results of a whole run, or a log with such blocks between other lines."""
    if text.lstrip()[:1] in ("{", "["):
        try:
            whole = decode_json(text)
        except msgspec.DecodeError:
            return Document(list(_log(text, skips)))
        if isinstance(whole, dict) and "results" in whole:
            metadata = _object(whole.get("metadata"))
            arch = metadata.get("arch", metadata.get("gpu_arch"))
            return Document(list(_results(whole, skips)), arch if isinstance(arch, str) else None)
        blocks = whole if isinstance(whole, list) else [whole]
        attempts = (_attempt(block, number, None, skips, block) for number, block in enumerate(blocks, start=1))
        return Document([attempt for attempt in attempts if attempt is not None])
    return Document(list(_log(text, skips)))


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _size(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= LARGEST else None


def _number(value: Any) -> float | None:
    number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e18 and math.isfinite(value)
    return float(value) if number else None


def _word(value: Any) -> str | None:
    # JSON can contain half of a surrogate pair, which a table cannot store.
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else None


@dataclass(frozen=True)
class _Header:
    """A `Shape` line."""

    sizes: tuple[int, int, int]
    dtype: str | None
    layout: str | None


def _log(text: str, skips: Skips) -> Iterator[TimedKernel]:
    """The blocks of a log. A block ends with its last brace, or where the next one or the next shape begins."""
    header: _Header | None = None
    block: list[str] = []
    begin = depth = 0
    for number, line in enumerate(text.split("\n"), start=1):
        line = line.strip()
        shape = _SHAPE.search(line) if line.startswith("Shape") else None
        if block and (shape or line.startswith("{")):
            skips.one(bad_row(begin, MALFORMED), "\n".join(block))
            block = []
        if shape:
            header = _Header((int(shape[1]), int(shape[2]), int(shape[3])), shape[4], shape[5])
        elif block or line.startswith("{"):
            begin, depth = (begin, depth) if block else (number, 0)
            block.append(line)
            depth += line.count("{") - line.count("}")
            if depth <= 0:
                whole = "\n".join(block)
                attempt = _attempt(_decoded(whole), begin, header, skips, whole)
                block = []
                if attempt is not None:
                    yield attempt
    if block:
        skips.one(bad_row(begin, MALFORMED), "\n".join(block))


def _decoded(text: str) -> Any:
    try:
        return decode_json(text)
    except msgspec.DecodeError:
        return None


def _attempt(block: Any, line: int, header: _Header | None, skips: Skips, text: Any) -> TimedKernel | None:
    """One benchmark. The problem is in the block, or in the `Shape` line above it."""
    block = _object(block)
    name, problem, measured = _word(block.get("name")), _object(block.get("problem")), _object(block.get("perf_result"))
    given = header.sizes if header is not None else (None, None, None)
    sizes = tuple(_size(problem[x]) if x in problem else given[place] for place, x in enumerate("mnk"))
    split_k = _size(problem.get("split_k", 1))
    m, n, k = sizes
    if name is None or not measured or m is None or n is None or k is None or split_k is None:
        skips.one(bad_row(line, MALFORMED), text)
        return None
    dtype, layout = _word(problem.get("dtype_a")), _layout(problem)
    if header is not None:
        told = ((dtype, header.dtype), (layout, header.layout))
        if sizes != header.sizes or any(a is not None and b is not None and a != b for a, b in told):
            skips.one(bad_row(line, CONTRADICTION), text)
            return None
        dtype, layout = dtype or header.dtype, layout or header.layout
    return TimedKernel(line, name, m, n, k, split_k, dtype, layout, _number(measured.get(LATENCY)), _number(measured.get(RATE)))


def _layout(problem: Mapping[str, Any]) -> str | None:
    """`RowMajor`, `ColumnMajor`, `RowMajor` as rcr; None if one of them is missing."""
    letters = [str(problem.get(f"layout_{matrix}", ""))[:1].lower() for matrix in "abc"]
    return "".join(letters) if all(letter in ("r", "c") for letter in letters) else None


def _results(whole: Mapping[str, Any], skips: Skips) -> Iterator[TimedKernel]:
    """The benchmarks of a results file, numbered consecutively."""
    metadata = _object(whole.get("metadata"))
    dtype, layout = _word(metadata.get("dtype")), _word(metadata.get("layout"))
    number = 0
    results = whole["results"] if isinstance(whole["results"], list) else []
    for result in map(_object, results):
        config = _object(result.get("kernel_config"))
        benchmarks = result.get("benchmarks")
        for entry in map(_object, benchmarks if isinstance(benchmarks, list) else []):
            number += 1
            name = _word(entry.get("kernel_name", config.get("name")))
            m, n, k = (_size(entry.get(x)) for x in "mnk")
            split_k = _size(entry.get("split_k", 1))
            if name is None or m is None or n is None or k is None or split_k is None:
                skips.one(bad_row(number, UNNAMED), entry)
                continue
            times = _number(entry.get("avg_time_ms")), _number(entry.get("tflops"))
            error = _word(entry.get("error")) or None
            yield TimedKernel(
                number, name, m, n, k, split_k, dtype, layout, *times, bool(entry.get("is_valid", True)), error
            )  # fmt: skip


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
