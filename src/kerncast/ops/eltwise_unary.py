"""One function of each element of a tiled tensor (TTNN's unary ops)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kerncast.expr import Expr, Namespace, log2
from kerncast.op import Op, Work
from kerncast.ops.ttnn import (
    MOST,
    memory_features,
    memory_parameters,
    output_constraints,
    output_fields,
    padded_tiles,
    tensor_fields,
    tile_features,
    tile_work,
)
from kerncast.parameters import Categorical, Int
from kerncast.space import Constraint

FUNCTIONS = {"exp": 0, "relu": 1, "gelu": 2, "sqrt": 3, "sigmoid": 4, "tanh": 5, "log": 6, "sin": 7, "cos": 8, "abs": 9,
             "neg": 10, "square": 11, "rsqrt": 12, "reciprocal": 13, "silu": 14, "erf": 15}  # fmt: skip
"""Append, never renumber: the codes are part of datasets and models."""
DIMENSIONS = ("dim0", "dim1", "dim2", "dim3")


class EltwiseUnary(Op):
    name = "eltwise_unary"
    doc = "one function of each element of a tensor of up to four dimensions, in 32 × 32 tiles"
    parameters = {
        "func": Categorical(FUNCTIONS, doc="the function"),
        # Right-aligned and padded with 1, so rank 2 and rank 4 of one tensor are one problem.
        "dim0": Int(1, MOST, default=1),
        "dim1": Int(1, MOST, default=1),
        "dim2": Int(1, MOST, default=1),
        "dim3": Int(1, MOST),
        **memory_parameters(),
    }
    aliases = {name: {"func": name} for name in FUNCTIONS}
    json = (*tensor_fields("tensor", DIMENSIONS), *output_fields())
    split_group = DIMENSIONS

    def constraints(self, p: Namespace) -> Iterable[Constraint]:
        return output_constraints(p)

    def derive(self, p: Namespace) -> Mapping[str, Expr]:
        return {"tiles": p.dim0 * p.dim1 * padded_tiles(p.dim2, p.dim3)}

    def work(self, p: Namespace) -> Work:
        return tile_work(p)

    def line_size(self, p: Namespace) -> Expr:
        return p.tiles

    line_group = ("func", "dtype", "buffer", "layout", "sharding", "out_buffer", "out_sharding")

    def features(self, p: Namespace, hw: Namespace) -> Mapping[str, Expr]:
        return {
            **{name: getattr(p, name) for name in DIMENSIONS},
            "func": p.func,
            **memory_features(p),
            "tiles": p.tiles,
            "log2_tiles": log2(p.tiles),
            **tile_features(p, hw, p.tiles, p.dim0 * p.dim1 * p.dim2 * p.dim3),
            "bytes": self.work(p).bytes,
        }


eltwise_unary = EltwiseUnary()
