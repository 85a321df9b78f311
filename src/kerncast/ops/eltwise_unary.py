"""One function of each element of a tiled tensor (TTNN's unary ops)."""

from __future__ import annotations

from collections.abc import Mapping

from kerncast.expr import Expr, Namespace
from kerncast.ops.ttnn import MEMORY, MOST, TiledOp, memory_parameters, one_tensor, padded_tiles, shown
from kerncast.parameters import Categorical, Int

FUNCTIONS = {"exp": 0, "relu": 1, "gelu": 2, "sqrt": 3, "sigmoid": 4, "tanh": 5, "log": 6, "sin": 7, "cos": 8, "abs": 9,
             "neg": 10, "square": 11, "rsqrt": 12, "reciprocal": 13, "silu": 14, "erf": 15}  # fmt: skip
"""Append, never renumber: the codes are part of datasets and models."""
DIMENSIONS = ("dim0", "dim1", "dim2", "dim3")


class EltwiseUnary(TiledOp):
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
    json = one_tensor(DIMENSIONS)
    split_group = DIMENSIONS

    def derive(self, p: Namespace) -> Mapping[str, Expr]:
        return {"tiles": p.dim0 * p.dim1 * padded_tiles(p.dim2, p.dim3)}

    def line_size(self, p: Namespace) -> Expr:
        return p.tiles

    line_group = ("func", *MEMORY)

    def sizes(self, p: Namespace) -> Mapping[str, Expr]:
        return shown(p, (*DIMENSIONS, "func"))

    def features(self, p: Namespace, hw: Namespace) -> Mapping[str, Expr]:
        return {**super().features(p, hw), "bytes": self.work(p).bytes}


eltwise_unary = EltwiseUnary()
