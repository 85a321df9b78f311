"""Attention heads put side by side (TTNN): [batch, heads, seq_len, head_dim] becomes [batch, 1, seq_len, heads · head_dim]."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kerncast.expr import Expr, Namespace, ceil_div, log2
from kerncast.op import Op, Work
from kerncast.ops.ttnn import (
    MOST,
    TILE,
    memory_features,
    memory_parameters,
    output_constraints,
    output_fields,
    padded_tiles,
    tensor_fields,
    tile_features,
    tile_work,
)
from kerncast.parameters import Int
from kerncast.space import Constraint

SHAPE = ("batch", "heads", "seq_len", "head_dim")


class ConcatenateHeads(Op):
    name = "concatenate_heads"
    doc = "[batch, heads, seq_len, head_dim] becomes [batch, 1, seq_len, heads · head_dim], tile by tile"
    parameters = {**{name: Int(1, MOST) for name in SHAPE}, **memory_parameters()}
    json = (*tensor_fields("tensor", SHAPE), *output_fields())
    split_group = SHAPE

    def constraints(self, p: Namespace) -> Iterable[Constraint]:
        return output_constraints(p)

    def derive(self, p: Namespace) -> Mapping[str, Expr]:
        return {"tiles": p.batch * p.heads * padded_tiles(p.seq_len, p.head_dim)}

    def work(self, p: Namespace) -> Work:
        return tile_work(p)

    def features(self, p: Namespace, hw: Namespace) -> Mapping[str, Expr]:
        # A core takes whole rows of tiles: the tiles of one row of all heads lie together in the output.
        rows = p.batch * ceil_div(p.seq_len, TILE)
        rows_per_core = ceil_div(rows, hw.grid_x * hw.grid_y)
        return {
            **{name: getattr(p, name) for name in SHAPE},
            **memory_features(p),
            "tiles": p.tiles,
            "log2_tiles": log2(p.tiles),
            "tile_rows": rows,
            "tile_rows_per_core": rows_per_core,
            "row_fill": rows / (rows_per_core * hw.grid_x * hw.grid_y),
            "row_tiles": p.heads * ceil_div(p.head_dim, TILE),
            **tile_features(p, hw, p.tiles, p.batch * p.heads * p.seq_len * p.head_dim),
        }


concatenate_heads = ConcatenateHeads()
