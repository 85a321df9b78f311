"""How real kernels miss their rooflines: what a roofline alone says about a time, learned from devices that were measured.

A roofline is a floor. By how much kernels miss it depends on the op and on the size: a launch takes microseconds, so the time
of a tiny problem is many times its roofline. For each op, and for all of them together, quantiles of log(time / roofline) are
kept at some rooflines and interpolated between them. Every device counts the same, however many rows it has.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import polars as pl

from kerncast.core.arrays import Floats
from kerncast.core.io.artefact import Versioned
from kerncast.core.io.atomic import write_bytes
from kerncast.errors import InvalidValue
from kerncast.models.errors import LEVEL

FORMAT, VERSION = "kerncast-roofline-misses", 1
FILE = "roofline.json"
COLUMNS = {"op": pl.String, "device": pl.String, "roofline_ns": pl.Float64, "time_ns": pl.Float64}
# Bands of the roofline, as many as have this many rows.
MOST_BANDS, ROWS_PER_BAND = 12, 200
# Below this share of the rooflines that were seen, a time is that of the smallest: a launch takes what it takes.
SMALLEST = 0.01


class Miss(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of one op: at some rooflines, ascending, how many times the roofline a time is."""

    least_ns: float
    """Shorter rooflines count as this one."""
    roofline_ns: tuple[float, ...]
    lower: tuple[float, ...]
    median: tuple[float, ...]
    upper: tuple[float, ...]
    devices: tuple[str, ...]
    rows: int

    def times(self, roofline_ns: Floats) -> tuple[Floats, Floats, Floats]:
        """The time to expect at each roofline, and the bounds that hold LEVEL of the times."""
        at = np.log(np.maximum(roofline_ns, self.least_ns))
        knots = np.log(np.array(self.roofline_ns))
        parts = (self.median, self.lower, self.upper)
        median, lower, upper = (np.exp(at + np.interp(at, knots, np.log(np.array(part)))) for part in parts)
        return median, lower, upper


class Misses(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """By op; `anything` is for ops that were not measured."""

    level: float
    ops: dict[str, Miss]
    anything: Miss
    format: str = FORMAT
    version: int = VERSION

    def of(self, op: str) -> tuple[Miss, bool]:
        """What is known of an op, and whether it was measured itself."""
        return (self.ops[op], True) if op in self.ops else (self.anything, False)

    def write(self, file: Path) -> None:
        """Write it, completely or not at all."""
        write_bytes(file, _FILE.text(self))


_FILE = Versioned(
    FORMAT, VERSION, Misses, "a table of how kernels miss their rooflines", "make it again, or install kerncast again"
)


def read_misses(file: Path) -> Misses:
    """What `Misses.write` wrote; anything else is refused by name."""
    found = _FILE.read(file)
    for name, miss in {**found.ops, "anything": found.anything}.items():
        parts = (miss.roofline_ns, miss.lower, miss.median, miss.upper)
        numbers = np.array([*np.concatenate([np.array(part, np.float64) for part in parts]), miss.least_ns])
        ascending = bool((np.diff(miss.roofline_ns) > 0).all())
        if len({len(part) for part in parts}) > 1 or not miss.roofline_ns or not ascending or not (numbers > 0).all():
            raise InvalidValue(f"{file} contradicts itself (the bands of {name} do not fit together): make it again")
    return found


def learn_misses(table: pl.DataFrame) -> Misses:
    """From measurements: columns `op`, `device`, `roofline_ns` and `time_ns`; rows without a positive number are left out.

    Times below their roofline count as they are: a small problem whose operands are in a cache beats the memory's bandwidth.
    """
    lacking = [name for name in COLUMNS if name not in table.columns]
    if lacking:
        raise InvalidValue(f"the table has no column '{lacking[0]}': it needs {', '.join(COLUMNS)}")
    rows = table.select(pl.col(name).cast(kind) for name, kind in COLUMNS.items()).drop_nulls()
    numbers = [pl.col(name).is_finite() & (pl.col(name) > 0) for name in ("roofline_ns", "time_ns")]
    rows = rows.filter(*numbers)
    if not rows.height:
        raise InvalidValue("the table has no row with a roofline and a time: there is nothing to learn from")
    ops = {name: _miss(rows.filter(pl.col("op") == name), ["device"]) for name in sorted(rows["op"].unique())}
    return Misses(LEVEL, ops, _miss(rows, ["op", "device"]))


def _miss(rows: pl.DataFrame, equally: Sequence[str]) -> Miss:
    """The quantiles of some rows; each of the groups `equally` has the same weight."""
    weight = rows.select(1.0 / pl.len().over(equally)).to_series().to_numpy()
    roofline = rows["roofline_ns"].to_numpy()
    miss = np.log(rows["time_ns"].to_numpy() / roofline)
    bands = int(np.clip(rows.height // ROWS_PER_BAND, 1, MOST_BANDS))
    edges = np.unique(_quantiles(roofline, weight, np.arange(1, bands) / bands))
    band = np.searchsorted(edges, roofline, side="right")
    tail = (1.0 - LEVEL) / 2.0
    knots, found = [], []
    for number in np.unique(band):
        own = band == number
        knots.append(float(_quantiles(roofline[own], weight[own], np.array([0.5]))[0]))
        found.append(np.exp(_quantiles(miss[own], weight[own], np.array([tail, 0.5, 1.0 - tail]))).tolist())
    lower, median, upper = (tuple(float(item[place]) for item in found) for place in range(3))
    least = float(_quantiles(roofline, weight, np.array([SMALLEST]))[0])
    return Miss(least, tuple(knots), lower, median, upper, tuple(sorted(rows["device"].unique())), rows.height)


def _quantiles(values: Floats, weight: Floats, at: Floats) -> Floats:
    """Quantiles of weighted values: the first value that has the share of the weight below or at it."""
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weight[order])
    place = np.searchsorted(reached, at * reached[-1], side="left")
    return np.asarray(values[order[np.minimum(place, len(values) - 1)]])
