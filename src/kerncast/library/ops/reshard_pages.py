"""Features of a reshard: how the two shardings overlap, and the load that this puts on the chip's network.

The overlap is computed. The network's load depends only on grids and strategies, so it is looked up in tables
(`reshard_noc`) for row-major shards; a col-major tensor reads the same entries, and the orientation is a separate
feature. Network features need the width of a link, so a device whose profile has no link width has none.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from kerncast.core.expr import Expr, Namespace, Table, constant, log2, lookup, maximum, where
from kerncast.core.op import Work

# Written by releasing/reshard_noc.py.
FILE = Path(__file__).with_name("reshard_noc.npz")
NAMES = ("busiest", "row_by_row", "at_once", "ring_x", "ring_y", "ring_streams", "wraps_x", "wraps_y", "queue")
# Cores along each side of the chip's grid. A side of a tensor is cut into at most as many parts as there are cores.
GRID = 8
MOST_PARTS = GRID**2


@cache
def network_tables() -> Mapping[str, Table]:
    """The tables of `reshard_noc`: [in strategy, out strategy, in x - 1, in y - 1, out x - 1, out y - 1]."""
    with FILE.open("rb") as file, np.load(file, allow_pickle=False) as stored:
        return {name: Table.of(stored[name].astype(np.float64)) for name in NAMES}


@cache
def _common() -> Table:
    """The greatest common divisor of two numbers of parts, from 1."""
    return Table.of([[math.gcd(a, b) for b in range(1, MOST_PARTS + 1)] for a in range(1, MOST_PARTS + 1)])


@cache
def _met() -> Table:
    """The largest number of `a` equal parts of a length that one of `b` equal parts overlaps."""

    def most(a: int, b: int) -> int:
        return max(-((-(part + 1) * a) // b) - (part * a) // b for part in range(b))

    return Table.of([[most(a, b) for b in range(1, MOST_PARTS + 1)] for a in range(1, MOST_PARTS + 1)])


def parts(p: Namespace, side: str) -> tuple[Expr, Expr]:
    """The numbers of parts into which a side (`in`, `out`) cuts the height and the width."""
    return p.height_tiles / getattr(p, f"{side}_shard_rows"), p.width_tiles / getattr(p, f"{side}_shard_columns")


def network_load(p: Namespace, name: str) -> Expr:
    """An entry of `reshard_noc`: the share of the tensor that some part of the network carries."""
    grids = (p.in_x - 1, p.in_y - 1, p.out_x - 1, p.out_y - 1)
    return lookup(network_tables()[name], p.in_strategy, p.out_strategy, *grids)


def network_ns(p: Namespace, hw: Namespace) -> Expr:
    """The time that the busiest link or core of the network needs for its share of the tensor."""
    busiest = p.tiles * p.tile_bytes * network_load(p, "busiest")
    return busiest / (hw.noc_link_bytes_per_cycle * hw.max_clock_mhz) * 1000.0


@dataclass(frozen=True)
class OnChip(Work):
    """The work of a reshard between the cores of a chip: nothing goes through main memory, so the network is its floor."""

    p: Namespace

    def parts_ns(self, hw: Namespace) -> tuple[Expr, Expr]:
        return constant(0), network_ns(self.p, hw)


def _cut_features(p: Namespace) -> dict[str, Expr]:
    """How the parts of one side overlap those of the other."""
    (in_rows, in_columns), (out_rows, out_columns) = parts(p, "in"), parts(p, "out")
    common_rows = lookup(_common(), in_rows - 1, out_rows - 1)
    common_columns = lookup(_common(), in_columns - 1, out_columns - 1)
    row_pieces, column_pieces = in_rows + out_rows - common_rows, in_columns + out_columns - common_columns
    # If the shards of both sides have the same width, a run of pages continues from row to row.
    runs = where(in_columns == out_columns, row_pieces * in_columns, p.height_tiles * column_pieces)
    return {
        "in_rows": in_rows,
        "in_columns": in_columns,
        "out_rows": out_rows,
        "out_columns": out_columns,
        "common_rows": common_rows,
        "common_columns": common_columns,
        "rows_ratio": in_rows / out_rows,
        "columns_ratio": in_columns / out_columns,
        "rows_met": lookup(_met(), in_rows - 1, out_rows - 1),
        "columns_met": lookup(_met(), in_columns - 1, out_columns - 1),
        "rows_met_mean": row_pieces / out_rows,
        "columns_met_mean": column_pieces / out_columns,
        "flows": row_pieces * column_pieces,
        "runs": runs,
        "runs_per_core": runs / p.out_cores,
        "tiles_per_run": p.tiles / runs,
    }


def features(p: Namespace, hw: Namespace) -> Mapping[str, Expr]:
    """Features of the cuts, and of the network where the device says how wide a link is."""

    def cycles(name: str) -> Expr:
        return network_load(p, name) * p.tile_bytes / hw.noc_link_bytes_per_cycle

    busiest, wraps_x, wraps_y = cycles("busiest"), cycles("wraps_x"), cycles("wraps_y")
    ring = maximum(cycles("ring_x"), cycles("ring_y"))
    time = network_ns(p, hw)
    # Relative to the busiest part: how much worse it may get than with evenly flowing traffic.
    worse = {f"noc_{name}": cycles(name) / busiest for name in ("row_by_row", "at_once", "ring_x", "ring_y", "ring_streams")}
    return {
        **_cut_features(p),
        "noc_ns": time,
        "log2_noc_ns": log2(time),
        "noc_cycles_per_tile": busiest,
        **worse,
        "noc_ring": ring / busiest,
        "noc_wraps_x": wraps_x / busiest,
        "noc_wraps_y": wraps_y / busiest,
        "noc_wraps": maximum(wraps_x, wraps_y) / busiest,
        "noc_queue_cycles": cycles("queue"),
    }
