"""A matmul whose first operand is height-sharded over the cores of a grid (TTNN)."""

from __future__ import annotations

from collections.abc import Mapping

from kerncast.expr import Expr, Namespace, ceil_div, log2
from kerncast.op import Op, Work
from kerncast.parameters import Int

TILE = 32


class MatmulSharded(Op):
    name = "matmul_sharded"
    doc = "C[M, N] = A[M, K] · B[K, N], A and C height-sharded over `num_cores` cores"
    parameters = {
        "M": Int(1, 2**31 - 1),
        "K": Int(1, 2**31 - 1),
        "N": Int(1, 2**31 - 1),
        "num_cores": Int(1, 1024, doc="cores that share the rows of A"),
    }
    split_group = ("M", "K", "N")

    def derive(self, p: Namespace) -> Mapping[str, Expr]:
        return {
            "M_tiles": ceil_div(p.M, TILE),
            "K_tiles": ceil_div(p.K, TILE),
            "N_tiles": ceil_div(p.N, TILE),
            "M_tiles_per_core": ceil_div(ceil_div(p.M, TILE), p.num_cores),
        }

    def work(self, p: Namespace) -> Work:
        return Work(flops=2 * p.M * p.N * p.K, bytes=2 * (p.M * p.K + p.K * p.N + p.M * p.N))

    def features(self, p: Namespace, hw: Namespace) -> Mapping[str, Expr]:
        per_core = p.M_tiles_per_core * p.K_tiles * p.N_tiles
        return {
            "M": p.M,
            "K": p.K,
            "N": p.N,
            "num_cores": p.num_cores,
            "M_tiles_per_core": p.M_tiles_per_core,
            "K_tiles": p.K_tiles,
            "N_tiles": p.N_tiles,
            "tile_products_per_core": per_core,
            "log2_tile_products_per_core": log2(per_core),
            "weight_tiles": p.K_tiles * p.N_tiles,
            "output_tiles_per_core": p.M_tiles_per_core * p.N_tiles,
        }


matmul_sharded = MatmulSharded()
