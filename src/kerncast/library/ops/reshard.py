"""Moving a tiled tensor from one sharding over a grid of cores to another (TTNN's reshard, in L1)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from kerncast.core.dtypes import bytes_per_element, dtype_parameter
from kerncast.core.expr import ConstantTable, Expr, Namespace, constant, log2, lookup, maximum, mod, where
from kerncast.core.op import Op, Suite, Work
from kerncast.core.parameters import Categorical, Int, Value
from kerncast.core.space import Constraint
from kerncast.library.ops.ttnn import DTYPES, TILE

# Written by releasing/reshard_noc.py.
FILE = Path(__file__).with_name("reshard_noc.npz")
NAMES = ("busiest", "row_by_row", "at_once", "ring_x", "ring_y", "ring_streams", "wraps_x", "wraps_y", "queue")
# Cores along each side of the chip's grid. A side of a tensor is cut into at most as many parts as there are cores.
GRID = 8
MOST_PARTS = GRID**2


@cache
def network_tables() -> Mapping[str, ConstantTable]:
    """The tables of `reshard_noc`: [in strategy, out strategy, in x - 1, in y - 1, out x - 1, out y - 1]."""
    with FILE.open("rb") as file, np.load(file, allow_pickle=False) as stored:
        return {name: ConstantTable.of(stored[name].astype(np.float64)) for name in NAMES}


@cache
def _common() -> ConstantTable:
    """The greatest common divisor of two numbers of parts, from 1."""
    return ConstantTable.of([[math.gcd(a, b) for b in range(1, MOST_PARTS + 1)] for a in range(1, MOST_PARTS + 1)])


@cache
def _met() -> ConstantTable:
    """The largest number of `a` equal parts of a length that one of `b` equal parts overlaps."""

    def most(a: int, b: int) -> int:
        return max(-((-(part + 1) * a) // b) - (part * a) // b for part in range(b))

    return ConstantTable.of([[most(a, b) for b in range(1, MOST_PARTS + 1)] for a in range(1, MOST_PARTS + 1)])


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


STRATEGIES = {"block": 0, "width": 1, "height": 2}
ORIENTATIONS = {"row_major": 0, "col_major": 1}
_LARGEST_GRID = 8
_SIDES = ("in", "out")


def _divisors(p: Namespace, side: str) -> tuple[Expr, Expr]:
    """The numbers of parts into which a side's sharding cuts the height and the width.

    Column-major blocks run down the grid first, so the height goes along x then.
    """
    x, y = getattr(p, f"{side}_x"), getattr(p, f"{side}_y")
    strategy, turned = getattr(p, f"{side}_strategy"), getattr(p, f"{side}_orientation") == ORIENTATIONS["col_major"]
    block, height = strategy == STRATEGIES["block"], strategy == STRATEGIES["height"]
    rows = where(block, where(turned, x, y), where(height, x * y, 1))
    columns = where(block, where(turned, y, x), where(height, 1, x * y))
    return rows, columns


class Reshard(Op):
    name = "reshard"
    doc = "moves a tensor of 32 × 32 tiles from one sharding over a grid of cores to another"
    parameters = {
        "height_tiles": Int(1, 65535, doc="rows of tiles"),
        "width_tiles": Int(1, 65535, doc="columns of tiles"),
        "in_x": Int(1, _LARGEST_GRID, doc="columns of the grid of cores that holds the input"),
        "in_y": Int(1, _LARGEST_GRID, doc="rows of that grid"),
        "out_x": Int(1, _LARGEST_GRID, doc="columns of the grid of cores that holds the output"),
        "out_y": Int(1, _LARGEST_GRID, doc="rows of that grid"),
        "in_strategy": Categorical(STRATEGIES, doc="how the input is cut: both ways, along its width or its height"),
        "out_strategy": Categorical(STRATEGIES, doc="how the output is cut"),
        "in_orientation": Categorical(ORIENTATIONS, default="row_major", doc="the order in which cores take input shards"),
        "out_orientation": Categorical(ORIENTATIONS, default="row_major", doc="the order in which cores take output shards"),
        "dtype": dtype_parameter(*DTYPES.values()),
    }
    aliases = {"ttnn.reshard": {}}
    split_group = ("height_tiles", "width_tiles")
    splits = {"grids": ("in_x", "in_y", "out_x", "out_y")}
    line_group = (
        *("in_x", "in_y", "out_x", "out_y"),
        *("in_strategy", "in_orientation", "out_strategy", "out_orientation", "dtype"),
    )

    products = {"tiles": ("height_tiles", "width_tiles")}

    sweeps = {
        "published": "all shapes up to 249 × 249 tiles on all pairs of unequal grids that hold them, at most 1,600 a pair",
        "fitting": "the same, but only where the input and the output shard fit into L1 together (1,399,000 bytes per core)",
    }

    def sweep(self, name: str, axes: Mapping[str, Sequence[Value]]) -> Iterator[Suite]:
        from kerncast.library.ops.ttnn_suites import suites

        return suites(axes, both_fit=name == "fitting") if name in self.sweeps else super().sweep(name, axes)

    def derive(self, p: Namespace) -> Mapping[str, Expr]:
        found = {
            "tiles": p.height_tiles * p.width_tiles,
            "tile_bytes": TILE * TILE * bytes_per_element(p.dtype),
            "in_cores": p.in_x * p.in_y,
            "out_cores": p.out_x * p.out_y,
        }
        for side in _SIDES:
            rows, columns = _divisors(p, side)
            found |= {f"{side}_shard_rows": p.height_tiles / rows, f"{side}_shard_columns": p.width_tiles / columns}
            found |= {f"{side}_shard_tiles": found["tiles"] / found[f"{side}_cores"]}
        return found

    def constraints(self, p: Namespace) -> Iterable[Constraint]:
        for side, what in zip(_SIDES, ("input", "output"), strict=True):
            rows, columns = _divisors(p, side)
            yield Constraint(
                f"{side}_tileable",
                f"the {what} grid must cut the tensor into equal shards of whole tiles: block needs height_tiles % {side}_y "
                f"= 0 and width_tiles % {side}_x = 0 (x and y change places in col_major), height needs height_tiles % "
                f"({side}_x * {side}_y) = 0, width needs width_tiles % ({side}_x * {side}_y) = 0",
                (mod(p.height_tiles, rows) == 0) & (mod(p.width_tiles, columns) == 0),
            )

    def work(self, p: Namespace) -> Work:
        return Work(flops=constant(0), bytes=2 * p.tiles * p.tile_bytes)

    def line_size(self, p: Namespace) -> Expr:
        return p.tiles

    def features(self, p: Namespace, hw: Namespace) -> Mapping[str, Expr]:
        found = {"tiles": p.tiles, "log2_tiles": log2(p.tiles), "bytes": self.work(p).bytes}
        found |= {name: getattr(p, name) for name in (*self.parameters, *self.derive(p)) if name not in found}
        return found | dict(features(p, hw))


reshard = Reshard()
