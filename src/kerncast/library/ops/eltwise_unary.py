"""One function of each element of a tiled tensor (TTNN's unary ops)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from kerncast.core.expr import Expr, Namespace
from kerncast.core.op import Suite
from kerncast.core.parameters import Categorical, Int, Value
from kerncast.library.ops.ttnn import MEMORY, MOST, TiledOp, memory_parameters, one_tensor, padded_tiles, shown

FUNCTIONS = {"exp": 0, "relu": 1, "gelu": 2, "sqrt": 3, "sigmoid": 4, "tanh": 5, "log": 6, "sin": 7, "cos": 8, "abs": 9,
             "neg": 10, "square": 11, "rsqrt": 12, "reciprocal": 13, "silu": 14, "erf": 15, "acos": 16, "acosh": 17, "asin": 18,
             "asinh": 19, "atan": 20, "atanh": 21, "cbrt": 22, "ceil": 23, "cosh": 24, "deg2rad": 25, "digamma": 26, "elu": 27,
             "eqz": 28, "erfc": 29, "erfinv": 30, "exp2": 31, "expm1": 32, "floor": 33, "frac": 34, "gez": 35, "gtz": 36,
             "hardshrink": 37, "hardsigmoid": 38, "hardswish": 39, "hardtanh": 40, "i0": 41, "identity": 42, "isfinite": 43,
             "isinf": 44, "isnan": 45, "isneginf": 46, "isposinf": 47, "leaky_relu": 48, "lez": 49, "lgamma": 50, "log10": 51,
             "log1p": 52, "log2": 53, "log_sigmoid": 54, "logical_not": 55, "logit": 56, "ltz": 57, "mish": 58, "nez": 59,
             "rad2deg": 60, "relu6": 61, "selu": 62, "sigmoid_accurate": 63, "sign": 64, "signbit": 65, "sinh": 66,
             "softplus": 67, "softsign": 68, "swish": 69, "tan": 70, "tanhshrink": 71, "trunc": 72}  # fmt: skip
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
    aliases = {name: {"func": name} for name in FUNCTIONS} | {f"ttnn.{name}": {"func": name} for name in FUNCTIONS}
    json = one_tensor(DIMENSIONS)
    split_group = DIMENSIONS

    sweeps = {
        "published": "900 random shapes each of two, three and four dimensions, five dtypes, DRAM and L1; func=exp by default"
    }

    def sweep(self, name: str, axes: Mapping[str, Sequence[Value]]) -> Iterator[Suite]:
        from kerncast.library.ops import ttnn_suites

        return ttnn_suites.eltwise_unary(axes) if name in self.sweeps else super().sweep(name, axes)

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
