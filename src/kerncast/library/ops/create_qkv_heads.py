"""Splitting a projection into query, key and value heads (TTNN): [batch, 1, seq_len, (heads + 2 · kv_heads) · head_dim]."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from kerncast.core.expr import Expr, Namespace, ceil_div, floor_div, mod, where
from kerncast.core.op import Suite
from kerncast.core.parameters import Bool, Int, JsonField, Value
from kerncast.core.space import Constraint
from kerncast.library.ops.ttnn import MOST, TILE, TiledOp, memory_parameters, one_tensor, padded_tiles, shown

SHAPE = ("batch", "dim1", "seq_len", "hidden")


class CreateQkvHeads(TiledOp):
    name = "create_qkv_heads"
    doc = "[batch, 1, seq_len, (heads + 2 · kv_heads) · head_dim] becomes query, key and value heads"
    parameters = {
        "batch": Int(1, MOST, default=1),
        "dim1": Int(1, 1, default=1, doc="the second dimension, always 1"),
        "seq_len": Int(1, MOST),
        "hidden": Int(1, MOST, doc="(heads + 2 · kv_heads) · head_dim"),
        "heads": Int(1, 2**16, doc="query heads"),
        "kv_heads": Int(0, 2**16, default=0, doc="key heads, and value heads; 0: as many as query heads"),
        "transpose_k": Bool(default=False, doc="whether key heads come out transposed"),
        # TTNN takes the tensor in L1, in shards of blocks, and returns shards of heights.
        **memory_parameters(buffer="l1", sharding="block", out_sharding="height"),
    }
    aliases = {"ttnn.experimental.create_qkv_heads": {}}
    json = (
        *one_tensor(SHAPE),
        JsonField(("num_heads",), ("heads",)),
        JsonField(("num_kv_heads",), ("kv_heads",), same=("heads", 0)),
        JsonField(("transpose_k_heads",), ("transpose_k",)),
    )
    split_group = ("batch", "seq_len", "hidden")

    sweeps = {"published": "16 to 128 query heads and 1 to 128 key heads of 64 or 128, 32 to 131,072 tokens, 1 to 8 sequences"}

    def sweep(self, name: str, axes: Mapping[str, Sequence[Value]]) -> Iterator[Suite]:
        from kerncast.library.ops import ttnn_suites

        return ttnn_suites.create_qkv_heads(axes) if name in self.sweeps else super().sweep(name, axes)

    def constraints(self, p: Namespace) -> Iterable[Constraint]:
        return (
            *super().constraints(p),
            Constraint("kv_heads_once", "write kv_heads=0 for as many key heads as query heads", p.kv_heads != p.heads),
            Constraint("whole_heads", "hidden must be a multiple of heads + 2 · kv_heads", mod(p.hidden, p.all_heads) == 0),
        )

    def derive(self, p: Namespace) -> Mapping[str, Expr]:
        kv = where(p.kv_heads == 0, p.heads, p.kv_heads)
        return {
            "all_heads": p.heads + 2 * kv,
            "each_kv_heads": kv,
            "head_dim": floor_div(p.hidden, p.heads + 2 * kv),
            "tiles": p.batch * padded_tiles(p.seq_len, p.hidden),
        }

    def sizes(self, p: Namespace) -> Mapping[str, Expr]:
        asked = shown(p, (*self.split_group, "heads"))
        return {**asked, "kv_heads": p.each_kv_heads, **shown(p, ("head_dim", "transpose_k"))}

    def own_features(self, p: Namespace, hw: Namespace) -> Mapping[str, Expr]:
        head_tiles = ceil_div(p.seq_len, TILE) * ceil_div(p.head_dim, TILE)
        return {
            "group_size": p.heads / p.each_kv_heads,
            "query_tiles": p.batch * p.heads * head_tiles,
            "key_tiles": p.batch * p.each_kv_heads * head_tiles,
            "transposed_tiles": p.transpose_k * p.batch * p.each_kv_heads * head_tiles,
        }


create_qkv_heads = CreateQkvHeads()
