"""Moving a tiled tensor from one sharding over a grid of cores to another (TTNN's reshard, in L1)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from kerncast.core.dtypes import bytes_per_element, dtype_parameter
from kerncast.core.expr import Expr, Namespace, constant, log2, mod, where
from kerncast.core.op import Op, Suite, Work
from kerncast.core.parameters import Categorical, Int, Value
from kerncast.core.space import Constraint
from kerncast.library.ops import reshard_pages
from kerncast.library.ops.ttnn import DTYPES, TILE

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
        from kerncast.library.ops.reshard_suites import suites

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
        return found | dict(reshard_pages.features(p, hw))


reshard = Reshard()
