"""One function of each element of a tiled tensor (TTNN's unary ops)."""

from __future__ import annotations

from collections.abc import Mapping

from kerncast.dtypes import bytes_per_element, dtype_parameter
from kerncast.expr import Expr, Namespace, ceil_div, log2
from kerncast.op import Op, Work
from kerncast.parameters import Categorical, Int

TILE = 32  # Tensix hardware works on 32 × 32 tiles; edges are padded up


class EltwiseUnary(Op):
    name = "eltwise_unary"
    doc = "one function of each element of a tensor of up to four dimensions, in 32 × 32 tiles"
    parameters = {
        "func": Categorical({"exp": 0}, doc="the function"),
        # Right-aligned and padded with 1, so rank 2 and rank 4 of one tensor are one problem.
        "dim0": Int(1, 2**31 - 1, default=1),
        "dim1": Int(1, 2**31 - 1, default=1),
        "dim2": Int(1, 2**31 - 1, default=1),
        "dim3": Int(1, 2**31 - 1),
        "dtype": dtype_parameter("bf16", "fp32", "uint32", "bfp8", "bfp4", "uint8", "uint16", "int32"),
        "buffer": Categorical({"dram": 0, "l1": 1}, doc="memory that holds input and output"),
    }
    split_group = ("dim0", "dim1", "dim2", "dim3")

    def derive(self, p: Namespace) -> Mapping[str, Expr]:
        return {"tiles": p.dim0 * p.dim1 * ceil_div(p.dim2, TILE) * ceil_div(p.dim3, TILE)}

    def work(self, p: Namespace) -> Work:
        elements = p.tiles * TILE * TILE
        return Work(flops=elements, bytes=2 * elements * bytes_per_element(p.dtype))

    def features(self, p: Namespace, hw: Namespace) -> Mapping[str, Expr]:
        cores = hw.grid_x * hw.grid_y
        tiles_per_core = ceil_div(p.tiles, cores)
        return {
            "dim0": p.dim0,
            "dim1": p.dim1,
            "dim2": p.dim2,
            "dim3": p.dim3,
            "func": p.func,
            "dtype": p.dtype,
            "buffer": p.buffer,
            "tiles": p.tiles,
            "log2_tiles": log2(p.tiles),
            "tiles_per_core": tiles_per_core,
            "core_fill": p.tiles / (tiles_per_core * cores),
            "padding": p.dim0 * p.dim1 * p.dim2 * p.dim3 / (p.tiles * TILE * TILE),
            "bytes": self.work(p).bytes,
        }


eltwise_unary = EltwiseUnary()
