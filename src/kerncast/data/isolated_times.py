"""Times that a unit, a typing error or a broken clock made: far from all others of their problem, and alone there.

A config may be a thousand times slower than the rest. Then it is so on other problems too, or others are nearly as slow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from kerncast.core.arrays import Floats, Ints
from kerncast.core.io.terminal import assignments, duration
from kerncast.core.op import Family
from kerncast.data import schema
from kerncast.data.condensed import OK, halves_of
from kerncast.data.dataset import Dataset

Report = dict[str, Any]

# A time this many times the median of the other configs of its problem, or this part of it, is far from them.
FAR = 1_000.0
# No other row of the problem is as near as this factor.
ALONE = 30.0
# The median of fewer other configs says little.
FEWEST_OTHERS = 3
# This many rows are named, and this many keys are in the condition that leaves them out.
NAMED, KEYS = 5, 20
# More rows are not looked at when they are imported: `inspect` does.
IMPORTED_ROWS = 5_000_000


def isolated_times(problem: Ints, config: Ints, time_ns: Floats) -> tuple[Ints, Floats]:
    """The places of such rows, in order, and the median of the other configs of the problem of each; all rows have a time."""
    rows = pl.DataFrame({"problem": problem, "config": config, "log": np.log(time_ns)}).with_row_index("at")
    low, high = rows["log"].min(), rows["log"].max()
    none = np.zeros(0, np.int64), np.zeros(0)
    if not isinstance(low, float) or not isinstance(high, float) or high - low <= np.log(FAR):
        return none
    wide = rows.filter((pl.col("log").max() - pl.col("log").min()).over("problem") > np.log(FAR))
    gap = pl.col("log").diff().over("problem")
    near = pl.min_horizontal(gap.fill_null(np.inf), gap.shift(-1).over("problem").fill_null(np.inf))
    alone = wide.sort("problem", "log", "at").filter(near > np.log(ALONE)).sort("at")
    if not alone.height:
        return none
    others = wide.join(alone.select("problem", own="config", one="at"), on="problem").filter(pl.col("config") != pl.col("own"))
    others = others.group_by("one", "config").agg(pl.col("log").median())
    medians = others.group_by("one").agg(median=pl.col("log").median(), others=pl.len())
    found = alone.join(medians, left_on="at", right_on="one", maintain_order="left")
    found = found.filter(pl.col("others") >= FEWEST_OTHERS, (pl.col("log") - pl.col("median")).abs() > np.log(FAR))
    # The same config on other problems: how far it is from the median there.
    elsewhere = rows.with_columns(off=pl.col("log") - pl.col("log").median().over("problem")).join(
        found, on="config", how="semi"
    )
    pairs = found.join(elsewhere.select("config", "off", there="problem"), on="config").filter(
        pl.col("there") != pl.col("problem")
    )
    alike = pairs.filter((pl.col("log") - pl.col("median") - pl.col("off")).abs() <= np.log(ALONE))
    found = found.join(alike, on="at", how="anti", maintain_order="left")
    return found["at"].cast(pl.Int64).to_numpy(), np.exp(found["median"].to_numpy())


def isolated_rows(dataset: Dataset, family: Family, where: Sequence[str] = ()) -> Report:
    """Those rows of a dataset."""
    ok = dataset.scan(family, where).filter(pl.col("status") == OK)
    names = list(schema.parameter_columns(family))
    problems, configs = (["device", *(name for name in names if name.startswith("problem."))],
                         [name for name in names if name.startswith("config.")])  # fmt: skip
    if not configs:
        return report_of(ok.head(0).collect(), np.zeros(0), {})
    numbers = [pl.struct(problems).hash(seed=0).alias("problem"), pl.struct(configs).hash(seed=0).alias("config"), "time_ns"]
    rows = ok.select(numbers).collect()
    places, median_ns = isolated_times(*(rows[name].to_numpy() for name in rows.columns))
    chosen = ok.select("key", "device", *names, "time_ns", "source", "source_line").with_row_index("at")
    found = chosen.filter(pl.col("at").is_in(places.tolist())).collect() if len(places) else ok.head(0).collect()
    return report_of(found, median_ns, {item.digest: item.name for item in dataset.contents.sources})


def report_of(rows: pl.DataFrame, median_ns: Floats, files: Mapping[str, str]) -> Report:
    """What is said of such rows; `files` are the names of their sources."""
    examples = [
        {
            "key": row["key"], "device": row["device"], "file": files.get(row["source"] or ""), "line": row["source_line"],
            **halves_of(row), "time_ns": row["time_ns"], "median_ns": float(median),
        }
        for row, median in zip(rows.head(NAMED).iter_rows(named=True), median_ns, strict=False)
    ]  # fmt: skip
    keys = rows["key"].unique(maintain_order=True).to_list()
    return {"rows": rows.height, "examples": examples, "where": f"key!={','.join(keys[:KEYS])}" if keys else None}


def isolated_sentence(found: Report) -> str:
    """Which rows they are and how to leave them out."""
    examples, rows = found["examples"], found["rows"]
    more = f"; and {rows - len(examples):,} more" if rows > len(examples) else ""
    have = "row has a time that is" if rows == 1 else "rows have times that are"
    return (
        f"{rows:,} {have} more than {FAR:,.0f} times off the median of the other configs of the problem, with nothing in "
        f"between: {'; '.join(map(_named, examples))}{more}: correct the table, or leave them out with `where` "
        f"'{found['where']}'"
    )


def _named(row: Mapping[str, Any]) -> str:
    """`times.csv, line 12: 4e-06 us against 5.2 us (M=128 … on a100)`."""
    at = f"key {row['key']}" if row["file"] is None or row["line"] is None else f"{row['file']}, line {row['line']}"
    what = assignments({**row["problem"], **row["config"]})
    return f"{at}: {duration(row['time_ns'])} against {duration(row['median_ns'])} ({what} on {row['device']})"
