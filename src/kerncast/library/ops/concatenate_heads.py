"""Concatenating attention heads (TTNN): [batch, heads, seq_len, head_dim] becomes [batch, 1, seq_len, heads · head_dim]."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from kerncast.core.expr import Expr, Namespace, ceil_div
from kerncast.core.op import Suite
from kerncast.core.parameters import Int, Value
from kerncast.library.ops.ttnn import MOST, TILE, TiledOp, memory_parameters, one_tensor, padded_tiles

SHAPE = ("batch", "heads", "seq_len", "head_dim")


class ConcatenateHeads(TiledOp):
    name = "concatenate_heads"
    doc = "[batch, heads, seq_len, head_dim] becomes [batch, 1, seq_len, heads · head_dim], tile by tile"
    parameters = {**{name: Int(1, MOST) for name in SHAPE}, **memory_parameters()}
    aliases = {"ttnn.transformer.concatenate_heads": {}}
    json = one_tensor(SHAPE)
    split_group = SHAPE

    sweeps = {
        "published": "16 to 128 heads of 64 or 128, up to 131,072 tokens and 128 sequences, in DRAM and L1, where they fit"
    }

    def sweep(self, name: str, axes: Mapping[str, Sequence[Value]]) -> Iterator[Suite]:
        from kerncast.library.ops import ttnn_suites

        return ttnn_suites.concatenate_heads(axes) if name in self.sweeps else super().sweep(name, axes)

    def derive(self, p: Namespace) -> Mapping[str, Expr]:
        return {"tiles": p.batch * p.heads * padded_tiles(p.seq_len, p.head_dim)}

    def own_features(self, p: Namespace, hw: Namespace) -> Mapping[str, Expr]:
        # A core takes whole rows of tiles: one row of all heads is contiguous in the output.
        rows = p.batch * ceil_div(p.seq_len, TILE)
        rows_per_core = ceil_div(rows, hw.grid_x * hw.grid_y)
        return {
            "tile_rows": rows,
            "tile_rows_per_core": rows_per_core,
            "row_fill": rows / (rows_per_core * hw.grid_x * hw.grid_y),
            "row_tiles": p.heads * ceil_div(p.head_dim, TILE),
        }


concatenate_heads = ConcatenateHeads()
